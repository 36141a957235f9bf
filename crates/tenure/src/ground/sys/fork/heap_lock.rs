//! The lock of a heap that a shared library has for itself.

use std::cell::{Cell, UnsafeCell};

/// A value, as the heap of a shared library, that the forking thread holds across `fork`. It
/// allocates nothing, in contrast to a `ForkMutex`, and its handlers have
/// to be registered before all others of the library: the locks of later handlers are taken
/// first, and their holders may allocate.
#[derive(Debug)]
pub struct HeapLock<T> {
    mutex: UnsafeCell<libc::pthread_mutex_t>,
    value: UnsafeCell<T>,
}

thread_local! {
    /// How many forks this thread, which holds the lock across them, is in: handlers
    /// that other code has registered earlier run meanwhile, and may allocate and fork.
    static FORKS: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: the value is used only by the holder of the lock.
unsafe impl<T: Send> Sync for HeapLock<T> {}

impl<T> HeapLock<T> {
    /// Makes an unlocked one. A library has one at most.
    pub const fn new(value: T) -> Self {
        Self {
            mutex: UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER),
            value: UnsafeCell::new(value),
        }
    }

    /// Locks the value while `work` uses it.
    ///
    /// # Safety
    ///
    /// `work` must not lock it again: between the handlers of a fork that would make a second
    /// reference to the value.
    pub unsafe fn with<A>(&'static self, work: impl FnOnce(&mut T) -> A) -> A {
        self.lock();
        // SAFETY: this thread holds the lock, and `work` does not lock again, as the caller ensures.
        let answer = work(unsafe { &mut *self.value.get() });
        // SAFETY: locked above.
        unsafe { self.unlock() };
        answer
    }

    /// The handler before a fork: keeps the value locked.
    pub fn hold(&'static self) {
        self.lock();
        FORKS.set(FORKS.get() + 1);
    }

    /// The handler after a fork, in the parent and in the child.
    ///
    /// # Safety
    ///
    /// [`hold`](Self::hold) has locked it in this thread, or in the thread that this one is a
    /// copy of.
    pub unsafe fn let_go(&'static self) {
        FORKS.set(FORKS.get() - 1);
        // SAFETY: this thread, or the one it is a copy of, holds the lock.
        unsafe { self.unlock() };
    }

    /// Does nothing in a thread that holds the lock across a fork.
    fn lock(&'static self) {
        if FORKS.get() == 0 {
            // SAFETY: the mutex is a static, and is never moved.
            unsafe { libc::pthread_mutex_lock(self.mutex.get()) };
        }
    }

    /// # Safety
    ///
    /// This thread must hold the lock.
    unsafe fn unlock(&'static self) {
        if FORKS.get() == 0 {
            // SAFETY: this thread holds the lock, as the caller ensures.
            unsafe { libc::pthread_mutex_unlock(self.mutex.get()) };
        }
    }
}
