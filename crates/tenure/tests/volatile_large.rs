//! Volatile ranges that are large, mostly empty, or in very many parts: what they cost, and
//! what other threads may do with them in the middle of an offer.

#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "tests use memory that they have mapped themselves"
)]

mod common;

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use common::mappings::mapping_limit;
use common::volatile::{can_offer, matches_outcome};
use common::*;
use libtest_mimic::Completion;
use rustix::mm::{Advice, MapFlags, ProtFlags, mmap_anonymous};
use tenure::{Error, Features, Outcome, PageRange, VolatileBuffer, page_size};

const MIB: usize = 1 << 20;
const GIB: usize = 1 << 30;

/// Returns the reason why nothing can be offered to the kernel here, and makes marking
/// offer immediately.
fn missing() -> Option<&'static str> {
    tenure::volatile::set_offer_delay(Duration::ZERO);
    (!can_offer()).then_some("needs userfaultfd (Linux 5.11) and MADV_POPULATE_WRITE (5.14)")
}

tests!(
    unless: missing;
    mostly_empty_range_takes_no_memory,
    page_written_in_a_gap_is_offered_when_marked_again,
    page_written_in_a_gap_is_purged,
    unmarks_of_parts_past_the_share_of_mappings_are_refused,
    marks_past_the_share_of_mappings_are_refused,
    offer_thread_leaves_what_exceeds_the_share_of_mappings,
    large_range_unmarked_during_its_offer_keeps_every_byte,
    large_buffer_unmarked_during_its_offer_keeps_every_byte,
    large_range_purged_while_it_is_unmarked_reports_exactly,
    large_range_offered_while_it_is_unmarked_keeps_every_byte,
    large_range_unmapped_during_its_offer_is_forgotten,
    purge_beside_a_lock_leaves_memory_accessible,
    [exclusive] child_forked_during_an_offer_has_every_byte;
    children:
    purge_beside_a_lock,
    unmark_every_second_page,
    mark_every_second_page,
    mark_every_second_page_with_delay,
);

/// Maps address space without reserving memory for it.
fn reserve(len: usize) -> PageRange {
    let access = ProtFlags::READ | ProtFlags::WRITE;
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    let at = unsafe { mmap_anonymous(std::ptr::null_mut(), len, access, flags) }.unwrap();
    let range = PageRange::new(at.addr(), len).unwrap();
    unsafe { rustix::mm::madvise(at, len, Advice::LinuxNoHugepage) }.unwrap();
    tag(range);
    range
}

fn page_at(range: PageRange, offset: usize) -> PageRange {
    pages(range, offset / page_size(), 1)
}

fn unmark(range: PageRange) -> Outcome {
    unsafe { range.mark_nonvolatile() }.unwrap()
}

fn mark(range: PageRange) {
    unsafe { range.mark_volatile() }.unwrap();
}

fn assert_reported(outcome: &Outcome, page: PageRange) {
    let is_reported =
        matches!(outcome, Outcome::Purged(runs) if runs.iter().any(|run| run.contains(page)));
    assert!(is_reported, "{outcome:?}");
}

fn mostly_empty_range_takes_no_memory() {
    let range = reserve(64 * GIB);
    let touched = [0, 20 * GIB + 5 * MIB, 64 * GIB - page_size()].map(|at| page_at(range, at));
    touched.into_iter().for_each(fill);
    let memory_kib = || status_kib("VmRSS") + status_kib("VmPTE");
    let before_kib = memory_kib();
    mark(range);
    assert!(touched.iter().all(|&page| has_vm_flag(page, "um")));
    // Pages that were never touched read as zeros.
    assert!(is_zero(page_at(range, GIB)));
    page_out_all(touched[1]);
    assert_reported(&unmark(range), touched[1]);
    assert!(is_filled(touched[0]) && is_filled(touched[2]) && is_zero(touched[1]));
    let grown_kib = memory_kib().saturating_sub(before_kib);
    assert!(grown_kib < 4 << 10, "{grown_kib} KiB");
    unsafe { range.munmap() }.unwrap();
}

