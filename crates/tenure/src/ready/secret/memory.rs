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
        let memory = Self::reserve(len, None)?;
        let inside = memory.inside;
        // SAFETY: reserved just now, so nobody uses it.
        unsafe { map::map_over(inside, Backing::Anonymous, false) }.map_err(at("mmap", inside))?;
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
        let mut witness = Mapping::anonymous(1).wipe_on_fork().map()?;
        witness.as_mut_slice()?[0] = 1;
        let memory = Self::reserve(len, Some(witness))?;
        let inside = memory.inside;
        // Longer than the descriptor, which children would inherit as well.
        let _held_off = hold_off_forks()?;
        let fd = map::memfd_secret(inside.len()).map_err(|errno| Error::System {
            call: "memfd_secret",
            errno,
        })?;
        let backing = Backing::File {
            fd: fd.as_fd(),
            offset: 0,
        };
        // SAFETY: reserved just now, so nobody uses it.
        unsafe { map::map_over(inside, backing, true) }
            .map_err(|errno| explain_secret_mmap(inside, errno))?;
        // It is shared memory, which the kernel does not wipe on fork.
        advise(memory.outside, Harmless::DontFork)
            .map_err(at("madvise(MADV_DONTFORK)", memory.outside))?;
        Ok(memory)
    }

    /// Takes addresses for the pages and their guards; none can be touched yet.
    fn reserve(len: usize, witness: Option<Mapping>) -> Result<Self> {
        if len == 0 {
            return Err(Error::EmptyMapping);
        }
        let guard_bytes = page_size();
        let outside_len = len
            .checked_next_multiple_of(page_size())
            .and_then(|inside_len| inside_len.checked_add(2 * guard_bytes))
            .filter(|&len| isize::try_from(len).is_ok())
            .ok_or(Error::Overflow { addr: 0, len })?;
        let outside = map::reserve(outside_len).map_err(|errno| Error::System {
            call: "mmap",
            errno,
        })?;
        let inside = PageRange::between(outside.start() + guard_bytes, outside.end() - guard_bytes);
        Ok(Self {
            outside,
            inside,
            witness,
        })
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
