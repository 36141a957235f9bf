//! lock: which pages stay resident, which locks an unlock clears, and the limit.

#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "tests use memory that they have mapped themselves"
)]

mod common;

use common::*;
use libtest_mimic::Completion;
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
use tenure::{
    Error, LockMode, Mapping, MappingBuilder, MemfdPages, PageRange, lock::LockFlags, page_size,
    release::ReleaseLimits,
};

tests!(
    lock_now_populates_every_page,
    lock_on_fault_populates_only_touched_pages,
    lock_of_part_rounds_end_and_rejects_unaligned_start,
    unlock_of_one_mode_keeps_the_other,
    unlock_of_interleaved_modes_clears_only_the_named_mode,
    relock_replaces_mode,
    unlock_clears_foreign_locks_by_mode,
    lock_of_empty_range_is_ok,
    lock_of_range_with_hole_changes_nothing,
    lock_with_unbacked_page_restores_locks,
    lock_over_limit_reports_limit_and_usage,
    lock_with_zero_limit_is_eperm,
    root_without_cap_ipc_lock_is_limited,
    user_namespace_root_is_limited,
    failed_lock_restores_foreign_locks,
    inaccessible_memory_is_locked_only_on_fault,
    map_locked_over_limit_maps_nothing,
    forked_child_has_no_locks,
    munmapped_lock_is_forgotten,
    partial_munmap_and_discard_keep_other_locks,
    [exclusive] hugetlb_lock_populates_without_charge,
    file_touch_locks_all_fault_around_pages;
    children:
    lock_over_limit,
    lock_with_zero_limit,
    lock_without_cap_ipc_lock,
    lock_as_user_namespace_root,
    map_locked_over_limit,
);

/// Returns how the first page is locked.
fn mode(range: PageRange) -> SeenLock {
    lock_modes(range)[0]
}

const NOW: Option<LockMode> = Some(LockMode::Now);
const ON_FAULT: Option<LockMode> = Some(LockMode::OnFault);

fn lock_now_populates_every_page() {
    let memory = anonymous(64);
    let before = status_kib("VmLck");
    memory.lock(.., LockMode::Now).unwrap();
    assert_eq!(mode(memory.range()), NOW);
    assert_eq!(count_present(memory.range()), 64);
    assert_eq!(status_kib("VmLck") - before, (memory.len() / 1024) as u64);
    memory.unlock(.., LockFlags::NOW).unwrap();
    assert_eq!(mode(memory.range()), None);
    assert_eq!(status_kib("VmLck"), before);
}

fn lock_on_fault_populates_only_touched_pages() {
    let memory = anonymous(64);
    memory.lock(.., LockMode::OnFault).unwrap();
    assert_eq!(mode(memory.range()), ON_FAULT);
    assert_eq!(count_present(memory.range()), 0);
    fill(pages(memory.range(), 7, 2));
    assert_eq!(count_present(memory.range()), 2);
    assert_eq!(
        smaps_bytes(memory.range(), "Locked"),
        2 * page_size() as u64
    );
    // Locked pages cannot be paged out.
    let advice = rustix::mm::Advice::LinuxPageOut;
    let answer = unsafe { rustix::mm::madvise(memory.as_ptr().cast(), memory.len(), advice) };
    assert_eq!(answer, Err(rustix::io::Errno::INVAL));
}

fn lock_of_part_rounds_end_and_rejects_unaligned_start() {
    let memory = anonymous(4);
    memory
        .lock(page_size()..page_size() + 1, LockMode::OnFault)
        .unwrap();
    assert_eq!(lock_modes(memory.range()), [None, ON_FAULT, None, None]);
    let error = memory.lock(1.., LockMode::OnFault).unwrap_err();
    assert!(matches!(error, Error::Unaligned { .. }), "{error}");
}

fn unlock_of_one_mode_keeps_the_other() {
    let memory = anonymous(8);
    memory.lock(.., LockMode::Now).unwrap();
    memory
        .lock(2 * page_size()..5 * page_size(), LockMode::OnFault)
        .unwrap();
    memory.unlock(.., LockFlags::ON_FAULT).unwrap();
    assert_eq!(
        lock_modes(memory.range()),
        [NOW, NOW, None, None, None, NOW, NOW, NOW]
    );
    memory.unlock(.., LockFlags::ON_FAULT).unwrap();
    assert_eq!(
        lock_modes(memory.range()),
        [NOW, NOW, None, None, None, NOW, NOW, NOW]
    );
    memory.unlock(.., LockFlags::NOW).unwrap();
    assert_eq!(lock_modes(memory.range()), [None; 8]);
}

