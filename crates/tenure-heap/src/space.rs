//! The heap's addresses: reserved once, and divided into one range for each class.
//!
//! A range begins with the [`Slot`]s of its places, for which 1 GiB of addresses is set
//! aside; the places follow. The range before the first holds the shards.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use tenure::{Errno, Error};

use crate::addresses::Addresses;
use crate::class::{CLASSES, Class};
use crate::classes::{MAX_CLASSES, class_of, pitch_of};
use crate::shard;
use crate::slot::Slot;
use crate::sys;

/// Where the places begin in a range: behind 64 bytes for each. It is also the largest
/// alignment.
pub(crate) const PLACES_AT: usize = 1 << 30;

/// The largest ranges have 256 GiB, 44 TiB in all.
const MAX_SHIFT: u32 = 38;

/// The smallest have 8 GiB, 1 TiB in all.
const MIN_SHIFT: u32 = 33;

/// The layout of the reservation.
pub(crate) struct Space {
    /// The ranges of all classes. Set last, because other threads may free blocks.
    addresses: Addresses,
    /// The logarithm of a range's length.
    shift: AtomicUsize,
    classes: AtomicUsize,
    page_bytes: AtomicUsize,
}

pub(crate) static SPACE: Space = Space {
    addresses: Addresses::none(AtomicUsize::new(0), AtomicUsize::new(0)),
    shift: AtomicUsize::new(0),
    classes: AtomicUsize::new(0),
    page_bytes: AtomicUsize::new(0),
};

/// A place for a block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) class: &'static Class,
    pub(crate) index: u32,
}

impl Place {
    #[inline]
    pub(crate) fn slot(self) -> &'static Slot {
        self.class.slot(self.index)
    }

    #[inline]
    pub(crate) fn address(self) -> usize {
        self.class.address(self.index)
    }
}

impl Space {
    /// Returns whether the address lies in the range of a class.
    #[inline]
    pub(crate) fn owns(&self, address: usize) -> bool {
        self.addresses.contains(address)
    }

    /// Returns the place that begins at the address, if it has been used.
    #[inline]
    pub(crate) fn place_at(&self, address: usize) -> Option<Place> {
        let offset = self.addresses.offset_of(address);
        let shift = self.shift.load(Relaxed);
        let class = CLASSES.get(offset >> shift)?;
        let index = class.index_at(address)?;
        Some(Place { class, index })
    }

    /// Returns the class for blocks of such a size, if there is one.
    #[inline]
    pub(crate) fn class_for(&self, bytes: usize) -> Option<usize> {
        let class = class_of(bytes);
        (class < self.classes.load(Relaxed)).then_some(class)
    }

    /// Returns the classes in use.
    pub(crate) fn classes(&self) -> &'static [Class] {
        &CLASSES[..self.classes.load(Relaxed)]
    }

    #[inline]
    pub(crate) fn page_bytes(&self) -> usize {
        self.page_bytes.load(Relaxed)
    }

    /// Reserves the addresses and sets the heap up; the caller publishes that it is
    /// ready.
    pub(crate) fn reserve(&self) -> Result<(), Error> {
        let page_bytes = sys::page_bytes();
        let refused = |feature, answer, remedy| Error::Unsupported {
            verb: "reserve addresses for the heap",
            feature,
            answer,
            remedy,
        };
        if sys::has_address_limit() {
            return Err(refused(
                "unlimited address space",
                Errno::NOMEM,
                "RLIMIT_AS is set; raise it with ulimit -v",
            ));
        }
        if sys::charges_addresses() {
            return Err(refused(
                "overcommit",
                Errno::NOMEM,
                "vm.overcommit_memory is 2, with which addresses count as memory",
            ));
        }
        let (first, shift, classes) = reserve_ranges(page_bytes).map_err(|answer| {
            let feature = "1 TiB of address space";
            refused(
                feature,
                answer,
                "another sandbox, or a kernel with 48-bit addresses",
            )
        })?;
        self.page_bytes.store(page_bytes, Relaxed);
        shard::make(first, 1 << shift).map_err(|errno| Error::System {
            call: "mprotect",
            errno,
        })?;
        let base = first + (1 << shift);
        for (number, class) in CLASSES[..classes].iter().enumerate() {
            class.lay_out(number, base + (number << shift), 1 << shift, page_bytes);
        }
        self.shift.store(shift as usize, Relaxed);
        self.classes.store(classes, Relaxed);
        self.addresses.set(base, classes << shift);
        Ok(())
    }
}

/// Reserves as many addresses as possible. Returns where they begin (on a multiple of 1
/// GiB), the logarithm of a range's length, and the number of classes.
fn reserve_ranges(page_bytes: usize) -> Result<(usize, u32, usize), Errno> {
    let mut answer = Errno::NOMEM;
    for shift in (MIN_SHIFT..=MAX_SHIFT).rev() {
        let places_bytes = (1 << shift) - PLACES_AT;
        let fits = |&class: &usize| pitch_of(class, page_bytes) <= places_bytes;
        let classes = (0..MAX_CLASSES).take_while(fits).count();
        let bytes = ((classes + 1) << shift) + PLACES_AT;
        match sys::reserve(bytes) {
            Ok(at) => return Ok((at.next_multiple_of(PLACES_AT), shift, classes)),
            Err(errno) => answer = errno,
        }
    }
    Err(answer)
}
