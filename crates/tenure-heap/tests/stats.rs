//! The heap's figures, by groups of sizes, for the program itself and for other processes.

#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "tests use blocks that they have allocated themselves"
)]

#[path = "../../tenure/tests/common/mod.rs"]
mod common;
mod heap;

use common::*;
use heap::*;
use tenure::{HeapGroup, Stats};
use tenure_heap::{HeapOptions, HeapStats, stats};

tests!(
    groups_have_the_blocks_of_their_sizes,
    groups_of_free_memory_add_up,
    figures_of_small_heap_are_in_the_counters,
    figures_are_published_to_other_processes,
    child_keeps_gauges_and_counts_from_zero;
    children:
    blocks_of_three_groups,
    free_memory,
    small_heap,
    published,
    inherited,
);

fn groups(stats: &HeapStats) -> [HeapGroup; 3] {
    [stats.small, stats.medium, stats.large]
}

fn sum(groups: [HeapGroup; 3], figure: fn(&HeapGroup) -> u64) -> usize {
    groups.iter().map(|group| figure(group) as usize).sum()
}

fn blocks(size: usize, count: u64) -> Vec<Block> {
    (0..count).map(|seed| Block::filled(size, seed)).collect()
}

/// Starts a heap in which free pages stay as they are.
fn start_without_decay() {
    let forever = std::time::Duration::from_secs(100_000);
    tenure_heap::start(HeapOptions {
        dirty_decay: forever,
        muzzy_decay: forever,
        ..HeapOptions::default()
    })
    .unwrap();
}

fn groups_have_the_blocks_of_their_sizes() {
    in_child_ok("blocks_of_three_groups");
}

fn blocks_of_three_groups() {
    start_without_decay();
    let before = groups(&stats()).map(|group| group.in_use_bytes as usize);
    let sizes = [(1 << 10, 20_000), (1_234_567, 10), (11_111_111, 3)];
    let mut all = Vec::new();
    for (number, (size, count)) in sizes.into_iter().enumerate() {
        all.push(blocks(size, count as u64));
        let now = stats();
        let groups = groups(&now);
        let in_use = groups.map(|group| group.in_use_bytes as usize);
        for (group, (size, count)) in sizes.into_iter().enumerate() {
            let bytes = if group > number { 0 } else { size * count };
            let figure = in_use[group] - before[group];
            // Small blocks are as large as their class; the others are divided between two
            // groups, of which the medium one is the smaller.
            let is_near = figure.abs_diff(bytes) <= [MIB, 2 * MIB, 2 * MIB][group];
            assert!(is_near, "group {group}: {figure} for {bytes}: {now:?}");
        }
        let whole = sum(groups, |group| group.in_use_bytes);
        assert_eq!(whole, now.live_bytes + now.cached_bytes, "{now:?}");
    }
}

fn groups_of_free_memory_add_up() {
    in_child_ok("free_memory");
}

fn free_memory() {
    start_without_decay();
    let kept: Vec<_> = (0..20)
        .map(|seed| {
            let freed = Block::filled(1_500_000, seed);
            (Block::filled(1000 * KIB, seed), freed).0
        })
        .collect();
    drop(Block::filled(30 * MIB, 1));
    // Pages are counted nowhere while they are purged, and pressure may purge them any time.
    let adds_up = || {
        let now = stats();
        let of_groups = |figure| sum(groups(&now), figure);
        let free = |group: HeapGroup| {
            (group.dirty_bytes + group.muzzy_bytes + group.retained_bytes) as usize
        };
        free(now.medium) >= MIB
            && free(now.large) >= 30 * MIB
            && of_groups(|group| group.dirty_bytes) == now.dirty_bytes
            && of_groups(|group| group.muzzy_bytes) == now.muzzy_bytes
            && of_groups(|group| group.retained_bytes) == now.retained_bytes
    };
    assert!(comes_true(adds_up), "{:?}", stats());
    tenure_heap::trim();
    let now = stats();
    assert!(now.returned_bytes >= 29 * MIB, "{now:?}");
    assert!(now.large.retained_bytes as usize >= 29 * MIB, "{now:?}");
    assert!(kept.iter().all(Block::is_filled));
}

fn figures_of_small_heap_are_in_the_counters() {
    in_child_ok("small_heap");
}

fn small_heap() {
    let live = blocks(1000, 500);
    // Reading them computes them, also without a decay thread.
    let now = tenure::stats();
    assert!(now.heap_small.in_use_bytes >= 500_000, "{now:?}");
    assert!(
        now.heap_active_bytes >= now.heap_small.in_use_bytes,
        "{now:?}"
    );
    assert_eq!(now.heap_returned_bytes, 0);
    assert!(live.iter().all(Block::is_filled));
}

fn figures_are_published_to_other_processes() {
    in_child_ok("published");
}

/// Reads this process's figures as another one would.
fn from_outside() -> Stats {
    Stats::of_process(std::process::id()).unwrap().unwrap()
}

fn published() {
    tenure_heap::start(HeapOptions {
        dirty_decay: std::time::Duration::ZERO,
        muzzy_decay: std::time::Duration::ZERO,
        ..HeapOptions::default()
    })
    .unwrap();
    let kept = [Block::filled(9 * MIB, 1), Block::filled(MIB, 2)];
    // The first block that is freed starts the decay thread.
    drop(Block::filled(20 * MIB, 3));
    let is_published = || {
        let now = from_outside();
        let in_use = now.heap_large.in_use_bytes + now.heap_medium.in_use_bytes;
        let is_returned = now.heap_returned_bytes as usize >= 19 * MIB;
        is_returned && in_use as usize >= 10 * MIB && now.heap_max_dirty_bytes > 0
    };
    assert!(comes_true(is_published), "{:?}", from_outside());
    assert!(kept.iter().all(Block::is_filled));
}

fn child_keeps_gauges_and_counts_from_zero() {
    in_child_ok("inherited");
}

fn inherited() {
    let kept = Block::filled(30 * MIB, 1);
    drop(Block::filled(20 * MIB, 2));
    tenure_heap::trim();
    // Threads' caches are blocks as well.
    let has_block = |stats: &Stats| stats.heap_large.in_use_bytes as usize >= 29 * MIB;
    let before = tenure::stats();
    assert!(has_block(&before), "{before:?}");
    assert!(
        before.heap_returned_bytes as usize >= 19 * MIB,
        "{before:?}"
    );
    let status = fork(|| {
        let seen = from_outside();
        assert!(has_block(&seen), "{seen:?}");
        assert_eq!((seen.heap_returned_bytes, seen.heap_pending_bytes), (0, 0));
        let own = tenure::stats();
        assert!(has_block(&own), "{own:?}");
        assert_eq!(own.heap_returned_bytes, 0);
        0
    });
    assert_eq!(status, 0);
    assert!(kept.is_filled());
}