fn unlock_of_interleaved_modes_clears_only_the_named_mode() {
    let memory = anonymous(8);
    for page in 0..8 {
        let mode = if page % 2 == 0 {
            LockMode::Now
        } else {
            LockMode::OnFault
        };
        memory
            .lock(page * page_size()..(page + 1) * page_size(), mode)
            .unwrap();
    }
    memory
        .unlock(2 * page_size()..6 * page_size(), LockFlags::NOW)
        .unwrap();
    assert_eq!(
        lock_modes(memory.range()),
        [NOW, ON_FAULT, None, ON_FAULT, None, ON_FAULT, NOW, ON_FAULT]
    );
}

fn relock_replaces_mode() {
    let memory = anonymous(4);
    memory.lock(.., LockMode::OnFault).unwrap();
    memory.lock(.., LockMode::Now).unwrap();
    assert_eq!(mode(memory.range()), NOW);
    memory.unlock(.., LockFlags::ON_FAULT).unwrap();
    assert_eq!(mode(memory.range()), NOW);
    memory.lock(.., LockMode::OnFault).unwrap();
    memory.unlock(.., LockFlags::NOW).unwrap();
    assert_eq!(mode(memory.range()), ON_FAULT);
}

fn unlock_clears_foreign_locks_by_mode() -> Completion {
    if let Some(reason) = foreign_lock_modes_unknown() {
        return skip(reason);
    }
    let memory = anonymous(4);
    let (now, on_fault) = (pages(memory.range(), 0, 2), pages(memory.range(), 2, 2));
    raw_lock(now);
    raw_lock_on_fault(on_fault);
    memory.unlock(.., LockFlags::NOW).unwrap();
    assert_eq!(lock_modes(memory.range()), [None, None, ON_FAULT, ON_FAULT]);
    memory.unlock(.., LockFlags::ALL).unwrap();
    assert_eq!(lock_modes(memory.range()), [None; 4]);
    Completion::Completed
}

fn lock_of_empty_range_is_ok() {
    let nowhere = PageRange::new(page_size(), 0).unwrap();
    unsafe { nowhere.lock(LockMode::Now) }.unwrap();
    unsafe { nowhere.unlock(LockFlags::ALL) }.unwrap();
}

fn lock_of_range_with_hole_changes_nothing() {
    let memory = anonymous(8);
    // The first success maps a page for the counters, which must not fill the hole.
    let first = anonymous(1);
    first.lock(.., LockMode::Now).unwrap();
    let hole = pages(memory.range(), 5, 1);
    raw_unmap(hole);
    for mode in [LockMode::Now, LockMode::OnFault] {
        let error = memory.lock(.., mode).unwrap_err();
        assert!(
            matches!(error, Error::Hole { hole: at, .. } if at == hole),
            "{error}"
        );
    }
    assert_eq!(mode(memory.range()), None);
    memory.lock(..5 * page_size(), LockMode::Now).unwrap();
    let error = memory.unlock(.., LockFlags::ALL).unwrap_err();
    assert!(matches!(error, Error::Hole { .. }), "{error}");
    assert_eq!(mode(memory.range()), NOW);
}

fn lock_with_unbacked_page_restores_locks() {
    let file = file(4 * page_size());
    let memory = unsafe { Mapping::file(&file) }
        .len(8 * page_size())
        .map()
        .unwrap();
    memory
        .lock(page_size()..2 * page_size(), LockMode::OnFault)
        .unwrap();
    let before = lock_modes(memory.range());
    let error = memory.lock(.., LockMode::Now).unwrap_err();
    assert!(matches!(error, Error::NoBacking { .. }), "{error}");
    assert_eq!(lock_modes(memory.range()), before);
    // The registry is restored, too.
    memory.unlock(.., LockFlags::NOW).unwrap();
    assert_eq!(lock_modes(memory.range()), before);
    memory.unlock(.., LockFlags::ON_FAULT).unwrap();
    assert_eq!(lock_modes(memory.range()), [None; 8]);
}

fn lock_over_limit() {
    let memory = anonymous(8);
    limit_memlock(6 * page_size() as u64);
    memory.lock(..4 * page_size(), LockMode::OnFault).unwrap();
    for mode in [LockMode::Now, LockMode::OnFault] {
        let error = memory.lock(4 * page_size().., mode).unwrap_err();
        let Error::LockLimit {
            limit_bytes,
            used_bytes,
            requested_bytes,
            range,
        } = error
        else {
            panic!("{error}")
        };
        assert_eq!(
            [limit_bytes, used_bytes, requested_bytes],
            [6, 4, 4].map(|pages| pages * page_size())
        );
        assert_eq!(range.pages(), 4);
        assert_eq!(error.errno(), libc::ENOMEM);
        assert!(error.to_string().contains("ulimit -l"), "{error}");
        assert_eq!(lock_modes(memory.range())[3..5], [ON_FAULT, None]);
    }
    // Pages that are locked already are not charged twice.
    memory.lock(..6 * page_size(), LockMode::OnFault).unwrap();
}

