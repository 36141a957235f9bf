//! lock of large ranges, which is done in chunks: the outcome is that of `mlock`, a
//! failure undoes everything, and no other call waits for the whole range.

#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "tests use memory that they have mapped themselves"
)]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use common::*;
use libtest_mimic::Completion;
use tenure::{
    Access, Error, HugePages, LockMode, Mapping, MemfdPages, PageRange,
    lock::LockFlags,
    page_size,
    populate::{CancelToken, PopulateOptions},
};

tests!(
    large_lock_makes_one_mapping_with_all_pages_locked,
    every_kind_of_memory_is_locked_as_by_mlock,
    read_only_memory_is_locked_without_a_private_copy,
    large_lock_over_other_modes_replaces_them,
    large_lock_over_limit_populates_nothing,
    large_lock_past_end_of_file_restores_locks,
    large_lock_of_inaccessible_page_restores_locks,
    large_lock_beyond_memory_restores_locks,
    [exclusive] large_lock_with_empty_hugetlb_pool_restores_locks,
    [exclusive] large_lock_of_hugetlb_and_other_memory_is_complete,
    cancelled_lock_restores_locks,
    panicking_progress_callback_restores_locks,
    progress_callback_may_lock_and_fork_elsewhere,
    part_changed_during_lock_keeps_the_change,
    large_lock_at_mapping_limit_is_complete,
    part_locked_at_mapping_limit_lacks_memory_not_backing;
    children:
    lock_over_limit,
    lock_beyond_memory,
    lock_at_mapping_limit,
    lock_part_at_mapping_limit,
);

/// Skips a test that locks hundreds of MiB where `RLIMIT_MEMLOCK` forbids that.
fn skip_if_limited() -> Option<Completion> {
    (!may_lock_anything()).then(|| skip("RLIMIT_MEMLOCK allows too little"))
}

const NOW: Option<LockMode> = Some(LockMode::Now);
const ON_FAULT: Option<LockMode> = Some(LockMode::OnFault);
const MIB: usize = 1 << 20;

fn small_pages(len: usize) -> Mapping {
    Mapping::anonymous(len)
        .huge_pages(HugePages::Never)
        .map()
        .unwrap()
}

/// Memory that the test unmaps itself.
fn unowned(len: usize) -> PageRange {
    let memory = small_pages(len);
    let range = memory.range();
    std::mem::forget(memory);
    range
}

fn map_at(start: usize, len: usize, flags: i32) -> PageRange {
    let flags = flags | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let hint = std::ptr::with_exposed_provenance_mut(start);
    let start = unsafe { libc::mmap(hint, len, protection, flags, -1, 0) };
    assert_ne!(start, libc::MAP_FAILED);
    PageRange::new(start.expose_provenance(), len).unwrap()
}

/// Maps memory that need not exist.
fn unreserved(len: usize, flags: i32) -> PageRange {
    map_at(0, len, flags | libc::MAP_NORESERVE)
}

/// Options whose callback runs between the first and the last chunk. The callback runs
/// every 50 ms: chunks of one page make populating take longer than that.
fn slowly(progress: impl Fn() + Send + Sync + 'static) -> PopulateOptions {
    PopulateOptions::new(Access::Write)
        .threads(1)
        .chunk_bytes(page_size())
        .progress(move |now| {
            if now.done_bytes < now.total_bytes {
                progress();
            }
        })
}

fn assert_locked_now(range: PageRange) {
    assert!(lock_modes(range).iter().all(|mode| *mode == NOW));
    assert_eq!(count_present(range), range.pages());
}

fn large_lock_makes_one_mapping_with_all_pages_locked() -> Completion {
    if let Some(skipped) = skip_if_limited() {
        return skipped;
    }
    let memory = small_pages(64 * MIB);
    // Mappings on both sides have no lock to merge with.
    let range = pages(memory.range(), 1, memory.range().pages() - 2);
    let charged = status_kib("VmLck");
    unsafe { range.lock(LockMode::Now) }.unwrap();
    assert_locked_now(range);
    assert_eq!(smaps_bytes(range, "Locked"), range.len() as u64);
    assert_eq!(smaps_bytes(range, "Size"), range.len() as u64);
    assert_eq!(status_kib("VmLck") - charged, (range.len() / 1024) as u64);
    memory.unlock(.., LockFlags::NOW).unwrap();
    assert_eq!(status_kib("VmLck"), charged);
    Completion::Completed
}

