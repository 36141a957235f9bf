//! volatile: huge pages, merged pages, swap, and kinds of memory that are rejected.

#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "tests use memory that they have mapped themselves"
)]

mod common;

use std::path::Path;
use std::time::{Duration, Instant};

use common::merging::{advise_mergeable, merged_pages, start_merging};
use common::volatile::{can_offer, matches_outcome};
use common::*;
use libtest_mimic::Completion;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
use tenure::{
    Error, HugePages, LockMode, Mapping, MemoryKind, Outcome, PageRange, VolatileArena,
    VolatileBuffer, page_size, volatile::VolatileOptions,
};

fn missing() -> Option<&'static str> {
    tenure::volatile::set_offer_delay(Duration::ZERO);
    (!can_offer()).then_some("needs userfaultfd (Linux 5.11) and MADV_POPULATE_WRITE (5.14)")
}

tests!(
    unless: missing;
    offered_huge_pages_are_not_split,
    huge_pages_offered_by_offer_thread_are_not_split,
    partially_purged_huge_page_keeps_the_rest,
    untouched_huge_pages_are_not_reported_purged,
    marking_memory_locked_on_fault_is_rejected,
    [exclusive] marking_hugetlb_memory_is_rejected,
    marked_memory_is_unmergeable,
    [exclusive] merged_pages_are_unmerged_and_purged,
    [exclusive] pages_merged_after_an_offer_are_unmerged_by_the_next,
    [exclusive] swapped_pages_are_purged_only_when_offered,
    [exclusive] rewritten_volatile_pages_survive_swap_out,
    [exclusive] aborted_test_leaves_no_swap_file,
    [exclusive] aborted_test_restores_the_pool_of_huge_pages;
    children:
    abort_with_swap_on,
    abort_with_larger_pool_of_huge_pages,
);

const HUGE: usize = 2 << 20;

/// Maps and fills huge pages; `None` where the kernel gives none.
fn huge(count: usize) -> Option<Mapping> {
    let builder = Mapping::anonymous(count * HUGE).huge_pages(HugePages::Always);
    let memory = builder.map().unwrap();
    fill(memory.range());
    (huge_bytes(memory.range()) == memory.range().len()).then_some(memory)
}

const NO_HUGE_PAGES: &str = "the kernel gives no transparent huge pages of 2 MiB here";

/// Counts the bytes mapped by huge pages in the mappings that overlap the range. (Two
/// adjacent ranges of huge pages would be one mapping.)
fn huge_bytes(range: PageRange) -> usize {
    let text = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let (mut is_inside, mut kib) = (false, 0);
    for line in text.lines() {
        if let Some(bounds) = smaps_bounds(line) {
            is_inside = bounds.start < range.end() && range.start() < bounds.end;
        } else if let Some(found) = line.strip_prefix("AnonHugePages:").filter(|_| is_inside) {
            let found = found.trim().trim_end_matches(" kB");
            kib += found.parse::<usize>().unwrap();
        }
    }
    kib * 1024
}

fn offered_huge_pages_are_not_split() -> Completion {
    let Some(memory) = huge(4) else {
        return skip(NO_HUGE_PAGES);
    };
    let range = memory.range();
    let mut buffer = VolatileBuffer::from_mapping(memory).unwrap();
    for _ in 0..3 {
        buffer.mark_volatile();
        assert!(has_vm_flag(range, "um"));
        assert_eq!(huge_bytes(range), range.len(), "offered");
        let outcome = buffer.mark_nonvolatile().unwrap();
        assert!(matches_outcome(range, &outcome));
        if outcome != Outcome::Intact {
            return skip("the kernel has purged what it was offered");
        }
        assert_eq!(huge_bytes(range), range.len(), "repopulated");
    }
    drop(buffer);
    // Single huge pages of a plain range are not split either.
    let memory = huge(4).unwrap();
    let range = memory.range();
    let second = pages(range, HUGE / page_size(), HUGE / page_size());
    unsafe { second.mark_volatile() }.unwrap();
    assert_eq!(huge_bytes(range), range.len());
    let outcome = unsafe { second.mark_nonvolatile() }.unwrap();
    assert!(outcome != Outcome::Intact || huge_bytes(range) == range.len());
    Completion::Completed
}