fn lock_over_limit_reports_limit_and_usage() {
    in_child_ok("lock_over_limit");
}

fn lock_with_zero_limit() {
    let memory = anonymous(2);
    limit_memlock(0);
    let error = memory.lock(.., LockMode::OnFault).unwrap_err();
    assert!(
        matches!(
            error,
            Error::LockLimit {
                limit_bytes: 0,
                used_bytes: 0,
                ..
            }
        ),
        "{error}"
    );
    assert_eq!(error.errno(), libc::EPERM);
}

fn lock_with_zero_limit_is_eperm() {
    in_child_ok("lock_with_zero_limit");
}

fn forked_child_has_no_locks() {
    let memory = anonymous(8);
    memory.lock(.., LockMode::OnFault).unwrap();
    let status = fork(|| {
        assert_eq!(mode(memory.range()), None);
        // The registry has forgotten the parent's lock: this is a new one.
        raw_lock(memory.range());
        memory.unlock(.., LockFlags::ON_FAULT).unwrap();
        assert_eq!(mode(memory.range()), NOW);
        0
    });
    assert_eq!(status, 0);
    assert_eq!(mode(memory.range()), ON_FAULT);
}

fn munmapped_lock_is_forgotten() {
    let memory = anonymous(8);
    let range = memory.range();
    memory.lock(.., LockMode::OnFault).unwrap();
    memory.munmap().unwrap();
    raw_map_over(range);
    // The old mapping's lock says nothing about the new mapping's.
    raw_lock(range);
    unsafe { range.unlock(LockFlags::ON_FAULT) }.unwrap();
    assert_eq!(mode(range), NOW);
    raw_unmap(range);
}

fn lock_without_cap_ipc_lock() {
    let mut sets = capabilities(None).unwrap();
    sets.effective.remove(CapabilitySet::IPC_LOCK);
    sets.permitted.remove(CapabilitySet::IPC_LOCK);
    set_capabilities(None, sets).unwrap();
    set_memlock(4 * page_size() as u64);
    let memory = anonymous(5);
    let error = memory.lock(.., LockMode::OnFault).unwrap_err();
    assert!(matches!(error, Error::LockLimit { .. }), "{error}");
    assert!(error.to_string().contains("CAP_IPC_LOCK"), "{error}");
    memory.lock(..4 * page_size(), LockMode::Now).unwrap();
    let error =
        tenure::lock::lock_all(tenure::lock::LockScope::Current, LockMode::OnFault).unwrap_err();
    assert!(matches!(error, Error::ProcessLockLimit { .. }), "{error}");
    assert_eq!(lock_modes(memory.range()), [NOW, NOW, NOW, NOW, None]);
}

fn root_without_cap_ipc_lock_is_limited() -> Completion {
    if !is_root() {
        return skip("needs root");
    }
    in_child_ok("lock_without_cap_ipc_lock");
    Completion::Completed
}

fn lock_as_user_namespace_root() {
    let id = rustix::process::geteuid().as_raw();
    set_memlock(4 * page_size() as u64);
    assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWUSER) }, 0);
    std::fs::write("/proc/self/uid_map", format!("0 {id} 1")).unwrap();
    let sets = capabilities(None).unwrap();
    assert!(sets.effective.contains(CapabilitySet::IPC_LOCK));
    let error = anonymous(5).lock(.., LockMode::OnFault).unwrap_err();
    assert!(matches!(error, Error::LockLimit { .. }), "{error}");
}

fn user_namespace_root_is_limited() -> Completion {
    let may = || unsafe { i32::from(libc::unshare(libc::CLONE_NEWUSER) != 0) };
    if fork(may) != 0 {
        return skip("user namespaces are refused here");
    }
    in_child_ok("lock_as_user_namespace_root");
    Completion::Completed
}

fn failed_lock_restores_foreign_locks() -> Completion {
    if let Some(reason) = foreign_lock_modes_unknown() {
        return skip(reason);
    }
    let file = file(4 * page_size());
    let memory = unsafe { Mapping::file(&file) }
        .len(8 * page_size())
        .map()
        .unwrap();
    raw_lock_on_fault(pages(memory.range(), 2, 3));
    let before = lock_modes(memory.range());
    let error = memory.lock(.., LockMode::Now).unwrap_err();
    assert!(matches!(error, Error::NoBacking { .. }), "{error}");
    assert_eq!(lock_modes(memory.range()), before);
    Completion::Completed
}

