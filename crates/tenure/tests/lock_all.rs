//! lock: all memory of the process, current and future. Each test runs in a process of its
//! own.

#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "tests use memory that they have mapped themselves"
)]

mod common;

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use common::*;
use libtest_mimic::Completion;
use tenure::{
    Access, Error, LockMode, LockedFile, Mapping, PageRange, SecretBuffer, VolatileBuffer,
    lock::{LockFlags, LockScope, lock_all, unlock_all},
    page_size,
};

tests!(
    unlock_under_lock_all_clears_only_the_named_mode,
    later_mapping_is_unlocked_by_its_mode,
    unlock_all_of_one_mode_keeps_the_other,
    unlock_all_of_one_mode_within_small_limit_keeps_the_other,
    unlock_all_of_one_mode_keeps_future_locks_of_the_other,
    unlock_all_of_one_mode_keeps_memory_that_cannot_be_faulted_in,
    unlock_all_forgets_modes_of_earlier_locks,
    new_future_mode_keeps_mode_of_earlier_mappings,
    populate_under_future_on_fault_locks_is_complete,
    release_under_lock_all_leaves_no_locks,
    destructive_verbs_on_locked_memory_are_rejected,
    lock_all_over_limit_locks_nothing,
    map_over_limit_under_lock_all_reports_limit,
    forked_child_maps_without_locks,
    unlock_all_keeps_secret_and_locked_file_locked,
    unlock_all_never_unlocks_secret_for_a_moment,
    unlock_all_over_limit_keeps_secret_and_reports_limit,
    unlock_all_within_limit_keeps_secret_and_clears_other_locks,
    unlock_all_ends_future_locks_of_other_code_beside_secret,
    unlock_all_after_drop_of_secret_clears_every_lock,
    unlock_all_in_forked_child_keeps_only_its_own_secrets,
    unlock_of_locked_file_range_keeps_it_locked,
    lock_all_now_reads_no_untouched_page_of_locked_file;
    children:
    unlock_under_lock_all,
    unlock_later_mapping,
    unlock_all_of_one_mode,
    unlock_all_of_one_mode_within_limit,
    keep_future_locks_of_other_mode,
    unlock_all_beside_inaccessible_memory,
    lock_again_after_unlock_all,
    change_future_mode,
    populate_under_lock_all,
    release_under_lock_all,
    use_destructive_verbs,
    lock_all_over_limit,
    map_over_limit,
    fork_under_lock_all,
    unlock_all_beside_kept_memory,
    watch_secret_during_unlock_all,
    unlock_all_over_limit,
    unlock_all_within_limit,
    unlock_all_under_foreign_future_locks,
    unlock_all_after_drop,
    unlock_all_in_forked_child,
    unlock_locked_file_range,
    lock_all_now_beside_locked_file,
);

const NOW: Option<LockMode> = Some(LockMode::Now);
const ON_FAULT: Option<LockMode> = Some(LockMode::OnFault);

fn mode(range: PageRange) -> SeenLock {
    lock_modes(range)[0]
}

fn unlock_under_lock_all() {
    let page = page_size();
    let memory = anonymous(6);
    lock_all(LockScope::Current, LockMode::Now).unwrap();
    memory.lock(2 * page..4 * page, LockMode::OnFault).unwrap();
    memory.unlock(3 * page.., LockFlags::ON_FAULT).unwrap();
    assert_eq!(
        lock_modes(memory.range()),
        [NOW, NOW, ON_FAULT, None, NOW, NOW]
    );
    memory.unlock(page.., LockFlags::NOW).unwrap();
    assert_eq!(
        lock_modes(memory.range()),
        [NOW, None, ON_FAULT, None, None, None]
    );
    unlock_all(LockFlags::ON_FAULT).unwrap();
    assert_eq!(
        lock_modes(memory.range()),
        [NOW, None, None, None, None, None]
    );
    unlock_all(LockFlags::NOW).unwrap();
    assert_eq!(status_kib("VmLck"), 0);
}

fn unlock_under_lock_all_clears_only_the_named_mode() -> Completion {
    in_child_if_unlimited("unlock_under_lock_all")
}