fn every_kind_of_memory_is_locked_as_by_mlock() {
    const LEN: usize = 4 * MIB;
    let data = file(LEN);
    let kinds = [
        Mapping::shared_anonymous(LEN),
        Mapping::memfd(LEN, MemfdPages::Base),
        Mapping::memfd(LEN, MemfdPages::Base).private(),
        unsafe { Mapping::file(&data) }.read_write(),
        unsafe { Mapping::file(&data) }.private().read_write(),
        Mapping::anonymous(LEN).huge_pages(HugePages::Always),
    ];
    for builder in kinds {
        let memory = builder.map_locked(LockMode::Now).unwrap();
        assert_locked_now(memory.range());
    }
}

fn read_only_memory_is_locked_without_a_private_copy() {
    let data = file(4 * MIB);
    let memory = unsafe { Mapping::file(&data) }
        .private()
        .map_locked(LockMode::Now)
        .unwrap();
    assert_locked_now(memory.range());
    assert_eq!(smaps_bytes(memory.range(), "Anonymous"), 0);
}

/// Locks pages 2 to 4 on fault and 6 to 8 now, and returns the modes of all pages.
fn lock_some(range: PageRange) -> Vec<SeenLock> {
    unsafe { pages(range, 2, 2).lock(LockMode::OnFault) }.unwrap();
    unsafe { pages(range, 6, 2).lock(LockMode::Now) }.unwrap();
    lock_modes(range)
}

/// Checks that the kernel and the registry have the locks of [`lock_some`] only.
fn assert_restored(range: PageRange, before: &[SeenLock]) {
    assert_eq!(lock_modes(range), before);
    unsafe { range.unlock(LockFlags::ON_FAULT) }.unwrap();
    let modes = lock_modes(range);
    assert!(modes[6..8].iter().all(|mode| *mode == NOW));
    assert_eq!(
        modes.iter().filter(|mode| **mode == None).count(),
        modes.len() - 2
    );
    unsafe { range.unlock(LockFlags::NOW) }.unwrap();
    assert!(lock_modes(range).iter().all(|mode| *mode == None));
}

fn large_lock_over_other_modes_replaces_them() {
    let memory = small_pages(8 * MIB);
    lock_some(memory.range());
    memory.lock(.., LockMode::Now).unwrap();
    assert_locked_now(memory.range());
    memory.unlock(.., LockFlags::ON_FAULT).unwrap();
    assert_locked_now(memory.range());
}

fn lock_over_limit() {
    let memory = small_pages(8 * MIB);
    limit_memlock(6 * MIB as u64);
    let before = lock_some(memory.range());
    let error = memory.lock(.., LockMode::Now).unwrap_err();
    let Error::LockLimit {
        used_bytes,
        requested_bytes,
        ..
    } = error
    else {
        panic!("{error}")
    };
    assert_eq!(used_bytes, 4 * page_size());
    assert_eq!(requested_bytes, memory.len() - 4 * page_size());
    assert_eq!(count_present(memory.range()), 2);
    assert_restored(memory.range(), &before);
    memory.lock(..6 * MIB, LockMode::Now).unwrap();
    memory.lock(..6 * MIB, LockMode::Now).unwrap();
}

fn large_lock_over_limit_populates_nothing() {
    in_child_ok("lock_over_limit");
}

fn large_lock_past_end_of_file_restores_locks() {
    let data = file(6 * MIB);
    let memory = unsafe { Mapping::file(&data) }.len(8 * MIB).map().unwrap();
    let before = lock_some(memory.range());
    let error = memory.lock(.., LockMode::Now).unwrap_err();
    assert!(
        matches!(error, Error::NoBacking { verb: "lock", .. }),
        "{error}"
    );
    assert_restored(memory.range(), &before);
}

fn large_lock_of_inaccessible_page_restores_locks() {
    let memory = small_pages(8 * MIB);
    let closed = pages(memory.range(), memory.range().pages() / 4 * 3, 1);
    raw_protect(closed, rustix::mm::MprotectFlags::empty());
    let before = lock_some(memory.range());
    let error = memory.lock(.., LockMode::Now).unwrap_err();
    assert!(
        matches!(error, Error::NoAccess { part, .. } if part == closed),
        "{error}"
    );
    assert_restored(memory.range(), &before);
}

