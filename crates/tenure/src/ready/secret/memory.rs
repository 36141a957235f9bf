//! The memory of a secret: locked pages between two guard pages.

use std::os::fd::AsFd;

use super::fork::hold_off_forks;
use crate::ground::error::{Error, Result};
use crate::ground::mapping::Mapping;
use crate::ground::range::PageRange;
use crate::ground::sys::advise::{Harmless, Losing, advise, advise_losing};
use crate::ground::sys::features::Features;
use crate::ground::sys::map::{self, Backing};
use crate::ground::sys::process::LockLimit;
use crate::ground::sys::reservation::Reservation;
use crate::ground::sys::{Errno, page_size};
use crate::verbs::LockMode;

/// Pages of zeros that are locked as they come in, with a page that cannot be
/// touched before and behind them. Unmapped when dropped; its owner wipes it.
pub(super) struct SecretMemory {
    /// With the guard pages.
    outside: PageRange,
    /// Without them.
    inside: PageRange,
    /// For memory that children do not inherit: a byte that is 1 here and 0 in
    /// a child, where other memory may have come to be at these addresses.
    witness: Option<Mapping>,
}

impl SecretMemory {
    /// Private anonymous memory for `len` bytes, zeros in a child.
    pub(super) fn wiped_on_fork(len: usize) -> Result<Self> {
        let outside = map::reserve(outside_len(len)?).map_err(system("mmap"))?;
        let memory = Self::new(outside, None);
        let inside = memory.inside;
        // SAFETY: reserved just now, so nobody relies on its being closed.
        unsafe { map::protect_read_write(inside) }.map_err(at("mprotect", inside))?;
        match advise(inside, Harmless::NoHugePage) {
            // A kernel built without huge pages has none to refuse.
            Ok(()) | Err(Errno::INVAL) => {}
            Err(errno) => return Err(at("madvise(MADV_NOHUGEPAGE)", inside)(errno)),
        }
        advise(inside, Harmless::DontDump).map_err(at("madvise(MADV_DONTDUMP)", inside))?;
        // SAFETY: new memory, and that children get zeros is what it is for.
        unsafe { advise_losing(inside, Losing::WipeOnFork) }
            .map_err(at("madvise(MADV_WIPEONFORK)", inside))?;
        // SAFETY: the memory's own pages, which nobody else unlocks.
        unsafe { inside.lock(LockMode::OnFault) }?;
        Ok(memory)
    }

    /// Secret memory (`memfd_secret`) for `len` bytes, absent in a child. The
    /// kernel locks it by itself, and puts no part of it in a dump.
    pub(super) fn hidden(len: usize) -> Result<Self> {
        Features::get()
            .memfd_secret
            .map_err(|answer| Error::Unsupported {
                verb: "hide memory from the kernel",
                feature: "memfd_secret",
                answer,
                remedy: "it needs Linux 5.14, before 6.5 also secretmem.enable=1 on the kernel's command line, and a container that allows the system call",
            })?;
        let outside_len = outside_len(len)?;
        let mut witness = Mapping::anonymous(1).wipe_on_fork().map()?;
        witness.as_mut_slice()?[0] = 1;
        // Longer than the descriptor, which children would inherit as well.
        let _held_off = hold_off_forks()?;
        let fd =
            map::memfd_secret(outside_len - 2 * page_size()).map_err(system("memfd_secret"))?;
        let mut reserved =
            Reservation::new(outside_len).map_err(|(call, errno)| Error::System { call, errno })?;
        let outside = reserved.range();
        let inside = between_guards(outside);
        let backing = Backing::File {
            fd: fd.as_fd(),
            offset: 0,
        };
        // SAFETY: reserved just now, so nobody uses it.
        if let Err(errno) = unsafe { map::map_over(inside, backing, true) } {
            let error = explain_secret_mmap(inside, errno);
            reserved.refused(inside);
            // SAFETY: as above.
            unsafe { reserved.unmap() };
            return Err(error);
        }
        let memory = Self::new(outside, Some(witness));
        // It is shared memory, which the kernel does not wipe on fork.
        advise(outside, Harmless::DontFork).map_err(at("madvise(MADV_DONTFORK)", outside))?;
        Ok(memory)
    }

    /// Of addresses that are used for nothing else.
    fn new(outside: PageRange, witness: Option<Mapping>) -> Self {
        Self {
            outside,
            inside: between_guards(outside),
            witness,
        }
    }

    /// The first byte's address.
    pub(super) fn as_ptr(&self) -> *mut u8 {
        self.inside.as_ptr()
    }

    /// Whether this process has the memory: false in a child that did not
    /// inherit it.
    pub(super) fn is_here(&self) -> bool {
        self.witness.as_ref().is_none_or(|witness| {
            // SAFETY: a byte of the mapping's own. Volatile, for it changes
            // where the compiler does not look: in a fork.
            unsafe { witness.as_ptr().read_volatile() == 1 }
        })
    }
}

impl Drop for SecretMemory {
    fn drop(&mut self) {
        if self.is_here() {
            // SAFETY: nothing borrows from memory that is dropped. What cannot
            // be unmapped (no room to split a mapping) stays mapped.
            let _ = unsafe { self.outside.munmap() };
        }
    }
}

/// The length of memory for `len` bytes and its guard pages.
fn outside_len(len: usize) -> Result<usize> {
    if len == 0 {
        return Err(Error::EmptyMapping);
    }
    len.checked_next_multiple_of(page_size())
        .and_then(|inside_len| inside_len.checked_add(2 * page_size()))
        .filter(|&len| isize::try_from(len).is_ok())
        .ok_or(Error::Overflow { addr: 0, len })
}

fn between_guards(outside: PageRange) -> PageRange {
    PageRange::between(outside.start() + page_size(), outside.end() - page_size())
}

fn system(call: &'static str) -> impl Fn(Errno) -> Error {
    move |errno| Error::System { call, errno }
}

fn at(call: &'static str, range: PageRange) -> impl Fn(Errno) -> Error {
    move |errno| Error::SystemAt { call, range, errno }
}

/// Secret memory is charged against the limit when it is mapped.
fn explain_secret_mmap(range: PageRange, errno: Errno) -> Error {
    match (errno, LockLimit::now()) {
        (Errno::AGAIN, Some(limit)) => Error::LockLimit {
            range,
            limit_bytes: limit.limit_bytes,
            used_bytes: limit.used_bytes,
            asked_bytes: range.len(),
        },
        _ => at("mmap", range)(errno),
    }
}
