//! Arenas: what unmarking an offered buffer costs, what places cost that are not used, and
//! places that are used again while the kernel reclaims pages.

#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "tests use memory that they have mapped themselves"
)]

mod common;

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use common::volatile::{can_offer, matches_outcome, page_out_if_mapped, was_under_pressure};
use common::*;
use libtest_mimic::Completion;
use tenure::{Features, Outcome, PageRange, VolatileArena, VolatileBuffer, page_size};

tests!(
    offered_buffer_is_unmarked_with_one_system_call,
    unmark_that_is_always_to_be_tried_again_ends,
    buffer_that_is_always_to_be_tried_again_is_refused,
    purged_page_of_populated_buffer_is_reported,
    untouched_pages_of_offered_buffer_stay_unallocated,
    mostly_empty_arena_is_offered_without_page_tables,
    large_place_after_small_ones_reads_as_zeros,
    random_places_match_their_contents,
    large_buffer_is_unmarked_while_it_is_offered,
    buffers_of_several_threads_keep_their_contents,
    overrun_of_buffer_is_readable_whatever_is_purged,
    dropped_small_buffers_are_freed_together,
    arena_without_deferral_has_no_deferrable_bytes,
    deferred_buffers_are_offered_in_the_end_and_counted,
    child_unmarks_buffers_that_were_being_offered,
    place_that_was_locked_is_used_again,
    child_has_the_offered_bytes_of_its_parent,
    child_without_descriptor_reports_partly_offered_buffer,
    child_without_descriptor_can_write_to_new_buffers;
    children:
    unmark_with_madvise_only,
    read_overruns,
    use_deferred_buffers,
    unmark_page_with_futex_only,
    unmark_page_where_futex_says_try_again,
    unmark_where_madvise_says_try_again,
    take_buffer_where_ioctl_says_try_again,
    take_buffer_where_ioctl_does_nothing,
    unmark_partly_offered_buffer_in_child,
    take_new_buffers_in_child,
);

const NONE: Duration = Duration::ZERO;
const SOON: Duration = Duration::from_micros(500);
const MIB: usize = 1 << 20;

fn filled(arena: &VolatileArena, page_count: usize) -> VolatileBuffer {
    let buffer = arena.buffer(page_count * page_size()).unwrap();
    assert!(is_zero(buffer.range()));
    fill(buffer.range());
    buffer
}

fn overrun_of_buffer_is_readable_whatever_is_purged() {
    // A purged page is SIGBUS.
    in_child_ok("read_overruns");
}

fn read_overruns() {
    for (page_count, delay) in [(1, NONE), (16, NONE), (17, NONE), (1, SOON)] {
        tenure::volatile::set_offer_delay(delay);
        let arena = VolatileArena::with_overrun(32 * MIB).unwrap();
        let mut buffers: Vec<_> = (0..40).map(|_| filled(&arena, page_count)).collect();
        let overruns_are_zero = |buffers: &[VolatileBuffer]| {
            let end = |buffer: &VolatileBuffer| buffer.range().end() as *const [u8; 64];
            let read = |buffer| unsafe { end(buffer).read_volatile() };
            buffers.iter().all(|buffer| read(buffer) == [0; 64])
        };
        for buffer in &mut buffers[1..] {
            buffer.mark_volatile();
        }
        assert!(overruns_are_zero(&buffers));
        let outcome = buffers[1].mark_nonvolatile().unwrap();
        assert!(outcome == Outcome::Intact || was_under_pressure());
        for buffer in &mut buffers[2..] {
            buffer.purge().unwrap();
        }
        assert!(overruns_are_zero(&buffers));
        buffers.truncate(20);
        buffers.extend((0..10).map(|_| filled(&arena, page_count)));
        assert!(overruns_are_zero(&buffers));
    }
}

fn unmark_with_madvise_only() {
    unmark_with(4, libc::SYS_madvise);
}

fn unmark_page_with_futex_only() {
    unmark_with(1, libc::SYS_futex);
}

fn unmark_page_where_futex_says_try_again() {
    unmark_after(1, || refuse(libc::SYS_futex, libc::EAGAIN));
}

fn unmark_that_is_always_to_be_tried_again_ends() -> Completion {
    if !can_offer() {
        return skip("nothing can be offered");
    }
    in_child_ok("unmark_where_madvise_says_try_again");
    Completion::Completed
}

fn unmark_where_madvise_says_try_again() {
    tenure::volatile::set_offer_delay(NONE);
    let arena = VolatileArena::new(MIB).unwrap();
    let mut buffer = filled(&arena, 4);
    buffer.mark_volatile();
    refuse(libc::SYS_madvise, libc::EAGAIN);
    let answer = buffer.mark_nonvolatile();
    unsafe { libc::_exit(i32::from(matches!(answer, Ok(Outcome::Intact)))) };
}

