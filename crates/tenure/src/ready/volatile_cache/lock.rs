//! The lock of a shard: a big-reader lock, under which look-ups write to no common memory.

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError};
use std::time::Duration;

use super::closure;
use crate::ground::sys::fork;
use crate::ground::sys::reader_slot::{Door, ReaderSlot};
use crate::ground::sys::shard::{reader_slot_of_thread, reader_slots};

/// Readers with a [`ReaderSlot`] enter by it; others, and all while there is a writer, by the
/// readers-writer lock.
///
/// A hit reads the first field, and the first ones of the value.
#[repr(C)]
pub(super) struct BigReaderLock<T> {
    door: Door,
    value: UnsafeCell<T>,
    lock: RwLock<()>,
    /// The writer runs a closure of the caller's.
    runs_closure: AtomicBool,
}

// SAFETY: as for a `RwLock`: readers on several threads share the value, writers own it.
unsafe impl<T: Send + Sync> Sync for BigReaderLock<T> {}

// As those of a `RwLock`.
impl<T> UnwindSafe for BigReaderLock<T> {}
impl<T> RefUnwindSafe for BigReaderLock<T> {}

/// A value that is not written as long as this lives.
pub(super) struct Reading<'a, T> {
    value: &'a T,
    entry: Entry<'a>,
}

/// How a reader has come in.
enum Entry<'a> {
    Slot(&'static ReaderSlot),
    Lock { _guard: RwLockReadGuard<'a, ()> },
}

/// A value that no other thread uses as long as this lives.
pub(super) struct Writing<'a, T> {
    lock: &'a BigReaderLock<T>,
    _guard: RwLockWriteGuard<'a, ()>,
}

impl<T> BigReaderLock<T> {
    pub(super) const fn new(value: T) -> Self {
        Self {
            door: Door::open(AtomicU8::new(0)),
            value: UnsafeCell::new(value),
            lock: RwLock::new(()),
            runs_closure: AtomicBool::new(false),
        }
    }

    /// Waits until no thread writes. A panic of a reader has no effect on others.
    #[inline]
    pub(super) fn read(&self) -> Reading<'_, T> {
        let slot = reader_slot_of_thread();
        let entry = match slot.filter(|slot| slot.try_enter(self.address(), &self.door)) {
            Some(slot) => Entry::Slot(slot),
            None => Entry::Lock {
                _guard: self.read_with_lock(),
            },
        };
        // SAFETY: this thread is inside, so no other one writes.
        let value = unsafe { &*self.value.get() };
        Reading { value, entry }
    }

    #[cold]
    #[inline(never)]
    fn read_with_lock(&self) -> RwLockReadGuard<'_, ()> {
        // (The error of a poisoned lock has a guard: it ends before this waits.)
        let is_held = match self.lock.try_read() {
            Ok(guard) => return guard,
            Err(error) => matches!(error, TryLockError::WouldBlock),
        };
        self.prepare_to_wait(is_held);
        fork::wait_outside(|| self.lock.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Waits until no other thread reads or writes.
    pub(super) fn write(&self) -> Writing<'_, T> {
        let guard = match self.lock.try_write() {
            Ok(guard) => Ok(guard),
            Err(error) => Err(matches!(error, TryLockError::WouldBlock)),
        };
        let guard = guard.unwrap_or_else(|is_held| {
            self.prepare_to_wait(is_held);
            fork::wait_outside(|| self.lock.write().unwrap_or_else(PoisonError::into_inner))
        });
        self.door.close();
        let writing = Writing {
            lock: self,
            _guard: guard,
        };
        let is_inside = |slot: &&ReaderSlot| slot.is_inside(self.address());
        for slot in reader_slots().filter(is_inside) {
            self.wait_for(slot);
        }
        writing
    }

    /// Waits until a reader has left. That takes it about as long as a few cache misses, unless
    /// it is preempted.
    #[cold]
    fn wait_for(&self, slot: &ReaderSlot) {
        const SPINS: usize = 100;
        const YIELDS: usize = 10;
        const PAUSE: Duration = Duration::from_micros(50);
        for _ in 0..SPINS {
            if !slot.is_inside(self.address()) {
                return;
            }
            std::hint::spin_loop();
        }
        fork::wait_outside(|| {
            for nth in 0.. {
                if !slot.is_inside(self.address()) {
                    return;
                }
                match nth < YIELDS {
                    true => std::thread::yield_now(),
                    // Its priority may be lower than this thread's.
                    false => std::thread::sleep(PAUSE),
                }
            }
        });
    }

    #[cold]
    fn prepare_to_wait(&self, is_held: bool) {
        // This thread would wait for itself, or for one that waits for it. Sequentially consistent:
        // of threads that would wait in a circle, each has stored its own before it looks.
        assert!(
            !is_held || !closure::is_inside() || !self.runs_closure.load(Ordering::SeqCst),
            "a closure of VolatileCache::retain or for_each_key has used the cache"
        );
        // Only Eq of a key can panic under the lock, or a caller's closure, while nothing
        // is half changed.
        self.lock.clear_poison();
    }

    fn address(&self) -> usize {
        ptr::from_ref(self).addr()
    }
}