fn page_written_in_a_gap_is_offered_when_marked_again() {
    let range = reserve(GIB);
    let (first, second) = (page_at(range, MIB), page_at(range, GIB / 2));
    fill(first);
    mark(range);
    fill(second);
    assert!(!has_vm_flag(second, "um"));
    mark(range);
    page_out_all(second);
    assert_reported(&unmark(range), second);
    assert!(is_zero(second) && is_filled(first));
    unsafe { range.munmap() }.unwrap();
}

fn page_written_in_a_gap_is_purged() {
    let range = reserve(GIB);
    let (first, second) = (page_at(range, MIB), page_at(range, GIB / 2));
    fill(first);
    mark(range);
    fill(second);
    unsafe { range.purge() }.unwrap();
    assert_eq!(unmark(range), Outcome::Purged(vec![first, second]));
    assert!(is_zero(first) && is_zero(second));
    unsafe { range.munmap() }.unwrap();
}

/// How many pages a test marks or unmarks one by one: twice as many as the kernel allows
/// mappings by default.
const COUNT: usize = 140_000;

/// Takes most of the mappings that a process may have, in a child.
fn in_child_with_many_mappings(child: &str) -> Completion {
    if machine_is_ours() && Features::get().procmap_query.is_err() {
        return skip("would read 65,000 mappings as text again and again on an emulated machine");
    }
    in_child_ok(child);
    Completion::Completed
}

fn assert_mappings_are_left() {
    std::thread::spawn(|| {}).join().unwrap();
    let more: Vec<_> = (0..1000).map(|_| anonymous(1)).collect();
    assert_eq!(more.len(), 1000);
}

fn unmark_every_second_page() {
    tenure::volatile::set_offer_delay(Duration::ZERO);
    let memory = anonymous(COUNT);
    let range = memory.range();
    fill(range);
    mark(range);
    let mut unmarked = 0;
    let refused = loop {
        let page = pages(range, 2 * unmarked + 1, 1);
        match unsafe { page.mark_nonvolatile() } {
            Ok(_) => unmarked += 1,
            Err(error) => break (page, error),
        }
        if 2 * unmarked + 2 >= COUNT {
            // With a higher limit there is nothing to refuse.
            assert!(mapping_limit() / 8 > unmarked);
            return;
        }
    };
    let (page, error) = refused;
    assert!(matches!(error, Error::MappingLimit { .. }), "{error}");
    assert!(
        (1000..=mapping_limit() / 4).contains(&unmarked),
        "{unmarked}"
    );
    assert_mappings_are_left();
    // The page that was refused is volatile still, the others are not.
    assert!(has_vm_flag(page, "um"));
    let nonvolatile = pages(range, 2 * unmarked - 1, 1);
    unsafe {
        rustix::mm::madvise(
            nonvolatile.as_ptr().cast(),
            page_size(),
            Advice::LinuxDontNeed,
        )
    }
    .unwrap();
    assert!(is_zero(nonvolatile));
    fill(nonvolatile);
    // Discarding a part would split as well.
    let discarded = unsafe { page.discard() };
    assert!(
        matches!(discarded, Err(Error::MappingLimit { .. })),
        "{discarded:?}"
    );
    let freed = unsafe { page.lazy_free() };
    assert!(
        matches!(freed, Err(Error::MappingLimit { .. })),
        "{freed:?}"
    );
    // The whole can be unmarked always.
    let outcome = unmark(range);
    assert!(matches_outcome(range, &outcome));
    assert!(!has_vm_flag(page, "um"));
}

fn unmarks_of_parts_past_the_share_of_mappings_are_refused() -> Completion {
    in_child_with_many_mappings("unmark_every_second_page")
}

fn mark_every_second_page() {
    tenure::volatile::set_offer_delay(Duration::ZERO);
    // In base pages 2 GiB apart no gap is filled.
    let apart = 4 * MIB;
    let range = reserve(COUNT / 2 * apart);
    let mut marked = 0;
    let error = loop {
        let page = page_at(range, marked * apart);
        unsafe { page.as_ptr().write(1) };
        match unsafe { page.mark_volatile() } {
            Ok(()) => marked += 1,
            Err(error) => break error,
        }
        if marked == COUNT / 2 {
            // With a higher limit there is nothing to refuse.
            assert!(mapping_limit() / 8 > marked);
            return;
        }
    };
    assert!(matches!(error, Error::MappingLimit { .. }), "{error}");
    assert_mappings_are_left();
    // Nothing was done.
    let before_bytes = tenure::stats().volatile_bytes as usize;
    assert_eq!(before_bytes, marked * page_size());
    let _ = unmark(page_at(range, 0));
    mark(page_at(range, marked * apart));
    let _ = unmark(range);
    assert_eq!(tenure::stats().volatile_bytes, 0);
}

