//! When memory that is freed goes back to the kernel, under real pressure too.

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
use tenure::{Error, FreePolicy, LockMode, Mapping, PageRange, Room, page_size};

tests!(
    eager_is_at_once,
    lazy_waits_for_the_kernel,
    adaptive_waits_while_memory_is_plentiful,
    taken_back_it_stays,
    what_lazy_free_refuses_is_refused,
    what_is_known_already_is_refused_all_the_same,
    what_is_known_and_locked_in_part_stays_whole,
    nothing_is_nothing,
    what_is_done_is_counted,
    severe_pressure_takes_what_was_freed,
    nothing_in_use_is_lost_to_severe_pressure,
    what_is_taken_soon_is_freed_eagerly,
    so_it_is_where_memory_and_swap_have_one_limit,
    what_fits_is_freed_lazily,
    a_child_notices_by_itself,
    who_cannot_watch_pressure_frees_eagerly;
    children:
    free_before_severe_pressure,
    use_again_before_severe_pressure,
    free_more_than_fits,
    free_what_fits,
    fork_and_free_more_than_fits,
    free_without_a_watcher,
);

const POLICIES: [FreePolicy; 3] = [FreePolicy::Eager, FreePolicy::Lazy, FreePolicy::Adaptive];
const MIB: usize = 1 << 20;

fn filled(page_count: usize) -> Mapping {
    let memory = anonymous(page_count);
    fill(memory.range());
    memory
}

fn eager_is_at_once() {
    let idle = filled(512).free(FreePolicy::Eager).unwrap();
    assert_eq!(count_present(idle.range()), 0);
    let memory = idle.take_back().unwrap();
    assert!(is_zero(memory.range()));
}

fn lazy_waits_for_the_kernel() {
    let idle = filled(512).free(FreePolicy::Lazy).unwrap();
    assert_eq!(count_present(idle.range()), 512);
    page_out_all(idle.range());
}

fn adaptive_waits_while_memory_is_plentiful() -> Completion {
    let first = filled(512).free(FreePolicy::Adaptive).unwrap();
    if pressure::level() != Level::None {
        return skip("there is memory pressure on this machine");
    }
    // The second time the range is known.
    let memory = first.take_back().unwrap();
    fill(memory.range());
    let idle = memory.free(FreePolicy::Adaptive).unwrap();
    assert_eq!(count_present(idle.range()), 512);
    page_out_all(idle.range());
    assert!(is_zero(idle.take_back().unwrap().range()));
    Completion::Completed
}

fn taken_back_it_stays() {
    for policy in POLICIES {
        let memory = filled(512).free(policy).unwrap().take_back().unwrap();
        fill(memory.range());
        page_out(memory.range());
        assert!(is_filled(memory.range()), "{policy:?}");
    }
}

