//! lock: all memory of the process, now and in the future. Each test has a
//! process of its own.

#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "tests use memory that they have mapped themselves"
)]

mod common;

use common::*;
use libtest_mimic::Completion;
use tenure::{
    Access, Error, LockAll, LockMode, LockModes, Mapping, PageRange, VolatileBuffer, lock_all,
    page_size, unlock_all,
};

tests!(
    modes_inside_locked_memory_are_told_apart,
    what_is_mapped_later_is_unlocked_by_its_mode,
    ending_one_mode_keeps_the_other,
    ending_one_mode_keeps_the_other_within_a_small_limit,
    the_other_mode_in_the_future_goes_on,
    another_mode_for_the_future_keeps_the_first,
    populating_works_where_the_flags_of_mmap_do_not,
    releasing_locked_memory,
    marking_locked_memory_is_refused,
    over_the_limit_nothing_is_locked,
    mapping_past_the_limit_says_so,
    a_child_maps_without_locks;
    children:
    modes_inside,
    mapped_later,
    end_one_mode,
    end_one_mode_within_a_limit,
    other_mode_goes_on,
    other_future,
    populate,
    release,
    mark_volatile,
    past_the_limit,
    map_past_the_limit,
    fork_under_lock_all,
);

const NOW: Option<LockMode> = Some(LockMode::Now);
const ON_FAULT: Option<LockMode> = Some(LockMode::OnFault);

fn mode(range: PageRange) -> SeenLock {
    lock_modes(range)[0]
}

fn modes_inside() {
    let page = page_size();
    let memory = anonymous(6);
    lock_all(LockAll::Current, LockMode::Now).unwrap();
    memory.lock(2 * page..4 * page, LockMode::OnFault).unwrap();
    memory.unlock(3 * page.., LockModes::ON_FAULT).unwrap();
    assert_eq!(
        lock_modes(memory.range()),
        [NOW, NOW, ON_FAULT, None, NOW, NOW]
    );
    memory.unlock(page.., LockModes::NOW).unwrap();
    assert_eq!(
        lock_modes(memory.range()),
        [NOW, None, ON_FAULT, None, None, None]
    );
    unlock_all(LockModes::ON_FAULT).unwrap();
    assert_eq!(
        lock_modes(memory.range()),
        [NOW, None, None, None, None, None]
    );
    unlock_all(LockModes::NOW).unwrap();
    assert_eq!(status_kib("VmLck"), 0);
}

fn modes_inside_locked_memory_are_told_apart() -> Completion {
    without_limit_in_child("modes_inside")
}

fn mapped_later() {
    let page = page_size();
    lock_all(LockAll::CurrentAndFuture, LockMode::OnFault).unwrap();
    let memory = anonymous(4);
    assert_eq!(lock_modes(memory.range()), [ON_FAULT; 4]);
    memory.unlock(.., LockModes::NOW).unwrap();
    assert_eq!(lock_modes(memory.range()), [ON_FAULT; 4]);
    memory.lock(..page, LockMode::Now).unwrap();
    memory.unlock(..2 * page, LockModes::ON_FAULT).unwrap();
    assert_eq!(lock_modes(memory.range()), [NOW, None, ON_FAULT, ON_FAULT]);
    unlock_all(LockModes::ON_FAULT).unwrap();
    assert_eq!(lock_modes(memory.range()), [NOW, None, None, None]);
    assert_eq!(mode(anonymous(1).range()), None);
    assert_eq!(status_kib("VmLck"), page as u64 / 1024);
}

fn what_is_mapped_later_is_unlocked_by_its_mode() -> Completion {
    without_limit_in_child("mapped_later")
}

