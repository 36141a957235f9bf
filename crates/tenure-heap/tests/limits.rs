//! Cgroups with real limits: dirty memory never gets the program killed.

#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "tests use blocks that they have allocated themselves"
)]

#[path = "../../tenure/tests/common/mod.rs"]
mod common;
mod heap;

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use common::cgroup::{Group, enter_group};
use common::*;
use heap::*;
use libtest_mimic::Completion;
use tenure_heap::{HeapOptions, stats};

tests!(
    freed_memory_at_cgroup_limit_serves_other_sizes,
    freed_memory_at_cgroup_limit_serves_other_allocator,
    freed_memory_at_cgroup_limit_serves_one_large_block,
    freed_memory_with_starved_decay_thread_is_reused,
    dirty_bytes_near_cgroup_limit_stay_small,
    pressure_returns_all_free_memory,
    pressure_with_swap_leaves_a_part_dirty,
    growing_block_near_cgroup_limit_succeeds;
    children:
    another_size,
    small_blocks,
    one_large_block,
    starved_decay_thread,
    near_the_limit,
    under_pressure,
    under_pressure_with_swap,
    growing_vector,
);

const LIMIT: usize = 384 * MIB;

fn in_group(child: &str) -> Completion {
    match Group::with_limit(LIMIT).and_then(Group::without_swap) {
        Ok(group) => group.run(child),
        Err(why) => return skip(&why),
    }
    Completion::Completed
}

fn blocks_of(size: usize, bytes: usize) -> Vec<Block> {
    (0..bytes / size)
        .map(|seed| Block::filled(size, seed as u64))
        .collect()
}

fn freed_memory_at_cgroup_limit_serves_other_sizes() -> Completion {
    in_group("another_size")
}

fn another_size() {
    enter_group();
    for size in [
        256 * KIB,
        3 * MIB,
        MIB,
        20 * MIB,
        400 * KIB,
        7 * MIB,
        512 * KIB,
    ] {
        let blocks = blocks_of(size, LIMIT / 10 * 6);
        assert!(blocks.iter().all(Block::is_filled));
    }
}

fn freed_memory_at_cgroup_limit_serves_other_allocator() -> Completion {
    in_group("small_blocks")
}

fn small_blocks() {
    enter_group();
    for size in [300 * KIB, 9 * MIB] {
        drop(blocks_of(size, LIMIT / 10 * 6));
        // The heap does not see what another allocator takes.
        let small: Vec<_> = (0..LIMIT / 10 * 6 / (32 * KIB))
            .map(|_| vec![1_u8; 32 * KIB])
            .collect();
        assert!(small.iter().all(|bytes| bytes[100] == 1));
    }
}

fn freed_memory_at_cgroup_limit_serves_one_large_block() -> Completion {
    in_group("one_large_block")
}

fn one_large_block() {
    enter_group();
    for _ in 0..3 {
        drop(blocks_of(256 * KIB, LIMIT / 10 * 8));
        assert!(Block::filled(LIMIT / 10 * 8, 5).is_filled());
        let mut zeroed = Block::zeroed(LIMIT / 10 * 8);
        assert!(zeroed.is_zero());
        zeroed.fill(3);
        assert!(zeroed.is_filled());
    }
}

fn freed_memory_with_starved_decay_thread_is_reused() -> Completion {
    if std::thread::available_parallelism().unwrap().get() < 2 {
        return skip("keeping one thread from running takes a CPU of its own");
    }
    in_group("starved_decay_thread")
}

fn starved_decay_thread() {
    static STOP: AtomicBool = AtomicBool::new(false);
    enter_group();
    // All freed memory may stay dirty.
    tenure_heap::start(HeapOptions {
        dirty_decay: Duration::from_secs(1000),
        ..HeapOptions::default()
    })
    .unwrap();
    drop(blocks_of(MIB, 40 * MIB));
    assert!(comes_true(|| decay_thread().is_some()));
    std::thread::sleep(Duration::from_millis(300));
    on_cpu(0, || {
        confine(decay_thread().unwrap());
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    while !STOP.load(Relaxed) {
                        std::hint::spin_loop();
                    }
                });
            }
            on_cpu(1, || {
                for size in [512 * KIB, 3 * MIB, 300 * KIB, 20 * MIB] {
                    drop(blocks_of(size, LIMIT / 100 * 88));
                }
            });
            STOP.store(true, Relaxed);
        });
    });
}

fn decay_thread() -> Option<i32> {
    let mut tasks = std::fs::read_dir("/proc/self/task").unwrap();
    tasks.find_map(|task| {
        let task = task.unwrap();
        let name = std::fs::read_to_string(task.path().join("comm")).ok()?;
        let id = task.file_name().into_string().unwrap().parse().unwrap();
        (name == "tenure-decay\n").then_some(id)
    })
}

