//! lock, compared with the kernel's own tests of mlock2: flags of mappings, Rss against
//! Size, splitting and merging, errno values, charges.

#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "tests use memory that they have mapped themselves"
)]

mod common;

use common::*;
use tenure::{
    LockMode, Mapping, PageRange,
    lock::{LockFlags, LockScope, lock_all, unlock_all},
    page_size,
};

tests!(
    lock_now_sets_flag_and_populates,
    unlock_of_now_lock_clears_flag,
    lock_on_fault_sets_flag_without_populating,
    unlock_of_on_fault_lock_clears_flag,
    lock_on_fault_locks_present_pages,
    lock_all_current_locks_only_existing_mappings,
    lock_all_future_locks_only_later_mappings,
    lock_all_future_on_fault_locks_later_mappings_on_fault,
    lock_all_current_and_future_locks_both,
    unlock_of_middle_splits_and_unlock_of_all_merges,
    unlock_after_lock_all_current_splits_and_merges,
    unlock_under_lock_all_future_splits_and_merges,
    lock_of_middle_splits_and_lock_of_all_merges,
    relock_of_middle_splits,
    relock_on_fault_keeps_pages_locked,
    overlapping_locks_are_charged_once,
    repeated_lock_is_charged_once,
    lock_of_one_page_over_limit_is_enomem,
    relock_with_zero_limit_is_eperm,
    lock_of_range_with_hole_is_enomem,
    unaligned_start_is_einval_and_length_rounds_up,
    mremap_growth_keeps_lock_mode;
    children:
    check_lock_all_current,
    check_lock_all_future,
    check_lock_all_future_on_fault,
    check_lock_all_current_and_future,
    split_after_current,
    split_while_future,
    lock_over_limit,
    lock_with_zero_limit,
);

/// Checks the flags and the resident size, as the kernel's tests do.
fn assert_locked_now(range: PageRange) {
    assert!(has_vm_flag(range, "lo") && !has_vm_flag(range, "lf"));
    assert_eq!(smaps_bytes(range, "Rss"), smaps_bytes(range, "Size"));
}

fn assert_locked_on_fault(range: PageRange) {
    assert!(is_locked_on_fault(range));
    assert!(smaps_bytes(range, "Rss") < smaps_bytes(range, "Size"));
}

fn assert_unlocked(range: PageRange) {
    assert!(!has_vm_flag(range, "lo") && !has_vm_flag(range, "lf"));
    assert_eq!(smaps_bytes(range, "Locked"), 0);
}

fn touch(range: PageRange) {
    unsafe { range.as_ptr().write_volatile(b'a') };
}

/// Maps pages that no neighbouring mapping can merge with: a memory file of their own.
fn unmergeable(page_count: usize) -> Mapping {
    Mapping::memfd(page_count * page_size(), tenure::MemfdPages::Base)
        .private()
        .map()
        .unwrap()
}

fn lock_now_sets_flag_and_populates() {
    let memory = unmergeable(2);
    memory.lock(.., LockMode::Now).unwrap();
    assert_locked_now(memory.range());
}

fn unlock_of_now_lock_clears_flag() {
    let memory = unmergeable(2);
    memory.lock(.., LockMode::Now).unwrap();
    memory.unlock(.., LockFlags::NOW).unwrap();
    assert_unlocked(memory.range());
}

fn lock_on_fault_sets_flag_without_populating() {
    let memory = unmergeable(2);
    memory.lock(.., LockMode::OnFault).unwrap();
    assert_eq!(smaps_bytes(memory.range(), "Rss"), 0);
    touch(memory.range());
    assert_locked_on_fault(memory.range());
}

fn unlock_of_on_fault_lock_clears_flag() {
    let memory = unmergeable(2);
    memory.lock(.., LockMode::OnFault).unwrap();
    touch(memory.range());
    memory.unlock(.., LockFlags::ON_FAULT).unwrap();
    assert_unlocked(memory.range());
}

fn lock_on_fault_locks_present_pages() {
    let memory = unmergeable(2);
    touch(memory.range());
    memory.lock(.., LockMode::OnFault).unwrap();
    assert_locked_on_fault(memory.range());
    assert_eq!(
        smaps_bytes(memory.range(), "Locked"),
        smaps_bytes(memory.range(), "Rss")
    );
}

fn check_lock_all_current() {
    let memory = unmergeable(2);
    lock_all(LockScope::Current, LockMode::Now).unwrap();
    assert_locked_now(memory.range());
    let later = unmergeable(2);
    assert_unlocked(later.range());
    unlock_all(LockFlags::ALL).unwrap();
    assert_unlocked(memory.range());
}

