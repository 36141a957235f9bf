//! ages: what nobody asks for again becomes lazily free, then is given back; at once
//! when there is too much of it.

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
use tenure::page_size;
use tenure_heap::{HeapOptions, stats};

tests!(
    after_a_burst_little_is_kept_beside_what_is_live,
    what_is_lazily_free_is_given_back,
    what_is_in_use_stays_warm,
    more_than_may_be_warm_is_given_back_at_once,
    freeing_a_huge_block_takes_no_time_and_gives_memory_back,
    locked_blocks_are_right_and_given_back,
    a_process_that_is_locked_whole_gets_its_memory_back,
    without_a_thread_little_is_warm,
    the_keeper_sleeps_when_all_is_done;
    children:
    burst,
    lazy_then_given,
    in_use,
    too_much,
    huge_block,
    locked,
    all_locked,
    no_thread,
    sleeps,
);

/// What is charged besides blocks.
const SLACK: usize = 6 * MIB;

fn after_a_burst_little_is_kept_beside_what_is_live() {
    in_child_ok("burst");
}

fn burst() {
    let before = Held::now();
    let sizes = [256 * KIB, 900_000, 3 * MIB, 20 * MIB];
    let mut blocks: Vec<_> = (0..120)
        .map(|seed| Block::filled(sizes[seed % 4], seed as u64))
        .collect();
    let mut count = 0;
    blocks.retain(|_| {
        count += 1;
        count % 4 == 0 && count % 8 == 0
    });
    let live: usize = blocks.iter().map(|block| block.size).sum();
    assert!(stats().warm_bytes > live, "{:?}", stats());
    assert!(comes_true(|| stats().warm_bytes == 0), "{:?}", stats());
    // The last of it waits in batches of the CPUs.
    finish_all_batches();
    let held = Held::now();
    assert!(held.lazily_free > live, "{held:?}");
    let kept = held.kept() - before.kept();
    assert!(
        kept < live + live / 5,
        "{kept} for {live} that are live: {held:?}"
    );
    assert!(blocks.iter().all(Block::is_filled));
}

fn what_is_lazily_free_is_given_back() {
    in_child_ok("lazy_then_given");
}

fn lazy_then_given() {
    let before = Held::now();
    tenure_heap::start(HeapOptions {
        warm_for: Duration::from_millis(50),
        lazy_for: Duration::from_millis(100),
        ..HeapOptions::default()
    })
    .unwrap();
    drop(
        (0..100)
            .map(|seed| Block::filled(MIB + seed, seed as u64))
            .collect::<Vec<_>>(),
    );
    assert!(
        comes_true(|| stats().warm_bytes + stats().lazy_bytes == 0),
        "{:?}",
        stats()
    );
    assert!(stats().given_back_bytes >= 100 * MIB, "{:?}", stats());
    assert!(Held::now().anonymous < before.anonymous + SLACK);
}

fn what_is_in_use_stays_warm() {
    in_child_ok("in_use");
}

