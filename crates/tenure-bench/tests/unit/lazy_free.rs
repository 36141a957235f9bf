use std::time::Duration;

use super::scale::{CHUNK_BYTES, HEAVIEST, max_bytes};
use super::*;
use crate::alone::alone;
use crate::fixture::sentences;
use crate::measure::{Headroom, once};

#[test]
fn every_way_finds_every_word() {
    alone(|| {
        let scale = Scale {
            steps: 1,
            before: Duration::from_millis(10),
            counted: Duration::from_millis(500),
            cells: vec![(1, 1), (2, 3)],
            note: None,
        };
        let group = Group::with_limit(limit_bytes(scale.steps)).map(Rc::new);
        let mut experiment = at_scale(scale, 1, group);
        let cases = once(&mut experiment);
        let names: Vec<_> = cases.iter().map(|case| case.name.as_str()).collect();
        assert_eq!(names, ["1.1", "2.3"]);
        let text = sentences("lazy_free", cases);
        assert!(
            text.starts_with("The rate of records without pressure (1.1) is "),
            "{text}"
        );
    });
}

fn scale(sizes: Sizes, headroom_mib: usize, is_limited: bool) -> Result<Scale> {
    let settings = Settings {
        seed: 1,
        is_named: true,
        sizes,
        headroom: Headroom::of_bytes(headroom_mib << 20),
    };
    Scale::of(&settings, is_limited)
}

#[test]
fn full_scale_is_that_of_the_reference() {
    let full = scale(Sizes::Full, 20 << 10, true).unwrap();
    assert_eq!(
        (8 * full.steps, limit_bytes(full.steps) >> 20),
        (512, 2048 + 32)
    );
    assert_eq!(full.cells.len(), 9);
    assert_eq!((full.cells[0], full.cells[8]), ((1, 1), HEAVIEST));
    assert_eq!(full.note, None);
}

#[test]
fn lazily_free_memory_outgrows_the_limit_with_the_heaviest_alone() {
    for sizes in [Sizes::Quick, Sizes::Medium, Sizes::Full] {
        let scale = scale(sizes, 20 << 10, true).unwrap();
        let is_within = |cell| max_bytes(scale.steps, cell) <= limit_bytes(scale.steps);
        assert!(is_within((1, 1)) && is_within((1, 8)));
        assert!(max_bytes(scale.steps, HEAVIEST) > 2 * limit_bytes(scale.steps));
        // The memory in use at any time fits.
        let in_use = HEAVIEST.0 * (8 * scale.steps + HEAVIEST.1) * CHUNK_BYTES;
        assert!(in_use < limit_bytes(scale.steps) / 4 * 3, "{in_use}");
    }
}

#[test]
fn scale_shrinks_to_the_headroom() {
    let small = scale(Sizes::Full, 600, true).unwrap();
    assert!(limit_bytes(small.steps) <= 450 << 20);
    assert!(small.note.unwrap().contains("MemAvailable leaves 600 MiB"));
    // Without a limit all blocks must fit.
    let unlimited = scale(Sizes::Full, 4 << 10, false).unwrap();
    assert!(max_bytes(unlimited.steps, HEAVIEST) <= 3 << 30);
    assert!(scale(Sizes::Quick, 60, true).is_err());
}
