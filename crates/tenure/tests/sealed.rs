//! Memory that is sealed (`mseal(2)`, Linux 6.10): verbs refuse what the kernel would refuse,
//! before they change anything.

#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "tests use memory that they have mapped themselves"
)]

mod common;

use std::mem::ManuallyDrop;

use common::*;
use rustix::mm::MprotectFlags;
use tenure::lazy_free::FreePolicy;
use tenure::volatile::Outcome;
use tenure::{Access, Error, LockMode, Mapping, PageRange, lock::LockFlags, page_size};

tests!(
    unless: without_mseal;
    sealed_part_is_refused_before_anything_is_freed,
    sealed_part_is_refused_before_anything_is_unmapped,
    sealed_part_is_not_marked_volatile,
    sealed_memory_is_locked_and_populated,
    writable_sealed_memory_is_given_up;
    children:
);

/// Longer than what release leaves to the kernel.
const LARGE_BYTES: usize = 8 << 20;

fn without_mseal() -> Option<&'static str> {
    // In a child, because sealed memory stays until the process ends.
    let status = fork(|| i32::from(!try_seal(ManuallyDrop::new(anonymous(1)).range())));
    (status != 0).then_some("this kernel has no mseal (before Linux 6.10)")
}

fn try_seal(range: PageRange) -> bool {
    unsafe { libc::syscall(libc::SYS_mseal, range.start(), range.len(), 0) == 0 }
}

/// Memory of which the second half is sealed, and which is not unmapped.
struct Halves {
    all: PageRange,
    sealed: PageRange,
}

fn halves(page_count: usize, is_writable: bool) -> (Mapping, Halves) {
    let memory = anonymous(2 * page_count);
    let (all, sealed) = (
        memory.range(),
        pages(memory.range(), page_count, page_count),
    );
    fill(all);
    if !is_writable {
        raw_protect(sealed, MprotectFlags::READ);
    }
    assert!(try_seal(sealed));
    (memory, Halves { all, sealed })
}

fn kept_halves(page_count: usize, is_writable: bool) -> Halves {
    let (memory, halves) = halves(page_count, is_writable);
    std::mem::forget(memory);
    halves
}

fn in_sealing_child(act: impl FnOnce()) {
    let status = fork(|| {
        act();
        0
    });
    assert_eq!(status, 0);
}

type Verb = unsafe fn(PageRange) -> tenure::Result<()>;

/// Asserts that the verb refuses the sealed half, alone and behind another, and that it
/// accepts the other one.
fn assert_refuses(verb: Verb, page_count: usize) {
    let halves = kept_halves(page_count, false);
    for range in [halves.all, halves.sealed] {
        let error = unsafe { verb(range) }.unwrap_err();
        assert!(
            matches!(error, Error::Sealed { part, .. } if part == halves.sealed),
            "{error:?}"
        );
        assert_eq!(error.errno(), libc::EPERM);
        assert!(is_filled(halves.all), "{error}");
    }
    unsafe { verb(pages(halves.all, 0, page_count)) }.unwrap();
    assert!(is_filled(halves.sealed));
}

fn sealed_part_is_refused_before_anything_is_freed() {
    in_sealing_child(|| {
        let verbs: [Verb; 5] = [
            PageRange::lazy_free,
            PageRange::discard,
            |range| unsafe { range.free(FreePolicy::Eager) },
            |range| unsafe { range.free(FreePolicy::Lazy) },
            |range| unsafe { range.free(FreePolicy::Adaptive) },
        ];
        for verb in verbs {
            for page_count in [1, 40, LARGE_BYTES / page_size()] {
                assert_refuses(verb, page_count);
            }
        }
    });
}

fn sealed_part_is_refused_before_anything_is_unmapped() {
    in_sealing_child(|| {
        for page_count in [1, 40, LARGE_BYTES / page_size()] {
            assert_refuses(PageRange::munmap, page_count);
            let (memory, halves) = halves(page_count, false);
            let refused = memory.munmap_sync().unwrap_err();
            let is_sealed = matches!(refused.error, Error::Sealed { .. });
            assert!(is_sealed && is_filled(halves.all), "{}", refused.error);
            std::mem::forget(refused.value);
        }
    });
}

fn sealed_part_is_not_marked_volatile() {
    in_sealing_child(|| {
        let halves = kept_halves(8, false);
        for range in [halves.all, halves.sealed] {
            let error = unsafe { range.mark_volatile() }.unwrap_err();
            let is_refused = matches!(error, Error::Sealed { part, .. } if part == halves.sealed);
            assert!(is_refused, "{error:?}");
            tenure::volatile::purge_all().unwrap();
            assert!(is_filled(halves.all));
        }
    });
}

fn sealed_memory_is_locked_and_populated() {
    in_sealing_child(|| {
        for is_writable in [true, false] {
            let all = kept_halves(8, is_writable).all;
            unsafe { all.populate(Access::Read) }.unwrap();
            for (mode, flags) in [
                (LockMode::OnFault, LockFlags::ON_FAULT),
                (LockMode::Now, LockFlags::NOW),
            ] {
                unsafe { all.lock(mode) }.unwrap();
                unsafe { all.unlock(flags) }.unwrap();
            }
            assert!(is_filled(all));
        }
    });
}

/// The kernel seals contents against those only who may not write them.
fn writable_sealed_memory_is_given_up() {
    in_sealing_child(|| {
        let verbs: [Verb; 2] = [PageRange::discard, |range| unsafe {
            range.free(FreePolicy::Eager)
        }];
        for verb in verbs {
            for page_count in [8, LARGE_BYTES / page_size()] {
                let all = kept_halves(page_count, true).all;
                unsafe { verb(all) }.unwrap();
                assert!(is_zero(all));
            }
        }
        let halves = kept_halves(8, true);
        unsafe { halves.all.mark_volatile() }.unwrap();
        unsafe { halves.sealed.purge() }.unwrap();
        let outcome = unsafe { halves.all.mark_nonvolatile() }.unwrap();
        assert_eq!(outcome, Outcome::Purged(vec![halves.sealed]));
        assert!(is_filled(pages(halves.all, 0, 8)) && is_zero(halves.sealed));
    });
}