fn inaccessible_memory_is_locked_only_on_fault() {
    let memory = anonymous(4);
    let closed = pages(memory.range(), 1, 1);
    raw_protect(closed, rustix::mm::MprotectFlags::empty());
    let error = memory.lock(.., LockMode::Now).unwrap_err();
    assert!(
        matches!(error, Error::NoAccess { part, .. } if part == closed),
        "{error}"
    );
    assert_eq!(lock_modes(memory.range()), [None; 4]);
    memory.lock(.., LockMode::OnFault).unwrap();
    assert_eq!(lock_modes(memory.range()), [ON_FAULT; 4]);
}

fn map_locked_over_limit() {
    // Each worker that starts maps memory for itself.
    ReleaseLimits::default().max_active(1).set();
    limit_memlock(4 * page_size() as u64);
    let mapped_kib = || {
        for mode in [LockMode::Now, LockMode::OnFault] {
            let builder: MappingBuilder = Mapping::anonymous(64 << 20);
            let error = builder.map_locked(mode).unwrap_err();
            assert!(matches!(error, Error::LockLimit { .. }), "{error}");
        }
        tenure::drain(None).unwrap();
        status_kib("VmSize")
    };
    // The first call starts a thread, for which the allocator reserves memory.
    let before = mapped_kib();
    assert!(mapped_kib() < before + (32 << 10));
    assert_eq!(status_kib("VmLck"), 0);
}

fn map_locked_over_limit_maps_nothing() {
    let on_fault = Mapping::anonymous(8 * page_size())
        .huge_pages(tenure::HugePages::Never)
        .map_locked(LockMode::OnFault)
        .unwrap();
    assert_eq!(mode(on_fault.range()), ON_FAULT);
    assert_eq!(count_present(on_fault.range()), 0);
    let now = Mapping::shared_anonymous(8 * page_size())
        .map_locked(LockMode::Now)
        .unwrap();
    assert_eq!(mode(now.range()), NOW);
    assert_eq!(count_present(now.range()), 8);
    in_child_ok("map_locked_over_limit");
}

fn partial_munmap_and_discard_keep_other_locks() {
    let mut memory = anonymous(12);
    let range = memory.range();
    fill(range);
    memory.lock(..8 * page_size(), LockMode::Now).unwrap();
    memory
        .lock(2 * page_size()..4 * page_size(), LockMode::OnFault)
        .unwrap();
    memory.discard(8 * page_size()..).unwrap();
    assert!(is_filled(pages(range, 0, 8)) && is_zero(pages(range, 8, 4)));
    unsafe { pages(range, 1, 2).munmap() }.unwrap();
    raw_map_over(pages(range, 1, 2));
    let expected = [NOW, None, None, ON_FAULT, NOW, NOW, NOW, NOW];
    assert_eq!(lock_modes(pages(range, 0, 8)), expected);
    memory.unlock(.., LockFlags::ON_FAULT).unwrap();
    let expected = [NOW, None, None, None, NOW, NOW, NOW, NOW];
    assert_eq!(lock_modes(pages(range, 0, 8)), expected);
    memory.unlock(.., LockFlags::NOW).unwrap();
    assert_eq!(lock_modes(range), [None; 12]);
}

fn hugetlb_lock_populates_without_charge() -> Completion {
    let Some(_pool) = HugePool::of(2) else {
        return skip("no pool of huge pages of 2 MiB, and none can be made");
    };
    let charged = status_kib("VmLck");
    let memory = Mapping::memfd(4 << 20, MemfdPages::Huge2M).map().unwrap();
    memory.lock(.., LockMode::OnFault).unwrap();
    assert_eq!(mode(memory.range()), None);
    assert_eq!(count_present(memory.range()), memory.range().pages());
    assert_eq!(status_kib("VmLck"), charged);
    memory.unlock(.., LockFlags::ON_FAULT).unwrap();
    Completion::Completed
}

fn file_touch_locks_all_fault_around_pages() {
    let file = file(64 * page_size());
    let memory = unsafe { Mapping::file(&file) }
        .map_locked(LockMode::OnFault)
        .unwrap();
    assert_eq!(count_present(memory.range()), 0);
    let at = 20 * page_size();
    assert_eq!(memory.as_slice()[at], (at % 251) as u8);
    // The kernel chooses how many neighbours its fault-around maps.
    let present = count_present(memory.range());
    assert!((1..=64).contains(&present), "{present}");
    let locked = smaps_bytes(memory.range(), "Locked");
    assert_eq!(locked, (present * page_size()) as u64);
}
