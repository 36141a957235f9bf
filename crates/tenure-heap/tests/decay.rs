//! Decay: unused free blocks become muzzy, then are returned to the kernel; at once if
//! there are too many.

#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "tests use blocks that they have allocated themselves"
)]

#[path = "../../tenure/tests/common/mod.rs"]
mod common;
mod heap;

use std::time::{Duration, Instant};

use common::*;
use heap::*;
use libtest_mimic::Completion;
use rustix::fs::MemfdFlags;
use tenure::page_size;
use tenure_heap::{HeapOptions, stats};

tests!(
    freed_burst_decays,
    muzzy_blocks_after_decay_are_returned,
    blocks_in_frequent_use_stay_dirty,
    dirty_bytes_past_limit_are_returned_at_once,
    freed_huge_block_is_returned_by_decay_thread,
    locked_blocks_after_free_are_returned,
    locked_blocks_before_linux_5_18_are_returned,
    freed_memory_under_mlockall_is_returned,
    freed_memory_under_mlockall_before_linux_5_18_is_returned,
    dirty_bytes_without_decay_thread_stay_small,
    freed_memory_without_background_thread_is_returned,
    decay_thread_without_work_exits;
    children:
    burst,
    muzzy_then_returned,
    in_use,
    too_much,
    huge_block,
    locked,
    locked_before_5_18,
    all_locked,
    all_locked_before_5_18,
    no_thread,
    no_background_thread,
    sleeps,
);

/// Memory that is charged besides blocks.
const SLACK: usize = 6 * MIB;

fn freed_burst_decays() {
    in_child_ok("burst");
}

fn burst() {
    use_small_pages();
    let before = Held::now();
    let sizes = [256 * KIB, 900_000, 3 * MIB, 20 * MIB];
    tenure_heap::start(HeapOptions {
        dirty_decay: Duration::from_millis(300),
        muzzy_decay: Duration::from_secs(1000),
        ..HeapOptions::default()
    })
    .unwrap();
    let mut blocks: Vec<_> = (0..120)
        .map(|seed| Block::filled(sizes[seed % 4], seed as u64))
        .collect();
    let mut count = 0;
    blocks.retain(|_| {
        count += 1;
        count % 4 == 0 && count % 8 == 0
    });
    let live: usize = blocks.iter().map(|block| block.size).sum();
    assert!(comes_true(|| stats().dirty_bytes < MIB), "{:?}", stats());
    // A block is counted nowhere while the kernel is told of it, and the last pages wait in the
    // CPUs' MADV_FREE batches.
    let is_small = || {
        flush_all_batches();
        Held::now().kept() - before.kept() < live + live / 5 + SLACK
    };
    assert!(comes_true(is_small), "{live} are live: {:?}", Held::now());
    assert!(blocks.iter().all(Block::is_filled));
}

fn muzzy_blocks_after_decay_are_returned() {
    in_child_ok("muzzy_then_returned");
}

fn muzzy_then_returned() {
    use_small_pages();
    let before = Held::now();
    tenure_heap::start(HeapOptions {
        dirty_decay: Duration::from_millis(50),
        muzzy_decay: Duration::from_millis(100),
        ..HeapOptions::default()
    })
    .unwrap();
    drop(
        (0..100)
            .map(|seed| Block::filled(MIB + seed, seed as u64))
            .collect::<Vec<_>>(),
    );
    // A block is counted nowhere for a moment, between two of its states.
    assert!(
        comes_true(|| {
            let now = stats();
            now.dirty_bytes + now.muzzy_bytes == 0 && now.returned_bytes >= 90 * MIB
        }),
        "{:?}",
        stats()
    );
    // The counts come before the last of the kernel's work.
    let is_gone = || Held::now().anonymous < before.anonymous + SLACK;
    assert!(comes_true(is_gone), "{:?}, {:?}", Held::now(), stats());
}