fn marks_past_the_share_of_mappings_are_refused() -> Completion {
    in_child_with_many_mappings("mark_every_second_page")
}

fn mark_every_second_page_with_delay() {
    tenure::volatile::set_offer_delay(Duration::from_secs(3600));
    let apart = 4 * MIB;
    let count = 20_000.min(mapping_limit());
    let range = reserve(count * apart);
    for index in 0..count {
        let page = page_at(range, index * apart);
        unsafe { page.as_ptr().write(1) };
        mark(page);
    }
    tenure::volatile::set_offer_delay(Duration::from_millis(1));
    // Without PROCMAP_QUERY each offer reads all mappings.
    let end = Instant::now() + Duration::from_secs(300);
    let failed_bytes = || tenure::stats().offer_failed_bytes as usize;
    while failed_bytes() == 0 && count > mapping_limit() / 4 {
        assert!(
            Instant::now() < end,
            "nothing has failed within five minutes"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_mappings_are_left();
    let _ = unmark(range);
}

fn offer_thread_leaves_what_exceeds_the_share_of_mappings() -> Completion {
    in_child_with_many_mappings("mark_every_second_page_with_delay")
}

/// Sets an offer delay of a moment, until it is dropped.
struct ShortDelay;

impl ShortDelay {
    fn begin() -> Self {
        tenure::volatile::set_offer_delay(Duration::from_millis(1));
        Self
    }
}

impl Drop for ShortDelay {
    fn drop(&mut self) {
        tenure::volatile::set_offer_delay(Duration::ZERO);
    }
}

/// Waits for some part of the time that the offer thread takes for a large range.
fn wait_a_while() {
    std::thread::sleep(Duration::from_micros(fastrand::u64(..60_000)));
}

const LARGE_PAGES: usize = 256 << 20 >> 12;

fn large_range_unmarked_during_its_offer_keeps_every_byte() {
    let _delay = ShortDelay::begin();
    let memory = anonymous(LARGE_PAGES);
    fill(memory.range());
    for _ in 0..20 {
        mark(memory.range());
        wait_a_while();
        let part = pages(
            memory.range(),
            fastrand::usize(..LARGE_PAGES / 2),
            LARGE_PAGES / 3,
        );
        let outcome = unmark(part);
        assert!(matches_outcome(part, &outcome));
        fill_purged(&outcome);
        let outcome = unmark(memory.range());
        assert!(matches_outcome(memory.range(), &outcome));
        fill_purged(&outcome);
        assert!(!has_vm_flag(memory.range(), "um"));
    }
}

fn fill_purged(outcome: &Outcome) {
    if let Outcome::Purged(runs) = outcome {
        runs.iter().copied().for_each(fill);
    }
}

fn large_buffer_unmarked_during_its_offer_keeps_every_byte() {
    let _delay = ShortDelay::begin();
    let mut buffer = VolatileBuffer::from_mapping(anonymous(LARGE_PAGES)).unwrap();
    fill(buffer.range());
    for _ in 0..20 {
        buffer.mark_volatile();
        wait_a_while();
        let outcome = buffer.mark_nonvolatile().unwrap();
        assert!(matches_outcome(buffer.range(), &outcome));
        fill_purged(&outcome);
        assert!(!has_vm_flag(buffer.range(), "um"));
    }
}

fn large_range_purged_while_it_is_unmarked_reports_exactly() {
    let memory = anonymous(LARGE_PAGES);
    let range = memory.range();
    fill(range);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Relaxed) {
                let first = fastrand::usize(..LARGE_PAGES - 3);
                unsafe { pages(range, first, 3).purge() }.unwrap();
            }
        });
        let unmarked = std::panic::catch_unwind(|| {
            for _ in 0..10 {
                mark(range);
                let outcome = unmark(range);
                assert!(matches_outcome(range, &outcome));
                fill_purged(&outcome);
            }
        });
        stop.store(true, Relaxed);
        unmarked.unwrap();
    });
}