fn buffer_that_is_always_to_be_tried_again_is_refused() -> Completion {
    if !can_offer() {
        return skip("nothing can be offered");
    }
    in_child_ok("take_buffer_where_ioctl_says_try_again");
    in_child_ok("take_buffer_where_ioctl_does_nothing");
    Completion::Completed
}

fn take_buffer_where_ioctl_says_try_again() {
    take_buffer_where_ioctl_answers(libc::EAGAIN);
}

fn take_buffer_where_ioctl_does_nothing() {
    take_buffer_where_ioctl_answers(0);
}

fn take_buffer_where_ioctl_answers(errno: i32) {
    tenure::volatile::set_offer_delay(NONE);
    let arena = VolatileArena::new(MIB).unwrap();
    let mut buffers: Vec<_> = (0..32).map(|_| filled(&arena, 4)).collect();
    buffers.iter_mut().for_each(VolatileBuffer::mark_volatile);
    drop(buffers);
    refuse(libc::SYS_ioctl, errno);
    let refused = (0..64).find_map(|_| arena.buffer(4 * page_size()).err());
    let is_as_told = refused.is_some_and(|error| error.errno() == libc::EAGAIN);
    unsafe { libc::_exit(i32::from(!is_as_told)) };
}

fn unmark_with(page_count: usize, call: i64) {
    let allow = || allow_only(&[call, libc::SYS_clock_gettime, libc::SYS_exit_group]);
    unmark_after(page_count, allow);
}

fn unmark_after(page_count: usize, install_filter: impl FnOnce()) {
    tenure::volatile::set_offer_delay(NONE);
    let arena = VolatileArena::new(MIB).unwrap();
    let mut buffers: Vec<_> = (0..8).map(|_| filled(&arena, page_count)).collect();
    buffers.iter_mut().for_each(VolatileBuffer::mark_volatile);
    install_filter();
    let unmark = |buffer: &mut VolatileBuffer| buffer.mark_nonvolatile().unwrap();
    let all_intact = buffers
        .iter_mut()
        .all(|buffer| unmark(buffer) == Outcome::Intact && is_filled(buffer.range()));
    unsafe { libc::_exit(i32::from(!all_intact)) };
}

fn offered_buffer_is_unmarked_with_one_system_call() -> Completion {
    if !can_offer() {
        return skip("nothing can be offered");
    }
    let mut left = vec![
        "unmark_with_madvise_only",
        "unmark_page_with_futex_only",
        "unmark_page_where_futex_says_try_again",
    ];
    for _ in 0..9 {
        let Some(child) = left.pop() else {
            return Completion::Completed;
        };
        let output = in_child_with("TENURE_WITHOUT", "", child);
        // The kernel may have purged a page.
        if output.status.success() || !was_under_pressure() {
            assert_ended_well(child, &output);
        } else {
            left.push(child);
        }
    }
    skip("memory is short")
}

fn purged_page_of_populated_buffer_is_reported() {
    tenure::volatile::set_offer_delay(NONE);
    let arena = VolatileArena::new(MIB).unwrap();
    for round in 0..20 {
        let mut buffer = filled(&arena, 8);
        buffer.mark_volatile();
        flush_all_batches();
        page_out_if_mapped(pages(buffer.range(), round % 8, 1));
        let outcome = buffer.mark_nonvolatile().unwrap();
        assert!(matches_outcome(buffer.range(), &outcome), "{round}");
        fill(buffer.range());
        buffer.mark_volatile();
        let _ = buffer.mark_nonvolatile().unwrap();
    }
}

fn rss_bytes(range: PageRange) -> usize {
    range.residency().unwrap().resident_bytes
}

fn untouched_pages_of_offered_buffer_stay_unallocated() -> Completion {
    if Features::get().pagemap_scan.is_err() {
        return skip("a zero page looks like any other without PAGEMAP_SCAN (Linux 6.7)");
    }
    tenure::volatile::set_offer_delay(NONE);
    let arena = VolatileArena::new(64 * MIB).unwrap();
    let mut buffer = arena.buffer(64 * MIB).unwrap();
    let touched = [0, 7, 8000];
    use_base_pages(buffer.range());
    for index in touched {
        fill(pages(buffer.range(), index, 1));
    }
    for _ in 0..3 {
        buffer.mark_volatile();
        let outcome = buffer.mark_nonvolatile().unwrap();
        assert!(rss_bytes(buffer.range()) <= touched.len() * page_size());
        if outcome == Outcome::Intact {
            assert!(
                touched
                    .iter()
                    .all(|&index| is_filled(pages(buffer.range(), index, 1)))
            );
        }
        assert!(is_zero(pages(buffer.range(), 5000, 10)));
    }
    Completion::Completed
}

