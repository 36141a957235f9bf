//! Threads allocate, resize, pass on and free blocks at random for TENURE_SOAK_SECONDS,
//! and compare every byte; without a limit, and in a cgroup.

#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "tests use blocks that they have allocated themselves"
)]

#[path = "../../tenure/tests/common/mod.rs"]
mod common;
mod heap;

use std::sync::mpsc::{self, Receiver, SyncSender};
use std::thread;
use std::time::{Duration, Instant};

use common::cgroup::{Group, enter_group};
use common::*;
use fastrand::Rng;
use heap::*;
use libtest_mimic::Completion;
use tenure_heap::{HeapOptions, stats};

tests!(
    [thorough] random_calls_keep_contents,
    [thorough] random_calls_at_cgroup_limit_keep_contents;
    children:
    soak_freely,
    soak_at_a_limit,
);

const THREADS: usize = 6;
const LIMIT: usize = 320 * MIB;

fn seconds() -> f64 {
    let given = std::env::var("TENURE_SOAK_SECONDS").ok();
    given.map_or(3.0, |seconds| seconds.parse().expect("a number of seconds"))
}

fn random_calls_keep_contents() {
    in_child_ok("soak_freely");
}

fn soak_freely() {
    soak(60 * MIB);
}

fn random_calls_at_cgroup_limit_keep_contents() -> Completion {
    match Group::with_limit(LIMIT).and_then(Group::without_swap) {
        Ok(group) => group.run("soak_at_a_limit"),
        Err(why) => return skip(&why),
    }
    Completion::Completed
}

fn soak_at_a_limit() {
    enter_group();
    // Three quarters of the limit are live.
    soak(LIMIT / 4 * 3 / THREADS);
}

/// Each thread has blocks of at most `bytes_each` bytes, and passes some to the next
/// one.
fn soak(bytes_each: usize) {
    tenure_heap::start(HeapOptions {
        dirty_decay: Duration::from_millis(50),
        muzzy_decay: Duration::from_millis(100),
        ..HeapOptions::default()
    })
    .unwrap();
    let until = Instant::now() + Duration::from_secs_f64(seconds());
    let (give, mut take): (Vec<_>, Vec<_>) = (0..THREADS).map(|_| mpsc::sync_channel(1)).unzip();
    take.rotate_left(1);
    let threads: Vec<_> = give
        .into_iter()
        .zip(take)
        .enumerate()
        .map(|(seed, (give, take))| {
            thread::spawn(move || churn(seed as u64, until, bytes_each, &give, &take))
        })
        .collect();
    let calls: usize = threads
        .into_iter()
        .map(|thread| thread.join().unwrap())
        .sum();
    println!("{calls} calls, {:?}", stats());
    assert!(stats().live_bytes < MIB, "{:?}", stats());
}

fn churn(
    seed: u64,
    until: Instant,
    max_bytes: usize,
    give: &SyncSender<Block>,
    take: &Receiver<Block>,
) -> usize {
    let mut rng = Rng::with_seed(seed);
    let mut blocks: Vec<Block> = Vec::new();
    let mut calls = 0;
    while Instant::now() < until {
        calls += 1;
        let live: usize = blocks.iter().map(|block| block.size).sum();
        // A block that is passed on may be as large as all others together.
        let free_bytes = (max_bytes / 2).saturating_sub(live);
        let size = size(&mut rng).min(max_bytes / 8) & !7;
        match rng.usize(..10) {
            0..3 if free_bytes > size => {
                let mut block = Block::new(size);
                block.fill(rng.u64(..1 << 20));
                blocks.push(block);
            }
            3 if free_bytes > size => {
                let mut block = Block::zeroed(size);
                assert!(block.is_zero());
                block.fill(rng.u64(..1 << 20));
                blocks.push(block);
            }
            4 | 5 if !blocks.is_empty() && free_bytes > size => {
                let at = rng.usize(..blocks.len());
                let kept = blocks[at].size.min(size);
                blocks[at].resize(size);
                assert!(blocks[at].is_filled_up_to(kept));
                let seed = rng.u64(..1 << 20);
                blocks[at].fill(seed);
            }
            6 if !blocks.is_empty() => {
                let at = rng.usize(..blocks.len());
                // A block that no thread takes is freed.
                drop(give.try_send(blocks.swap_remove(at)));
            }
            7 => {
                if let Ok(block) = take.try_recv() {
                    assert!(block.is_filled());
                    if free_bytes > block.size {
                        blocks.push(block);
                    }
                }
            }
            8 if rng.usize(..20) == 0 => {
                blocks
                    .drain(..)
                    .for_each(|block| assert!(block.is_filled()));
            }
            _ if !blocks.is_empty() => {
                let at = rng.usize(..blocks.len());
                assert!(blocks.swap_remove(at).is_filled());
            }
            _ => {}
        }
    }
    calls
}

fn size(rng: &mut Rng) -> usize {
    match rng.usize(..20) {
        0..6 => rng.usize(1..20_000),
        6..12 => rng.usize(20_000..512 * KIB),
        12..18 => rng.usize(512 * KIB..2 * MIB),
        _ => rng.usize(2 * MIB..12 * MIB),
    }
}
