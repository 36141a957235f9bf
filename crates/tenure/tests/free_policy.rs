//! free: when freed memory goes back to the kernel, under real pressure too.

#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "tests use memory that they have mapped themselves"
)]

mod common;

use std::time::{Duration, Instant};

use common::cgroup::{Group, enter_group};
use common::*;
use libtest_mimic::Completion;
use tenure::pressure::{self, Level};
use tenure::{Error, Headroom, LockMode, Mapping, PageRange, lazy_free::FreePolicy, page_size};

tests!(
    eager_free_drops_pages_immediately,
    lazy_free_keeps_pages_until_reclaim,
    adaptive_free_without_pressure_is_lazy,
    memory_reused_after_any_policy_is_not_reclaimed,
    free_of_unsupported_memory_is_rejected,
    free_of_known_range_is_still_validated,
    free_of_known_range_locked_in_part_frees_nothing,
    free_of_empty_range_is_ok,
    free_is_counted_by_effective_policy,
    severe_pressure_reclaims_freed_memory,
    severe_pressure_keeps_memory_in_use,
    quickly_reclaimed_memory_is_freed_eagerly,
    quickly_reclaimed_memory_under_memsw_limit_is_freed_eagerly,
    memory_below_limit_is_freed_lazily,
    forked_child_switches_to_eager_by_itself,
    free_without_pressure_watcher_is_eager;
    children:
    free_before_severe_pressure,
    rewrite_before_severe_pressure,
    free_beyond_limit,
    free_below_limit,
    fork_and_free_beyond_limit,
    free_without_watcher,
);

const POLICIES: [FreePolicy; 3] = [FreePolicy::Eager, FreePolicy::Lazy, FreePolicy::Adaptive];
const MIB: usize = 1 << 20;

fn filled(page_count: usize) -> Mapping {
    let memory = anonymous(page_count);
    fill(memory.range());
    memory
}

fn eager_free_drops_pages_immediately() {
    let idle = filled(512).free(FreePolicy::Eager).unwrap();
    assert_eq!(count_present(idle.range()), 0);
    let memory = idle.reuse().unwrap();
    assert!(is_zero(memory.range()));
}

fn lazy_free_keeps_pages_until_reclaim() {
    let idle = filled(512).free(FreePolicy::Lazy).unwrap();
    assert_eq!(count_present(idle.range()), 512);
    page_out_all(idle.range());
}

fn adaptive_free_without_pressure_is_lazy() -> Completion {
    let first = filled(512).free(FreePolicy::Adaptive).unwrap();
    if pressure::level() != Level::None {
        return skip("there is memory pressure on this machine");
    }
    // The second time the range is known.
    let memory = first.reuse().unwrap();
    fill(memory.range());
    let idle = memory.free(FreePolicy::Adaptive).unwrap();
    assert_eq!(count_present(idle.range()), 512);
    page_out_all(idle.range());
    assert!(is_zero(idle.reuse().unwrap().range()));
    Completion::Completed
}

fn memory_reused_after_any_policy_is_not_reclaimed() {
    for policy in POLICIES {
        let memory = filled(512).free(policy).unwrap().reuse().unwrap();
        fill(memory.range());
        page_out(memory.range());
        assert!(is_filled(memory.range()), "{policy:?}");
    }
}

fn free_of_unsupported_memory_is_rejected() {
    for policy in POLICIES {
        let holed = filled(64);
        raw_unmap(pages(holed.range(), 20, 1));
        let refused = holed.free(policy).unwrap_err();
        assert!(matches!(refused.error, Error::Hole { .. }), "{refused}");
        assert!(is_filled(pages(refused.value.range(), 0, 20)));
        assert!(is_filled(pages(refused.value.range(), 21, 43)));

        let shared = Mapping::shared_anonymous(64 * page_size()).map().unwrap();
        fill(shared.range());
        let refused = shared.free(policy).unwrap_err();
        assert!(
            matches!(refused.error, Error::WrongKind { .. }),
            "{refused}"
        );
        assert!(is_filled(refused.value.range()));

        let locked = filled(64);
        locked
            .lock(40 * page_size()..41 * page_size(), LockMode::Now)
            .unwrap();
        let refused = locked.free(policy).unwrap_err();
        assert!(matches!(refused.error, Error::Locked { .. }), "{refused}");
        page_out(pages(refused.value.range(), 0, 40));
        assert!(is_filled(refused.value.range()));
    }
}

