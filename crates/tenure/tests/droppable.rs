//! Droppable memory (MAP_DROPPABLE, Linux 6.11), whose pages the kernel drops without a report.

#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "tests use memory that they have mapped themselves"
)]

mod common;

use common::*;
use libtest_mimic::Completion;
use rustix::mm::Advice;
use tenure::lazy_free::FreePolicy;
use tenure::{
    Access, Error, HugePages, LockMode, Mapping, MemoryKind, PageRange, lock::LockFlags, page_size,
};

tests!(
    unless: without_droppable;
    droppable_memory_is_not_locked,
    droppable_memory_is_populated,
    droppable_memory_is_freed_discarded_and_unmapped,
    droppable_memory_is_dropped_without_being_offered;
    children:
);

fn without_droppable() -> Option<&'static str> {
    match map_droppable(1) {
        Some(range) => {
            raw_unmap(range);
            None
        }
        None => Some("needs MAP_DROPPABLE (Linux 6.11)"),
    }
}

fn map_droppable(page_count: usize) -> Option<PageRange> {
    const MAP_DROPPABLE: i32 = 0x08;
    let (len, access) = (page_count * page_size(), libc::PROT_READ | libc::PROT_WRITE);
    let flags = MAP_DROPPABLE | libc::MAP_ANONYMOUS;
    let at = unsafe { libc::mmap(std::ptr::null_mut(), len, access, flags, -1, 0) };
    (at != libc::MAP_FAILED).then(|| PageRange::new(at as usize, len).unwrap())
}

fn droppable(page_count: usize) -> PageRange {
    let range = map_droppable(page_count).unwrap();
    unsafe { rustix::mm::madvise(range.as_ptr().cast(), range.len(), Advice::LinuxNoHugepage) }
        .unwrap();
    range
}

/// Puts droppable pages into the middle of other memory.
fn mixed(page_count: usize) -> (Mapping, PageRange) {
    let memory = Mapping::anonymous(3 * page_count * page_size());
    let memory = memory.huge_pages(HugePages::Never).map().unwrap();
    let (part, middle) = (
        droppable(page_count),
        pages(memory.range(), page_count, page_count),
    );
    let moved = unsafe {
        libc::mremap(
            part.as_ptr().cast(),
            part.len(),
            part.len(),
            libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED,
            middle.as_ptr(),
        )
    };
    assert_eq!(moved as usize, middle.start());
    (memory, middle)
}

fn droppable_memory_is_not_locked() -> Completion {
    // In one step, and in chunks.
    for page_count in [2, 400] {
        let ordinary = anonymous(3 * page_count);
        if let Err(Error::LockLimit { .. }) = ordinary.lock(.., LockMode::OnFault) {
            return skip("RLIMIT_MEMLOCK allows too little");
        }
        drop(ordinary);
        let (memory, middle) = mixed(page_count);
        let range = memory.range();
        for kept in [None, Some(LockMode::OnFault)] {
            if let Some(mode) = kept {
                memory.lock(..page_size(), mode).unwrap();
            }
            for mode in [LockMode::OnFault, LockMode::Now] {
                let error = memory.lock(.., mode).unwrap_err();
                let found = MemoryKind::Droppable;
                let is_within = |part: PageRange| middle.intersection(part) == Some(part);
                assert!(
                    matches!(error, Error::WrongKind { part, found: kind, .. }
                        if is_within(part) && kind == found),
                    "{error:?}"
                );
                let first = pages(range, 0, 1);
                assert_eq!(is_locked_on_fault(first), kept.is_some());
                let rest = pages(range, 1, 3 * page_count - 1);
                assert!(!has_vm_flag(rest, "lo"), "{mode:?}");
            }
        }
        memory.unlock(.., LockFlags::ALL).unwrap();
        assert_eq!(status_kib("VmLck"), 0);
    }
    Completion::Completed
}

fn droppable_memory_is_populated() {
    let range = droppable(64);
    unsafe { range.populate(Access::Write) }.unwrap();
    let resident = range.residency().unwrap();
    // The kernel may drop pages at any time.
    assert!(resident.resident_bytes <= range.len());
    assert_eq!(resident.mapped_bytes, range.len());
    unsafe { range.populate(Access::Read) }.unwrap();
    raw_unmap(range);
}

fn droppable_memory_is_freed_discarded_and_unmapped() {
    for page_count in [64, (8 << 20) / page_size()] {
        let range = droppable(page_count);
        let policies = [FreePolicy::Eager, FreePolicy::Lazy, FreePolicy::Adaptive];
        for policy in policies {
            fill(range);
            unsafe { range.free(policy) }.unwrap();
        }
        fill(range);
        unsafe { range.discard() }.unwrap();
        assert!(is_zero(range));
        fill(range);
        tag(range);
        unsafe { range.munmap() }.unwrap();
        assert!(!is_still_mapped(range));
    }
}

/// The kernel needs no permission for it, and gives no report.
fn droppable_memory_is_dropped_without_being_offered() {
    let range = droppable(64);
    fill(range);
    page_out_all(range);
    assert!(is_zero(range));
    raw_unmap(range);
}
