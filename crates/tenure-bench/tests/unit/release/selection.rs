use super::*;
use crate::experiments::release::{percentiles, ways::PARALLEL};
use crate::measure::Headroom;

fn select(sizes: Sizes, headroom: usize) -> Selection {
    let settings = Settings {
        seed: 1,
        is_named: true,
        sizes,
        headroom: Headroom::of_bytes(headroom),
    };
    match sizes {
        Sizes::Quick => Selection::quick(&settings),
        Sizes::Medium | Sizes::Full => Selection::large(&settings),
    }
    .unwrap()
}

fn names<'a>(selection: &'a Selection, table: &str) -> Vec<&'a str> {
    let cases = selection.cases.iter().filter(|case| case.table == table);
    cases.map(|case| case.name.as_str()).collect()
}

fn has(selection: &Selection, name: &str) -> bool {
    selection.cases.iter().any(|case| case.name == name)
}

#[test]
fn medium_sizes_have_blocks_ranges_waits_and_a_killed_process() {
    let selection = select(Sizes::Medium, 24 * GIB);
    let unmapped = names(&selection, UNMAP);
    assert_eq!(unmapped[0], "unmap 16 blocks of 64 MiB");
    let ranges = ["unmap 64 MiB", "unmap 1 GiB", "unmap 4 GiB", "unmap 8 GiB"];
    assert_eq!(unmapped[1..5], ranges);
    assert_eq!(names(&selection, OTHERS)[0], "unmap 4 GiB");
    assert!(has(&selection, "unmap 8 GiB and 1 GiB"));
    assert!(has(&selection, "kill a process with 4 GiB"));
    assert_eq!(names(&selection, sparse::TABLE).len(), 3);
    let repeated = names(&selection, percentiles::TABLE);
    assert_eq!(repeated[0], "unmap 64 MiB, 400 times");
    assert_eq!(repeated.len(), 3);
}

#[test]
fn little_memory_makes_the_sizes_smaller_and_is_noted() {
    let selection = select(Sizes::Medium, GIB / 2);
    assert!(selection.notes[0].starts_with("Size: 256 MiB instead of 8 GiB"));
    let unmapped = names(&selection, UNMAP);
    assert_eq!(unmapped[0], "unmap 16 blocks of 16 MiB");
    assert_eq!(unmapped[1..3], ["unmap 64 MiB", "unmap 256 MiB"]);
    assert!(has(&selection, "unmap 256 MiB and 32 MiB"));
    assert!(has(&selection, "kill a process with 256 MiB"));
}

#[test]
fn full_sizes_go_to_the_largest_that_fits_with_all_threads() {
    let selection = select(Sizes::Full, GIB / 2);
    let unmapped = names(&selection, UNMAP);
    let ranges = ["unmap 64 MiB", "unmap 256 MiB", "unmap 384 MiB"];
    assert_eq!(unmapped[1..4], ranges);
    let ways = &selection.cases[3].ways;
    let is_parallel = |way: &&Way| way.name.starts_with("in chunks, ");
    assert_eq!(ways.iter().filter(is_parallel).count(), PARALLEL.len());
}

#[test]
fn quick_sizes_have_two_cases() {
    let selection = select(Sizes::Quick, 24 * GIB);
    assert_eq!(names(&selection, ""), ["unmap 4 GiB", "discard 1 GiB"]);
}