fn what_lazy_free_refuses_is_refused() {
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

/// Ranges that were freed adaptively are not looked at again; then the kernel
/// itself refuses.
fn what_is_known_already_is_refused_all_the_same() {
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

fn what_is_known_and_locked_in_part_stays_whole() {
    let memory = anonymous(64);
    let range = memory.range();
    unsafe { range.free(FreePolicy::Adaptive) }.unwrap();
    fill(range);
    // Of tenure's own and of another's: neither is looked up again.
    for lock in [
        |part: PageRange| unsafe { part.lock(LockMode::OnFault) }.unwrap(),
        raw_lock_on_fault,
    ] {
        lock(pages(range, 60, 4));
        let refused = unsafe { range.free(FreePolicy::Adaptive) }.unwrap_err();
        assert!(matches!(refused, Error::Locked { .. }), "{refused}");
        finish_all_batches();
        page_out(pages(range, 0, 60));
        assert!(is_filled(range), "what lies before the lock is gone");
        unsafe { range.unlock(tenure::LockModes::ALL) }.unwrap();
    }
}

fn nothing_is_nothing() {
    for policy in POLICIES {
        unsafe { PageRange::new(page_size(), 0).unwrap().free(policy) }.unwrap();
    }
}

fn what_is_done_is_counted() {
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

fn in_a_group(limit_bytes: usize, child: &str) -> Completion {
    match Group::with_limit(limit_bytes) {
        Ok(group) => group.run(child),
        Err(why) => return skip(&why),
    }
    Completion::Completed
}

/// Takes memory until pressure is severe: so little of the limit is left,
/// counting what is lazily free.
fn fill_up() -> Vec<Mapping> {
    let mut memory = Vec::new();
    while Room::now().unwrap().bytes > 4 * MIB {
        memory.push(filled(MIB / page_size()));
    }
    eventually("severe pressure", || pressure::level() == Level::Severe);
    memory
}

fn eventually(what: &str, is_so: impl Fn() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < Duration::from_secs(60), "never: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn severe_pressure_takes_what_was_freed() -> Completion {
    in_a_group(192 * MIB, "free_before_severe_pressure")
}

fn free_before_severe_pressure() {
    enter_group();
    let idle = filled(32 * MIB / page_size());
    let idle = idle.free(FreePolicy::Adaptive).unwrap();
    finish_all_batches();
    assert_eq!(pressure::level(), Level::None);
    assert_eq!(count_present(idle.range()), idle.range().pages());
    let memory = fill_up();
    // The kernel would leave the last 4 MiB for later.
    eventually("all is given back", || count_present(idle.range()) == 0);
    assert!(memory.iter().all(|piece| is_filled(piece.range())));
    drop(idle);

    let eager = filled(64).free(FreePolicy::Adaptive).unwrap();
    assert_eq!(count_present(eager.range()), 0);
    drop(memory);
}

fn nothing_in_use_is_lost_to_severe_pressure() -> Completion {
    in_a_group(192 * MIB, "use_again_before_severe_pressure")
}

fn use_again_before_severe_pressure() {
    enter_group();
    let memory = filled(32 * MIB / page_size());
    unsafe { memory.range().free(FreePolicy::Adaptive) }.unwrap();
    finish_all_batches();
    // Without a word, as an allocator does.
    let used = pages(memory.range(), 1000, 3000);
    fill(used);
    let _rest = fill_up();
    // Not those in use, which may be in swap.
    let behind = used.pages() + 1000;
    let others = [
        pages(memory.range(), 0, 1000),
        pages(memory.range(), behind, memory.range().pages() - behind),
    ];
    eventually("the others are given back", || {
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

    /// Writes to each page of each and frees it. Says how many bytes were freed
    /// lazily.
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

fn what_is_taken_soon_is_freed_eagerly() -> Completion {
    in_a_group(128 * MIB, "free_more_than_fits")
}

fn free_more_than_fits() {
    enter_group();
    let blocks = Blocks::of(256);
    let lazily = blocks.use_all();
    // Without waiting for stalls: the watcher would let all of it go by.
    assert!(lazily < 200 << 20, "{lazily} bytes were freed lazily");
    assert_ne!(pressure::level(), Level::None);
    // Few, for the level falls again after 10 s: a slow machine takes as long for all.
    assert_eq!(Blocks::of(32).use_all(), 0);
}

/// Hits of such a limit are not counted by every kernel.
fn so_it_is_where_memory_and_swap_have_one_limit() -> Completion {
    match Group::with_limit(128 * MIB).and_then(Group::without_swap) {
        Ok(group) => group.run("free_more_than_fits"),
        Err(why) => return skip(&why),
    }
    Completion::Completed
}

fn what_fits_is_freed_lazily() -> Completion {
    in_a_group(128 * MIB, "free_what_fits")
}

/// What others (and a parent) have done counts for ten seconds after: the first look
/// has the kernel's average alone.
fn wait_until_calm() {
    let begun = Instant::now();
    while pressure::level() != Level::None {
        assert!(begun.elapsed() < Duration::from_secs(60), "never calm");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn free_what_fits() {
    enter_group();
    wait_until_calm();
    let blocks = Blocks::of(64);
    for _ in 0..16 {
        assert_eq!(blocks.use_all(), 64 << 20);
    }
}

fn a_child_notices_by_itself() -> Completion {
    in_a_group(128 * MIB, "fork_and_free_more_than_fits")
}

fn fork_and_free_more_than_fits() {
    free_more_than_fits();
    let status = fork(|| {
        wait_until_calm();
        assert_eq!(Blocks::of(64).use_all(), 64 << 20);
        free_more_than_fits();
        0
    });
    assert_eq!(status, 0);
}

fn who_cannot_watch_pressure_frees_eagerly() {
    in_child_ok("free_without_a_watcher");
}

fn free_without_a_watcher() {
    let memory = filled(64);
    // No more threads.
    refuse(libc::SYS_clone3, libc::EAGAIN);
    refuse(libc::SYS_clone, libc::EAGAIN);
    let idle = memory.free(FreePolicy::Adaptive).unwrap();
    assert_eq!(count_present(idle.range()), 0);
}