fn unlock_later_mapping() {
    let page = page_size();
    lock_all(LockScope::CurrentAndFuture, LockMode::OnFault).unwrap();
    let memory = anonymous(4);
    assert_eq!(lock_modes(memory.range()), [ON_FAULT; 4]);
    memory.unlock(.., LockFlags::NOW).unwrap();
    assert_eq!(lock_modes(memory.range()), [ON_FAULT; 4]);
    memory.lock(..page, LockMode::Now).unwrap();
    memory.unlock(..2 * page, LockFlags::ON_FAULT).unwrap();
    assert_eq!(lock_modes(memory.range()), [NOW, None, ON_FAULT, ON_FAULT]);
    unlock_all(LockFlags::ON_FAULT).unwrap();
    assert_eq!(lock_modes(memory.range()), [NOW, None, None, None]);
    assert_eq!(mode(anonymous(1).range()), None);
    assert_eq!(status_kib("VmLck"), page as u64 / 1024);
}

fn later_mapping_is_unlocked_by_its_mode() -> Completion {
    in_child_if_unlimited("unlock_later_mapping")
}

/// Ends the future on-fault locks, and checks that two pages locked otherwise stay locked.
fn unlock_all_of_future_mode() {
    let page = page_size();
    let memory = anonymous(4);
    fill(memory.range());
    memory.lock(page..3 * page, LockMode::Now).unwrap();
    lock_all(LockScope::Future, LockMode::OnFault).unwrap();
    let later = anonymous(2);
    assert_eq!(mode(later.range()), ON_FAULT);
    unlock_all(LockFlags::ON_FAULT).unwrap();
    assert_eq!(lock_modes(memory.range()), [None, NOW, NOW, None]);
    assert_eq!(mode(later.range()), None);
    assert_eq!(mode(anonymous(1).range()), None);
    assert_eq!(status_kib("VmLck"), 2 * page as u64 / 1024);
    // The registry keeps them as well.
    memory.unlock(.., LockFlags::ON_FAULT).unwrap();
    assert_eq!(lock_modes(memory.range()), [None, NOW, NOW, None]);
    memory.unlock(.., LockFlags::NOW).unwrap();
    assert_eq!(status_kib("VmLck"), 0);
}

fn unlock_all_of_one_mode() {
    unlock_all_of_future_mode();
}

fn unlock_all_of_one_mode_keeps_the_other() -> Completion {
    in_child_if_unlimited("unlock_all_of_one_mode")
}

fn unlock_all_of_one_mode_within_limit() {
    // The limit is less than is mapped, so not all memory can be locked for a moment.
    limit_memlock(1 << 20);
    unlock_all_of_future_mode();
}

fn unlock_all_of_one_mode_within_small_limit_keeps_the_other() {
    in_child_ok("unlock_all_of_one_mode_within_limit");
}

fn keep_future_locks_of_other_mode() {
    let memory = anonymous(2);
    memory.lock(..page_size(), LockMode::Now).unwrap();
    lock_all(LockScope::Future, LockMode::OnFault).unwrap();
    unlock_all(LockFlags::NOW).unwrap();
    assert_eq!(lock_modes(memory.range()), [None, None]);
    assert_eq!(mode(anonymous(1).range()), ON_FAULT);
    // As mlockall does: locking only the current memory ends the future locks.
    lock_all(LockScope::Current, LockMode::OnFault).unwrap();
    assert_eq!(mode(memory.range()), ON_FAULT);
    assert_eq!(mode(anonymous(1).range()), None);
}

fn unlock_all_of_one_mode_keeps_future_locks_of_the_other() -> Completion {
    in_child_if_unlimited("keep_future_locks_of_other_mode")
}

/// Beside a reservation, the guards of stacks, and a hidden secret.
fn unlock_all_beside_inaccessible_memory() {
    let page = page_size();
    let reserved = anonymous(8);
    let middle = reserved.as_ptr().wrapping_add(2 * page);
    let protected = unsafe { libc::mprotect(middle.cast(), 4 * page, libc::PROT_NONE) };
    assert_eq!(protected, 0);
    let _hidden = SecretBuffer::hidden_with_max_len(page);
    lock_all(LockScope::Current, LockMode::Now).unwrap();
    lock_all(LockScope::Future, LockMode::OnFault).unwrap();
    unlock_all(LockFlags::ON_FAULT).unwrap();
    assert_eq!(lock_modes(reserved.range()), [NOW; 8]);
    assert_eq!(mode(anonymous(1).range()), None);
}

