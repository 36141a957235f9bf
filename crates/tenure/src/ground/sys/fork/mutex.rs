//! A mutex that the forking thread holds across `fork`.

use std::cell::UnsafeCell;
use std::mem;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{LockResult, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::is_holder;

/// A mutex that the forking thread holds across `fork`, so that no other thread
/// is in the middle of a change at the moment that the child copies.
pub(crate) struct ForkMutex<T: 'static> {
    mutex: Mutex<T>,
    /// How many threads wait for the mutex.
    waiting: AtomicUsize,
    held: UnsafeCell<Held<T>>,
    /// Changes the value in a child. It makes system calls at most.
    change_in_child: fn(&mut T),
}

/// Whether a forking thread holds the mutex.
enum Held<T: 'static> {
    No,
    Yes(MutexGuard<'static, T>),
    /// It does, and has locked it again.
    Lent,
}

// SAFETY: `held` is accessed by `replace_held` only, whose callers are the holder
// of the mutex across a fork, of which there is one at a time.
unsafe impl<T: Send> Sync for ForkMutex<T> {}

// SAFETY: as long as the value can be moved, `held` is `No`, because `hold`
// borrows the value for ever.
unsafe impl<T: Send> Send for ForkMutex<T> {}

impl<T> ForkMutex<T> {
    pub(crate) const fn new(value: T, change_in_child: fn(&mut T)) -> Self {
        Self {
            mutex: Mutex::new(value),
            waiting: AtomicUsize::new(0),
            held: UnsafeCell::new(Held::No),
            change_in_child,
        }
    }

    /// Locks the mutex. The thread that holds it across a fork gets it at once.
    ///
    /// # Panics
    ///
    /// If that thread has locked it again already.
    pub(crate) fn lock(&'static self) -> ForkGuard<T> {
        if is_holder() {
            // SAFETY: this thread holds the mutexes across a fork.
            match unsafe { self.replace_held(Held::Lent) } {
                Held::Yes(guard) => return ForkGuard::new(guard, Some(self)),
                Held::Lent => panic!("a fork handler locks a mutex twice"),
                // Registered in the middle of the fork.
                // SAFETY: as above.
                Held::No => drop(unsafe { self.replace_held(Held::No) }),
            }
        }
        ForkGuard::new(self.lock_plainly(), None)
    }

    /// Locks the mutex, unless another thread has it or this one holds it across a fork.
    pub(crate) fn try_lock(&'static self) -> Option<ForkGuard<T>> {
        if is_holder() {
            return None;
        }
        self.mutex
            .try_lock()
            .ok()
            .map(|guard| ForkGuard::new(guard, None))
    }

    /// Lets the threads that wait for the mutex have it, before the caller locks it
    /// again. A thread that unlocks a mutex and locks it again at once gets it each time,
    /// because the others take some microseconds to wake up.
    pub(crate) fn give_way(&'static self) {
        const PAUSE: Duration = Duration::from_micros(20);
        const MAX_PAUSES: usize = 100;
        for _ in 0..MAX_PAUSES {
            if self.waiting.load(Ordering::Relaxed) == 0 || is_holder() {
                break;
            }
            std::thread::sleep(PAUSE);
        }
    }

    fn lock_plainly(&self) -> MutexGuard<'_, T> {
        // A panic inside a critical section is a bug in tenure; the state is
        // still the best description of the kernel's that exists.
        if let Ok(guard) = self.mutex.try_lock() {
            return guard;
        }
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let guard = self.mutex.lock().unwrap_or_else(PoisonError::into_inner);
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        guard
    }

    /// # Safety
    ///
    /// No other thread may be forking: this thread owns the mutex, or it is the
    /// one that holds all mutexes across a fork.
    unsafe fn replace_held(&self, now: Held<T>) -> Held<T> {
        // SAFETY: no other thread accesses it, as the caller ensures, and no
        // reference to it is ever handed out.
        mem::replace(unsafe { &mut *self.held.get() }, now)
    }
}

/// The calls of a fork on each mutex. Only the thread that forks makes them, in
/// this order.
pub(crate) trait AcrossFork: Sync {
    /// Locks the mutex and keeps it locked.
    fn hold(&'static self);

    /// Makes the child's change.
    fn start_child(&'static self);

    /// Unlocks the mutex, if it is held.
    fn let_go(&'static self);
}

impl<T: Send> AcrossFork for ForkMutex<T> {
    fn hold(&'static self) {
        let guard = self.lock_plainly();
        // SAFETY: this thread owns the mutex.
        drop(unsafe { self.replace_held(Held::Yes(guard)) });
    }

    fn start_child(&'static self) {
        // The threads that waited do not exist here.
        self.waiting.store(0, Ordering::Relaxed);
        // SAFETY: in a child that this thread's parent has forked, nobody else
        // holds it.
        match unsafe { self.replace_held(Held::No) } {
            Held::Yes(mut guard) => {
                (self.change_in_child)(&mut guard);
                // SAFETY: as above.
                drop(unsafe { self.replace_held(Held::Yes(guard)) });
            }
            // SAFETY: as above.
            other => drop(unsafe { self.replace_held(other) }),
        }
    }

    fn let_go(&'static self) {
        // SAFETY: this thread holds the mutexes across a fork.
        drop(unsafe { self.replace_held(Held::No) });
    }
}

/// A locked [`ForkMutex`].
pub(crate) struct ForkGuard<T: 'static> {
    /// `None` only while [`ForkGuard::wait`] runs.
    guard: Option<MutexGuard<'static, T>>,
    /// Where the guard belongs, if this thread holds the mutex across a fork.
    lender: Option<&'static ForkMutex<T>>,
}

impl<T> ForkGuard<T> {
    fn new(guard: MutexGuard<'static, T>, lender: Option<&'static ForkMutex<T>>) -> Self {
        Self {
            guard: Some(guard),
            lender,
        }
    }

    /// Lets `wait` wait with the mutex unlocked, as a `Condvar` does. (In a fork
    /// handler other threads then use the value between two consistent states.)
    pub(crate) fn wait<A>(
        mut self,
        wait: impl FnOnce(MutexGuard<'static, T>) -> LockResult<(MutexGuard<'static, T>, A)>,
    ) -> (Self, A) {
        let guard = self.guard.take().expect("present outside of `wait`");
        let (guard, answer) = wait(guard).unwrap_or_else(PoisonError::into_inner);
        self.guard = Some(guard);
        (self, answer)
    }
}

impl<T> Drop for ForkGuard<T> {
    fn drop(&mut self) {
        if let (Some(guard), Some(lender)) = (self.guard.take(), self.lender) {
            // SAFETY: `lock` has lent the guard to this thread, which holds the
            // mutexes across a fork.
            drop(unsafe { lender.replace_held(Held::Yes(guard)) });
        }
    }
}

impl<T> Deref for ForkGuard<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.guard.as_ref().expect("present outside of `wait`")
    }
}

impl<T> DerefMut for ForkGuard<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.guard.as_mut().expect("present outside of `wait`")
    }
}