/// Checks ranges that were freed adaptively before: tenure does not look them up again, so
/// the kernel itself rejects them.
fn free_of_known_range_is_still_validated() {
    let freed = |memory: &Mapping| {
        unsafe { memory.range().free(FreePolicy::Adaptive) }.unwrap();
        fill(memory.range());
    };
    let locked = filled(64);
    freed(&locked);
    locked.lock(.., LockMode::Now).unwrap();
    let refused = locked.free(FreePolicy::Adaptive).unwrap_err();
    assert!(matches!(refused.error, Error::Locked { .. }), "{refused}");
    assert!(is_filled(refused.value.range()));

    let holed = filled(64);
    freed(&holed);
    raw_unmap(pages(holed.range(), 20, 1));
    let refused = holed.free(FreePolicy::Adaptive).unwrap_err();
    assert!(matches!(refused.error, Error::Hole { .. }), "{refused}");
}

fn free_of_known_range_locked_in_part_frees_nothing() {
    let memory = anonymous(64);
    let range = memory.range();
    unsafe { range.free(FreePolicy::Adaptive) }.unwrap();
    fill(range);
    // Neither tenure's own locks nor foreign ones are looked up again.
    for lock in [
        |part: PageRange| unsafe { part.lock(LockMode::OnFault) }.unwrap(),
        raw_lock_on_fault,
    ] {
        lock(pages(range, 60, 4));
        let refused = unsafe { range.free(FreePolicy::Adaptive) }.unwrap_err();
        assert!(matches!(refused, Error::Locked { .. }), "{refused}");
        flush_all_batches();
        page_out(pages(range, 0, 60));
        assert!(is_filled(range), "memory before the lock was freed");
        unsafe { range.unlock(tenure::lock::LockFlags::ALL) }.unwrap();
    }
}

fn free_of_empty_range_is_ok() {
    for policy in POLICIES {
        unsafe { PageRange::new(page_size(), 0).unwrap().free(policy) }.unwrap();
    }
}

fn free_is_counted_by_effective_policy() {
    let count = |policy| {
        let memory = filled(64);
        let before = tenure::stats();
        for _ in 0..2 {
            unsafe { memory.range().free(policy) }.unwrap();
        }
        let after = tenure::stats();
        let lazily = after.lazy_free.calls - before.lazy_free.calls;
        (lazily, after.eager_free.calls - before.eager_free.calls)
    };
    assert_eq!(count(FreePolicy::Eager), (0, 2));
    assert_eq!(count(FreePolicy::Lazy), (2, 0));
    let (lazily, eagerly) = count(FreePolicy::Adaptive);
    assert_eq!(lazily + eagerly, 2);
}

fn run_in_group(limit_bytes: usize, child: &str) -> Completion {
    match Group::with_limit(limit_bytes) {
        Ok(group) => group.run(child),
        Err(why) => return skip(&why),
    }
    Completion::Completed
}

/// Allocates memory until pressure is severe: until 4 MiB of headroom are left, which
/// includes lazily free memory.
fn fill_up() -> Vec<Mapping> {
    let mut memory = Vec::new();
    while Headroom::now().unwrap().bytes > 4 * MIB {
        memory.push(filled(MIB / page_size()));
    }
    eventually("severe pressure", || pressure::level() == Level::Severe);
    memory
}