fn unlock_all_of_one_mode_keeps_memory_that_cannot_be_faulted_in() -> Completion {
    in_child_if_unlimited("unlock_all_beside_inaccessible_memory")
}

/// Checks that the mode of later mappings is known, also where smaps does not show it.
fn lock_again_after_unlock_all() {
    let memory = anonymous(8);
    memory.lock(.., LockMode::OnFault).unwrap();
    unlock_all(LockFlags::ALL).unwrap();
    // The earlier lock says nothing about one that other code makes.
    raw_lock(memory.range());
    memory.unlock(.., LockFlags::ON_FAULT).unwrap();
    assert_eq!(mode(memory.range()), NOW);
}

fn unlock_all_forgets_modes_of_earlier_locks() {
    in_child_ok("lock_again_after_unlock_all");
}

fn change_future_mode() {
    lock_all(LockScope::Future, LockMode::OnFault).unwrap();
    let first = anonymous(2);
    lock_all(LockScope::Future, LockMode::Now).unwrap();
    let second = anonymous(2);
    assert_eq!(mode(first.range()), ON_FAULT);
    assert_eq!(mode(second.range()), NOW);
    first.unlock(.., LockFlags::NOW).unwrap();
    second.unlock(.., LockFlags::ON_FAULT).unwrap();
    assert_eq!(mode(first.range()), ON_FAULT);
    assert_eq!(mode(second.range()), NOW);
    first.unlock(.., LockFlags::ON_FAULT).unwrap();
    second.unlock(.., LockFlags::NOW).unwrap();
    assert_eq!(mode(first.range()), None);
    assert_eq!(mode(second.range()), None);
}

fn new_future_mode_keeps_mode_of_earlier_mappings() -> Completion {
    in_child_if_unlimited("change_future_mode")
}

fn populate_under_lock_all() {
    lock_all(LockScope::Future, LockMode::OnFault).unwrap();
    let memory = anonymous(8);
    memory.populate(.., Access::Write).unwrap();
    assert_eq!(count_present(memory.range()), 8);
    assert_eq!(mode(memory.range()), ON_FAULT);
}

fn populate_under_future_on_fault_locks_is_complete() -> Completion {
    in_child_if_unlimited("populate_under_lock_all")
}

fn release_under_lock_all() {
    const LEN: usize = 32 << 20;
    let before = Mapping::anonymous(LEN).map().unwrap();
    before.populate(.., Access::Write).unwrap();
    lock_all(LockScope::Future, LockMode::OnFault).unwrap();
    let later = Mapping::anonymous(LEN).map().unwrap();
    later.populate(.., Access::Write).unwrap();
    let ranges = [before.range(), later.range()];
    for range in ranges {
        tag(range);
    }
    before.munmap().unwrap();
    later.munmap().unwrap();
    tenure::drain(None).unwrap();
    for range in ranges {
        assert!(!is_still_mapped(range), "{range} is still mapped");
    }
    // Neither the moved memory nor its new place stays locked.
    unlock_all(LockFlags::ON_FAULT).unwrap();
    assert_eq!(status_kib("VmLck"), 0);
}

fn release_under_lock_all_leaves_no_locks() -> Completion {
    in_child_if_unlimited("release_under_lock_all")
}

