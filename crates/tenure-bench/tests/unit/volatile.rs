use super::*;
use crate::alone::alone;
use crate::fixture::sentences;
use crate::measure::{Headroom, once};

#[test]
fn volatile_ways_pass_their_own_checks() {
    alone(|| {
        let settings = Settings {
            seed: 1,
            is_named: true,
            sizes: Sizes::Quick,
            headroom: Headroom::of_bytes(64 << 20),
        };
        let mut experiment = experiment(&settings).unwrap();
        let cases = once(&mut experiment);
        let of_table = |title| {
            cases
                .iter()
                .filter(move |case| case.table.starts_with(title))
        };
        assert_eq!(of_table("Each thread").count(), 2);
        assert_eq!(of_table("Unmark offered buffers").count(), 2);
        assert!(of_table("Hits").count() >= 2);
        assert_eq!(of_table("What a buffer").count(), 1);
        assert_eq!(of_table("Other threads").count(), 1);
        let ranges = cases
            .iter()
            .filter(|case| case.name == "purge" || case.name == "unmark");
        assert_eq!(ranges.count(), 3);
        let text = sentences("volatile", cases);
        assert!(
            text.contains("To refill chunks in 2 threads takes "),
            "{text}"
        );
        assert!(text.contains(" with a VolatileBuffer "), "{text}");
    });
}

#[test]
fn volatile_sizes_with_little_headroom_shrink_with_a_note() {
    let settings = Settings {
        seed: 1,
        is_named: true,
        sizes: Sizes::Medium,
        headroom: Headroom::of_bytes(256 << 20),
    };
    let experiment = experiment(&settings).unwrap();
    let told = experiment
        .notes
        .iter()
        .filter(|note| note.starts_with("Size: "));
    assert_eq!(told.count(), 6);
    let has = |name: &str| experiment.cases.iter().any(|case| case.name == name);
    assert!(has("10,000 others") && !has("100,000 others"));
    assert!(has("16 MiB") && has("64 MiB") && !has("1 GiB"));
}
