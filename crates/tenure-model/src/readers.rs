//! Readers with slots, readers without, and writers, under a big-reader lock.

use loom::cell::UnsafeCell;
use loom::sync::{Arc, RwLock};
use loom::thread;

use crate::check;
use crate::reader_slot::{Door, ReaderSlot};
use crate::sync::{AtomicU8, AtomicUsize};

/// The lock's address, which is not 0.
const LOCK: usize = 8;

struct World {
    door: Door,
    lock: RwLock<()>,
    slots: Vec<ReaderSlot>,
    /// Read by readers, and changed by writers: loom fails if both do at once.
    value: UnsafeCell<u32>,
}

impl World {
    fn new(slots: usize) -> Arc<Self> {
        let slot = |_| ReaderSlot::new(AtomicUsize::new(0));
        Arc::new(Self {
            door: Door::open(AtomicU8::new(0)),
            lock: RwLock::new(()),
            slots: (0..slots).map(slot).collect(),
            value: UnsafeCell::new(0),
        })
    }

    /// Models `BigReaderLock::read`, and the end of the reading.
    fn read(&self, slot: Option<usize>) -> u32 {
        // SAFETY: loom fails the model if another thread writes at the same time.
        let read = || self.value.with(|value| unsafe { *value });
        match slot.map(|slot| &self.slots[slot]) {
            Some(slot) if slot.try_enter(LOCK, &self.door) => {
                let value = read();
                slot.leave();
                value
            }
            _ => {
                let guard = self.lock.read().unwrap();
                let value = read();
                drop(guard);
                value
            }
        }
    }

    /// Models `BigReaderLock::write`, and the end of the writing.
    fn write(&self) {
        let guard = self.lock.write().unwrap();
        self.door.close();
        for slot in &self.slots {
            while slot.is_inside(LOCK) {
                thread::yield_now();
            }
        }
        // SAFETY: loom fails the model if another thread reads or writes at the same time.
        self.value.with_mut(|value| unsafe { *value += 1 });
        self.door.reopen();
        drop(guard);
    }
}

/// Readers, which come by a slot twice and without one, and a writer are never inside together;
/// what is written is read afterwards.
pub fn writer_is_never_inside_with_readers() {
    check(|| {
        let world = World::new(1);
        let reader = {
            let world = world.clone();
            thread::spawn(move || {
                let before = world.read(Some(0));
                assert!(world.read(Some(0)) >= before);
            })
        };
        let other = {
            let world = world.clone();
            thread::spawn(move || world.read(None))
        };
        world.write();
        assert_eq!(world.read(None), 1);
        reader.join().unwrap();
        assert!(other.join().unwrap() <= 1);
    });
}

/// Two writers, and a reader with a slot, are inside one after the other.
pub fn writers_and_a_reader_take_turns() {
    check(|| {
        let world = World::new(1);
        let reader = {
            let world = world.clone();
            thread::spawn(move || world.read(Some(0)))
        };
        let writer = {
            let world = world.clone();
            thread::spawn(move || world.write())
        };
        world.write();
        writer.join().unwrap();
        assert!(reader.join().unwrap() <= 2);
        assert_eq!(world.read(Some(0)), 2);
    });
}
