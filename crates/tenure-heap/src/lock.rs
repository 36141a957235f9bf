//! A lock of one word, which the child of a fork resets by writing zero.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::sys;

/// A lock that is held for a few instructions, or for a system call now and then.
///
/// No thread waits for it in the kernel, so unlocking is a plain store.
#[derive(Debug)]
pub(crate) struct Lock(AtomicU32);

/// Unlocks when it is dropped.
#[derive(Debug)]
pub(crate) struct LockGuard<'a>(&'a Lock);

impl Lock {
    pub(crate) const fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    #[inline]
    pub(crate) fn try_lock(&self) -> Option<LockGuard<'_>> {
        let (free, held) = (0, 1);
        let taken = self
            .0
            .compare_exchange(free, held, Ordering::Acquire, Ordering::Relaxed);
        taken.is_ok().then(|| LockGuard(self))
    }

    /// Waits for the lock for at most about a tenth of a second: its holder may be the
    /// code that a signal handler of this thread interrupted.
    pub(crate) fn lock_timeout(&self) -> Option<LockGuard<'_>> {
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
                sys::yield_now();
            } else {
                sys::sleep(Duration::from_micros(50));
            }
        }
        None
    }

    /// Waits for the lock without a limit, for the heap's own threads.
    pub(crate) fn lock(&self) -> LockGuard<'_> {
        loop {
            if let Some(held) = self.lock_timeout() {
                return held;
            }
        }
    }

    /// Unlocks it in the child of a fork, where nobody holds it.
    pub(crate) fn reset(&self) {
        if self.0.load(Ordering::Relaxed) != 0 {
            self.0.store(0, Ordering::Relaxed);
        }
    }
}

impl Drop for LockGuard<'_> {
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
    fn lock_is_exclusive() {
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
    fn lock_timeout_while_held_returns_none() {
        let lock = Lock::new();
        let held = lock.try_lock().unwrap();
        assert!(lock.lock_timeout().is_none());
        drop(held);
        assert!(lock.lock_timeout().is_some());
    }
}
