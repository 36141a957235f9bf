//! Fork handlers (`pthread_atfork(3)`), and a mutex that is consistent in the
//! child.

use std::cell::{Cell, UnsafeCell};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;

/// Registers the three functions to run around every later `fork` of this
/// process: `pthread_atfork(3)`.
///
/// `child` runs between fork and whatever the child does next, so it may only
/// make system calls and change memory that exists already.
fn at_fork(
    prepare: unsafe extern "C" fn(),
    parent: unsafe extern "C" fn(),
    child: unsafe extern "C" fn(),
) -> Result<(), Errno> {
    // SAFETY: the functions stay loaded as long as they are registered: glibc
    // removes the registrations of a shared object when it is closed.
    match unsafe { libc::pthread_atfork(Some(prepare), Some(parent), Some(child)) } {
        0 => Ok(()),
        errno => Err(Errno::from_raw_os_error(errno)),
    }
}

/// Calls [`at_fork`], unless `is_done` is set already.
///
/// Each handler is registered before `main`; this is called again where a
/// registration that failed (ENOMEM) matters. Two threads may then register the
/// same functions, which must tolerate two calls around a fork; those of a
/// [`ForkMutex`] do.
pub(crate) fn at_fork_once(
    is_done: &AtomicBool,
    prepare: unsafe extern "C" fn(),
    parent: unsafe extern "C" fn(),
    child: unsafe extern "C" fn(),
) -> Result<(), Errno> {
    if !is_done.load(Ordering::Acquire) {
        at_fork(prepare, parent, child)?;
        is_done.store(true, Ordering::Release);
    }
    Ok(())
}

/// Returns a number that differs in each child forked from now on: code that
/// stores it can tell later whether it runs in a copy. Process ids cannot
/// serve, because parent and child may both be number 1, of two namespaces.
pub(crate) fn generation() -> Result<usize, Errno> {
    static GENERATION: AtomicUsize = AtomicUsize::new(0);
    static IS_REGISTERED: AtomicBool = AtomicBool::new(false);
    unsafe extern "C" fn noop() {}
    unsafe extern "C" fn child() {
        GENERATION.fetch_add(1, Ordering::Relaxed);
    }
    at_fork_once(&IS_REGISTERED, noop, noop, child)?;
    Ok(GENERATION.load(Ordering::Relaxed))
}

/// A mutex that the forking thread holds across `fork`, so that no other thread
/// is in the middle of a change at the moment that the child copies.
pub(crate) struct ForkMutex<T: 'static> {
    mutex: Mutex<T>,
    held: UnsafeCell<Option<MutexGuard<'static, T>>>,
    /// The thread that holds the mutex across a fork, by [`thread_number`], or
    /// 0.
    holder: AtomicUsize,
    /// How often that thread has called `hold`.
    depth: AtomicUsize,
}

/// Returns a number for this thread, which it keeps in the child: the address
/// of a thread-local variable.
fn thread_number() -> usize {
    thread_local!(static HERE: Cell<u8> = const { Cell::new(0) });
    HERE.with(|here| std::ptr::from_ref(here).addr())
}

// SAFETY: only `hold` and `let_go` access `held`, on the forking thread: `hold`
// owns the mutex when it writes, and `let_go` runs before the mutex is
// released.
unsafe impl<T: Send> Sync for ForkMutex<T> {}

// SAFETY: as long as the value can be moved, `held` is empty, because `hold`
// borrows the value for ever.
unsafe impl<T: Send> Send for ForkMutex<T> {}

impl<T> ForkMutex<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self {
            mutex: Mutex::new(value),
            held: UnsafeCell::new(None),
            holder: AtomicUsize::new(0),
            depth: AtomicUsize::new(0),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        // A panic inside a critical section is a bug in tenure; the state is
        // still the best description of the kernel's that exists.
        self.mutex.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the mutex and keeps it locked until [`ForkMutex::let_go`] has been
    /// called as often.
    pub(crate) fn hold(&'static self) {
        // Only this thread writes its own number.
        if self.holder.load(Ordering::Relaxed) == thread_number() {
            self.depth.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let guard = self.lock();
        self.holder.store(thread_number(), Ordering::Relaxed);
        self.depth.store(1, Ordering::Relaxed);
        // SAFETY: this thread owns the mutex, so no other thread accesses
        // `held`.
        unsafe { *self.held.get() = Some(guard) };
    }

    /// Applies `change` to the value, then unlocks the mutex that
    /// [`ForkMutex::hold`] locked; in the parent and in the child.
    ///
    /// # Safety
    ///
    /// This thread, or the parent's thread that it is a copy of, must have
    /// called `hold`.
    pub(crate) unsafe fn let_go(&'static self, change: impl FnOnce(&mut T)) {
        if self.depth.load(Ordering::Relaxed) > 1 {
            self.depth.fetch_sub(1, Ordering::Relaxed);
            return;
        }
        self.depth.store(0, Ordering::Relaxed);
        self.holder.store(0, Ordering::Relaxed);
        // SAFETY: `hold` locked the mutex on this thread, or on the one it is a
        // copy of (the caller's contract), so no other thread accesses `held`.
        let guard = unsafe { (*self.held.get()).take() };
        if let Some(mut guard) = guard {
            change(&mut guard);
        }
    }
}