fn lock_all_current_locks_only_existing_mappings() -> libtest_mimic::Completion {
    in_child_if_unlimited("check_lock_all_current")
}

fn check_lock_all_future() {
    let before = unmergeable(2);
    lock_all(LockScope::Future, LockMode::Now).unwrap();
    let memory = unmergeable(2);
    assert_locked_now(memory.range());
    assert_unlocked(before.range());
    unlock_all(LockFlags::ALL).unwrap();
    assert_unlocked(memory.range());
    assert_unlocked(unmergeable(2).range());
}

fn lock_all_future_locks_only_later_mappings() -> libtest_mimic::Completion {
    in_child_if_unlimited("check_lock_all_future")
}

fn check_lock_all_future_on_fault() {
    lock_all(LockScope::Future, LockMode::OnFault).unwrap();
    let memory = unmergeable(2);
    touch(memory.range());
    assert_locked_on_fault(memory.range());
    unlock_all(LockFlags::ALL).unwrap();
    assert_unlocked(memory.range());
}

fn lock_all_future_on_fault_locks_later_mappings_on_fault() -> libtest_mimic::Completion {
    in_child_if_unlimited("check_lock_all_future_on_fault")
}

fn check_lock_all_current_and_future() {
    let memory = unmergeable(2);
    lock_all(LockScope::CurrentAndFuture, LockMode::Now).unwrap();
    assert_locked_now(memory.range());
    let later = unmergeable(2);
    assert_locked_now(later.range());
    unlock_all(LockFlags::ALL).unwrap();
    assert_unlocked(memory.range());
    assert_unlocked(later.range());
}

fn lock_all_current_and_future_locks_both() -> libtest_mimic::Completion {
    in_child_if_unlimited("check_lock_all_current_and_future")
}

/// Returns the start of the mapping that each page lies in.
fn starts(range: PageRange) -> Vec<usize> {
    let maps = procfs::process::Process::myself().unwrap().maps().unwrap();
    let start = |page: PageRange| {
        let holds = |map: &&procfs::process::MemoryMap| {
            map.address.0 <= page.start() as u64 && (page.start() as u64) < map.address.1
        };
        maps.iter().find(holds).unwrap().address.0 as usize
    };
    (0..range.pages())
        .map(|page| start(pages(range, page, 1)))
        .collect()
}

fn assert_split_and_merge(memory: &Mapping) {
    let range = memory.range();
    let (page, start) = (page_size(), range.start());
    assert_eq!(starts(range), [start; 3]);
    memory.unlock(page..2 * page, LockFlags::ON_FAULT).unwrap();
    assert_eq!(starts(range), [start, start + page, start + 2 * page]);
    memory.unlock(.., LockFlags::ON_FAULT).unwrap();
    assert_eq!(starts(range), [start; 3]);
    assert_unlocked(range);
}

fn unlock_of_middle_splits_and_unlock_of_all_merges() {
    let memory = unmergeable(3);
    memory.lock(.., LockMode::OnFault).unwrap();
    assert_split_and_merge(&memory);
}

fn split_after_current() {
    let memory = unmergeable(3);
    lock_all(LockScope::Current, LockMode::OnFault).unwrap();
    assert_split_and_merge(&memory);
}

fn unlock_after_lock_all_current_splits_and_merges() -> libtest_mimic::Completion {
    in_child_if_unlimited("split_after_current")
}

fn split_while_future() {
    lock_all(LockScope::Future, LockMode::OnFault).unwrap();
    assert_split_and_merge(&unmergeable(3));
}

fn unlock_under_lock_all_future_splits_and_merges() -> libtest_mimic::Completion {
    in_child_if_unlimited("split_while_future")
}

fn lock_of_middle_splits_and_lock_of_all_merges() {
    for mode in [LockMode::Now, LockMode::OnFault] {
        let memory = unmergeable(3);
        let (page, start) = (page_size(), memory.range().start());
        memory.lock(page..2 * page, mode).unwrap();
        assert_eq!(
            starts(memory.range()),
            [start, start + page, start + 2 * page]
        );
        memory.lock(.., mode).unwrap();
        assert_eq!(starts(memory.range()), [start; 3]);
    }
}

fn relock_of_middle_splits() {
    let memory = unmergeable(3);
    let (page, start) = (page_size(), memory.range().start());
    // Older kernels (6.1) do not merge parts that were first written while they were split.
    touch(memory.range());
    memory.lock(.., LockMode::OnFault).unwrap();
    memory.lock(page..2 * page, LockMode::Now).unwrap();
    assert_eq!(
        starts(memory.range()),
        [start, start + page, start + 2 * page]
    );
    assert_locked_now(pages(memory.range(), 1, 1));
    memory.lock(.., LockMode::OnFault).unwrap();
    assert_eq!(starts(memory.range()), [start; 3]);
}

