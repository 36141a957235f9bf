//! Warm blocks that serve smaller requests: what is behind them is kept, within limits.

#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "tests use blocks that they have allocated themselves"
)]

#[path = "../../tenure/tests/common/mod.rs"]
mod common;
mod heap;

use common::*;
use heap::*;
use tenure_heap::stats;

tests!(
    the_block_freed_last_serves_what_is_smaller,
    what_is_kept_behind_blocks_is_limited;
    children:
    smaller,
    limited,
);

fn the_block_freed_last_serves_what_is_smaller() {
    in_child_ok("smaller");
}

fn smaller() {
    on_cpu(0, || {
        let large = Block::filled(MIB, 1);
        let at = large.at;
        drop(large);
        let mut small = Block::new(300 * KIB);
        assert_eq!(small.at, at);
        assert_eq!(stats().spare_bytes, MIB - 300 * KIB);
        // It grows into it, and what is counted is not counted twice.
        small.fill(2);
        assert!(small.resize(900 * KIB));
        assert!(small.at == at && small.is_filled_up_to(300 * KIB));
        drop(small);
        assert_eq!((stats().spare_bytes, stats().warm_bytes), (0, MIB));
        let zeros = Block::zeroed(400 * KIB);
        assert!(zeros.at == at && zeros.is_zero());
        drop(zeros);
        assert_eq!(stats().from_new, 1, "{:?}", stats());
        // One that is aligned is not taken from anywhere.
        let aligned = Block::aligned(256 * KIB, 256 * KIB);
        assert_ne!(aligned.at, at);
    });
}

fn what_is_kept_behind_blocks_is_limited() {
    in_child_ok("limited");
}

fn limited() {
    const COUNT: usize = 100;
    let before = Held::now().anonymous;
    let mut small = Vec::new();
    on_cpu(0, || {
        let large: Vec<_> = (0..COUNT).map(|_| Block::filled(MIB, 1)).collect();
        drop(large);
        let seeds = 0..COUNT as u64;
        small.extend(seeds.map(|seed| Block::filled(512 * KIB, seed)));
    });
    let now = stats();
    let allowed = most_spare_bytes(now.live_bytes) + MIB;
    assert!(now.spare_bytes > 0 && now.spare_bytes <= allowed, "{now:?}");
    assert!(small.iter().all(Block::is_filled));
    let held = Held::now().anonymous - before;
    assert!(held <= now.live_bytes + allowed + 4 * MIB, "{held} {now:?}");
}

/// A mebibyte for each CPU that there may be, of at least four, or a sixteenth.
fn most_spare_bytes(live_bytes: usize) -> usize {
    use rustix::thread::{CpuSet, sched_getaffinity};
    let cpus = sched_getaffinity(None).unwrap();
    let last = (0..CpuSet::MAX_CPU).rfind(|&cpu| cpus.is_set(cpu)).unwrap();
    ((last + 1).max(4) * MIB).max(live_bytes / 16)
}
