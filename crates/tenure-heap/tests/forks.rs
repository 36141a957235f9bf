//! fork at any time while threads allocate: the child has all live blocks and a working
//! heap; blocks in flight in other threads are lost to it.

#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "tests use blocks that they have allocated themselves"
)]

#[path = "../../tenure/tests/common/mod.rs"]
mod common;
mod heap;

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use common::*;
use fastrand::Rng;
use heap::*;
use tenure_heap::{HeapOptions, stats};

tests!(
    blocks_after_fork_are_intact_in_child,
    child_after_fork_starts_own_decay_thread,
    free_in_child_of_vfork_starts_no_thread,
    fork_during_allocations_leaves_child_consistent,
    blocks_in_grandchild_are_intact;
    children:
    decay_thread_in_child,
    frees_after_vfork,
    fork_while_allocating,
);

fn blocks_after_fork_are_intact_in_child() {
    let blocks: Vec<_> = (0..30).map(|seed| Block::filled(MIB, seed)).collect();
    drop(Block::filled(MIB, 99));
    let status = fork(|| {
        assert!(blocks.iter().all(Block::is_filled));
        assert!(Block::zeroed(MIB).is_zero());
        let more: Vec<_> = (0..30).map(|seed| Block::filled(MIB, 100 + seed)).collect();
        assert!(blocks.iter().chain(&more).all(Block::is_filled));
        drop((more, blocks));
        0
    });
    assert_eq!(status, 0);
}

fn child_after_fork_starts_own_decay_thread() {
    in_child_ok("decay_thread_in_child");
}

fn decay_thread_in_child() {
    drop(
        (0..40)
            .map(|seed| Block::filled(MIB, seed))
            .collect::<Vec<_>>(),
    );
    let status = fork(|| {
        // The parent's dirty blocks are found once the child has some of its own.
        drop(
            (0..20)
                .map(|seed| Block::filled(2 * MIB, seed))
                .collect::<Vec<_>>(),
        );
        let is_empty = || stats().dirty_bytes + stats().muzzy_bytes < MIB;
        assert!(comes_true(is_empty), "{:?}", stats());
        0
    });
    assert_eq!(status, 0);
}

fn free_in_child_of_vfork_starts_no_thread() {
    in_child_ok("frees_after_vfork");
}

fn frees_after_vfork() {
    tenure_heap::start(HeapOptions {
        dirty_decay: Duration::from_millis(50),
        muzzy_decay: Duration::ZERO,
        ..HeapOptions::default()
    })
    .unwrap();
    // The heap has grown, and nothing was freed yet.
    let mut blocks: Vec<_> = (0..40).map(|seed| Block::filled(MIB, seed)).collect();
    let first = blocks.swap_remove(0).leak();
    let mut status = 0;
    // As by vfork(2): the child has this memory, and this thread waits for its end.
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
    let mut stack = vec![0_u8; 256 * KIB];
    unsafe {
        let end = stack.as_mut_ptr_range().end;
        let child = libc::clone(free_and_exit, end.cast(), flags, first.cast());
        assert!(child > 0, "{}", std::io::Error::last_os_error());
        assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
    }
    assert_eq!((status, threads()), (0, 1));
    drop(blocks);
    let is_empty = || stats().dirty_bytes + stats().muzzy_bytes < MIB;
    assert!(comes_true(is_empty), "{:?}", stats());
}

extern "C" fn free_and_exit(block: *mut libc::c_void) -> i32 {
    unsafe {
        tenure_heap::deallocate(block.cast());
        libc::_exit(0)
    }
}

fn fork_during_allocations_leaves_child_consistent() {
    in_child_ok("fork_while_allocating");
}

static STOP: AtomicBool = AtomicBool::new(false);

struct Stop;

impl Drop for Stop {
    fn drop(&mut self) {
        STOP.store(true, Relaxed);
    }
}

fn fork_while_allocating() {
    let sizes = [100, 3000, 256 * KIB, 300 * KIB, MIB, 2 * MIB + 1, 3 * MIB];
    let churn = |seed: u64| {
        move || {
            let mut rng = Rng::with_seed(seed);
            let mut blocks = Vec::new();
            while !STOP.load(Relaxed) {
                let size = sizes[rng.usize(..sizes.len())];
                match rng.usize(..5) {
                    0 | 1 if blocks.len() < 10 => blocks.push(Block::filled(size, seed)),
                    2 if blocks.len() < 10 => blocks.push(Block::zeroed(size)),
                    3 if !blocks.is_empty() => {
                        let at = rng.usize(..blocks.len());
                        let block: &mut Block = &mut blocks[at];
                        let size = block.size * 3 / 2;
                        if size < 20 * MIB {
                            block.resize(size);
                        }
                    }
                    _ => drop((!blocks.is_empty()).then(|| blocks.swap_remove(0))),
                }
            }
        }
    };
    let kept: Vec<_> = (0..8).map(|seed| Block::filled(600 * KIB, seed)).collect();
    thread::scope(|scope| {
        for seed in 0..3 {
            scope.spawn(churn(seed));
        }
        // The threads end however this function ends.
        let _stop = Stop;
        for round in 0..25 {
            let status = fork(|| {
                assert!(kept.iter().all(Block::is_filled), "round {round}");
                for size in sizes {
                    let zeroed: Vec<_> = (0..6).map(|_| Block::zeroed(size)).collect();
                    assert!(zeroed.iter().all(Block::is_zero), "round {round}: {size}");
                    let mut filled: Vec<_> = (0..6).map(|seed| Block::filled(size, seed)).collect();
                    filled.truncate(3);
                    assert!(filled.iter().all(Block::is_filled));
                    filled[0].resize(2 * size);
                    assert!(filled[0].is_filled_up_to(size));
                }
                assert!(kept.iter().all(Block::is_filled));
                0
            });
            assert_eq!(status, 0, "round {round}");
        }
    });
    assert!(kept.iter().all(Block::is_filled));
}

fn blocks_in_grandchild_are_intact() {
    let block = Block::filled(MIB, 7);
    let status = fork(|| {
        let other = Block::filled(MIB, 8);
        drop(Block::filled(2 * MIB, 9));
        fork(|| {
            assert!(block.is_filled() && other.is_filled());
            assert!(Block::zeroed(2 * MIB).is_zero());
            drop((block, other));
            assert!(Block::zeroed(MIB).is_zero());
            0
        })
    });
    assert_eq!(status, 0);
}
