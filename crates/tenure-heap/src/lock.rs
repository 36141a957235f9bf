//! A lock that is one word: a child of a fork sets it free by writing zero.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::sys;

/// A lock for a few instructions, or for a system call now and then.
///
/// Nothing waits in the kernel for it, so that giving it up is a plain store.
#[derive(Debug)]
pub(crate) struct Lock(AtomicU32);

/// Gives the lock up when it is dropped.
#[derive(Debug)]
pub(crate) struct Held<'a>(&'a Lock);

impl Lock {
    pub(crate) const fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    #[inline]
    pub(crate) fn try_lock(&self) -> Option<Held<'_>> {
        let (free, held) = (0, 1);
        let taken = self
            .0
            .compare_exchange(free, held, Ordering::Acquire, Ordering::Relaxed);
        taken.is_ok().then(|| Held(self))
    }

    /// Waits for the lock, but no longer than a tenth of a second or so: who has it
    /// may be the code that a signal handler of this thread interrupted.
    pub(crate) fn lock_soon(&self) -> Option<Held<'_>> {
        const SPINS: usize = 100;
        const YIELDS: usize = 100;
        const NAPS: usize = 1000;
        for attempt in 0..SPINS + YIELDS + NAPS {
            if let Some(held) = self.try_lock() {
                return Some(held);
            }
            if attempt < SPINS {
                std::hint::spin_loop();
            } else if attempt < SPINS + YIELDS {
                sys::give_way();
            } else {
                sys::nap(Duration::from_micros(50));
            }
        }
        None
    }

    /// Waits for the lock as long as it takes: for threads of our own.
    pub(crate) fn lock(&self) -> Held<'_> {
        loop {
            if let Some(held) = self.lock_soon() {
                return held;
            }
        }
    }

    /// Sets it free in the child of a fork, where nobody holds it.
    pub(crate) fn reset(&self) {
        if self.0.load(Ordering::Relaxed) != 0 {
            self.0.store(0, Ordering::Relaxed);
        }
    }
}

impl Drop for Held<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.0.store(0, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;
    use std::thread;

    #[test]
    fn one_at_a_time() {
        static LOCK: Lock = Lock::new();
        static SUM: AtomicUsize = AtomicUsize::new(0);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..20_000 {
                        let _held = LOCK.lock();
                        SUM.store(SUM.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
                    }
                });
            }
        });
        assert_eq!(SUM.load(Ordering::Relaxed), 80_000);
    }

    #[test]
    fn waiting_ends() {
        let lock = Lock::new();
        let held = lock.try_lock().unwrap();
        assert!(lock.lock_soon().is_none());
        drop(held);
        assert!(lock.lock_soon().is_some());
    }
}
