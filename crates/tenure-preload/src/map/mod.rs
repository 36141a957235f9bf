//! mmap, munmap, mremap and madvise with the options in effect. Small ranges, and those
//! that tenure refuses, go to the [real functions](real), whose errors the caller sees.

mod entry;
pub(crate) mod real;

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tenure::{Access, PageRange, release};
use tenure_options::Options;

use self::real::MmapName;
use crate::reentrancy::{preserve_errno, try_verb};
use crate::{allocators, line, sys};

/// The kernel frees shorter ranges faster than they can be moved away.
const LARGE_BYTES: usize = tenure::release::THRESHOLD_BYTES;

/// A range of more mappings goes to the real function. A failed allocation ends the program,
/// and tenure's lists of so many mappings take less than 128 KiB of the private heap, so that
/// 500 threads at once leave none without memory. The caller waits about 1 ms until they are
/// read (1.1 ms instead of 0.12 ms for MADV_DONTNEED on Linux 6.18, 2 virtual CPUs).
const MAX_MAPPINGS: usize = 1024;

const NEVER: usize = usize::MAX;

// The length from which on tenure handles each call.
static MUNMAP_BYTES: AtomicUsize = AtomicUsize::new(NEVER);
static DISCARD_BYTES: AtomicUsize = AtomicUsize::new(NEVER);
static POPULATE_BYTES: AtomicUsize = AtomicUsize::new(NEVER);
/// The least of those that release.
static MIN_RELEASE_BYTES: AtomicUsize = AtomicUsize::new(NEVER);

/// Puts the options into effect.
pub(crate) fn turn_on(options: &Options) {
    let large_if = |is_on| if is_on { LARGE_BYTES } else { NEVER };
    MUNMAP_BYTES.store(large_if(options.munmap), Ordering::Relaxed);
    DISCARD_BYTES.store(large_if(options.discard), Ordering::Relaxed);
    let releases = options.munmap || options.discard;
    MIN_RELEASE_BYTES.store(large_if(releases), Ordering::Relaxed);
    POPULATE_BYTES.store(options.populate_bytes.unwrap_or(NEVER), Ordering::Relaxed);
}

/// Whether tenure has locked all memory, and whether the kernel discards locked pages
/// (MADV_DONTNEED_LOCKED, Linux 5.18).
static IS_LOCKED: AtomicBool = AtomicBool::new(false);
static DISCARDS_LOCKED: AtomicBool = AtomicBool::new(false);

/// Keeps MADV_DONTNEED working now that all memory is locked.
pub(crate) fn turn_locked_on() {
    let is_supported = tenure::Features::get().madv_dontneed_locked.is_ok();
    DISCARDS_LOCKED.store(is_supported, Ordering::Relaxed);
    IS_LOCKED.store(true, Ordering::Relaxed);
}

fn is_handled(len: usize, min_bytes: &AtomicUsize, caller: usize) -> bool {
    len >= min_bytes.load(Ordering::Relaxed) && !allocators::contains(caller)
}

/// Returns the whole pages to which the kernel rounds the length.
fn pages(addr: *const c_void, len: usize) -> tenure::Result<PageRange> {
    let whole = len.checked_next_multiple_of(tenure::page_size());
    PageRange::new(addr.expose_provenance(), whole.unwrap_or(len))
}

unsafe extern "C" fn munmap(addr: *mut c_void, len: usize, caller: usize) -> c_int {
    // SAFETY: the caller of munmap gives the range up.
    let unmap = || unsafe { release::munmap_at_most(pages(addr, len)?, MAX_MAPPINGS) };
    if is_handled(len, &MUNMAP_BYTES, caller) && try_verb(unmap) {
        return 0;
    }
    // Pages that tenure unmapped before it failed are a hole now, and munmap passes
    // over holes.
    // SAFETY: the caller of munmap gives the range up.
    unsafe { real::munmap(addr, len) }
}

unsafe extern "C" fn madvise(addr: *mut c_void, len: usize, advice: c_int, caller: usize) -> c_int {
    // SAFETY: the caller of madvise gives the contents up.
    let discard = || unsafe { release::discard_at_most(pages(addr, len)?, MAX_MAPPINGS) };
    let is_discard = advice == libc::MADV_DONTNEED;
    if is_discard && is_handled(len, &DISCARD_BYTES, caller) && try_verb(discard) {
        return 0;
    }
    // SAFETY: the caller keeps the conditions of `madvise(2)`.
    let answer = unsafe { real::madvise(addr, len, advice) };
    if answer == -1 && is_discard && IS_LOCKED.load(Ordering::Relaxed) && errno() == libc::EINVAL {
        // SAFETY: the caller of madvise gives the contents up.
        return unsafe { discard_locked(addr, len) };
    }
    answer
}

/// Discards pages that are locked only because tenure has locked them: V8 (node, chromium)
/// ends the program when the kernel refuses.
///
/// # Safety
///
/// The conditions are those of `madvise(2)`.
unsafe fn discard_locked(addr: *mut c_void, len: usize) -> c_int {
    if DISCARDS_LOCKED.load(Ordering::Relaxed) {
        // SAFETY: the caller keeps the conditions of `madvise(2)`.
        return unsafe { real::madvise(addr, len, libc::MADV_DONTNEED_LOCKED) };
    }
    static IS_REPORTED: AtomicBool = AtomicBool::new(false);
    if !IS_REPORTED.swap(true, Ordering::Relaxed) {
        preserve_errno(|| {
            line::print(format_args!(
                "lock=onfault: this kernel discards no locked memory (Linux 5.18 does), so \
                 that madvise(MADV_DONTNEED) fails; node and chromium end then"
            ));
        });
    }
    -1
}