fn huge_pages_offered_by_offer_thread_are_not_split() -> Completion {
    tenure::volatile::set_offer_delay(Duration::from_millis(300));
    let Some(memory) = huge(12) else {
        return skip(NO_HUGE_PAGES);
    };
    let range = memory.range();
    // Each part is half a huge page: neighbours have to be offered in one piece.
    let parts = || (0..24).map(|part| pages(range, part * range.pages() / 24, range.pages() / 24));
    for part in parts() {
        unsafe { part.mark_volatile() }.unwrap();
    }
    wait_for("offered", || parts().all(|part| has_vm_flag(part, "um")));
    let offered_bytes = huge_bytes(range);
    let outcome = unsafe { range.mark_nonvolatile() }.unwrap();
    assert!(matches_outcome(range, &outcome));
    if outcome != Outcome::Intact {
        return skip("the kernel has purged what it was offered");
    }
    // The offer thread may have run in the middle of the marking, and so split some.
    for huge_bytes in [offered_bytes, huge_bytes(range)] {
        assert!(huge_bytes >= range.len() / 2, "{huge_bytes}");
    }
    Completion::Completed
}

fn wait_for(what: &str, is_so: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < end, "{what}: not within a minute");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn partially_purged_huge_page_keeps_the_rest() -> Completion {
    let Some(memory) = huge(2) else {
        return skip(NO_HUGE_PAGES);
    };
    let range = memory.range();
    let mut buffer = VolatileBuffer::from_mapping(memory).unwrap();
    buffer.mark_volatile();
    page_out_all(pages(range, 100, 10));
    let outcome = buffer.mark_nonvolatile().unwrap();
    let Outcome::Purged(runs) = &outcome else {
        panic!("a purge without a report")
    };
    assert!(runs.iter().any(|run| run.contains(pages(range, 100, 10))));
    page_out(range);
    assert!(matches_outcome(range, &outcome));
    Completion::Completed
}

fn untouched_huge_pages_are_not_reported_purged() {
    let builder = Mapping::anonymous(3 * HUGE).huge_pages(HugePages::Always);
    let mut buffer = VolatileBuffer::from_mapping(builder.map().unwrap()).unwrap();
    let range = buffer.range();
    let touched = pages(range, HUGE / page_size(), HUGE / page_size());
    fill(touched);
    buffer.mark_volatile();
    page_out(range);
    buffer.purge().unwrap();
    assert_eq!(
        buffer.mark_nonvolatile().unwrap(),
        Outcome::Purged(vec![touched])
    );
    assert!(is_zero(range));
}

fn marking_memory_locked_on_fault_is_rejected() {
    let memory = anonymous(8);
    memory.lock(.., LockMode::OnFault).unwrap();
    let refused = unsafe { memory.range().mark_volatile() }.unwrap_err();
    assert!(matches!(refused, Error::Locked { .. }), "{refused}");
}

fn marking_hugetlb_memory_is_rejected() -> Completion {
    let Some(_pool) = HugePool::of(1) else {
        return skip("no huge pages of 2 MiB are free in the pool (vm.nr_hugepages)");
    };
    let flags = MapFlags::PRIVATE | MapFlags::HUGETLB | MapFlags::HUGE_2MB;
    let access = ProtFlags::READ | ProtFlags::WRITE;
    let at = unsafe { mmap_anonymous(std::ptr::null_mut(), HUGE, access, flags) }.unwrap();
    let range = PageRange::new(at.addr(), HUGE).unwrap();
    let refused = unsafe { range.mark_volatile() }.unwrap_err();
    assert!(
        matches!(
            refused,
            Error::WrongKind {
                found: MemoryKind::HugeTlb,
                ..
            }
        ),
        "{refused}"
    );
    raw_unmap(range);
    Completion::Completed
}

