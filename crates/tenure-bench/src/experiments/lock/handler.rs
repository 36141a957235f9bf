//! The older way to lock pages as they are used: memory that may not be touched, and a
//! SIGSEGV handler that makes pages readable and locks them.

use std::ffi::c_int;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicI32, AtomicUsize};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::{io, mem, ptr};

use rustix::mm::{self, MprotectFlags};

use crate::measure::prelude::*;

/// Held while the handler is installed: there is one for the process.
static INSTALLED: Mutex<()> = Mutex::new(());
/// The previous action of SIGSEGV.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

// A handler can be given nothing but statics.
static START: AtomicUsize = AtomicUsize::new(0);
static END: AtomicUsize = AtomicUsize::new(0);
static STEP_BYTES: AtomicUsize = AtomicUsize::new(0);
static PAGE_BYTES: AtomicUsize = AtomicUsize::new(0);
/// The errno of the first call that failed in the handler; 0 for none.
static FAILURE: AtomicI32 = AtomicI32::new(0);

/// A mapping whose pages become readable and locked when they are first touched. Dropping
/// it restores what SIGSEGV did before.
pub struct LockedOnTouch {
    // Dropped before the lock is: the next handler must not be installed while there is
    // memory that this one has to serve.
    mapping: RawMapping,
    _only_one: MutexGuard<'static, ()>,
}

impl LockedOnTouch {
    /// Protects `mapping` and installs a handler that opens `step` bytes at a time, from the
    /// touched page onwards.
    pub fn new(mapping: RawMapping, step: usize) -> Result<Self> {
        let only_one = INSTALLED.lock().unwrap_or_else(PoisonError::into_inner);
        let (start, len) = (mapping.start(), mapping.len());
        START.store(start, Relaxed);
        END.store(start + len, Relaxed);
        STEP_BYTES.store(step, Relaxed);
        PAGE_BYTES.store(tenure::page_size(), Relaxed);
        FAILURE.store(0, Relaxed);

        // SAFETY: zeroes are a valid sigaction.
        let (mut action, mut before) = unsafe { mem::zeroed::<(libc::sigaction, _)>() };
        action.sa_sigaction = handle as *const () as usize;
        // On the signal stack, which Rust gives each of its threads.
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        // SAFETY: the handler only does what a signal handler may do.
        if unsafe { libc::sigaction(libc::SIGSEGV, &action, &mut before) } != 0 {
            return Err(io::Error::last_os_error()).context("sigaction");
        }
        BEFORE.get_or_init(|| before);
        let guarded = Self {
            mapping,
            _only_one: only_one,
        };
        // SAFETY: the mapping is owned and only lent as an address, so that no reference
        // says that it can be read.
        unsafe { mm::mprotect(start as *mut _, len, MprotectFlags::empty()) }
            .context("mprotect(PROT_NONE)")?;
        Ok(guarded)
    }

    /// Returns the address of the first byte. Reading is allowed: the handler makes it so.
    pub fn as_ptr(&self) -> *const u8 {
        self.mapping.start() as *const u8
    }

    /// Fails when a call in the handler has failed.
    pub fn check(&self) -> Result<()> {
        match FAILURE.load(Relaxed) {
            0 => Ok(()),
            errno => Err(io::Error::from_raw_os_error(errno))
                .context("mprotect or mlock in the SIGSEGV handler (vm.max_map_count?)"),
        }
    }
}

impl Drop for LockedOnTouch {
    fn drop(&mut self) {
        restore();
        START.store(0, Relaxed);
        END.store(0, Relaxed);
    }
}

fn restore() {
    if let Some(before) = BEFORE.get() {
        // SAFETY: an action that sigaction itself has returned.
        unsafe { libc::sigaction(libc::SIGSEGV, before, ptr::null_mut()) };
    }
}

extern "C" fn handle(_signal: c_int, info: *mut libc::siginfo_t, _context: *mut libc::c_void) {
    // SAFETY: SA_SIGINFO gives a siginfo_t, and SIGSEGV's has an address.
    let address = unsafe { (*info).si_addr() } as usize;
    let (start, end) = (START.load(Relaxed), END.load(Relaxed));
    if address < start || address >= end {
        // Not ours: the access is tried again and meets what was there before.
        return restore();
    }
    let page = address & !(PAGE_BYTES.load(Relaxed) - 1);
    let len = STEP_BYTES.load(Relaxed).min(end - page);
    // SAFETY: both are system calls without any state in libc but errno, which is put back;
    // the range is a part of the mapping that the handler serves.
    unsafe {
        let errno = libc::__errno_location();
        let errno_before = *errno;
        let remember = || FAILURE.compare_exchange(0, *errno, Relaxed, Relaxed);
        if libc::mprotect(page as *mut _, len, libc::PROT_READ) != 0 {
            let _ = remember();
            // The whole mapping needs no split and can always be opened; without that the
            // access would fault for ever.
            libc::mprotect(start as *mut _, end - start, libc::PROT_READ);
        } else if libc::mlock(page as *const _, len) != 0 {
            let _ = remember();
        }
        *errno = errno_before;
    }
}