fn relock_on_fault_keeps_pages_locked() {
    let memory = unmergeable(2);
    memory.lock(.., LockMode::Now).unwrap();
    memory.lock(.., LockMode::OnFault).unwrap();
    assert!(is_locked_on_fault(memory.range()));
    assert_eq!(
        smaps_bytes(memory.range(), "Locked"),
        2 * page_size() as u64
    );
}

fn overlapping_locks_are_charged_once() {
    let page = page_size();
    let page_kib = page as u64 / 1024;
    let memory = unmergeable(8);
    let before = status_kib("VmLck");
    memory.lock(..4 * page, LockMode::OnFault).unwrap();
    memory.lock(2 * page..6 * page, LockMode::OnFault).unwrap();
    assert_eq!(status_kib("VmLck") - before, 6 * page_kib);
    memory.unlock(page..3 * page, LockFlags::ON_FAULT).unwrap();
    assert_eq!(status_kib("VmLck") - before, 4 * page_kib);
}

fn repeated_lock_is_charged_once() {
    let memory = unmergeable(4);
    let before = status_kib("VmLck");
    for mode in [LockMode::OnFault, LockMode::OnFault, LockMode::Now] {
        memory.lock(.., mode).unwrap();
        let charged = status_kib("VmLck") - before;
        assert_eq!(charged, (memory.len() / 1024) as u64);
    }
}

fn lock_over_limit() {
    let page = page_size();
    let memory = unmergeable(5);
    limit_memlock(4 * page as u64);
    for mode in [LockMode::Now, LockMode::OnFault] {
        let error = memory.lock(.., mode).unwrap_err();
        assert_eq!(error.errno(), libc::ENOMEM, "{error}");
        assert_unlocked(memory.range());
        memory.lock(..4 * page, mode).unwrap();
        memory.lock(page..4 * page, mode).unwrap();
        memory.unlock(.., LockFlags::ALL).unwrap();
    }
}

fn lock_of_one_page_over_limit_is_enomem() {
    in_child_ok("lock_over_limit");
}

fn lock_with_zero_limit() {
    let memory = unmergeable(1);
    memory.lock(.., LockMode::OnFault).unwrap();
    limit_memlock(0);
    for mode in [LockMode::Now, LockMode::OnFault] {
        let error = memory.lock(.., mode).unwrap_err();
        assert_eq!(error.errno(), libc::EPERM, "{error}");
    }
    // Locked pages stay locked, and may be unlocked.
    assert!(is_locked_on_fault(memory.range()));
    memory.unlock(.., LockFlags::ON_FAULT).unwrap();
}

fn relock_with_zero_limit_is_eperm() {
    in_child_ok("lock_with_zero_limit");
}

fn lock_of_range_with_hole_is_enomem() {
    let memory = unmergeable(3);
    raw_unmap(pages(memory.range(), 1, 1));
    for mode in [LockMode::Now, LockMode::OnFault] {
        let error = memory.lock(.., mode).unwrap_err();
        assert_eq!(error.errno(), libc::ENOMEM, "{error}");
    }
    let error = memory.unlock(.., LockFlags::NOW).unwrap_err();
    assert_eq!(error.errno(), libc::ENOMEM, "{error}");
}

fn unaligned_start_is_einval_and_length_rounds_up() {
    let start = unmergeable(1).range().start();
    let error = PageRange::new(start + 1, page_size()).unwrap_err();
    assert_eq!(error.errno(), libc::EINVAL);
    let error = PageRange::covering(start + 1, 1).unwrap_err();
    assert_eq!(error.errno(), libc::EINVAL);
    let rounded = PageRange::covering(start, 1).unwrap();
    assert_eq!(rounded.len(), page_size());
}

fn mremap_growth_keeps_lock_mode() {
    let page = page_size();
    for (mode, present) in [(LockMode::OnFault, 0), (LockMode::Now, 8)] {
        let memory = unmergeable(8);
        let target = unmergeable(8).range();
        memory.lock(..4 * page, mode).unwrap();
        unsafe {
            rustix::mm::mremap_fixed(
                memory.as_ptr().cast(),
                4 * page,
                8 * page,
                rustix::mm::MremapFlags::MAYMOVE,
                target.as_ptr().cast(),
            )
        }
        .unwrap();
        assert_eq!(lock_modes(target)[0], Some(mode));
        assert_eq!(count_present(target), present);
        raw_unmap(target);
    }
}