fn errno() -> c_int {
    // SAFETY: `__errno_location` always points to this thread's `errno`.
    unsafe { *libc::__errno_location() }
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
    // SAFETY: the caller keeps the conditions of `mmap(2)`.
    unsafe { map_by(MmapName::Mmap, addr, len, prot, flags, fd, offset, caller) }
}

unsafe extern "C" fn mmap64(
    addr: *mut c_void,
    len: usize,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
    caller: usize,
) -> *mut c_void {
    // SAFETY: the caller keeps the conditions of `mmap(2)`.
    unsafe { map_by(MmapName::Mmap64, addr, len, prot, flags, fd, offset, caller) }
}

/// # Safety
///
/// The conditions are those of `mmap(2)`.
#[expect(clippy::too_many_arguments, reason = "they are mmap's")]
unsafe fn map_by(
    name: MmapName,
    addr: *mut c_void,
    len: usize,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
    caller: usize,
) -> *mut c_void {
    // It could fault in more than the headroom before workers have freed what is pending.
    if flags & libc::MAP_ANONYMOUS != 0 && is_handled(len, &MIN_RELEASE_BYTES, caller) {
        try_verb(|| {
            release::drain_if_short();
            Ok(())
        });
    }
    // SAFETY: the caller keeps the conditions of `mmap(2)`.
    let map = || unsafe { real::mmap(name, addr, len, prot, flags, fd, offset) };
    let memory = retry_after_drain(flags & libc::MAP_FIXED == 0, caller, map);
    if memory != libc::MAP_FAILED
        && is_handled(len, &POPULATE_BYTES, caller)
        && is_prefault_candidate(prot, flags)
    {
        // On failure the pages are faulted in by their first use.
        // SAFETY: no other code knows the mapping yet; populating changes no contents.
        try_verb(|| unsafe { pages(memory, len)?.populate(Access::Write) });
    }
    memory
}

/// Makes a call that maps memory, and once more if the kernel had none while released
/// memory was pending. A fixed target may be a hole after the refusal, where another
/// thread may have mapped memory by now: `may_repeat` is false for it.
fn retry_after_drain(
    may_repeat: bool,
    caller: usize,
    map: impl Fn() -> *mut c_void,
) -> *mut c_void {
    let memory = map();
    if memory != libc::MAP_FAILED
        || !may_repeat
        || errno() != libc::ENOMEM
        || !is_handled(LARGE_BYTES, &MIN_RELEASE_BYTES, caller)
    {
        return memory;
    }
    let mut is_worthwhile = false;
    try_verb(|| {
        is_worthwhile = release::drain_for_retry();
        Ok(())
    });
    if is_worthwhile { map() } else { memory }
}

/// Returns whether the mapping is private, anonymous and writable, and not a mere
/// reservation.
fn is_prefault_candidate(prot: c_int, flags: c_int) -> bool {
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
        && is_handled(shrinks_by, &MUNMAP_BYTES, caller)
    {
        // The kernel checks the part that stays, and then unmaps the tail.
        // SAFETY: neither the length nor the address changes.
        let same = unsafe { sys::mremap(old, new_len, new_len, 0, new) };
        let page_bytes = tenure::page_size();
        // The range exists, so neither sum overflows.
        let kept = new_len.next_multiple_of(page_bytes);
        let tail = || {
            let tail = old_len.saturating_sub(kept);
            let tail = pages(old.wrapping_byte_add(kept), tail)?;
            // SAFETY: the caller of mremap gives the tail up.
            unsafe { release::munmap_at_most(tail, MAX_MAPPINGS) }
        };
        if same != libc::MAP_FAILED && try_verb(tail) {
            return same;
        }
    }
    // SAFETY: the caller keeps the conditions of `mremap(2)`.
    let remap = || unsafe { real::mremap(old, old_len, new_len, flags, new) };
    retry_after_drain(flags & libc::MREMAP_FIXED == 0, caller, remap)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefault_candidate_is_private_anonymous_and_writable() {
        let anonymous = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let writable = libc::PROT_READ | libc::PROT_WRITE;
        assert!(is_prefault_candidate(writable, anonymous));
        assert!(is_prefault_candidate(writable, anonymous | libc::MAP_FIXED));
        assert!(!is_prefault_candidate(libc::PROT_READ, anonymous));
        assert!(!is_prefault_candidate(writable, libc::MAP_PRIVATE));
        assert!(!is_prefault_candidate(
            writable,
            libc::MAP_SHARED | libc::MAP_ANONYMOUS
        ));
        for reserve in [libc::MAP_NORESERVE, libc::MAP_STACK, libc::MAP_GROWSDOWN] {
            assert!(!is_prefault_candidate(writable, anonymous | reserve));
        }
    }

    #[test]
    fn unaligned_length_is_rounded_up() {
        let page = tenure::page_size();
        let start = std::ptr::without_provenance::<c_void>(16 * page);
        assert_eq!(pages(start, page + 1).unwrap().len(), 2 * page);
        assert!(pages(start.wrapping_byte_add(1), page).is_err());
        assert!(pages(start, usize::MAX).is_err());
    }
}
