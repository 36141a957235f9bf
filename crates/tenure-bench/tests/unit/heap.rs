use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::thread;
use std::time::Duration;

use super::allocators::{Allocator, HEAP};
use super::rounds::{Rounds, Turn};
use super::scale::{GIB, MIB};
use super::*;
use crate::measure::{Headroom, once};

#[test]
fn environment_loads_the_library_with_its_options() {
    let tenure = Allocator::preloaded(TENURE, "/lib/x.so").with(HEAP);
    let expected = [
        ("LD_PRELOAD", "/lib/x.so".into()),
        ("TENURE_HEAP", "1".into()),
    ];
    assert_eq!(tenure.environment, expected);
}

fn scale(sizes: Sizes, headroom_bytes: usize) -> Result<Scale> {
    let settings = Settings {
        seed: 1,
        sizes,
        headroom: Headroom::of_bytes(headroom_bytes),
    };
    Scale::of(&settings, 6)
}

#[test]
fn scale_with_headroom_is_as_wanted() {
    for sizes in [Sizes::Medium, Sizes::Full] {
        let scale = scale(sizes, 64 * GIB).unwrap();
        assert_eq!(scale.search.chunks, 512);
        assert_eq!(scale.threads, [1, 2, 4, 8]);
        assert_eq!(scale.freed_len, 4 * GIB);
        assert!(scale.moments.contains(&Duration::from_secs(2)));
        assert_eq!(scale.burst.burst_bytes, 4 * scale.burst.live_bytes);
        assert!(scale.notes.is_empty(), "{:?}", scale.notes);
    }
}

#[test]
fn scale_with_little_headroom_shrinks_with_a_note() {
    let scale = scale(Sizes::Medium, 600 * MIB).unwrap();
    assert_eq!(scale.freed_len, 450 * MIB);
    assert!(6 * (scale.burst.live_bytes + scale.burst.burst_bytes) <= 450 * MIB);
    assert_eq!(scale.grown_len, 128 * MIB, "a power of two");
    assert!(scale.notes.iter().all(|note| note.starts_with("Size: ")));
    assert_eq!(scale.notes.len(), 4, "{:?}", scale.notes);
}

#[test]
fn limit_leaves_headroom_beside_live_memory() {
    assert!(Scale::limit_bytes(128 * MIB) > 165 * MIB);
}

#[test]
fn rounds_give_each_allocator_its_turn_and_each_case_its_part() {
    let allocator = |name| Allocator {
        name,
        environment: Vec::new(),
    };
    let busy = AtomicUsize::new(0);
    let watch = move |allocator: &Allocator, turn: Turn| {
        ensure!(busy.fetch_add(1, SeqCst) == 0, "another is not idle");
        thread::sleep(Duration::from_millis(5));
        busy.fetch_sub(1, SeqCst);
        drop(turn);
        let part = |number| vec![("figure", Unit::Count, number)];
        Ok(vec![part(allocator.name.len() as f64), part(9.0)])
    };
    let rounds = Rounds::new(&[allocator(GLIBC), allocator("abc")], watch);
    let parts = ["first", "second"].map(|name| (name.to_owned(), "figure"));
    let cases = rounds.cases("", parts.to_vec());
    let cases = once(&mut Experiment {
        title: String::new(),
        notes: Vec::new(),
        compared: "figure",
        cases,
    });
    let median = |case: usize, way: usize| cases[case].ways[way].figures[0].series.median;
    let medians = [(0, 0), (0, 1), (1, 0), (1, 1)].map(|(case, way)| median(case, way));
    assert_eq!(medians, [5.0, 3.0, 9.0, 9.0]);
}
