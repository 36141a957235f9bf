use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::thread;
use std::time::Duration;

use super::allocators::{Allocator, HEAP};
use super::rounds::{Rounds, Turn};
use super::scale::{GIB, MIB};
use super::*;
use crate::measure::{Headroom, once};
use crate::record;

#[test]
fn environment_loads_the_library_with_its_options() {
    let tenure = Allocator::preloaded(TENURE, "/lib/x.so").with(HEAP);
    let expected = [
        ("LD_PRELOAD", "/lib/x.so".into()),
        ("TENURE_HEAP", "1".into()),
    ];
    assert_eq!(tenure.environment, expected);
}

fn settings(sizes: Sizes, headroom_bytes: usize) -> Settings {
    Settings {
        seed: 1,
        sizes,
        is_named: true,
        headroom: Headroom::of_bytes(headroom_bytes),
    }
}

fn scale(sizes: Sizes, headroom_bytes: usize) -> Result<Scale> {
    Scale::of(&settings(sizes, headroom_bytes), 6)
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

#[test]
fn scale_of_loads_with_headroom_is_as_wanted() {
    for sizes in [Sizes::Medium, Sizes::Full] {
        let scale = LoadScale::of(&settings(sizes, 64 * GIB), 5).unwrap();
        assert_eq!(scale.phases.bytes, GIB / 5 * 7);
        assert_eq!(scale.touched_len, 4 * GIB);
        assert_eq!(scale.threads, [1, 2, 4, 8]);
        assert!(scale.notes.is_empty(), "{:?}", scale.notes);
    }
}

#[test]
fn scale_of_loads_with_little_headroom_shrinks_with_a_note() {
    let scale = LoadScale::of(&settings(Sizes::Medium, 600 * MIB), 5).unwrap();
    assert_eq!(scale.phases.bytes, 60 * MIB);
    assert_eq!(scale.touched_len, 150 * MIB);
    assert!(scale.entries.count <= 60 * MIB / 1024);
    assert!(scale.notes.iter().all(|note| note.starts_with("Size: ")));
    assert_eq!(scale.notes.len(), 4, "{:?}", scale.notes);
}

#[test]
fn blocks_of_all_sizes_have_cases_when_there_is_time() {
    let has = |sizes, is_named| {
        has_all_sizes(&Settings {
            is_named,
            ..settings(sizes, GIB)
        })
    };
    assert_eq!(
        [false, true].map(|named| has(Sizes::Quick, named)),
        [false; 2]
    );
    assert_eq!(
        [false, true].map(|named| has(Sizes::Medium, named)),
        [false, true]
    );
    assert_eq!(
        [false, true].map(|named| has(Sizes::Full, named)),
        [true; 2]
    );
}

/// Measures cases once, with the C library's malloc alone.
fn measured(make: fn(&LoadScale, &[Allocator]) -> Vec<Case>) -> Vec<record::Case> {
    let glibc = Allocator {
        name: GLIBC,
        environment: Vec::new(),
    };
    let scale = LoadScale::of(&settings(Sizes::Quick, 4 * GIB), 1).unwrap();
    once(&mut Experiment {
        title: String::new(),
        notes: Vec::new(),
        compared: cases::TIME,
        cases: make(&scale, &[glibc]),
    })
}

fn median(case: &record::Case, figure: &str) -> f64 {
    let figure = case.ways[0].figure(figure).unwrap();
    figure.series.median
}

#[test]
fn stages_tell_time_and_memory_and_what_is_kept() {
    let cases = measured(stages::cases);
    let of_table = |start: &str| -> Vec<&record::Case> {
        let cases = cases.iter();
        cases.filter(|case| case.table.starts_with(start)).collect()
    };
    for (start, stages, programs, least) in [
        ("Phases of 64 MiB in 2 threads", 3, 2, 60e6),
        ("A table of 20,000 keys", 1, 1, 10e6),
        ("500,000 objects, of which 20,000 live", 1, 1, 5e6),
    ] {
        let cases = of_table(start);
        assert_eq!(cases.len(), (stages + 1) * programs, "{start}");
        for program in cases.chunks(stages + 1) {
            let (moment, stages) = program.split_last().unwrap();
            assert_eq!(moment.name, "200 ms after");
            assert!(median(moment, "RSS") > 1e6);
            for stage in stages {
                assert!(median(stage, "time") > 0.0);
                assert!(median(stage, "peak RSS") > least, "{start}");
                assert!(median(stage, "RSS") <= median(stage, "peak RSS") * 1.1);
            }
        }
    }
}

#[test]
fn loads_tell_blocks_a_second_with_each_number_of_threads() {
    let cases = measured(loads::cases);
    // The two in which threads pass blocks on need two of them.
    assert_eq!(cases.len(), 3 * 2 + 2);
    for case in &cases {
        assert!(median(case, loads::OPERATIONS) > 0.0, "{}", case.place());
    }
}
