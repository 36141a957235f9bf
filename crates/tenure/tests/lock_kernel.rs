//! lock, held against what the kernel's own tests of mlock2 ask of it: flags of
//! mappings, Rss against Size, splitting and merging, errno values, charges.

#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "tests use memory that they have mapped themselves"
)]

mod common;

use common::*;
use tenure::{LockAll, LockMode, LockModes, Mapping, PageRange, lock_all, page_size, unlock_all};

tests!(
    now_locks_and_fills,
    unlocking_what_is_locked_now,
    on_fault_locks_without_filling,
    unlocking_what_is_locked_on_fault,
    on_fault_of_what_is_present,
    the_current_memory_and_back,
    the_future_memory_and_back,
    the_future_memory_on_fault_and_back,
    the_current_and_the_future_memory,
    unlocking_the_middle_splits_and_unlocking_all_merges,
    the_same_after_all_current_memory_was_locked_on_fault,
    the_same_while_all_future_memory_is_locked_on_fault,
    locking_the_middle_splits_and_locking_all_merges,
    changing_the_mode_of_the_middle_splits,
    a_lock_on_fault_of_locked_memory_keeps_its_pages,
    an_overlap_is_charged_once,
    locking_twice_is_charged_once,
    a_page_more_than_the_limit_is_enomem,
    a_limit_of_zero_is_eperm,
    a_hole_is_enomem,
    a_start_inside_a_page_is_rounded_by_covering_only,
    growing_keeps_the_mode;
    children:
    current,
    future,
    future_on_fault,
    current_and_future,
    split_after_current,
    split_while_future,
    past_the_limit,
    without_a_limit,
);

/// Like the kernel's tests: flags, and how much is in memory.
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

/// Pages that no neighbouring mapping can merge with: an own memory file.
fn apart(page_count: usize) -> Mapping {
    Mapping::memfd(page_count * page_size(), tenure::MemfdPages::Base)
        .private()
        .map()
        .unwrap()
}

fn now_locks_and_fills() {
    let memory = apart(2);
    memory.lock(.., LockMode::Now).unwrap();
    assert_locked_now(memory.range());
}

fn unlocking_what_is_locked_now() {
    let memory = apart(2);
    memory.lock(.., LockMode::Now).unwrap();
    memory.unlock(.., LockModes::NOW).unwrap();
    assert_unlocked(memory.range());
}

fn on_fault_locks_without_filling() {
    let memory = apart(2);
    memory.lock(.., LockMode::OnFault).unwrap();
    assert_eq!(smaps_bytes(memory.range(), "Rss"), 0);
    touch(memory.range());
    assert_locked_on_fault(memory.range());
}

fn unlocking_what_is_locked_on_fault() {
    let memory = apart(2);
    memory.lock(.., LockMode::OnFault).unwrap();
    touch(memory.range());
    memory.unlock(.., LockModes::ON_FAULT).unwrap();
    assert_unlocked(memory.range());
}

fn on_fault_of_what_is_present() {
    let memory = apart(2);
    touch(memory.range());
    memory.lock(.., LockMode::OnFault).unwrap();
    assert_locked_on_fault(memory.range());
    assert_eq!(
        smaps_bytes(memory.range(), "Locked"),
        smaps_bytes(memory.range(), "Rss")
    );
}

fn current() {
    let memory = apart(2);
    lock_all(LockAll::Current, LockMode::Now).unwrap();
    assert_locked_now(memory.range());
    let later = apart(2);
    assert_unlocked(later.range());
    unlock_all(LockModes::ALL).unwrap();
    assert_unlocked(memory.range());
}

fn the_current_memory_and_back() -> libtest_mimic::Completion {
    without_limit_in_child("current")
}

fn future() {
    let before = apart(2);
    lock_all(LockAll::Future, LockMode::Now).unwrap();
    let memory = apart(2);
    assert_locked_now(memory.range());
    assert_unlocked(before.range());
    unlock_all(LockModes::ALL).unwrap();
    assert_unlocked(memory.range());
    assert_unlocked(apart(2).range());
}

fn the_future_memory_and_back() -> libtest_mimic::Completion {
    without_limit_in_child("future")
}

fn future_on_fault() {
    lock_all(LockAll::Future, LockMode::OnFault).unwrap();
    let memory = apart(2);
    touch(memory.range());
    assert_locked_on_fault(memory.range());
    unlock_all(LockModes::ALL).unwrap();
    assert_unlocked(memory.range());
}

fn the_future_memory_on_fault_and_back() -> libtest_mimic::Completion {
    without_limit_in_child("future_on_fault")
}

fn current_and_future() {
    let memory = apart(2);
    lock_all(LockAll::CurrentAndFuture, LockMode::Now).unwrap();
    assert_locked_now(memory.range());
    let later = apart(2);
    assert_locked_now(later.range());
    unlock_all(LockModes::ALL).unwrap();
    assert_unlocked(memory.range());
    assert_unlocked(later.range());
}

fn the_current_and_the_future_memory() -> libtest_mimic::Completion {
    without_limit_in_child("current_and_future")
}

/// Where the mapping begins that each page lies in.
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
    memory.unlock(page..2 * page, LockModes::ON_FAULT).unwrap();
    assert_eq!(starts(range), [start, start + page, start + 2 * page]);
    memory.unlock(.., LockModes::ON_FAULT).unwrap();
    assert_eq!(starts(range), [start; 3]);
    assert_unlocked(range);
}

