//! Dirty blocks that serve smaller requests, and the limit on the slack behind them.

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
    last_freed_block_serves_smaller_request,
    slack_bytes_are_limited;
    children:
    smaller,
    limited,
);

fn last_freed_block_serves_smaller_request() {
    in_child_ok("smaller");
}

fn smaller() {
    on_cpu(0, || {
        let large = Block::filled(MIB, 1);
        let at = large.at;
        drop(large);
        let mut small = Block::new(300 * KIB);
        assert_eq!(small.at, at);
        assert_eq!(stats().slack_bytes, MIB - 300 * KIB);
        // The block grows into its slack, which is not counted twice.
        small.fill(2);
        assert!(small.resize(900 * KIB));
        assert!(small.at == at && small.is_filled_up_to(300 * KIB));
        drop(small);
        assert_eq!((stats().slack_bytes, stats().dirty_bytes), (0, MIB));
        let zeros = Block::zeroed(400 * KIB);
        assert!(zeros.at == at && zeros.is_zero());
        drop(zeros);
        assert_eq!(stats().from_new, 1, "{:?}", stats());
        // A request with a large alignment is not served from slack.
        let aligned = Block::aligned(256 * KIB, 256 * KIB);
        assert_ne!(aligned.at, at);
    });
}

fn slack_bytes_are_limited() {
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
    // The decay thread may have set the limit last while all large blocks were live.
    let allowed = max_slack_bytes(COUNT * MIB) + MIB;
    assert!(now.slack_bytes > 0 && now.slack_bytes <= allowed, "{now:?}");
    assert!(small.iter().all(Block::is_filled));
    let held = Held::now().anonymous - before;
    // The large blocks that were freed and not used again stay dirty until they decay.
    let accounted = now.live_bytes + now.slack_bytes + now.dirty_bytes;
    assert!(held <= accounted + 4 * MIB, "{held} {now:?}");
}

/// A MiB for each CPU, at least four, or a sixteenth of the live bytes.
fn max_slack_bytes(live_bytes: usize) -> usize {
    use rustix::thread::{CpuSet, sched_getaffinity};
    let cpus = sched_getaffinity(None).unwrap();
    let last = (0..CpuSet::MAX_CPU).rfind(|&cpu| cpus.is_set(cpu)).unwrap();
    ((last + 1).max(4) * MIB).max(live_bytes / 16)
}