fn use_destructive_verbs() {
    lock_all(LockScope::CurrentAndFuture, LockMode::OnFault).unwrap();
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

fn destructive_verbs_on_locked_memory_are_rejected() -> Completion {
    in_child_if_unlimited("use_destructive_verbs")
}

fn lock_all_over_limit() {
    let memory = anonymous(8);
    limit_memlock(64 << 10);
    for scope in [LockScope::Current, LockScope::CurrentAndFuture] {
        for mode in [LockMode::Now, LockMode::OnFault] {
            let error = lock_all(scope, mode).unwrap_err();
            let Error::ProcessLockLimit {
                limit_bytes,
                used_bytes: 0,
                requested_bytes,
                ..
            } = error
            else {
                panic!("{error}");
            };
            assert_eq!(limit_bytes, 64 << 10);
            assert!(requested_bytes >= memory.len() + limit_bytes);
            assert_eq!(error.errno(), libc::ENOMEM);
            assert!(error.to_string().contains("ulimit -l"), "{error}");
        }
    }
    assert_eq!(status_kib("VmLck"), 0);
    assert_eq!(mode(anonymous(1).range()), None);
    limit_memlock(0);
    let error = lock_all(LockScope::Future, LockMode::Now).unwrap_err();
    assert_eq!(error.errno(), libc::EPERM, "{error}");
}

fn lock_all_over_limit_locks_nothing() {
    in_child_ok("lock_all_over_limit");
}

fn map_over_limit() {
    limit_memlock(64 << 10);
    lock_all(LockScope::Future, LockMode::OnFault).unwrap();
    let error = Mapping::anonymous(1 << 20).map().unwrap_err();
    assert!(
        matches!(
            error,
            Error::ProcessLockLimit {
                limit_bytes: 0x1_0000,
                requested_bytes: 0x10_0000,
                ..
            }
        ),
        "{error}"
    );
    unlock_all(LockFlags::ALL).unwrap();
    Mapping::anonymous(1 << 20).map().unwrap();
}

fn map_over_limit_under_lock_all_reports_limit() {
    in_child_ok("map_over_limit");
}

fn fork_under_lock_all() {
    let memory = anonymous(4);
    fill(memory.range());
    lock_all(LockScope::CurrentAndFuture, LockMode::Now).unwrap();
    let status = fork(|| {
        assert_eq!(status_kib("VmLck"), 0);
        let own = anonymous(4);
        assert_eq!(mode(own.range()), None);
        own.lock(.., LockMode::OnFault).unwrap();
        unlock_all(LockFlags::NOW).unwrap();
        assert_eq!(mode(own.range()), ON_FAULT);
        unlock_all(LockFlags::ON_FAULT).unwrap();
        assert_eq!(mode(own.range()), None);
        i32::from(!is_filled(memory.range()))
    });
    assert_eq!(status, 0);
    assert_eq!(mode(memory.range()), NOW);
}

fn forked_child_maps_without_locks() -> Completion {
    in_child_if_unlimited("fork_under_lock_all")
}

const KIB: usize = 1 << 10;

fn secret(page_count: usize) -> (SecretBuffer, PageRange) {
    let mut secret = SecretBuffer::with_max_len(page_count * page_size()).unwrap();
    secret.extend_from_slice(&vec![7; page_size()]).unwrap();
    let start = secret.as_slice().as_ptr().expose_provenance();
    let range = PageRange::new(start, page_count * page_size()).unwrap();
    (secret, range)
}

/// Maps a file whose first page, at least, is locked.
fn locked_file(len: usize) -> LockedFile {
    let file = file(len);
    file.sync_all().unwrap();
    let locked = unsafe { LockedFile::map(&file) }.unwrap();
    assert_eq!(std::hint::black_box(locked.as_slice()[0]), 0);
    locked
}

fn locked_kib(ranges: &[PageRange]) -> u64 {
    (ranges.iter().map(|range| range.len()).sum::<usize>() / KIB) as u64
}

fn unlock_all_beside_kept_memory() {
    let (_secret, secret) = secret(16);
    let file = locked_file(64 * KIB);
    let kept = [secret, file.range()];
    let file_bytes = file.locked_bytes().unwrap();
    assert!(file_bytes > 0);
    let memory = anonymous(4);
    for flags in [LockFlags::ON_FAULT, LockFlags::NOW, LockFlags::ALL] {
        for scope in [
            None,
            Some(LockScope::Current),
            Some(LockScope::Future),
            Some(LockScope::CurrentAndFuture),
        ] {
            for mode in [LockMode::OnFault, LockMode::Now] {
                if let Some(scope) = scope {
                    lock_all(scope, mode).unwrap();
                }
                let later = anonymous(1);
                unlock_all(flags).unwrap();
                for range in kept {
                    assert!(has_vm_flag(range, "lo"), "{flags:?} {scope:?} {mode:?}");
                    assert!(is_locked_on_fault(range), "{flags:?} {scope:?} {mode:?}");
                }
                assert!(file.locked_bytes().unwrap() >= file_bytes);
                unlock_all(LockFlags::ALL).unwrap();
                for range in [memory.range(), later.range(), anonymous(1).range()] {
                    assert!(lock_modes(range).iter().all(|&seen| seen == None));
                }
                assert_eq!(status_kib("VmLck"), locked_kib(&kept));
            }
        }
    }
}

fn unlock_all_keeps_secret_and_locked_file_locked() -> Completion {
    in_child_if_unlimited("unlock_all_beside_kept_memory")
}

struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn watch_secret_during_unlock_all() {
    let (_secret, secret) = secret(16);
    let memory = anonymous(1);
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                assert!(is_locked_without_proc(secret), "the secret is unlocked");
            }
        });
        // If a call below fails, the thread above must end all the same.
        let ends = SetOnDrop(&done);
        for flags in [LockFlags::ON_FAULT, LockFlags::ALL].repeat(100) {
            // The other mode of the two stays locked.
            memory.lock(.., LockMode::Now).unwrap();
            lock_all(LockScope::Future, LockMode::OnFault).unwrap();
            unlock_all(flags).unwrap();
        }
        drop(ends);
        watcher.join().unwrap();
    });
}