fn mostly_empty_arena_is_offered_without_page_tables() {
    const LEN: usize = 64 << 30;
    tenure::volatile::set_offer_delay(NONE);
    // Page tables of earlier memory are freed in the background.
    tenure::drain(None).unwrap();
    let before_kib = status_kib("VmPTE");
    let arena = VolatileArena::new(LEN).unwrap();
    let mut buffer = arena.buffer(LEN).unwrap();
    let last = LEN / page_size() - 1;
    let touched = [0, last / 2, last];
    for index in touched {
        fill(pages(buffer.range(), index, 1));
    }
    buffer.mark_volatile();
    let outcome = buffer.mark_nonvolatile().unwrap();
    for index in touched {
        let page = pages(buffer.range(), index, 1);
        assert!(matches_outcome(page, &Outcome::Intact) || outcome != Outcome::Intact);
    }
    drop(buffer);
    // The place is used again, and a large one takes no page tables either.
    let buffer = arena.buffer(LEN).unwrap();
    assert!(is_zero(pages(buffer.range(), last / 2, 1)));
    assert!(status_kib("VmPTE") < before_kib + 1024);
}

fn large_place_after_small_ones_reads_as_zeros() {
    tenure::volatile::set_offer_delay(NONE);
    let arena = VolatileArena::new(8 * MIB).unwrap();
    for _ in 0..3 {
        let small: Vec<_> = (0..8 * MIB / (4 * page_size()))
            .map(|_| {
                let mut buffer = filled(&arena, 4);
                buffer.mark_volatile();
                buffer
            })
            .collect();
        drop(small);
        let mut large = arena.buffer(8 * MIB).unwrap();
        assert!(is_zero(large.range()));
        fill(large.range());
        large.mark_volatile();
        let outcome = large.mark_nonvolatile().unwrap();
        assert!(matches_outcome(large.range(), &outcome));
    }
}

/// Sets the flag when it is dropped.
struct Stops<'a>(&'a AtomicBool);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// Purges random pages of the range until the value is dropped.
fn with_reclaim<T>(range: PageRange, work: impl FnOnce() -> T) -> T {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut random = fastrand::Rng::with_seed(7);
            while !stop.load(Relaxed) {
                let page = random.usize(..range.pages());
                let count = random.usize(1..=4).min(range.pages() - page);
                page_out_if_mapped(pages(range, page, count));
            }
        });
        // Also where the work panics.
        let _stops = Stops(&stop);
        work()
    })
}

/// A buffer, and whether it is volatile.
struct Used(VolatileBuffer, bool);

impl Used {
    fn check(&mut self) {
        if std::mem::take(&mut self.1) {
            let outcome = self.0.mark_nonvolatile().unwrap();
            assert!(matches_outcome(self.0.range(), &outcome));
            fill(self.0.range());
        } else {
            assert!(is_filled(self.0.range()));
        }
    }
}

fn random_steps(arena: &VolatileArena, seed: u64, steps: usize) {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut used: Vec<Used> = Vec::new();
    for _ in 0..steps {
        let index = random.usize(..used.len().max(1));
        match random.u8(..8) {
            0..=2 => {
                let page_count = [1, 1, 2, 5, 16, 17, 600][random.usize(..7)];
                // A full arena is no failure.
                if let Ok(buffer) = arena.buffer(page_count * page_size()) {
                    assert!(is_zero(buffer.range()));
                    fill(buffer.range());
                    used.push(Used(buffer, false));
                }
            }
            _ if used.is_empty() => {}
            3 | 4 => {
                used[index].0.mark_volatile();
                used[index].1 = true;
            }
            5 => used[index].check(),
            6 => {
                if used[index].1 && random.bool() {
                    used[index].0.purge().unwrap();
                }
            }
            _ => drop(used.swap_remove(index)),
        }
    }
    used.iter_mut().for_each(Used::check);
}

fn random_places_match_their_contents() {
    for (seed, delay) in [NONE, SOON].into_iter().enumerate() {
        tenure::volatile::set_offer_delay(delay);
        let arena = VolatileArena::new(8 * MIB).unwrap();
        with_reclaim(arena.range(), || random_steps(&arena, seed as u64, 20_000));
    }
}