fn unlocking_the_middle_splits_and_unlocking_all_merges() {
    let memory = apart(3);
    memory.lock(.., LockMode::OnFault).unwrap();
    assert_split_and_merge(&memory);
}

fn split_after_current() {
    let memory = apart(3);
    lock_all(LockAll::Current, LockMode::OnFault).unwrap();
    assert_split_and_merge(&memory);
}

fn the_same_after_all_current_memory_was_locked_on_fault() -> libtest_mimic::Completion {
    without_limit_in_child("split_after_current")
}

fn split_while_future() {
    lock_all(LockAll::Future, LockMode::OnFault).unwrap();
    assert_split_and_merge(&apart(3));
}

fn the_same_while_all_future_memory_is_locked_on_fault() -> libtest_mimic::Completion {
    without_limit_in_child("split_while_future")
}

fn locking_the_middle_splits_and_locking_all_merges() {
    for mode in [LockMode::Now, LockMode::OnFault] {
        let memory = apart(3);
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

fn changing_the_mode_of_the_middle_splits() {
    let memory = apart(3);
    let (page, start) = (page_size(), memory.range().start());
    // Older kernels (6.1) do not join what was written first after it was set apart.
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

fn a_lock_on_fault_of_locked_memory_keeps_its_pages() {
    let memory = apart(2);
    memory.lock(.., LockMode::Now).unwrap();
    memory.lock(.., LockMode::OnFault).unwrap();
    assert!(is_locked_on_fault(memory.range()));
    assert_eq!(
        smaps_bytes(memory.range(), "Locked"),
        2 * page_size() as u64
    );
}

fn an_overlap_is_charged_once() {
    let page = page_size();
    let page_kib = page as u64 / 1024;
    let memory = apart(8);
    let before = status_kib("VmLck");
    memory.lock(..4 * page, LockMode::OnFault).unwrap();
    memory.lock(2 * page..6 * page, LockMode::OnFault).unwrap();
    assert_eq!(status_kib("VmLck") - before, 6 * page_kib);
    memory.unlock(page..3 * page, LockModes::ON_FAULT).unwrap();
    assert_eq!(status_kib("VmLck") - before, 4 * page_kib);
}

fn locking_twice_is_charged_once() {
    let memory = apart(4);
    let before = status_kib("VmLck");
    for mode in [LockMode::OnFault, LockMode::OnFault, LockMode::Now] {
        memory.lock(.., mode).unwrap();
        let charged = status_kib("VmLck") - before;
        assert_eq!(charged, (memory.len() / 1024) as u64);
    }
}

fn past_the_limit() {
    let page = page_size();
    let memory = apart(5);
    limit_memlock(4 * page as u64);
    for mode in [LockMode::Now, LockMode::OnFault] {
        let error = memory.lock(.., mode).unwrap_err();
        assert_eq!(error.errno(), libc::ENOMEM, "{error}");
        assert_unlocked(memory.range());
        memory.lock(..4 * page, mode).unwrap();
        memory.lock(page..4 * page, mode).unwrap();
        memory.unlock(.., LockModes::ALL).unwrap();
    }
}

fn a_page_more_than_the_limit_is_enomem() {
    in_child_ok("past_the_limit");
}

fn without_a_limit() {
    let memory = apart(1);
    memory.lock(.., LockMode::OnFault).unwrap();
    limit_memlock(0);
    for mode in [LockMode::Now, LockMode::OnFault] {
        let error = memory.lock(.., mode).unwrap_err();
        assert_eq!(error.errno(), libc::EPERM, "{error}");
    }
    // What is locked stays so, and may be unlocked.
    assert!(is_locked_on_fault(memory.range()));
    memory.unlock(.., LockModes::ON_FAULT).unwrap();
}

fn a_limit_of_zero_is_eperm() {
    in_child_ok("without_a_limit");
}

fn a_hole_is_enomem() {
    let memory = apart(3);
    raw_unmap(pages(memory.range(), 1, 1));
    for mode in [LockMode::Now, LockMode::OnFault] {
        let error = memory.lock(.., mode).unwrap_err();
        assert_eq!(error.errno(), libc::ENOMEM, "{error}");
    }
    let error = memory.unlock(.., LockModes::NOW).unwrap_err();
    assert_eq!(error.errno(), libc::ENOMEM, "{error}");
}

fn a_start_inside_a_page_is_rounded_by_covering_only() {
    let start = apart(1).range().start();
    let error = PageRange::new(start + 1, page_size()).unwrap_err();
    assert_eq!(error.errno(), libc::EINVAL);
    let error = PageRange::covering(start + 1, 1).unwrap_err();
    assert_eq!(error.errno(), libc::EINVAL);
    let rounded = PageRange::covering(start, 1).unwrap();
    assert_eq!(rounded.len(), page_size());
}

fn growing_keeps_the_mode() {
    let page = page_size();
    for (mode, present) in [(LockMode::OnFault, 0), (LockMode::Now, 8)] {
        let memory = apart(8);
        let room = apart(8).range();
        memory.lock(..4 * page, mode).unwrap();
        unsafe {
            rustix::mm::mremap_fixed(
                memory.as_ptr().cast(),
                4 * page,
                8 * page,
                rustix::mm::MremapFlags::MAYMOVE,
                room.as_ptr().cast(),
            )
        }
        .unwrap();
        assert_eq!(lock_modes(room)[0], Some(mode));
        assert_eq!(count_present(room), present);
        raw_unmap(room);
    }
}