fn unlock_all_never_unlocks_secret_for_a_moment() -> Completion {
    in_child_if_unlimited("watch_secret_during_unlock_all")
}

/// Returns a limit that allows the locks of these tests, and no lock of all memory.
fn small_limit() -> usize {
    (1 << 20).max(32 * page_size())
}

fn unlock_all_over_limit() {
    limit_memlock(small_limit() as u64);
    let (secret, range) = secret(16);
    let memory = anonymous(2);
    memory.lock(.., LockMode::Now).unwrap();
    lock_all(LockScope::Future, LockMode::OnFault).unwrap();
    for flags in [LockFlags::ON_FAULT, LockFlags::ALL] {
        let error = unlock_all(flags).unwrap_err();
        assert!(
            matches!(error, Error::ProcessLockLimit { limit_bytes, .. } if limit_bytes == small_limit()),
            "{error}"
        );
        assert_eq!(error.errno(), libc::ENOMEM);
        // Every lock is as it was.
        assert!(has_vm_flag(range, "lo") && is_locked_on_fault(range));
        assert_eq!(lock_modes(memory.range()), [NOW; 2]);
        assert_eq!(mode(anonymous(1).range()), ON_FAULT);
    }
    // The locks of the mode that new mappings do not have can be cleared.
    unlock_all(LockFlags::NOW).unwrap();
    assert_eq!(lock_modes(memory.range()), [None; 2]);
    assert!(is_locked_on_fault(range));
    drop(secret);
    unlock_all(LockFlags::ALL).unwrap();
    assert_eq!(status_kib("VmLck"), 0);
    assert_eq!(mode(anonymous(1).range()), None);
}

fn unlock_all_over_limit_keeps_secret_and_reports_limit() {
    in_child_ok("unlock_all_over_limit");
}

fn unlock_all_within_limit() {
    limit_memlock(small_limit() as u64);
    let (_secret, range) = secret(16);
    let memory = anonymous(3);
    for flags in [LockFlags::ON_FAULT, LockFlags::ALL] {
        memory.lock(..page_size(), LockMode::Now).unwrap();
        memory.lock(2 * page_size().., LockMode::OnFault).unwrap();
        unlock_all(flags).unwrap();
        assert!(has_vm_flag(range, "lo") && is_locked_on_fault(range));
        let first = match flags {
            LockFlags::ALL => None,
            _ => NOW,
        };
        assert_eq!(lock_modes(memory.range()), [first, None, None]);
    }
    assert_eq!(status_kib("VmLck"), locked_kib(&[range]));
}

fn unlock_all_within_limit_keeps_secret_and_clears_other_locks() {
    in_child_ok("unlock_all_within_limit");
}

