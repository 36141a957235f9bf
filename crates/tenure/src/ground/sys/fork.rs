//! `pthread_atfork(3)`, and a mutex that is whole in the child.

use std::cell::{Cell, UnsafeCell};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;

/// Has the three functions called around every later `fork` of this process.
///
/// `child` runs between fork and whatever the child does next: it may only make
/// system calls and change memory that is there already.
pub(crate) fn at_fork(
    prepare: unsafe extern "C" fn(),
    parent: unsafe extern "C" fn(),
    child: unsafe extern "C" fn(),
) -> Result<(), Errno> {
    // SAFETY: the functions are never unloaded before the process ends: glibc
    // drops the registrations of a shared object when it is closed.
    match unsafe { libc::pthread_atfork(Some(prepare), Some(parent), Some(child)) } {
        0 => Ok(()),
        errno => Err(Errno::from_raw_os_error(errno)),
    }
}

/// [`at_fork`], unless `is_done` says that it has been done.
///
/// No thread waits for another one here, as with `OnceLock`: a child that is forked while
/// one is about to register would wait for it for ever. So two may register the same
/// functions, which must bear that they are called twice around a fork; those of a
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

/// A number that is another one in each child forked from now on: what notes it
/// can tell later whether it is only a copy. Process ids cannot, for parent and
/// child may both be number 1, of two namespaces.
pub(crate) fn generation() -> Result<usize, Errno> {
    static GENERATION: AtomicUsize = AtomicUsize::new(0);
    static IS_REGISTERED: AtomicBool = AtomicBool::new(false);
    unsafe extern "C" fn nothing() {}
    unsafe extern "C" fn child() {
        GENERATION.fetch_add(1, Ordering::Relaxed);
    }
    at_fork_once(&IS_REGISTERED, nothing, nothing, child)?;
    Ok(GENERATION.load(Ordering::Relaxed))
}

/// A mutex that the forking thread holds across `fork`, so that no other
/// thread is half-way through a change in the moment that the child inherits.
pub(crate) struct ForkMutex<T: 'static> {
    mutex: Mutex<T>,
    held: UnsafeCell<Option<MutexGuard<'static, T>>>,
    /// The thread that holds it across a fork, by [`thread_number`], or 0.
    holder: AtomicUsize,
    /// How often that thread holds it.
    depth: AtomicUsize,
}

/// The address of something of this thread's, which it keeps in the child.
fn thread_number() -> usize {
    thread_local!(static HERE: Cell<u8> = const { Cell::new(0) });
    HERE.with(|here| std::ptr::from_ref(here).addr())
}

// SAFETY: `held` is written by `hold` and `let_go` only, which the thread that
// is forking calls: `hold` has the mutex when it writes, and `let_go` runs
// before it gives it up.
unsafe impl<T: Send> Sync for ForkMutex<T> {}

// SAFETY: as long as the value can be moved, `held` is empty: `hold` borrows
// it for ever.
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
        // A panic inside a critical section is a bug of ours; the state behind
        // it is still the best description of the kernel's that there is.
        self.mutex.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the mutex and keeps it until [`ForkMutex::let_go`] has been called as often.
    pub(crate) fn hold(&'static self) {
        // Only this thread writes its own number.
        if self.holder.load(Ordering::Relaxed) == thread_number() {
            self.depth.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let guard = self.lock();
        self.holder.store(thread_number(), Ordering::Relaxed);
        self.depth.store(1, Ordering::Relaxed);
        // SAFETY: this thread has the mutex, so no other one is here.
        unsafe { *self.held.get() = Some(guard) };
    }

    /// Changes the value if need be, then gives up what [`ForkMutex::hold`]
    /// took, in the parent and in the child.
    ///
    /// # Safety
    ///
    /// This thread, or the thread of the parent that it is a copy of, must have
    /// called `hold`.
    pub(crate) unsafe fn let_go(&'static self, change: impl FnOnce(&mut T)) {
        if self.depth.load(Ordering::Relaxed) > 1 {
            self.depth.fetch_sub(1, Ordering::Relaxed);
            return;
        }
        self.depth.store(0, Ordering::Relaxed);
        self.holder.store(0, Ordering::Relaxed);
        // SAFETY: the mutex is still this thread's, so no other one is here.
        let guard = unsafe { (*self.held.get()).take() };
        if let Some(mut guard) = guard {
            change(&mut guard);
        }
    }
}