fn eventually(what: &str, is_so: impl Fn() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(
            begin.elapsed() < Duration::from_secs(60),
            "{what}: not within a minute"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn severe_pressure_reclaims_freed_memory() -> Completion {
    run_in_group(192 * MIB, "free_before_severe_pressure")
}

fn free_before_severe_pressure() {
    enter_group();
    let idle = filled(32 * MIB / page_size());
    let idle = idle.free(FreePolicy::Adaptive).unwrap();
    flush_all_batches();
    assert_eq!(pressure::level(), Level::None);
    assert_eq!(count_present(idle.range()), idle.range().pages());
    let memory = fill_up();
    // The kernel alone would leave the last 4 MiB for later.
    eventually("all freed memory is returned", || {
        count_present(idle.range()) == 0
    });
    assert!(memory.iter().all(|piece| is_filled(piece.range())));
    drop(idle);

    let eager = filled(64).free(FreePolicy::Adaptive).unwrap();
    assert_eq!(count_present(eager.range()), 0);
    drop(memory);
}

fn severe_pressure_keeps_memory_in_use() -> Completion {
    run_in_group(192 * MIB, "rewrite_before_severe_pressure")
}

fn rewrite_before_severe_pressure() {
    enter_group();
    let memory = filled(32 * MIB / page_size());
    unsafe { memory.range().free(FreePolicy::Adaptive) }.unwrap();
    flush_all_batches();
    // The memory is written without a call of tenure, as an allocator does.
    let before = memory.range().pages() / 8;
    let used = pages(memory.range(), before, 3 * before);
    fill(used);
    let _rest = fill_up();
    // Pages in use are left out, because they may be in swap.
    let behind = used.pages() + before;
    let others = [
        pages(memory.range(), 0, before),
        pages(memory.range(), behind, memory.range().pages() - behind),
    ];
    eventually("the unused pages are returned", || {
        others.into_iter().all(|part| count_present(part) == 0)
    });
    assert!(is_filled(used));
}

/// Blocks of 256 KiB that are used and freed in turn.
struct Blocks(Mapping);

impl Blocks {
    fn of(mib: usize) -> Self {
        Self(anonymous(mib * MIB / page_size()))
    }

    /// Writes to each page of each block and frees the block. Returns how many bytes were
    /// freed lazily.
    fn use_all(&self) -> u64 {
        let before = tenure::stats().lazy_free.bytes;
        let block = MIB / 4 / page_size();
        for first in (0..self.0.range().pages()).step_by(block) {
            let block = pages(self.0.range(), first, block);
            let first_bytes = (0..block.len()).step_by(page_size());
            first_bytes.for_each(|at| unsafe { block.as_ptr().add(at).write_volatile(7) });
            unsafe { block.free(FreePolicy::Adaptive) }.unwrap();
        }
        tenure::stats().lazy_free.bytes - before
    }
}

fn quickly_reclaimed_memory_is_freed_eagerly() -> Completion {
    run_in_group(128 * MIB, "free_beyond_limit")
}

fn free_beyond_limit() {
    enter_group();
    let blocks = Blocks::of(256);
    let lazily = blocks.use_all();
    // Without waiting for stalls: the watcher alone would notice too late.
    assert!(lazily < 200 << 20, "{lazily} bytes were freed lazily");
    assert_ne!(pressure::level(), Level::None);
    // Few blocks, because the level falls again after 10 s, which a slow machine needs for
    // all.
    assert_eq!(Blocks::of(32).use_all(), 0);
}

/// Not every kernel counts how often such a limit is reached.
fn quickly_reclaimed_memory_under_memsw_limit_is_freed_eagerly() -> Completion {
    match Group::with_limit(128 * MIB).and_then(Group::without_swap) {
        Ok(group) => group.run("free_beyond_limit"),
        Err(why) => return skip(&why),
    }
    Completion::Completed
}

fn memory_below_limit_is_freed_lazily() -> Completion {
    run_in_group(128 * MIB, "free_below_limit")
}

/// Waits until the level is None. Stalls of others (and of a parent) count for ten seconds:
/// the first snapshot has only the kernel's average.
fn wait_until_no_pressure() {
    let begun = Instant::now();
    while pressure::level() != Level::None {
        assert!(
            begun.elapsed() < Duration::from_secs(60),
            "pressure does not end"
        );
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn free_below_limit() {
    enter_group();
    wait_until_no_pressure();
    let blocks = Blocks::of(64);
    for _ in 0..16 {
        assert_eq!(blocks.use_all(), 64 << 20);
    }
}

fn forked_child_switches_to_eager_by_itself() -> Completion {
    run_in_group(128 * MIB, "fork_and_free_beyond_limit")
}

fn fork_and_free_beyond_limit() {
    free_beyond_limit();
    let status = fork(|| {
        wait_until_no_pressure();
        assert_eq!(Blocks::of(64).use_all(), 64 << 20);
        free_beyond_limit();
        0
    });
    assert_eq!(status, 0);
}

fn free_without_pressure_watcher_is_eager() {
    in_child_ok("free_without_watcher");
}

fn free_without_watcher() {
    let memory = filled(64);
    // No further threads can be started.
    refuse(libc::SYS_clone3, libc::EAGAIN);
    refuse(libc::SYS_clone, libc::EAGAIN);
    let idle = memory.free(FreePolicy::Adaptive).unwrap();
    assert_eq!(count_present(idle.range()), 0);
}