fn buffers_of_several_threads_keep_their_contents() {
    tenure::volatile::set_offer_delay(SOON);
    let arena = VolatileArena::new(16 * MIB).unwrap();
    with_reclaim(arena.range(), || {
        std::thread::scope(|scope| {
            for seed in 0..4 {
                let arena = &arena;
                scope.spawn(move || random_steps(arena, 100 + seed, 5000));
            }
            scope.spawn(|| {
                for _ in 0..50 {
                    tenure::volatile::purge_all().unwrap();
                    std::thread::sleep(Duration::from_millis(2));
                }
            });
        });
    });
}

fn large_buffer_is_unmarked_while_it_is_offered() {
    tenure::volatile::set_offer_delay(SOON);
    let arena = VolatileArena::new(256 * MIB).unwrap();
    let mut buffer = filled(&arena, 256 * MIB / page_size());
    let mut random = fastrand::Rng::with_seed(7);
    for _ in 0..30 {
        buffer.mark_volatile();
        std::thread::sleep(Duration::from_micros(random.u64(..20_000)));
        let outcome = buffer.mark_nonvolatile().unwrap();
        assert!(matches_outcome(buffer.range(), &outcome));
        if outcome != Outcome::Intact {
            fill(buffer.range());
        }
    }
}

fn dropped_small_buffers_are_freed_together() {
    tenure::volatile::set_offer_delay(NONE);
    let arena = VolatileArena::new(16 * MIB).unwrap();
    let buffers: Vec<_> = (0..1024).map(|_| filled(&arena, 2)).collect();
    assert!(rss_bytes(arena.range()) >= 2048 * page_size());
    drop(buffers);
    // At most 64 places of two pages wait for the next drop.
    assert!(rss_bytes(arena.range()) <= 128 * page_size());
}

fn deferred_buffers_are_offered_in_the_end_and_counted() -> Completion {
    if !can_offer() {
        return skip("nothing can be offered");
    }
    // The figures and the delay are the process's.
    in_child_ok("use_deferred_buffers");
    Completion::Completed
}

fn arena_without_deferral_has_no_deferrable_bytes() {
    let arena = VolatileArena::new(MIB).unwrap();
    assert_eq!(arena.deferrable_bytes(), 0);
    arena.defer_offers();
    // An eighth of each limit is no part of it.
    assert!(arena.deferrable_bytes() < mem_total_bytes());
}

fn mem_total_bytes() -> usize {
    let info = rustix::system::sysinfo();
    usize::try_from(info.totalram).unwrap() * usize::try_from(info.mem_unit).unwrap()
}

fn use_deferred_buffers() {
    tenure::volatile::set_offer_delay(SOON);
    let arena = VolatileArena::new(MIB).unwrap();
    arena.defer_offers();
    let mut buffers: Vec<_> = (1..=8).map(|pages| filled(&arena, pages)).collect();
    let bytes: usize = buffers.iter().map(|buffer| buffer.range().len()).sum();
    for buffer in &mut buffers {
        buffer.mark_volatile();
        // Renewed.
        buffer.mark_volatile();
    }
    assert_eq!(tenure::stats().volatile_bytes, bytes as u64);
    while buffers.iter().any(|buffer| !buffer.is_offered()) {
        std::thread::sleep(SOON);
    }
    for buffer in &mut buffers[..4] {
        let outcome = buffer.mark_nonvolatile().unwrap();
        assert!(outcome == Outcome::Intact || was_under_pressure());
        assert_eq!(buffer.mark_nonvolatile(), Ok(Outcome::Intact));
    }
    let bytes: usize = buffers[4..].iter().map(|buffer| buffer.range().len()).sum();
    assert_eq!(tenure::stats().volatile_bytes, bytes as u64);
    drop(buffers);
    assert_eq!(tenure::stats().volatile_bytes, 0);
}

fn place_that_was_locked_is_used_again() {
    tenure::volatile::set_offer_delay(NONE);
    for page_count in [1, 64] {
        let arena = VolatileArena::new(64 * page_size()).unwrap();
        for _ in 0..3 {
            let buffers: Vec<_> = (0..64 / page_count)
                .map(|_| {
                    let buffer = filled(&arena, page_count);
                    let (start, len) = (buffer.range().as_ptr(), buffer.range().len());
                    assert_eq!(unsafe { libc::mlock(start.cast(), len) }, 0);
                    buffer
                })
                .collect();
            drop(buffers);
        }
    }
}

