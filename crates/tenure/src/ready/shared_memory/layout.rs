//! The layout of a shared file: a header, a table of entries, and the places of the objects.
//!
//! Another process may write anything to the file at any time. So the part that never changes
//! is copied and checked once ([`Geometry`]); what changes is read by one atomic load, and
//! each use checks the value that was read.

use std::sync::atomic::AtomicU64;

use super::lease::Lease;
use super::word::{MAX_PROCESSES, Word};
use crate::ground::sys::page_size;

const MAGIC: [u8; 8] = *b"tenureSM";
const VERSION: u32 = 3;

/// How many objects a file has at most.
pub(crate) const MAX_COUNT: usize = 1 << 20;
/// How large an object is at most.
pub(crate) const MAX_OBJECT_BYTES: u64 = 1 << 40;
/// The sizes of a cache's places: pages times powers of four.
const CLASSES: u32 = 11;

/// The part of the header that does not change.
#[derive(Clone, Copy)]
#[repr(C)]
struct Fixed {
    magic: [u8; 8],
    version: u32,
    page_bytes: u32,
    kind: u32,
    count: u32,
    object_bytes: u64,
    seed: [u64; 2],
}

pub(super) const FIXED_BYTES: usize = size_of::<Fixed>();

/// The first page of the file.
#[repr(C)]
pub(crate) struct Header {
    /// [`Fixed`], which is read from the file.
    _fixed: [AtomicU64; 16],
    /// The process that evicts.
    pub(crate) evictor: Lease,
    /// The process that changes pages.
    pub(crate) writer: Lease,
    /// The bytes of the objects whose contents are there, in whole pages.
    pub(crate) bytes: AtomicU64,
    pub(crate) sequence: AtomicU64,
    pub(crate) purged: AtomicU64,
    pub(crate) purged_bytes: AtomicU64,
    _reserved: [AtomicU64; 10],
    pub(crate) processes: [Slot; MAX_PROCESSES],
    /// The values of a cache that are being made.
    pub(crate) flights: [AtomicU64; FLIGHTS],
}

/// How many values can be made at a time, by all processes.
pub(crate) const FLIGHTS: usize = 256;

/// An attached process.
#[repr(C)]
pub(crate) struct Slot {
    /// The process and its start; 0 if the slot is free.
    pub(crate) id: AtomicU64,
    /// Written after the process, and before the slot is free again.
    pub(crate) namespace: AtomicU64,
}

/// How many contents an entry has: a cache writes a key's next value beside the one that is
/// found, and an arena uses the first.
pub(crate) const SIDES: usize = 2;

/// The contents of an entry on one side.
#[repr(C)]
pub(crate) struct Contents {
    /// Differs for each object that the entry has had.
    pub(crate) generation: AtomicU64,
    /// The bytes; in a cache 0 where there are no pages.
    pub(crate) len: AtomicU64,
}

/// An object.
#[repr(C)]
pub(crate) struct Entry {
    pub(crate) word: Word,
    pub(crate) contents: [Contents; SIDES],
    /// The hash of a cache's key; in an arena, how often the contents have gone.
    pub(crate) tag: AtomicU64,
    /// When it was last used, in nanoseconds of the monotonic clock.
    pub(crate) used: AtomicU64,
}

impl Entry {
    /// Returns the generation of an arena's object.
    pub(crate) fn generation(&self) -> &AtomicU64 {
        &self.contents[0].generation
    }

    /// Returns the length of an arena's object.
    pub(crate) fn len(&self) -> &AtomicU64 {
        &self.contents[0].len
    }
}

const _: () = assert!(FIXED_BYTES <= 128 && size_of::<Header>() <= HEADER_BYTES);
const _: () = assert!(size_of::<Entry>() == 56);
/// No page is smaller.
const HEADER_BYTES: usize = 4096;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Each object has a place of the same size.
    Arena { object_bytes: u64 },
    /// Each object has a place in each of the [`CLASSES`], on each side.
    Cache,
}

/// Where everything is, and the hash's key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Geometry {
    pub(crate) kind: Kind,
    pub(crate) count: usize,
    pub(crate) seed: [u64; 2],
}

impl Geometry {
    /// Returns the bytes of the fixed part.
    pub(crate) fn to_bytes(self) -> [u8; FIXED_BYTES] {
        let (kind, object_bytes) = match self.kind {
            Kind::Arena { object_bytes } => (0, object_bytes),
            Kind::Cache => (1, 0),
        };
        let fixed = Fixed {
            magic: MAGIC,
            version: VERSION,
            page_bytes: page_size() as u32,
            kind,
            count: self.count as u32,
            object_bytes,
            seed: self.seed,
        };
        // SAFETY: the structure has no padding: its fields' sizes add up to its own.
        unsafe { std::mem::transmute(fixed) }
    }