fn in_use() {
    tenure_heap::start(HeapOptions {
        warm_for: Duration::from_secs(2),
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
    let stats = stats();
    assert_eq!(stats.from_new + stats.from_given, 20, "{stats:?}");
    assert_eq!(stats.from_lazy, 0, "{stats:?}");
    assert_eq!(stats.from_warm, rounds * 20, "{stats:?}");
}

fn more_than_may_be_warm_is_given_back_at_once() {
    in_child_ok("too_much");
}

fn too_much() {
    let before = Held::now();
    tenure_heap::start(HeapOptions {
        warm_bytes: 32 * MIB,
        warm_for: Duration::from_secs(1000),
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
    assert!(stats().warm_bytes > 16 * MIB, "{:?}", stats());
}

fn freeing_a_huge_block_takes_no_time_and_gives_memory_back() {
    in_child_ok("huge_block");
}

fn huge_block() {
    let before = Held::now();
    tenure_heap::start(HeapOptions {
        warm_bytes: 64 * MIB,
        huge_pages: false,
        ..HeapOptions::default()
    })
    .unwrap();
    for _ in 0..2 {
        let block = Block::filled(600 * MIB, 1);
        let given_back = stats().given_back_bytes;
        drop(block);
        // Its memory is on its way out already, or will be at once; not by the caller.
        assert!(stats().given_back_bytes - given_back < 600 * MIB);
        let is_gone = || Held::now().anonymous < before.anonymous + SLACK;
        assert!(comes_true(is_gone), "{:?} {:?}", Held::now(), stats());
    }
}

fn locked_blocks_are_right_and_given_back() {
    in_child_ok("locked");
}

fn locked() {
    tenure_heap::start(HeapOptions {
        warm_for: Duration::ZERO,
        lazy_for: Duration::ZERO,
        ..HeapOptions::default()
    })
    .unwrap();
    let before = Held::now();
    let blocks: Vec<_> = (0..12).map(|seed| Block::filled(400 * KIB, seed)).collect();
    for block in &blocks {
        unsafe { rustix::mm::mlock(block.at.cast(), 400 * KIB) }.unwrap();
    }
    drop(blocks);
    // So that there is a keeper.
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
    // Growing copies what is locked.
    let mut block = Block::filled(3 * MIB, 9);
    unsafe { rustix::mm::mlock(block.at.cast(), page_size()) }.unwrap();
    block.resize(30 * MIB);
    assert!(block.is_filled_up_to(3 * MIB));
}

fn a_process_that_is_locked_whole_gets_its_memory_back() -> Completion {
    without_limit_in_child("all_locked")
}

fn all_locked() {
    tenure_heap::start(HeapOptions {
        warm_for: Duration::ZERO,
        lazy_for: Duration::ZERO,
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
        assert!(comes_true(|| stats().warm_bytes + stats().lazy_bytes == 0));
    }
    // Places that were made usable ahead are filled.
    let is_small = || Held::now().anonymous < before.anonymous + 120 * MIB;
    assert!(comes_true(is_small), "{before:?} {:?}", Held::now());
    assert!(Block::zeroed(MIB).is_zero() && kept.is_filled());
}

fn without_a_thread_little_is_warm() {
    in_child_ok("no_thread");
}

fn no_thread() {
    refuse(libc::SYS_clone3, libc::EAGAIN);
    refuse(libc::SYS_clone, libc::EAGAIN);
    let before = Held::now();
    drop(
        (0..200)
            .map(|seed| Block::filled(MIB, seed))
            .collect::<Vec<_>>(),
    );
    assert_eq!(threads(), 1);
    assert!(stats().warm_bytes <= 9 * MIB, "{:?}", stats());
    assert!(Held::now().anonymous < before.anonymous + 9 * MIB + SLACK);
}

fn the_keeper_sleeps_when_all_is_done() {
    in_child_ok("sleeps");
}

fn sleeps() {
    tenure_heap::start(HeapOptions {
        warm_for: Duration::ZERO,
        lazy_for: Duration::ZERO,
        ..HeapOptions::default()
    })
    .unwrap();
    assert_eq!(threads(), 1);
    drop(Block::filled(MIB, 1));
    assert_eq!(threads(), 1, "for so little there is no thread");
    for _ in 0..3 {
        drop(
            (0..20)
                .map(|seed| Block::filled(MIB, seed))
                .collect::<Vec<_>>(),
        );
        assert!(comes_true(|| stats().warm_bytes + stats().lazy_bytes == 0));
        assert!(comes_true(
            || naps_of_keeper() == naps_after(Duration::from_millis(500))
        ));
    }
}

fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").unwrap().count()
}

/// How often the keeper has fallen asleep.
fn naps_of_keeper() -> Option<String> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let mut folders = tasks.map(|task| task.unwrap().path());
    let is_keeper = |name: String| name == "tenure-heap\n";
    let keeper =
        folders.find(|task| std::fs::read_to_string(task.join("comm")).is_ok_and(is_keeper));
    let status = std::fs::read_to_string(keeper?.join("status")).ok()?;
    status
        .lines()
        .find(|line| line.starts_with("voluntary"))
        .map(str::to_owned)
}

fn naps_after(time: Duration) -> Option<String> {
    std::thread::sleep(time);
    naps_of_keeper()
}