fn unlock_all_under_foreign_future_locks() {
    let (_secret, range) = secret(16);
    rustix::mm::mlockall(rustix::mm::MlockAllFlags::FUTURE).unwrap();
    let later = anonymous(1);
    assert_eq!(mode(later.range()), NOW);
    unlock_all(LockFlags::ALL).unwrap();
    assert_eq!(mode(later.range()), None);
    assert_eq!(mode(anonymous(1).range()), None);
    assert!(has_vm_flag(range, "lo") && is_locked_on_fault(range));
    assert_eq!(status_kib("VmLck"), locked_kib(&[range]));
}

fn unlock_all_ends_future_locks_of_other_code_beside_secret() -> Completion {
    in_child_if_unlimited("unlock_all_under_foreign_future_locks")
}

fn unlock_all_after_drop() {
    let (secret, range) = secret(16);
    let file = locked_file(64 * KIB);
    let file_range = file.range();
    drop((secret, file));
    // Other memory at the same addresses is not kept.
    for range in [range, file_range] {
        raw_map_over(range);
        raw_lock(range);
    }
    unlock_all(LockFlags::ALL).unwrap();
    assert_eq!(status_kib("VmLck"), 0);
}

fn unlock_all_after_drop_of_secret_clears_every_lock() {
    in_child_ok("unlock_all_after_drop");
}

fn unlock_all_in_forked_child() {
    let (inherited, inherited_range) = secret(16);
    let file = locked_file(64 * KIB);
    let mut held = Some((inherited, file));
    let status = fork(|| {
        lock_all(LockScope::CurrentAndFuture, LockMode::OnFault).unwrap();
        unlock_all(LockFlags::ON_FAULT).unwrap();
        assert_eq!(status_kib("VmLck"), 0);
        let (own, own_range) = secret(4);
        lock_all(LockScope::CurrentAndFuture, LockMode::OnFault).unwrap();
        drop(held.take());
        unlock_all(LockFlags::ALL).unwrap();
        assert!(is_locked_on_fault(own_range));
        assert_eq!(status_kib("VmLck"), locked_kib(&[own_range]));
        drop(own);
        0
    });
    assert_eq!(status, 0);
    assert!(has_vm_flag(inherited_range, "lo") && is_locked_on_fault(inherited_range));
    unlock_all(LockFlags::ALL).unwrap();
    assert!(has_vm_flag(inherited_range, "lo") && is_locked_on_fault(inherited_range));
}

fn unlock_all_in_forked_child_keeps_only_its_own_secrets() -> Completion {
    in_child_if_unlimited("unlock_all_in_forked_child")
}

fn unlock_locked_file_range() {
    let file = locked_file(64 * KIB);
    let locked_bytes = file.locked_bytes().unwrap();
    for flags in [LockFlags::ON_FAULT, LockFlags::ALL] {
        unsafe { file.range().unlock(flags) }.unwrap();
        assert!(has_vm_flag(file.range(), "lo") && is_locked_on_fault(file.range()));
        assert!(file.locked_bytes().unwrap() >= locked_bytes);
    }
}

fn unlock_of_locked_file_range_keeps_it_locked() {
    in_child_ok("unlock_locked_file_range");
}

fn lock_all_now_beside_locked_file() {
    let file = locked_file(8 << 20);
    let locked_bytes = file.locked_bytes().unwrap();
    assert!(locked_bytes < file.len());
    let (_secret, range) = secret(16);
    let memory = anonymous(4);
    for scope in [LockScope::Current, LockScope::CurrentAndFuture] {
        lock_all(scope, LockMode::Now).unwrap();
        assert_eq!(lock_modes(memory.range()), [NOW; 4]);
        assert_eq!(count_present(memory.range()), 4);
        assert!(is_locked_on_fault(file.range()) && is_locked_on_fault(range));
        assert_eq!(file.locked_bytes(), Ok(locked_bytes));
        assert_eq!(count_present(range), 1);
        let later = match scope {
            LockScope::Current => None,
            _ => NOW,
        };
        assert_eq!(mode(anonymous(1).range()), later);
    }
}

fn lock_all_now_reads_no_untouched_page_of_locked_file() -> Completion {
    in_child_if_unlimited("lock_all_now_beside_locked_file")
}