fn large_range_offered_while_it_is_unmarked_keeps_every_byte() {
    let memory = anonymous(LARGE_PAGES);
    let range = memory.range();
    fill(range);
    for _ in 0..5 {
        mark(range);
        let is_unmarked = AtomicBool::new(false);
        let first = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_unmarked.load(Relaxed) {
                    mark(pages(range, fastrand::usize(..LARGE_PAGES - 64), 64));
                }
            });
            let outcome = std::panic::catch_unwind(|| unmark(range));
            is_unmarked.store(true, Relaxed);
            outcome.unwrap()
        });
        // Parts were marked after all of it was unmarked.
        let second = unmark(range);
        [first, second].iter().for_each(fill_purged);
        flush_all_batches();
        page_out(range);
        assert!(is_filled(range), "nonvolatile memory was lazily free");
    }
}

fn large_range_unmapped_during_its_offer_is_forgotten() {
    let _delay = ShortDelay::begin();
    for _ in 0..10 {
        let range = std::mem::ManuallyDrop::new(anonymous(LARGE_PAGES)).range();
        unsafe {
            rustix::mm::madvise(
                range.as_ptr().cast(),
                range.len(),
                Advice::LinuxPopulateWrite,
            )
        }
        .unwrap();
        mark(range);
        wait_a_while();
        unsafe { range.munmap() }.unwrap();
        // Other memory gets the addresses, and must not be offered.
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::FIXED_NOREPLACE;
        let len = 32 * MIB;
        let at = unsafe { mmap_anonymous(range.as_ptr().cast(), len, access, flags) };
        // Another thread may have mapped memory there.
        if at.is_ok() {
            let other = pages(range, 0, len / page_size());
            fill(other);
            wait_a_while();
            page_out(other);
            assert!(is_filled(other) && !has_vm_flag(other, "um"));
            raw_unmap(other);
        }
    }
    drain_pending();
}

/// Forks all the time while another thread marks and unmarks: each child finds every byte.
fn purge_beside_a_lock() {
    tenure::volatile::set_offer_delay(Duration::from_secs(3600));
    let range = reserve(8 * MIB);
    let locked = pages(range, range.pages() / 2, 1);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Relaxed) {
                for lock in [libc::mlock, libc::munlock] {
                    unsafe { lock(locked.as_ptr().cast(), locked.len()) };
                    std::thread::sleep(Duration::from_micros(300));
                }
            }
        });
        for _ in 0..300 {
            fill(range);
            // Both are refused while the page is locked.
            if unsafe { range.mark_volatile() }.is_err() {
                continue;
            }
            let _ = unsafe { range.purge() };
            let outcome = unmark(range);
            assert!(matches_outcome(range, &outcome));
        }
        stop.store(true, Relaxed);
    });
}

fn purge_beside_a_lock_leaves_memory_accessible() {
    for features in ["userfaultfd", "userfaultfd,madv_guard"] {
        in_child_without(features, "purge_beside_a_lock");
    }
}

fn child_forked_during_an_offer_has_every_byte() {
    let memory = anonymous(2 * LARGE_PAGES);
    let range = memory.range();
    fill(range);
    let (stop, was_purged) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let marker = scope.spawn(|| {
            while !stop.load(Relaxed) {
                mark(range);
                let outcome = unmark(range);
                was_purged.fetch_or(outcome != Outcome::Intact, Relaxed);
                fill_purged(&outcome);
            }
        });
        let forked = std::panic::catch_unwind(|| {
            for _ in 0..20 {
                wait_a_while();
                let status = fork(|| {
                    let outcome = unmark(range);
                    i32::from(!matches_outcome(range, &outcome))
                });
                // (A child that is forked before purged pages are filled again finds zeros
                // that are not reported to it.)
                assert!(status == 0 || was_purged.load(Relaxed), "{status}");
            }
        });
        stop.store(true, Relaxed);
        marker.join().unwrap();
        forked.unwrap();
    });
}