fn lock_beyond_memory() {
    // Far more than the machine has, which must never be populated.
    let range = unreserved(1 << 40, 0);
    let error = unsafe { range.lock(LockMode::Now) }.unwrap_err();
    assert!(
        matches!(error, Error::NoMemory { verb: "lock", .. }),
        "{error}"
    );
    assert_eq!(status_kib("VmLck"), 0);
}

fn large_lock_beyond_memory_restores_locks() -> Completion {
    in_child_if_unlimited("lock_beyond_memory")
}

fn large_lock_with_empty_hugetlb_pool_restores_locks() -> Completion {
    let Some(_pool) = HugePool::of(2) else {
        return skip("no pool of huge pages of 2 MiB, and none can be made");
    };
    let free = HugePool::read(HugePool::FREE).unwrap();
    let range = unreserved((free + 2) * 2 * MIB, libc::MAP_HUGETLB | libc::MAP_HUGE_2MB);
    let charged = status_kib("VmLck");
    let error = unsafe { range.lock(LockMode::Now) }.unwrap_err();
    // The kernel compares hugetlb memory with the limit, though it does not count.
    assert!(
        matches!(
            error,
            Error::NoMemory { verb: "lock", .. }
                | Error::NoBacking { verb: "lock", .. }
                | Error::LockLimit { .. }
        ),
        "{error}"
    );
    // Pages before the one without backing may have been populated.
    if !matches!(error, Error::NoBacking { .. }) {
        assert_eq!(HugePool::read(HugePool::FREE).unwrap(), free);
    }
    assert_eq!(status_kib("VmLck"), charged);
    raw_unmap(range);
    assert_eq!(HugePool::read(HugePool::FREE).unwrap(), free);
    Completion::Completed
}

fn large_lock_of_hugetlb_and_other_memory_is_complete() -> Completion {
    let Some(_pool) = HugePool::of(1) else {
        return skip("no pool of huge pages of 2 MiB, and none can be made");
    };
    let whole = unowned(8 * MIB);
    let start = whole.start().next_multiple_of(2 * MIB) + 2 * MIB;
    let huge = PageRange::new(start, 2 * MIB).unwrap();
    map_at(
        huge.start(),
        huge.len(),
        libc::MAP_HUGETLB | libc::MAP_HUGE_2MB | libc::MAP_FIXED,
    );
    unsafe { whole.lock(LockMode::Now) }.unwrap();
    assert_eq!(count_present(whole), whole.pages());
    for (page, mode) in lock_modes(whole).into_iter().enumerate() {
        let is_huge = pages(whole, page, 1).intersection(huge).is_some();
        assert_eq!(mode, if is_huge { None } else { NOW });
    }
    raw_unmap(whole);
    Completion::Completed
}

fn cancelled_lock_restores_locks() -> Completion {
    if let Some(skipped) = skip_if_limited() {
        return skipped;
    }
    let memory = small_pages(512 * MIB);
    let before = lock_some(memory.range());
    let token = CancelToken::new();
    let from_inside = token.clone();
    let options = slowly(move || from_inside.cancel()).cancel(&token);
    let error = memory.lock_with(.., &options).unwrap_err();
    assert!(
        matches!(error, Error::Cancelled { verb: "lock", .. }),
        "{error}"
    );
    assert_restored(memory.range(), &before);
    Completion::Completed
}

fn panicking_progress_callback_restores_locks() -> Completion {
    if let Some(skipped) = skip_if_limited() {
        return skipped;
    }
    let memory = small_pages(512 * MIB);
    let before = lock_some(memory.range());
    // Without a message, which would look like a failed test.
    let options = slowly(|| std::panic::resume_unwind(Box::new("as the test wants")));
    let lock = std::panic::AssertUnwindSafe(|| memory.lock_with(.., &options));
    assert!(std::panic::catch_unwind(lock).is_err());
    assert_restored(memory.range(), &before);
    Completion::Completed
}

