//! The memory of a secret: locked pages between two guard pages.

use std::os::fd::AsFd;

use crate::ground::error::{Error, Result};
use crate::ground::mapping::Mapping;
use crate::ground::range::PageRange;
use crate::ground::sys::advise::{Advice, DestructiveAdvice, advise, advise_destructive};
use crate::ground::sys::features::Features;
use crate::ground::sys::map::{self, Backing};
use crate::ground::sys::process::LockLimit;
use crate::ground::sys::reservation::Reservation;
use crate::ground::sys::{Errno, fork, page_size};
use crate::verbs::lock::lock_until_unmapped;

/// Zeroed pages that are locked on fault, between two guard pages. Dropping it unmaps
/// the memory without wiping it; the owner wipes it first.
pub(super) struct SecretMemory {
    /// All pages, including the guard pages.
    reserved_range: PageRange,
    /// The pages between the guard pages.
    usable_range: PageRange,
    /// For memory that children do not inherit: a byte that is 1 here and wiped to 0
    /// in a child, where other memory may lie at these addresses.
    fork_sentinel: Option<Mapping>,
}

impl SecretMemory {
    /// Maps private anonymous memory for `len` bytes, which is zeros in a child.
    pub(super) fn wiped_on_fork(len: usize) -> Result<Self> {
        let reserved_range = map::reserve(reserved_len(len)?).map_err(system("mmap"))?;
        let memory = Self::new(reserved_range, None);
        let usable_range = memory.usable_range;
        // SAFETY: this function has just reserved the range, so no code relies on its
        // protection.
        unsafe { map::protect_read_write(usable_range) }.map_err(at("mprotect", usable_range))?;
        match advise(usable_range, Advice::NoHugePage) {
            // EINVAL: the kernel was built without huge pages.
            Ok(()) | Err(Errno::INVAL) => {}
            Err(errno) => return Err(at("madvise(MADV_NOHUGEPAGE)", usable_range)(errno)),
        }
        advise(usable_range, Advice::DontDump)
            .map_err(at("madvise(MADV_DONTDUMP)", usable_range))?;
        // SAFETY: the memory is new, so nothing relies on its contents in a child.
        unsafe { advise_destructive(usable_range, DestructiveAdvice::WipeOnFork) }
            .map_err(at("madvise(MADV_WIPEONFORK)", usable_range))?;
        lock_until_unmapped(usable_range)?;
        Ok(memory)
    }

    /// Maps `memfd_secret` memory for `len` bytes, which is absent in a child. The
    /// kernel locks it and excludes it from dumps.
    pub(super) fn hidden(len: usize) -> Result<Self> {
        Features::get()
            .memfd_secret
            .map_err(explain_missing_memfd_secret)?;
        let reserved_len = reserved_len(len)?;
        let mut fork_sentinel = Mapping::anonymous(1).wipe_on_fork().map()?;
        fork_sentinel.as_mut_slice()?[0] = 1;
        // memfd_secret memory is shared, so a child would have it until it is excluded
        // below. Declared before the descriptor, so that forks stay blocked until that is
        // closed: children would inherit it as well.
        let _forks_blocked = fork::block_forks().map_err(system("pthread_atfork"))?;
        let fd =
            map::memfd_secret(reserved_len - 2 * page_size()).map_err(system("memfd_secret"))?;
        let mut reserved = Reservation::new(reserved_len)
            .map_err(|(call, errno)| Error::System { call, errno })?;
        let reserved_range = reserved.range();
        let usable_range = between_guards(reserved_range);
        let backing = Backing::File {
            fd: fd.as_fd(),
            offset: 0,
        };
        // SAFETY: this function has just reserved the range, so no code uses it.
        if let Err(errno) = unsafe { map::map_over(usable_range, backing, true) } {
            let error = explain_secret_mmap(usable_range, errno);
            reserved.map_failed(usable_range);
            // SAFETY: as above.
            unsafe { reserved.unmap() };
            return Err(error);
        }
        let memory = Self::new(reserved_range, Some(fork_sentinel));
        // The kernel does not wipe shared memory on fork.
        advise(reserved_range, Advice::DontFork)
            .map_err(at("madvise(MADV_DONTFORK)", reserved_range))?;
        Ok(memory)
    }

    /// Wraps a range that no other code uses.
    fn new(reserved_range: PageRange, fork_sentinel: Option<Mapping>) -> Self {
        Self {
            reserved_range,
            usable_range: between_guards(reserved_range),
            fork_sentinel,
        }
    }

    /// Returns the address of the first byte.
    pub(super) fn as_ptr(&self) -> *mut u8 {
        self.usable_range.as_ptr()
    }

    /// Whether this process has the memory; `false` in a child that did not inherit
    /// it.
    pub(super) fn is_present(&self) -> bool {
        self.fork_sentinel.as_ref().is_none_or(|fork_sentinel| {
            // SAFETY: the pointer is to a byte of the mapping. The read is volatile
            // because a fork changes the byte, which the compiler cannot see.
            unsafe { fork_sentinel.as_ptr().read_volatile() == 1 }
        })
    }
}

impl Drop for SecretMemory {
    fn drop(&mut self) {
        if self.is_present() {
            // SAFETY: nothing borrows from memory that is dropped. If it cannot be
            // unmapped (vm.max_map_count), it stays mapped.
            let _ = unsafe { self.reserved_range.munmap() };
        }
    }
}

/// Returns the length of memory for `len` bytes with its guard pages.
fn reserved_len(len: usize) -> Result<usize> {
    if len == 0 {
        return Err(Error::EmptyMapping);
    }
    len.checked_next_multiple_of(page_size())
        .and_then(|usable_len| usable_len.checked_add(2 * page_size()))
        .filter(|&len| isize::try_from(len).is_ok())
        .ok_or(Error::Overflow { addr: 0, len })
}

fn between_guards(reserved_range: PageRange) -> PageRange {
    PageRange::between(
        reserved_range.start() + page_size(),
        reserved_range.end() - page_size(),
    )
}

fn system(call: &'static str) -> impl Fn(Errno) -> Error {
    move |errno| Error::System { call, errno }
}

fn at(call: &'static str, range: PageRange) -> impl Fn(Errno) -> Error {
    move |errno| Error::SystemAt { call, range, errno }
}

/// Tells a kernel without `memfd_secret` from a process without a descriptor or memory.
fn explain_missing_memfd_secret(answer: Errno) -> Error {
    match answer {
        Errno::MFILE | Errno::NFILE | Errno::NOMEM => system("memfd_secret")(answer),
        answer => Error::Unsupported {
            verb: "hide memory from the kernel",
            feature: "memfd_secret",
            answer,
            remedy: "it needs Linux 5.14, before 6.5 also secretmem.enable=1 on the kernel's command line, and a container that allows the system call",
        },
    }
}

/// Explains a refused `mmap` of memfd_secret memory, which counts against
/// `RLIMIT_MEMLOCK` when it is mapped.
fn explain_secret_mmap(range: PageRange, errno: Errno) -> Error {
    match (errno, LockLimit::now()) {
        (Errno::AGAIN, Some(limit)) => Error::LockLimit {
            range,
            limit_bytes: limit.limit_bytes,
            used_bytes: limit.used_bytes,
            requested_bytes: range.len(),
        },
        _ => at("mmap", range)(errno),
    }
}
