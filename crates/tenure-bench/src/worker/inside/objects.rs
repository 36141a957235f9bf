//! The memory of an interpreter: many objects that live for a moment among some that live
//! for longer, lists that grow, and arenas.

use anyhow::Result;
use fastrand::Rng;

use super::super::job::{Done, Objects};
use super::Parent;
use super::marked::Marked;

/// All but one object in so many replace a young one.
const OLD: u32 = 16;
/// Objects that live for a moment.
const YOUNG: usize = 1000;
const LISTS: usize = 8;
const MAX_LIST: usize = 4 << 20;
const ARENAS: usize = 32;
const ARENA_BYTES: [usize; 2] = [256 << 10, 1 << 20];
/// A list grows, and an arena is replaced, once in so many objects.
const GROWS: usize = 1 << 10;
const REPLACED: usize = 1 << 14;

/// Does the work, frees all but a tenth of the objects, and waits while the parent looks at
/// the memory.
pub fn run(objects: Objects, parent: &mut Parent) -> Result<Done> {
    let mut heap = Heap::new(objects);
    parent.wait()?;
    (0..objects.count).try_for_each(|index| heap.step(index))?;
    heap.shrink();
    parent.wait()?;
    Ok(Done {
        wrong: heap.wrong
            + heap
                .objects
                .iter()
                .flatten()
                .map(Marked::wrong)
                .sum::<u64>(),
        ..Done::default()
    })
}

pub struct Heap {
    rng: Rng,
    /// The young ones, then the old ones.
    objects: Vec<Option<Marked>>,
    lists: [Option<Marked>; LISTS],
    arenas: [Option<Marked>; ARENAS],
    pub wrong: u64,
}

impl Heap {
    pub fn new(objects: Objects) -> Self {
        let none = || None;
        let mut slots = Vec::new();
        slots.resize_with(objects.live.max(YOUNG + 1), none);
        Self {
            rng: Rng::with_seed(objects.seed),
            objects: slots,
            lists: [const { None }; LISTS],
            arenas: [const { None }; ARENAS],
            wrong: 0,
        }
    }

    /// Makes an object in the place of another. Now and then a list grows, or an arena is
    /// replaced.
    pub fn step(&mut self, index: usize) -> Result<()> {
        let slot = match self.rng.u32(..OLD) {
            0 => self.rng.usize(YOUNG..self.objects.len()),
            _ => self.rng.usize(..YOUNG),
        };
        let new = Marked::new(self.rng.usize(16..=512))?;
        self.wrong += replace(&mut self.objects[slot], new);
        if index.is_multiple_of(GROWS) {
            self.grow_a_list()?;
        }
        if index.is_multiple_of(REPLACED) {
            let new = Marked::new(ARENA_BYTES[self.rng.usize(..ARENA_BYTES.len())])?;
            let arena = self.rng.usize(..ARENAS);
            self.wrong += replace(&mut self.arenas[arena], new);
        }
        Ok(())
    }

    /// Grows a list by an eighth; a list that is long enough starts anew.
    pub fn grow_a_list(&mut self) -> Result<()> {
        let list = &mut self.lists[self.rng.usize(..LISTS)];
        match list {
            Some(list) if list.len() < MAX_LIST => {
                self.wrong += list.grow(list.len() / 8 * 9 + 64)?;
            }
            list => self.wrong += replace(list, Marked::new(64)?),
        }
        Ok(())
    }

    /// Frees lists, arenas and nine of ten objects.
    pub fn shrink(&mut self) {
        let (lists, arenas) = (&mut self.lists[..], &mut self.arenas[..]);
        for slot in lists.iter_mut().chain(arenas) {
            self.wrong += check(slot.take());
        }
        for slot in &mut self.objects {
            if self.rng.u8(..10) != 0 {
                self.wrong += check(slot.take());
            }
        }
    }
}

/// Puts a block into the place of another, and counts the wrong marks of that.
fn replace(slot: &mut Option<Marked>, new: Marked) -> u64 {
    check(slot.replace(new))
}

/// Counts the wrong marks of a block and frees it.
fn check(block: Option<Marked>) -> u64 {
    block.map_or(0, |block| block.wrong())
}