fn blocks_in_frequent_use_stay_dirty() {
    in_child_ok("in_use");
}

fn in_use() {
    tenure_heap::start(HeapOptions {
        dirty_decay: Duration::from_secs(2),
        ..HeapOptions::default()
    })
    .unwrap();
    drop(
        (0..20)
            .map(|seed| Block::filled(MIB, seed))
            .collect::<Vec<_>>(),
    );
    let until = Instant::now() + Duration::from_secs(4);
    let mut rounds = 0;
    while Instant::now() < until {
        drop((0..20).map(|_| Block::new(MIB)).collect::<Vec<_>>());
        rounds += 1;
        std::thread::sleep(Duration::from_millis(1));
    }
    let purged_bytes = stats().dirty_purged_bytes;
    assert!(purged_bytes < rounds * MIB, "{rounds}: {:?}", stats());
}

fn dirty_bytes_past_limit_are_returned_at_once() {
    in_child_ok("too_much");
}

fn too_much() {
    let before = Held::now();
    tenure_heap::start(HeapOptions {
        max_dirty_bytes: 32 * MIB,
        dirty_decay: Duration::from_secs(1000),
        ..HeapOptions::default()
    })
    .unwrap();
    drop(
        (0..200)
            .map(|seed| Block::filled(MIB, seed))
            .collect::<Vec<_>>(),
    );
    let is_small = || Held::now().anonymous < before.anonymous + 33 * MIB + SLACK;
    assert!(comes_true(is_small), "{:?} {:?}", Held::now(), stats());
}

fn freed_huge_block_is_returned_by_decay_thread() {
    in_child_ok("huge_block");
}

fn huge_block() {
    use_small_pages();
    let before = Held::now();
    tenure_heap::start(HeapOptions {
        max_dirty_bytes: 64 * MIB,
        huge_pages: false,
        ..HeapOptions::default()
    })
    .unwrap();
    for _ in 0..2 {
        let block = Block::filled(600 * MIB, 1);
        drop(block);
        let is_gone = || Held::now().anonymous < before.anonymous + SLACK;
        assert!(comes_true(is_gone), "{:?} {:?}", Held::now(), stats());
    }
}

fn locked_blocks_after_free_are_returned() {
    in_child_ok("locked");
}

fn locked_blocks_before_linux_5_18_are_returned() {
    in_child_ok("locked_before_5_18");
}

fn locked_before_5_18() {
    refuse_dontneed_locked();
    locked();
}

fn locked() {
    use_small_pages();
    tenure_heap::start(HeapOptions {
        dirty_decay: Duration::ZERO,
        muzzy_decay: Duration::ZERO,
        ..HeapOptions::default()
    })
    .unwrap();
    let before = Held::now();
    let blocks: Vec<_> = (0..12).map(|seed| Block::filled(400 * KIB, seed)).collect();
    for block in &blocks {
        unsafe { rustix::mm::mlock(block.at.cast(), 400 * KIB) }.unwrap();
    }
    drop(blocks);
    // Enough to start the decay thread.
    drop(
        (0..20)
            .map(|seed| Block::filled(MIB, seed))
            .collect::<Vec<_>>(),
    );
    assert!(comes_true(
        || Held::now().anonymous < before.anonymous + SLACK / 2
    ));
    let blocks: Vec<_> = (0..12).map(|_| Block::zeroed(400 * KIB)).collect();
    assert!(blocks.iter().all(Block::is_zero));
    drop(blocks);
    // A locked block is copied when it grows.
    let mut block = Block::filled(3 * MIB, 9);
    unsafe { rustix::mm::mlock(block.at.cast(), page_size()) }.unwrap();
    block.resize(30 * MIB);
    assert!(block.is_filled_up_to(3 * MIB));
}

fn freed_memory_under_mlockall_is_returned() -> Completion {
    in_child_if_unlimited("all_locked")
}

