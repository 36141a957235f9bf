//! A table of keys and values, as a key-value store has it: entries come, change their
//! size, and go at random.

use anyhow::Result;
use fastrand::Rng;

use super::super::job::{Done, Entries};
use super::Parent;
use super::marked::Marked;

const MIN_VALUE: usize = 32;
/// The longest value has 16 KiB.
const DOUBLINGS: f64 = 9.0;

/// Does the work, and waits while the parent looks at the memory.
pub fn run(entries: Entries, parent: &mut Parent) -> Result<Done> {
    let mut table = Table::new(entries.seed);
    parent.wait()?;
    for _ in 0..entries.count {
        let entry = table.entry()?;
        table.slots.push(Some(entry));
    }
    for _ in 0..entries.operations {
        table.change()?;
    }
    table.delete_half();
    parent.wait()?;
    let left = table.slots.iter().flatten();
    let wrong = table.wrong + left.map(|entry| entry.wrong()).sum::<u64>();
    Ok(Done {
        wrong,
        ..Done::default()
    })
}

/// An entry of the table, which has a block of its own, as its key and its value have.
pub struct Entry {
    key: Marked,
    pub value: Marked,
}

impl Entry {
    pub fn wrong(&self) -> u64 {
        self.key.wrong() + self.value.wrong()
    }
}

pub struct Table {
    rng: Rng,
    /// An entry has its slot for as long as it lives. The table grows by realloc.
    pub slots: Vec<Option<Box<Entry>>>,
    pub wrong: u64,
}

impl Table {
    pub fn new(seed: u64) -> Self {
        Self {
            rng: Rng::with_seed(seed),
            slots: Vec::new(),
            wrong: 0,
        }
    }

    pub fn entry(&mut self) -> Result<Box<Entry>> {
        let key = Marked::new(self.rng.usize(16..=64))?;
        let value = self.value()?;
        Ok(Box::new(Entry { key, value }))
    }

    /// Makes a value, most of which have a few hundred bytes: the logarithm of its size is
    /// a mean of random numbers, and so about normal.
    fn value(&mut self) -> Result<Marked> {
        let mean = (0..3).map(|_| self.rng.f64()).sum::<f64>() / 3.0;
        Marked::new((MIN_VALUE as f64 * (mean * DOUBLINGS).exp2()) as usize)
    }

    /// Inserts where a random slot is empty. Otherwise deletes the entry, once in five
    /// times, or else overwrites its value.
    pub fn change(&mut self) -> Result<()> {
        let slot = self.rng.usize(..self.slots.len());
        let is_deleted = self.rng.u8(..5) == 0;
        match self.slots[slot].take() {
            None => self.slots[slot] = Some(self.entry()?),
            Some(entry) if is_deleted => self.wrong += entry.wrong(),
            Some(mut entry) => {
                self.wrong += entry.wrong();
                entry.value = self.value()?;
                self.slots[slot] = Some(entry);
            }
        }
        Ok(())
    }

    /// Deletes each entry with a chance of one half.
    pub fn delete_half(&mut self) {
        for slot in &mut self.slots {
            if self.rng.bool() {
                self.wrong += slot.take().map_or(0, |entry| entry.wrong());
            }
        }
    }
}