/// Locks on fault in the future end, and two pages locked otherwise stay.
fn end_the_future() {
    let page = page_size();
    let memory = anonymous(4);
    fill(memory.range());
    memory.lock(page..3 * page, LockMode::Now).unwrap();
    lock_all(LockAll::Future, LockMode::OnFault).unwrap();
    let later = anonymous(2);
    assert_eq!(mode(later.range()), ON_FAULT);
    unlock_all(LockModes::ON_FAULT).unwrap();
    assert_eq!(lock_modes(memory.range()), [None, NOW, NOW, None]);
    assert_eq!(mode(later.range()), None);
    assert_eq!(mode(anonymous(1).range()), None);
    assert_eq!(status_kib("VmLck"), 2 * page as u64 / 1024);
    // The registry knows them, too.
    memory.unlock(.., LockModes::ON_FAULT).unwrap();
    assert_eq!(lock_modes(memory.range()), [None, NOW, NOW, None]);
    memory.unlock(.., LockModes::NOW).unwrap();
    assert_eq!(status_kib("VmLck"), 0);
}

fn end_one_mode() {
    end_the_future();
}

fn ending_one_mode_keeps_the_other() -> Completion {
    without_limit_in_child("end_one_mode")
}

fn end_one_mode_within_a_limit() {
    // Less than is mapped, so that not all of it can be locked for a moment.
    limit_memlock(1 << 20);
    end_the_future();
}

fn ending_one_mode_keeps_the_other_within_a_small_limit() {
    in_child_ok("end_one_mode_within_a_limit");
}

fn other_mode_goes_on() {
    let memory = anonymous(2);
    memory.lock(..page_size(), LockMode::Now).unwrap();
    lock_all(LockAll::Future, LockMode::OnFault).unwrap();
    unlock_all(LockModes::NOW).unwrap();
    assert_eq!(lock_modes(memory.range()), [None, None]);
    assert_eq!(mode(anonymous(1).range()), ON_FAULT);
    // As the kernel has it: to lock only what is there ends the future.
    lock_all(LockAll::Current, LockMode::OnFault).unwrap();
    assert_eq!(mode(memory.range()), ON_FAULT);
    assert_eq!(mode(anonymous(1).range()), None);
}

fn the_other_mode_in_the_future_goes_on() -> Completion {
    without_limit_in_child("other_mode_goes_on")
}

/// The mode of mappings made later is known where the kernel does not tell it, too.
fn other_future() {
    lock_all(LockAll::Future, LockMode::OnFault).unwrap();
    let first = anonymous(2);
    lock_all(LockAll::Future, LockMode::Now).unwrap();
    let second = anonymous(2);
    assert_eq!(mode(first.range()), ON_FAULT);
    assert_eq!(mode(second.range()), NOW);
    first.unlock(.., LockModes::NOW).unwrap();
    second.unlock(.., LockModes::ON_FAULT).unwrap();
    assert_eq!(mode(first.range()), ON_FAULT);
    assert_eq!(mode(second.range()), NOW);
    first.unlock(.., LockModes::ON_FAULT).unwrap();
    second.unlock(.., LockModes::NOW).unwrap();
    assert_eq!(mode(first.range()), None);
    assert_eq!(mode(second.range()), None);
}

fn another_mode_for_the_future_keeps_the_first() -> Completion {
    without_limit_in_child("other_future")
}

fn populate() {
    lock_all(LockAll::Future, LockMode::OnFault).unwrap();
    let memory = anonymous(8);
    memory.populate(.., Access::Write).unwrap();
    assert_eq!(count_present(memory.range()), 8);
    assert_eq!(mode(memory.range()), ON_FAULT);
}

fn populating_works_where_the_flags_of_mmap_do_not() -> Completion {
    without_limit_in_child("populate")
}

fn release() {
    const LEN: usize = 32 << 20;
    let before = Mapping::anonymous(LEN).map().unwrap();
    before.populate(.., Access::Write).unwrap();
    lock_all(LockAll::Future, LockMode::OnFault).unwrap();
    let later = Mapping::anonymous(LEN).map().unwrap();
    later.populate(.., Access::Write).unwrap();
    let ranges = [before.range(), later.range()];
    for range in ranges {
        mark(range);
    }
    before.munmap().unwrap();
    later.munmap().unwrap();
    tenure::drain(None).unwrap();
    for range in ranges {
        assert!(!is_still_there(range), "{range} is still mapped");
    }
    // Nothing of the moved memory, or of its new place, stays locked.
    unlock_all(LockModes::ON_FAULT).unwrap();
    assert_eq!(status_kib("VmLck"), 0);
}