fn freed_memory_under_mlockall_before_linux_5_18_is_returned() -> Completion {
    in_child_if_unlimited("all_locked_before_5_18")
}

fn all_locked_before_5_18() {
    refuse_dontneed_locked();
    all_locked();
}

fn all_locked() {
    tenure_heap::start(HeapOptions {
        dirty_decay: Duration::ZERO,
        muzzy_decay: Duration::ZERO,
        ..HeapOptions::default()
    })
    .unwrap();
    let kept = Block::filled(MIB, 77);
    assert_eq!(
        unsafe { libc::mlockall(libc::MCL_CURRENT | libc::MCL_FUTURE) },
        0
    );
    let before = Held::now();
    for _ in 0..3 {
        let mut blocks: Vec<_> = (0..40).map(|seed| Block::filled(MIB, seed)).collect();
        for block in &mut blocks {
            block.resize(3 * MIB);
            assert!(block.is_filled_up_to(MIB));
        }
        drop(blocks);
        assert!(comes_true(|| stats().dirty_bytes + stats().muzzy_bytes == 0));
    }
    // The kernel fills places that are made usable ahead.
    let is_small = || Held::now().anonymous < before.anonymous + 120 * MIB;
    assert!(comes_true(is_small), "{before:?} {:?}", Held::now());
    assert!(Block::zeroed(MIB).is_zero() && kept.is_filled());
}

fn dirty_bytes_without_decay_thread_stay_small() {
    in_child_ok("no_thread");
}

fn no_thread() {
    use_small_pages();
    refuse(libc::SYS_clone3, libc::EAGAIN);
    refuse(libc::SYS_clone, libc::EAGAIN);
    let before = Held::now();
    drop(
        (0..200)
            .map(|seed| Block::filled(MIB, seed))
            .collect::<Vec<_>>(),
    );
    assert_eq!(threads(), 1);
    let is_small = || Held::now().anonymous < before.anonymous + 9 * MIB + SLACK;
    assert!(is_small(), "{:?} {:?}", Held::now(), stats());
}

fn freed_memory_without_background_thread_is_returned() {
    in_child_ok("no_background_thread");
}

fn no_background_thread() {
    // jemalloc's thread has a stack of the default size, the decay thread a smaller one.
    refuse_stacks_from(MIB);
    tenure_heap::start(HeapOptions {
        dirty_decay: Duration::from_millis(50),
        muzzy_decay: Duration::from_millis(50),
        ..HeapOptions::default()
    })
    .unwrap();
    let messages = rustix::fs::memfd_create("messages", MemfdFlags::CLOEXEC).unwrap();
    rustix::stdio::dup2_stderr(&messages).unwrap();
    for seed in 0..3 {
        let blocks = (0..40).map(|_| Block::filled(MIB, seed));
        drop(blocks.collect::<Vec<_>>());
        let is_empty = || stats().dirty_bytes + stats().muzzy_bytes < MIB;
        assert!(comes_true(is_empty), "{:?}", stats());
        assert_eq!(threads(), 2, "there is a background thread");
    }
    assert_eq!(rustix::fs::fstat(&messages).unwrap().st_size, 0);
}

fn decay_thread_without_work_exits() {
    in_child_ok("sleeps");
}

fn sleeps() {
    tenure_heap::start(HeapOptions {
        dirty_decay: Duration::ZERO,
        muzzy_decay: Duration::ZERO,
        ..HeapOptions::default()
    })
    .unwrap();
    assert_eq!(threads(), 1);
    drop(Block::filled(MIB, 1));
    assert_eq!(threads(), 1, "for so little there is no thread");
    drop(
        (0..20)
            .map(|seed| Block::filled(MIB, seed))
            .collect::<Vec<_>>(),
    );
    drop(Block::new(100));
    assert!(comes_true(|| stats().dirty_bytes + stats().muzzy_bytes == 0));
    assert!(comes_true(|| threads() == 1));
}