    /// Checks the bytes of the fixed part; the error says what is wrong.
    pub(crate) fn parse(bytes: [u8; FIXED_BYTES]) -> Result<Self, &'static str> {
        // SAFETY: the structure has integers only, for which all bytes are valid.
        let fixed: Fixed = unsafe { std::mem::transmute(bytes) };
        if fixed.magic != MAGIC {
            return Err("it is no shared memory of tenure");
        }
        if fixed.version != VERSION {
            return Err("it was made by a version of tenure with another layout");
        }
        if fixed.page_bytes as usize != page_size() {
            return Err("it was made with another page size");
        }
        let kind = match fixed.kind {
            0 => Kind::Arena {
                object_bytes: fixed.object_bytes,
            },
            1 => Kind::Cache,
            _ => return Err("its header is corrupt"),
        };
        let geometry = Self {
            kind,
            count: fixed.count as usize,
            seed: fixed.seed,
        };
        match geometry.is_valid() {
            true => Ok(geometry),
            false => Err("its header is corrupt"),
        }
    }

    /// Whether offsets of this geometry can be computed without overflow.
    pub(crate) fn is_valid(&self) -> bool {
        let is_kind_valid = match self.kind {
            Kind::Arena { object_bytes } => {
                (1..=MAX_OBJECT_BYTES).contains(&object_bytes)
                    && object_bytes.is_multiple_of(page_size() as u64)
            }
            Kind::Cache => self.count.is_power_of_two() && self.count >= SET,
        };
        is_kind_valid && (1..=MAX_COUNT).contains(&self.count)
    }

    /// Returns the bytes of the header and the table, in whole pages.
    pub(crate) fn table_bytes(&self) -> usize {
        (Self::table_start() + self.count * size_of::<Entry>()).next_multiple_of(page_size())
    }

    /// Returns where the entries begin.
    pub(crate) const fn table_start() -> usize {
        HEADER_BYTES
    }

    pub(crate) fn file_bytes(&self) -> u64 {
        let places = match self.kind {
            Kind::Arena { object_bytes } => object_bytes,
            Kind::Cache => (0..CLASSES).map(class_bytes).sum::<u64>() * SIDES as u64,
        };
        self.table_bytes() as u64 + places * self.count as u64
    }

    /// Returns how large an object is at most.
    pub(crate) fn max_bytes(&self) -> u64 {
        match self.kind {
            Kind::Arena { object_bytes } => object_bytes,
            Kind::Cache => class_bytes(CLASSES - 1),
        }
    }

    /// Returns the place of an object of `len` bytes; `None` if there is no such place.
    pub(crate) fn place(&self, index: usize, side: usize, len: u64) -> Option<u64> {
        if index >= self.count || side >= SIDES || len > self.max_bytes() {
            return None;
        }
        let start = self.table_bytes() as u64;
        let (index, count) = (index as u64, self.count as u64);
        Some(match self.kind {
            Kind::Arena { object_bytes } => start + index * object_bytes,
            Kind::Cache => {
                let class = (0..CLASSES).find(|&class| len <= class_bytes(class))?;
                let smaller = (0..class).map(class_bytes).sum::<u64>();
                let nth = side as u64 * count + index;
                start + smaller * SIDES as u64 * count + nth * class_bytes(class)
            }
        })
    }

    /// Returns all places of an entry: start and length.
    #[cfg(test)]
    pub(crate) fn places(&self, index: usize) -> Vec<(u64, u64)> {
        let (sides, lens): (_, Vec<u64>) = match self.kind {
            Kind::Arena { object_bytes } => (1, vec![object_bytes]),
            Kind::Cache => (SIDES, (0..CLASSES).map(class_bytes).collect()),
        };
        let places = (0..sides).flat_map(|side| lens.iter().map(move |&len| (side, len)));
        let of = |(side, len)| Some((self.place(index, side, len)?, len));
        places.filter_map(of).collect()
    }
}

/// How many entries of a cache can have a key: a set.
pub(crate) const SET: usize = 8;

fn class_bytes(class: u32) -> u64 {
    (page_size() as u64) << (2 * class)
}

#[cfg(test)]
#[path = "layout_tests.rs"]
mod tests;