fn releasing_locked_memory() -> Completion {
    without_limit_in_child("release")
}

fn mark_volatile() {
    lock_all(LockAll::CurrentAndFuture, LockMode::OnFault).unwrap();
    let mut memory = anonymous(8);
    fill(memory.range());
    let error = memory.discard(..).unwrap_err();
    assert!(matches!(error, Error::Locked { .. }), "{error}");
    let refused = VolatileBuffer::from_mapping(memory).unwrap_err();
    assert!(matches!(refused.error, Error::Locked { .. }), "{refused}");
    assert!(is_filled(refused.value.range()));
    let refused = refused.value.lazy_free().unwrap_err();
    assert!(matches!(refused.error, Error::Locked { .. }), "{refused}");
}

fn marking_locked_memory_is_refused() -> Completion {
    without_limit_in_child("mark_volatile")
}

fn past_the_limit() {
    let memory = anonymous(8);
    limit_memlock(64 << 10);
    for what in [LockAll::Current, LockAll::CurrentAndFuture] {
        for mode in [LockMode::Now, LockMode::OnFault] {
            let error = lock_all(what, mode).unwrap_err();
            let Error::ProcessLockLimit {
                limit_bytes,
                used_bytes: 0,
                asked_bytes,
                ..
            } = error
            else {
                panic!("{error}");
            };
            assert_eq!(limit_bytes, 64 << 10);
            assert!(asked_bytes >= memory.len() + limit_bytes);
            assert_eq!(error.errno(), libc::ENOMEM);
            assert!(error.to_string().contains("ulimit -l"), "{error}");
        }
    }
    assert_eq!(status_kib("VmLck"), 0);
    assert_eq!(mode(anonymous(1).range()), None);
    limit_memlock(0);
    let error = lock_all(LockAll::Future, LockMode::Now).unwrap_err();
    assert_eq!(error.errno(), libc::EPERM, "{error}");
}

fn over_the_limit_nothing_is_locked() {
    in_child_ok("past_the_limit");
}

fn map_past_the_limit() {
    limit_memlock(64 << 10);
    lock_all(LockAll::Future, LockMode::OnFault).unwrap();
    let error = Mapping::anonymous(1 << 20).map().unwrap_err();
    assert!(
        matches!(
            error,
            Error::ProcessLockLimit {
                limit_bytes: 0x1_0000,
                asked_bytes: 0x10_0000,
                ..
            }
        ),
        "{error}"
    );
    unlock_all(LockModes::ALL).unwrap();
    Mapping::anonymous(1 << 20).map().unwrap();
}

fn mapping_past_the_limit_says_so() {
    in_child_ok("map_past_the_limit");
}

fn fork_under_lock_all() {
    let memory = anonymous(4);
    fill(memory.range());
    lock_all(LockAll::CurrentAndFuture, LockMode::Now).unwrap();
    let status = fork(|| {
        assert_eq!(status_kib("VmLck"), 0);
        let own = anonymous(4);
        assert_eq!(mode(own.range()), None);
        own.lock(.., LockMode::OnFault).unwrap();
        unlock_all(LockModes::NOW).unwrap();
        assert_eq!(mode(own.range()), ON_FAULT);
        unlock_all(LockModes::ON_FAULT).unwrap();
        assert_eq!(mode(own.range()), None);
        i32::from(!is_filled(memory.range()))
    });
    assert_eq!(status, 0);
    assert_eq!(mode(memory.range()), NOW);
}

fn a_child_maps_without_locks() -> Completion {
    without_limit_in_child("fork_under_lock_all")
}