impl<T> Deref for Reading<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        self.value
    }
}

impl<T> Drop for Reading<'_, T> {
    #[inline]
    fn drop(&mut self) {
        if let Entry::Slot(slot) = self.entry {
            slot.leave();
        }
    }
}

impl<T> Writing<'_, T> {
    /// Says that a closure of the caller's runs from now on, as long as this lives.
    pub(super) fn begin_closures(&self) {
        self.lock.runs_closure.store(true, Ordering::SeqCst);
    }
}

impl<T> Deref for Writing<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: other writers wait for the guard, and readers are outside.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for Writing<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as in `deref`.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for Writing<'_, T> {
    fn drop(&mut self) {
        self.lock.runs_closure.store(false, Ordering::Relaxed);
        self.lock.door.reopen();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::thread;

    use super::*;

    /// More threads than there are slots.
    const THREADS: usize = 20;

    #[test]
    fn readers_never_see_a_half_written_value() {
        let lock = BigReaderLock::new([0_u64; 16]);
        let begin = Barrier::new(THREADS);
        thread::scope(|scope| {
            for thread in 0..THREADS {
                let (lock, begin) = (&lock, &begin);
                scope.spawn(move || {
                    begin.wait();
                    for round in 0..5000 {
                        if (round + thread) % 16 == 0 {
                            let mut value = lock.write();
                            for word in value.iter_mut() {
                                *word += 1;
                            }
                        } else {
                            let value = *lock.read();
                            assert!(value.iter().all(|&word| word == value[0]), "{value:?}");
                        }
                    }
                });
            }
        });
        let writes: usize = (0..THREADS)
            .map(|thread| (0..5000).filter(|round| (round + thread) % 16 == 0).count())
            .sum();
        assert_eq!(*lock.read(), [writes as u64; 16]);
    }

    #[test]
    fn thread_reads_under_several_locks_at_once() {
        let locks = [BigReaderLock::new(1), BigReaderLock::new(2)];
        let outer = locks[0].read();
        let inner = [locks[1].read(), locks[1].read()];
        assert_eq!([*outer, *inner[0], *inner[1]], [1, 2, 2]);
        drop(outer);
        thread::scope(|scope| {
            // The first lock has no reader any more, the second has.
            scope.spawn(|| *locks[0].write() = 3).join().unwrap();
            let written = scope.spawn(|| *locks[1].write() = 4);
            assert_eq!([*inner[0], *inner[1]], [2, 2]);
            drop(inner);
            written.join().unwrap();
        });
        assert_eq!([*locks[0].read(), *locks[1].read()], [3, 4]);
    }

    #[test]
    fn writer_waits_for_a_reader_that_is_inside_for_long() {
        let lock = BigReaderLock::new(1);
        thread::scope(|scope| {
            let reading = lock.read();
            let writer = scope.spawn(|| *lock.write() = 2);
            thread::sleep(Duration::from_millis(5));
            assert_eq!((*reading, writer.is_finished()), (1, false));
            drop(reading);
            writer.join().unwrap();
        });
        assert_eq!(*lock.read(), 2);
    }
}