fn child_has_the_offered_bytes_of_its_parent() -> Completion {
    if !can_offer() {
        return skip("nothing can be offered");
    }
    tenure::volatile::set_offer_delay(NONE);
    let arena = VolatileArena::new(MIB).unwrap();
    let mut buffers: Vec<_> = (0..50).map(|_| filled(&arena, 2)).collect();
    buffers.iter_mut().for_each(VolatileBuffer::mark_volatile);
    for buffer in &mut buffers[..20] {
        let _ = buffer.mark_nonvolatile().unwrap();
    }
    let offered_bytes = (30 * 2 * page_size()) as u64;
    assert_eq!(tenure::stats().offered_bytes, offered_bytes);
    let status = fork(|| {
        assert_eq!(tenure::stats().offered_bytes, offered_bytes);
        let _ = buffers[30].mark_nonvolatile().unwrap();
        let left_bytes = offered_bytes - 2 * page_size() as u64;
        assert_eq!(tenure::stats().offered_bytes, left_bytes);
        0
    });
    assert_eq!(status, 0);
    Completion::Completed
}

/// Forks while no descriptor can be opened; the child has the former limit again.
fn fork_without_descriptor(body: impl FnOnce() -> i32) -> i32 {
    let limit = |soft: libc::rlim_t| {
        let mut now = libc::rlimit {
            rlim_cur: 0,
            rlim_max: 0,
        };
        assert_eq!(
            unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut now) },
            0
        );
        let before = now.rlim_cur;
        now.rlim_cur = soft;
        assert_eq!(
            unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const now) },
            0
        );
        before
    };
    let before = limit(0);
    let status = fork(|| {
        limit(before);
        body()
    });
    limit(before);
    status
}

fn unmark_partly_offered_buffer_in_child() {
    tenure::volatile::set_offer_delay(NONE);
    let arena = VolatileArena::new(MIB).unwrap();
    let mut buffer = filled(&arena, 64);
    let locked = pages(buffer.range(), 32, 32);
    assert_eq!(
        unsafe { libc::mlock(locked.as_ptr().cast(), locked.len()) },
        0
    );
    // The kernel accepts the first half and refuses the second.
    buffer.mark_volatile();
    flush_all_batches();
    page_out_all(pages(buffer.range(), 0, 32));
    let status = fork_without_descriptor(|| {
        let outcome = buffer.mark_nonvolatile().unwrap();
        i32::from(outcome == Outcome::Intact && !is_filled(buffer.range()))
    });
    assert_eq!(status, 0);
    let outcome = buffer.mark_nonvolatile().unwrap();
    assert!(matches_outcome(buffer.range(), &outcome));
}

fn child_without_descriptor_reports_partly_offered_buffer() -> Completion {
    if !can_offer() {
        return skip("nothing can be offered");
    }
    in_child_ok("unmark_partly_offered_buffer_in_child");
    Completion::Completed
}

fn take_new_buffers_in_child() {
    tenure::volatile::set_offer_delay(NONE);
    for page_count in [1, 4, 32] {
        let arena = VolatileArena::new(MIB).unwrap();
        let mut buffer = filled(&arena, page_count);
        buffer.mark_volatile();
        let status = fork_without_descriptor(|| {
            drop(buffer);
            let new: Vec<_> = (0..MIB / (page_count * page_size()) - 2)
                .map(|_| filled(&arena, page_count))
                .collect();
            i32::from(!new.iter().all(|buffer| is_filled(buffer.range())))
        });
        assert_eq!(status, 0, "{page_count} pages");
    }
}

fn child_without_descriptor_can_write_to_new_buffers() {
    in_child_ok("take_new_buffers_in_child");
}

fn child_unmarks_buffers_that_were_being_offered() {
    tenure::volatile::set_offer_delay(SOON);
    let arena = VolatileArena::new(64 * MIB).unwrap();
    let mut large = filled(&arena, 32 * MIB / page_size());
    let mut small: Vec<_> = (0..500).map(|_| filled(&arena, 3)).collect();
    for round in 0..20 {
        large.mark_volatile();
        small.iter_mut().for_each(VolatileBuffer::mark_volatile);
        // Before, while or after the offer thread works.
        std::thread::sleep(Duration::from_micros(300 * round));
        let status = fork(|| {
            for buffer in small.iter_mut().chain([&mut large]) {
                let outcome = buffer.mark_nonvolatile().unwrap();
                assert!(matches_outcome(buffer.range(), &outcome));
            }
            let mut new = arena.buffer(page_size()).unwrap();
            new.as_mut_slice().unwrap().fill(1);
            0
        });
        assert_eq!(status, 0, "round {round}");
        for buffer in small.iter_mut().chain([&mut large]) {
            let outcome = buffer.mark_nonvolatile().unwrap();
            assert!(matches_outcome(buffer.range(), &outcome));
            if outcome != Outcome::Intact {
                fill(buffer.range());
            }
        }
    }
}
