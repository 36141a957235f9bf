//! The older way to lock pages as they are used: memory that may not be touched,
//! and a SIGSEGV handler that makes pages readable and locks them.

use std::{
    ffi::c_int,
    io,
    mem::MaybeUninit,
    ptr,
    sync::{
        Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicI32, AtomicUsize, Ordering},
    },
};

use anyhow::{Context as _, Result};
use rustix::mm::{self, MprotectFlags};

use super::raw::RawMapping;

/// Held by whoever has the handler installed: there is one for the process.
static INSTALLED: Mutex<()> = Mutex::new(());
/// What SIGSEGV did before.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

// What the handler works with; a handler can be given nothing but statics.
static START: AtomicUsize = AtomicUsize::new(0);
static END: AtomicUsize = AtomicUsize::new(0);
static STEP_BYTES: AtomicUsize = AtomicUsize::new(0);
static PAGE_BYTES: AtomicUsize = AtomicUsize::new(0);
/// The errno of the first call that failed in the handler; 0 for none.
static FAILURE: AtomicI32 = AtomicI32::new(0);

/// A mapping whose pages become readable and locked when they are first touched.
/// Dropping it restores what SIGSEGV did before.
pub struct LockedOnTouch {
    // Dropped before the lock is: the next handler must not be installed while
    // there is memory that this one had to serve.
    mapping: RawMapping,
    _only_one: MutexGuard<'static, ()>,
}

impl LockedOnTouch {
    /// Protects `mapping` and installs a handler that admits `step` bytes at a
    /// time, from the page touched onwards.
    pub fn new(mapping: RawMapping, step: usize) -> Result<Self> {
        let only_one = INSTALLED.lock().unwrap_or_else(PoisonError::into_inner);
        let (start, len) = (mapping.start(), mapping.len());
        START.store(start, Ordering::Relaxed);
        END.store(start + len, Ordering::Relaxed);
        STEP_BYTES.store(step, Ordering::Relaxed);
        PAGE_BYTES.store(tenure::page_size(), Ordering::Relaxed);
        FAILURE.store(0, Ordering::Relaxed);

        let mut action = MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: zeroes are a valid sigaction, and every field that matters is
        // set. The handler only does what a signal handler may do.
        let before = unsafe {
            let action = action.assume_init_mut();
            action.sa_sigaction = handle as *const () as usize;
            // On the signal stack, which Rust gives each of its threads.
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            libc::sigemptyset(&mut action.sa_mask);
            let mut before = MaybeUninit::<libc::sigaction>::zeroed();
            if libc::sigaction(libc::SIGSEGV, action, before.as_mut_ptr()) != 0 {
                return Err(io::Error::last_os_error()).context("sigaction");
            }
            before.assume_init()
        };
        BEFORE.get_or_init(|| before);
        let guarded = Self {
            mapping,
            _only_one: only_one,
        };
        // SAFETY: the mapping is owned and only handed out as an address, so
        // that no reference says that it can be read.
        unsafe { mm::mprotect(start as *mut _, len, MprotectFlags::empty()) }
            .context("mprotect(PROT_NONE)")?;
        Ok(guarded)
    }

    /// Returns the address of the first byte. Reading is allowed: the handler
    /// makes it so.
    pub fn as_ptr(&self) -> *const u8 {
        self.mapping.start() as *const u8
    }

    /// Fails when a call in the handler has failed.
    pub fn check(&self) -> Result<()> {
        match FAILURE.load(Ordering::Relaxed) {
            0 => Ok(()),
            errno => Err(io::Error::from_raw_os_error(errno))
                .context("mprotect or mlock in the SIGSEGV handler (vm.max_map_count?)"),
        }
    }
}

impl Drop for LockedOnTouch {
    fn drop(&mut self) {
        restore();
        START.store(0, Ordering::Relaxed);
        END.store(0, Ordering::Relaxed);
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
    let (start, end) = (START.load(Ordering::Relaxed), END.load(Ordering::Relaxed));
    if address < start || address >= end {
        // Not ours: the access is tried again and meets what was there before.
        restore();
        return;
    }
    let page = address & !(PAGE_BYTES.load(Ordering::Relaxed) - 1);
    let len = STEP_BYTES.load(Ordering::Relaxed).min(end - page);
    // SAFETY: both are system calls without any state in libc but errno, which
    // is put back; the range is a part of the mapping that the handler serves.
    unsafe {
        let errno = libc::__errno_location();
        let errno_before = *errno;
        if libc::mprotect(page as *mut _, len, libc::PROT_READ) != 0 {
            remember(*errno);
            // The whole mapping needs no split and can always be opened; without
            // that the access would fault for ever.
            libc::mprotect(start as *mut _, end - start, libc::PROT_READ);
        } else if libc::mlock(page as *const _, len) != 0 {
            remember(*errno);
        }
        *errno = errno_before;
    }
}

fn remember(errno: c_int) {
    let _ = FAILURE.compare_exchange(0, errno, Ordering::Relaxed, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use fastrand::Rng;

    use super::*;
    use crate::bench::files;

    /// What SIGSEGV does now.
    fn action() -> usize {
        let mut action = MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: only asks.
        unsafe {
            libc::sigaction(libc::SIGSEGV, ptr::null(), action.as_mut_ptr());
            action.assume_init().sa_sigaction
        }
    }

    #[test]
    fn touched_pages_become_readable_and_the_handler_goes() {
        let page = tenure::page_size();
        let file = files::random_file(8 * page, &mut Rng::with_seed(1)).unwrap();
        // SAFETY: the file is ours alone.
        let mapping = unsafe { files::map_for_reading(&file, 8 * page) }.unwrap();
        let expected = mapping.bytes()[5 * page + 1];
        let before = action();
        let guarded = LockedOnTouch::new(mapping, 2 * page).unwrap();
        assert_ne!(action(), before);
        // SAFETY: inside the mapping; the handler admits the page.
        let read = unsafe { guarded.as_ptr().add(5 * page + 1).read_volatile() };
        assert_eq!(read, expected);
        guarded.check().unwrap();
        drop(guarded);
        assert_eq!(action(), before);
    }
}