fn progress_callback_may_lock_and_fork_elsewhere() -> Completion {
    if let Some(skipped) = skip_if_limited() {
        return skipped;
    }
    let memory = small_pages(512 * MIB);
    let range = memory.range();
    let reports = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&reports);
    let options = slowly(move || {
        if count.fetch_add(1, Ordering::Relaxed) > 0 {
            return;
        }
        // Both would wait for ever if the call held the registry's mutex.
        let other = anonymous(8);
        other.lock(.., LockMode::Now).unwrap();
        assert_locked_now(other.range());
        let forked = std::thread::spawn(move || {
            fork(|| {
                // The child has no locks, and its registry works.
                let part = pages(range, 0, 8);
                assert!(lock_modes(part).iter().all(|mode| *mode == None));
                unsafe { part.lock(LockMode::OnFault) }.unwrap();
                unsafe { part.unlock(LockFlags::NOW) }.unwrap();
                assert!(lock_modes(part).iter().all(|mode| *mode == ON_FAULT));
                0
            })
        });
        assert_eq!(forked.join().unwrap(), 0);
    });
    memory.lock_with(.., &options).unwrap();
    assert!(reports.load(Ordering::Relaxed) > 0);
    assert_locked_now(range);
    Completion::Completed
}

fn part_changed_during_lock_keeps_the_change() -> Completion {
    if let Some(skipped) = skip_if_limited() {
        return skipped;
    }
    let memory = small_pages(512 * MIB);
    let range = memory.range();
    let (unlocked, on_fault) = (pages(range, 0, 4), pages(range, 8, 4));
    let unmapped = pages(range, range.pages() - 4, 4);
    let change = move || unsafe {
        unlocked.unlock(LockFlags::ALL).unwrap();
        on_fault.lock(LockMode::OnFault).unwrap();
    };
    memory.lock_with(.., &slowly(change)).unwrap();
    let modes = lock_modes(range);
    assert_eq!(modes[..4], [None; 4]);
    assert_eq!(modes[8..12], [ON_FAULT; 4]);
    assert_locked_now(pages(range, 12, range.pages() - 12));
    memory.unlock(.., LockFlags::ALL).unwrap();

    // Other memory that takes the place of an unmapped part is not locked.
    let replace = move || unsafe {
        unmapped.munmap().unwrap();
        raw_map_over(unmapped);
    };
    memory.lock_with(.., &slowly(replace)).unwrap();
    assert_eq!(lock_modes(unmapped), [None; 4]);
    assert_locked_now(pages(range, 0, range.pages() - 4));
    Completion::Completed
}

/// Leaves no mapping to spare during `work`: splitting one is refused.
fn at_mapping_limit<T>(work: impl FnOnce() -> T) -> T {
    let limit = std::fs::read_to_string("/proc/sys/vm/max_map_count").unwrap();
    let limit: usize = limit.trim().parse().unwrap();
    let many = unowned((limit + 100) * 2 * page_size());
    let closed = rustix::mm::MprotectFlags::empty();
    let is_at_limit = (0..many.pages()).step_by(2).any(|page| {
        let one = pages(many, page, 1);
        unsafe { rustix::mm::mprotect(one.as_ptr().cast(), one.len(), closed) }.is_err()
    });
    assert!(is_at_limit);
    let result = work();
    raw_unmap(many);
    result
}

fn lock_at_mapping_limit() {
    // Shared memory does not merge with that of its neighbours.
    let memory = Mapping::shared_anonymous(64 * MIB).map().unwrap();
    at_mapping_limit(|| memory.lock(.., LockMode::Now)).unwrap();
    assert_locked_now(memory.range());
}

/// The part is locked already, so that its locks do not tell what the kernel refused.
fn lock_part_at_mapping_limit() {
    let memory = anonymous(16);
    unsafe { memory.range().lock(LockMode::OnFault) }.unwrap();
    let part = pages(memory.range(), 4, 8);
    let result = at_mapping_limit(|| unsafe { part.lock(LockMode::Now) });
    let is_no_memory =
        matches!(result, Err(Error::SystemAt { errno, .. }) if errno == rustix::io::Errno::NOMEM);
    assert!(is_no_memory, "{result:?}");
    assert_eq!(lock_modes(memory.range()), [ON_FAULT; 16]);
}

fn part_locked_at_mapping_limit_lacks_memory_not_backing() -> Completion {
    if let Some(skipped) = skip_if_limited() {
        return skipped;
    }
    in_child_ok("lock_part_at_mapping_limit");
    Completion::Completed
}

fn large_lock_at_mapping_limit_is_complete() -> Completion {
    if let Some(skipped) = skip_if_limited() {
        return skipped;
    }
    in_child_ok("lock_at_mapping_limit");
    Completion::Completed
}
