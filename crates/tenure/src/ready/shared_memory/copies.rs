//! Copies of small values that this process has found repeatedly: finding one of them again
//! takes no system call.
//!
//! The file says which value is there now, by its generation, and the bytes of a generation
//! never change. So a copy is never out of date: it is found by its generation, or not at all.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{OnceLock, RwLock};

/// The largest record of which there is a copy.
const MAX_BYTES: usize = 2 << 10;

/// How many copies there are at most: 8 MiB in all.
const SLOTS: usize = 1 << 12;

#[derive(Default)]
pub(super) struct Copies {
    /// Allocated for the first copy; empty if there is no memory for it.
    slots: OnceLock<Vec<Slot>>,
}

/// A place for the values of some generations. No thread waits for its lock: one that does not
/// get it reads the file. So the lock may stay locked in a child of a fork.
#[derive(Default)]
struct Slot {
    copy: RwLock<Option<Copy>>,
    /// The generation that was last read from the file.
    last: AtomicU64,
}

struct Copy {
    generation: u64,
    record: Vec<u8>,
}

impl Copies {
    /// Returns the record of a generation, if there is a copy.
    pub(super) fn get(&self, generation: u64) -> Option<Vec<u8>> {
        let copy = slot(self.slots.get()?, generation)?.copy.try_read().ok()?;
        let found = copy.as_ref().filter(|copy| copy.generation == generation)?;
        try_clone(&found.record)
    }

    /// Keeps a copy of the record of a generation, if it is small, and was the last of its slot
    /// that was read from the file: values that are read once displace none that are read often.
    pub(super) fn keep(&self, generation: u64, record: &[u8]) {
        if record.len() > MAX_BYTES {
            return;
        }
        let slots = self.slots.get_or_init(try_slots);
        let Some(slot) = slot(slots, generation) else {
            return;
        };
        if slot.last.swap(generation, Ordering::Relaxed) != generation {
            return;
        }
        if let Some(record) = try_clone(record)
            && let Ok(mut copy) = slot.copy.try_write()
        {
            let new = Copy { generation, record };
            let old = copy.replace(new);
            drop(copy);
            drop(old);
        }
    }

    /// Frees all copies that nobody reads at this moment.
    pub(super) fn clear(&self) {
        for slot in self.slots.get().into_iter().flatten() {
            slot.last.store(0, Ordering::Relaxed);
            let copy = slot.copy.try_write().ok().and_then(|mut copy| copy.take());
            drop(copy);
        }
    }
}

fn slot(slots: &[Slot], generation: u64) -> Option<&Slot> {
    // Generations are numbers in a row.
    slots.get(generation as usize % SLOTS)
}

fn try_slots() -> Vec<Slot> {
    let mut slots = Vec::new();
    if slots.try_reserve_exact(SLOTS).is_ok() {
        slots.resize_with(SLOTS, Slot::default);
    }
    slots
}

fn try_clone(record: &[u8]) -> Option<Vec<u8>> {
    let mut copy = Vec::new();
    copy.try_reserve_exact(record.len()).ok()?;
    copy.extend_from_slice(record);
    Some(copy)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn record_that_is_read_twice_is_kept() {
        let copies = Copies::default();
        assert_eq!(copies.get(5), None);
        copies.keep(5, b"five");
        assert_eq!(copies.get(5), None);
        copies.keep(5, b"five");
        assert_eq!(copies.get(5).unwrap(), b"five");
        assert_eq!(copies.get(5 + SLOTS as u64), None);
    }

    #[test]
    fn record_that_is_read_once_displaces_none() {
        let copies = Copies::default();
        let (often, once) = (5, 5 + SLOTS as u64);
        copies.keep(often, b"often");
        copies.keep(often, b"often");
        copies.keep(once, b"once");
        assert_eq!(copies.get(often).unwrap(), b"often");
        assert_eq!(copies.get(once), None);
        copies.keep(once, b"once");
        assert_eq!(copies.get(often), None);
        assert_eq!(copies.get(once).unwrap(), b"once");
    }

    #[test]
    fn large_record_is_not_kept() {
        let copies = Copies::default();
        for len in [MAX_BYTES, MAX_BYTES + 1] {
            copies.keep(len as u64, &vec![1; len]);
            copies.keep(len as u64, &vec![1; len]);
            assert_eq!(copies.get(len as u64).is_some(), len == MAX_BYTES);
        }
    }

    #[test]
    fn cleared_copies_are_gone_but_one_that_is_read() {
        let copies = Copies::default();
        for generation in [1, 1, 2, 2] {
            copies.keep(generation, b"record");
        }
        let read = slot(copies.slots.get().unwrap(), 1).unwrap();
        let reading = read.copy.read().unwrap();
        copies.clear();
        copies.keep(1, b"other");
        drop(reading);
        assert_eq!(copies.get(1).unwrap(), b"record");
        assert_eq!(copies.get(2), None);
    }
}