fn marked_memory_is_unmergeable() -> Completion {
    let memory = anonymous(64);
    let range = memory.range();
    fill(range);
    if !advise_mergeable(range) {
        return skip("this kernel merges no pages (CONFIG_KSM)");
    }
    assert!(has_vm_flag(range, "mg"));
    let part = pages(range, 16, 32);
    unsafe { part.mark_volatile() }.unwrap();
    assert!(!has_vm_flag(part, "mg"));
    assert!(
        has_vm_flag(range, "mg"),
        "nonvolatile memory became unmergeable"
    );
    let outcome = unsafe { part.mark_nonvolatile() }.unwrap();
    assert!(matches_outcome(part, &outcome));
    Completion::Completed
}

/// Has the kernel merge the pages of the ranges while the value lives, or skips the test.
fn merge_all(ranges: &[PageRange]) -> Result<Undo, Completion> {
    let reason = "may not make the kernel merge pages (/sys/kernel/mm/ksm)";
    let merging = start_merging().ok_or_else(|| skip(reason))?;
    for range in ranges {
        // All pages are equal.
        unsafe { range.as_ptr().write_bytes(7, range.len()) };
        if !advise_mergeable(*range) {
            return Err(skip("this kernel merges no pages (CONFIG_KSM)"));
        }
    }
    let all: usize = ranges.iter().map(|range| range.pages()).sum();
    let end = Instant::now() + Duration::from_secs(20);
    while merged_pages() <= all / 4 * 3 {
        if Instant::now() > end {
            return Err(skip("the kernel has merged nothing within 20 s"));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    flush_all_batches();
    Ok(merging)
}

fn pages_merged_after_an_offer_are_unmerged_by_the_next() -> Completion {
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    if !smaps.contains("\nKSM:") {
        return skip("smaps does not tell which pages are merged (before Linux 6.6)");
    }
    let memory = anonymous(64);
    let arena = VolatileArena::new(1 << 20).unwrap();
    let mut buffer = arena.buffer(64 * page_size()).unwrap();
    let parts = [memory.range(), buffer.range()];
    let mut mark_and_unmark = || {
        let now = VolatileOptions::new().offer_now();
        unsafe { memory.range().mark_volatile_with(now) }.unwrap();
        buffer.mark_volatile_with(now);
        let merged = parts.map(|part| smaps_bytes(part, "KSM"));
        let _ = unsafe { memory.range().mark_nonvolatile() }.unwrap();
        let _ = buffer.mark_nonvolatile().unwrap();
        merged
    };
    parts.into_iter().for_each(fill);
    mark_and_unmark();
    let _merging = match merge_all(&parts) {
        Ok(merging) => merging,
        Err(skipped) => return skipped,
    };
    // tenure looks every 100 ms whether the kernel merges any.
    std::thread::sleep(Duration::from_millis(150));
    assert_eq!(mark_and_unmark(), [0, 0]);
    Completion::Completed
}

fn merged_pages_are_unmerged_and_purged() -> Completion {
    let memory = anonymous(64);
    let range = memory.range();
    let _merging = match merge_all(&[range]) {
        Ok(merging) => merging,
        Err(skipped) => return skipped,
    };
    unsafe { range.mark_volatile() }.unwrap();
    // The kernel updates the count when it scans the pages the next time.
    wait_for("unmerged", || merged_pages() == 0);
    let half = pages(range, 0, 32);
    page_out_all(half);
    let outcome = unsafe { range.mark_nonvolatile() }.unwrap();
    assert!(matches!(&outcome, Outcome::Purged(runs) if runs[0].contains(half)));
    Completion::Completed
}

/// Which pages are in swap.
fn swapped_out(range: PageRange) -> Vec<bool> {
    let (present, absent) = (present(range), absent(range));
    present
        .iter()
        .zip(&absent)
        .map(|(present, absent)| !present && !absent)
        .collect()
}

/// Swaps the range out as far as the kernel does. Returns whether all of it is in swap.
fn swap_out(range: PageRange) -> bool {
    (0..100).any(|_| {
        page_out(range);
        swapped_out(range).iter().all(|&is| is)
    })
}

fn swapped_pages_are_purged_only_when_offered() -> Completion {
    let _swap = match Swap::on() {
        Ok(swap) => swap,
        Err(reason) => return skip(&reason),
    };
    let memory = anonymous(64);
    let range = memory.range();
    fill(range);
    let half = pages(range, 0, 32);
    if !swap_out(half) {
        return skip("the kernel swaps nothing out");
    }
    // Within the offer delay the swapped pages stay.
    tenure::volatile::set_offer_delay(Duration::from_secs(3600));
    unsafe { range.mark_volatile() }.unwrap();
    assert_eq!(
        unsafe { range.mark_nonvolatile() }.unwrap(),
        Outcome::Intact
    );
    assert!(is_filled(range));
    // Purging drops swapped pages, too.
    assert!(swap_out(half));
    unsafe { range.mark_volatile() }.unwrap();
    unsafe { half.purge() }.unwrap();
    assert_eq!(
        unsafe { range.mark_nonvolatile() }.unwrap(),
        Outcome::Purged(vec![half])
    );
    // Offering drops swapped pages.
    fill(range);
    assert!(swap_out(half));
    tenure::volatile::set_offer_delay(Duration::ZERO);
    unsafe { range.mark_volatile() }.unwrap();
    let outcome = unsafe { range.mark_nonvolatile() }.unwrap();
    assert!(
        matches!(&outcome, Outcome::Purged(runs) if runs[0].contains(half)),
        "{outcome:?}"
    );
    assert!(matches_outcome(range, &outcome));
    Completion::Completed
}

fn abort_with_swap_on() {
    let swap = match Swap::on() {
        Ok(swap) => swap,
        Err(reason) => {
            println!("{reason}");
            return;
        }
    };
    assert!(is_swap(swap.path()));
    println!("on {}", swap.path().display());
    std::process::abort();
}

/// The swap file is neither in use nor left in the file system, however a test ends.
fn aborted_test_leaves_no_swap_file() -> Completion {
    let output = in_child("abort_with_swap_on");
    let text = String::from_utf8(output.stdout).unwrap();
    let Some(name) = text.strip_prefix("on ") else {
        return skip(text.trim());
    };
    let name = Path::new(name.trim());
    wait_for("off", || !is_swap(name) && !name.exists());
    Completion::Completed
}

fn abort_with_larger_pool_of_huge_pages() {
    let free = HugePool::read(HugePool::FREE).unwrap();
    if let Some(_pool) = HugePool::of(free + 1) {
        println!("of {}", HugePool::read(HugePool::COUNT).unwrap());
        std::process::abort();
    }
}

fn aborted_test_restores_the_pool_of_huge_pages() -> Completion {
    let count = || {
        // The process that restores the pool holds the lock.
        let _lock = lock_setting(HugePool::COUNT);
        HugePool::read(HugePool::COUNT)
    };
    let Some(before) = count() else {
        return skip("no huge pages of 2 MiB");
    };
    let output = in_child("abort_with_larger_pool_of_huge_pages");
    let text = String::from_utf8(output.stdout).unwrap();
    let Some(larger) = text.strip_prefix("of ") else {
        return skip("the pool of huge pages cannot be enlarged");
    };
    assert!(larger.trim().parse::<usize>().unwrap() > before);
    assert_eq!(count(), Some(before));
    Completion::Completed
}

fn rewritten_volatile_pages_survive_swap_out() -> Completion {
    let _swap = match Swap::on() {
        Ok(swap) => swap,
        Err(reason) => return skip(&reason),
    };
    let mut buffer = VolatileBuffer::from_mapping(anonymous(64)).unwrap();
    let range = buffer.range();
    fill(range);
    buffer.mark_volatile();
    fill(range);
    if !swap_out(range) {
        return skip("the kernel swaps nothing out");
    }
    let mut copy = vec![0; page_size()];
    buffer
        .read_volatile_into(5 * page_size(), &mut copy)
        .unwrap();
    assert_eq!(copy, pattern(pages(range, 5, 1)));
    assert_eq!(buffer.mark_nonvolatile().unwrap(), Outcome::Intact);
    assert!(is_filled(range));
    Completion::Completed
}