/// Confines a thread to this thread's CPU, and has all others there run first.
fn confine(thread: i32) {
    use rustix::thread::{Pid, sched_getaffinity, sched_setaffinity};
    let cpus = sched_getaffinity(None).unwrap();
    sched_setaffinity(Pid::from_raw(thread), &cpus).unwrap();
    let parameters = libc::sched_param { sched_priority: 0 };
    let failed =
        unsafe { libc::sched_setscheduler(thread, libc::SCHED_IDLE, &raw const parameters) };
    assert_eq!(failed, 0);
}

fn pressure_returns_all_free_memory() -> Completion {
    in_group("under_pressure")
}

fn under_pressure() {
    use_small_pages();
    enter_group();
    tenure_heap::start(HeapOptions {
        dirty_decay: Duration::from_secs(1000),
        ..HeapOptions::default()
    })
    .unwrap();
    let live = blocks_of(MIB, LIMIT / 2);
    drop(blocks_of(MIB, LIMIT / 4));
    assert!(
        comes_true(|| stats().dirty_bytes < LIMIT / 10),
        "{:?}",
        stats()
    );
    drop(blocks_of(MIB, 8 * MIB));
    assert!(stats().dirty_bytes >= 4 * MIB, "{:?}", stats());
    // The heap does not see these allocations, each of which takes whole pages.
    let others = vec![1_u8; 200 * KIB];
    let taken = (200 * KIB + 1).next_multiple_of(tenure::page_size());
    let others = vec![others; LIMIT / 100 * 43 / taken];
    let is_empty = || stats().dirty_bytes + stats().muzzy_bytes == 0;
    assert!(comes_true(is_empty), "{:?}", stats());
    // The purge is counted when it is over.
    assert!(comes_true(|| stats().pressure_purges > 0), "{:?}", stats());
    // The limit of dirty pages may have returned all before, which does not count.
    let is_returned = || {
        drop(blocks_of(MIB, 4 * MIB));
        stats().pressure_returned_bytes > 0
    };
    assert!(comes_true(is_returned), "{:?}", stats());
    assert!(stats().pressure_returned_bytes <= stats().returned_bytes);
    assert!(live.iter().all(Block::is_filled) && others[7][7] == 1);
}

fn pressure_with_swap_leaves_a_part_dirty() -> Completion {
    if rustix::system::sysinfo().freeswap < LIMIT as _ {
        return skip("there is no swap");
    }
    match Group::with_limit(LIMIT) {
        Ok(group) => group.run("under_pressure_with_swap"),
        Err(why) => return skip(&why),
    }
    Completion::Completed
}

fn under_pressure_with_swap() {
    use_small_pages();
    enter_group();
    tenure_heap::start(HeapOptions {
        dirty_decay: Duration::from_secs(1000),
        ..HeapOptions::default()
    })
    .unwrap();
    let live = blocks_of(MIB, LIMIT / 2);
    // The heap does not see this allocation.
    let others = vec![1_u8; LIMIT / 100 * 48];
    drop(blocks_of(MIB, LIMIT / 50));
    // Ten times as long as until severe pressure has the heap look again.
    std::thread::sleep(Duration::from_secs(1));
    let dirty_bytes = stats().dirty_bytes;
    assert!(dirty_bytes >= LIMIT / 100, "{:?}", stats());
    assert!(dirty_bytes <= LIMIT / 6, "{:?}", stats());
    assert!(live.iter().all(Block::is_filled) && others[7] == 1);
}

fn dirty_bytes_near_cgroup_limit_stay_small() -> Completion {
    in_group("near_the_limit")
}

fn near_the_limit() {
    enter_group();
    let live = blocks_of(MIB, LIMIT / 10 * 8);
    drop(blocks_of(MIB, LIMIT / 10));
    assert!(
        comes_true(|| stats().dirty_bytes < LIMIT / 40),
        "{:?}",
        stats()
    );
    assert!(live.iter().all(Block::is_filled));
}

fn growing_block_near_cgroup_limit_succeeds() -> Completion {
    in_group("growing_vector")
}

fn growing_vector() {
    enter_group();
    for _ in 0..3 {
        // Two copies of the block do not fit.
        let mut block = Block::filled(2 * MIB, 1);
        while block.size < LIMIT / 10 * 7 {
            let size = block.size * 5 / 4;
            assert!(block.resize(size));
            block.bytes_mut()[size - 1] = 1;
        }
        block.fill(2);
        assert!(block.is_filled());
    }
}
