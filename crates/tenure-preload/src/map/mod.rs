//! mmap, munmap, mremap and madvise, as the options ask; small ranges, and all that
//! tenure refuses, are the kernel's, with its errors.

mod entry;

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};

use tenure::{Access, PageRange};
use tenure_options::Options;

use crate::quiet::quietly;
use crate::{allocators, sys};

/// Shorter ranges are freed sooner than moved out of the way.
const LARGE_BYTES: usize = 4 << 20;

const NEVER: usize = usize::MAX;

// From which length on each is tenure's.
static MUNMAP_BYTES: AtomicUsize = AtomicUsize::new(NEVER);
static DISCARD_BYTES: AtomicUsize = AtomicUsize::new(NEVER);
static POPULATE_BYTES: AtomicUsize = AtomicUsize::new(NEVER);

/// Has the options hold from now on.
pub(crate) fn turn_on(options: &Options) {
    let large_if = |is_on| if is_on { LARGE_BYTES } else { NEVER };
    MUNMAP_BYTES.store(large_if(options.munmap), Ordering::Relaxed);
    DISCARD_BYTES.store(large_if(options.discard), Ordering::Relaxed);
    POPULATE_BYTES.store(options.populate_bytes.unwrap_or(NEVER), Ordering::Relaxed);
}

fn is_tenures(len: usize, least: &AtomicUsize, caller: usize) -> bool {
    len >= least.load(Ordering::Relaxed) && !allocators::contain(caller)
}

/// The whole pages that the kernel would take the length for.
fn pages(addr: *const c_void, len: usize) -> tenure::Result<PageRange> {
    let whole = len.checked_next_multiple_of(tenure::page_size());
    PageRange::new(addr.expose_provenance(), whole.unwrap_or(len))
}

unsafe extern "C" fn munmap(addr: *mut c_void, len: usize, caller: usize) -> c_int {
    // SAFETY: the caller of munmap gives the range up.
    let unmap = || unsafe { pages(addr, len)?.munmap() };
    if is_tenures(len, &MUNMAP_BYTES, caller) && quietly(unmap) {
        return 0;
    }
    // What tenure has unmapped before it failed is a hole now, and munmap passes
    // over holes.
    // SAFETY: handed on to the caller.
    unsafe { sys::munmap(addr, len) }
}

unsafe extern "C" fn madvise(addr: *mut c_void, len: usize, advice: c_int, caller: usize) -> c_int {
    // SAFETY: the caller of madvise gives the contents up.
    let discard = || unsafe { pages(addr, len)?.discard() };
    let is_discard = advice == libc::MADV_DONTNEED;
    if is_discard && is_tenures(len, &DISCARD_BYTES, caller) && quietly(discard) {
        return 0;
    }
    // SAFETY: handed on to the caller.
    unsafe { sys::madvise(addr, len, advice) }
}

unsafe extern "C" fn mmap(
    addr: *mut c_void,
    len: usize,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
    caller: usize,
) -> *mut c_void {
    // SAFETY: handed on to the caller.
    let memory = unsafe { sys::mmap(addr, len, prot, flags, fd, offset) };
    if memory != libc::MAP_FAILED
        && is_tenures(len, &POPULATE_BYTES, caller)
        && is_to_be_used(prot, flags)
    {
        // Where it fails, pages come in when they are used, as ever.
        // SAFETY: nobody else knows the mapping yet; populating changes no contents.
        quietly(|| unsafe { pages(memory, len)?.populate(Access::Write) });
    }
    memory
}

/// Whether it is private anonymous memory that is not mapped as a mere reserve.
fn is_to_be_used(prot: c_int, flags: c_int) -> bool {
    const RESERVES: c_int = libc::MAP_NORESERVE | libc::MAP_STACK | libc::MAP_GROWSDOWN;
    flags & libc::MAP_TYPE == libc::MAP_PRIVATE
        && flags & libc::MAP_ANONYMOUS != 0
        && flags & RESERVES == 0
        && prot & libc::PROT_WRITE != 0
}

unsafe extern "C" fn mremap(
    old: *mut c_void,
    old_len: usize,
    new_len: usize,
    flags: c_int,
    new: *mut c_void,
    caller: usize,
) -> *mut c_void {
    let shrinks_by = old_len.saturating_sub(new_len);
    if new_len > 0
        && flags & !libc::MREMAP_MAYMOVE == 0
        && is_tenures(shrinks_by, &MUNMAP_BYTES, caller)
    {
        // The kernel looks at what stays, and then unmaps the tail.
        // SAFETY: changes nothing: neither length nor place.
        let same = unsafe { sys::mremap(old, new_len, new_len, 0, new) };
        if same == libc::MAP_FAILED {
            return same;
        }
        let page_bytes = tenure::page_size();
        // It exists, so neither overflows.
        let kept = new_len.next_multiple_of(page_bytes);
        let tail = || {
            let tail = old_len.saturating_sub(kept);
            // SAFETY: the caller of mremap gives the tail up.
            unsafe { pages(old.wrapping_byte_add(kept), tail)?.munmap() }
        };
        if quietly(tail) {
            return same;
        }
    }
    // SAFETY: handed on to the caller.
    unsafe { sys::mremap(old, old_len, new_len, flags, new) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_will_be_used_is_populated() {
        let anonymous = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let writable = libc::PROT_READ | libc::PROT_WRITE;
        assert!(is_to_be_used(writable, anonymous));
        assert!(is_to_be_used(writable, anonymous | libc::MAP_FIXED));
        assert!(!is_to_be_used(libc::PROT_READ, anonymous));
        assert!(!is_to_be_used(writable, libc::MAP_PRIVATE));
        assert!(!is_to_be_used(
            writable,
            libc::MAP_SHARED | libc::MAP_ANONYMOUS
        ));
        for reserve in [libc::MAP_NORESERVE, libc::MAP_STACK, libc::MAP_GROWSDOWN] {
            assert!(!is_to_be_used(writable, anonymous | reserve));
        }
    }

    #[test]
    fn lengths_are_rounded_as_the_kernel_does() {
        let page = tenure::page_size();
        let start = std::ptr::without_provenance::<c_void>(16 * page);
        assert_eq!(pages(start, page + 1).unwrap().len(), 2 * page);
        assert!(pages(start.wrapping_byte_add(1), page).is_err());
        assert!(pages(start, usize::MAX).is_err());
    }
}
