//! A lease: one process does something, and others do not at the same time.
//!
//! It is advice, and no lock: what processes do under a lease is correct without it. So one that
//! is stopped or dead loses it, and blocks nobody.

use std::sync::atomic::{AtomicU64, Ordering};

use super::processes::Attachment;
use super::table::Table;
use super::word::MAX_PROCESSES;
use crate::ground::sys::process::monotonic_coarse_nanos;

/// The bits that are the slot of the process, plus one; the others are when it began, in
/// milliseconds.
const SLOT_BITS: u32 = 6;

/// A younger lease is not looked at: it costs some microseconds to see what a process does.
const YOUNG_MILLIS: u64 = 4;

/// An older lease has ended, whatever its process does.
const MAX_MILLIS: u64 = 1000;

/// A word in shared memory; 0 while no process has it.
#[derive(Debug, Default)]
#[repr(transparent)]
pub(crate) struct Lease(AtomicU64);

/// A lease that a thread of this process has; dropping it ends the lease.
pub(crate) struct Held<'a> {
    lease: &'a Lease,
    word: u64,
}

impl Held<'_> {
    /// Begins the lease anew, if nobody has taken it.
    pub(crate) fn renew(&mut self) {
        let renewed = now_millis() << SLOT_BITS | self.word & ((1 << SLOT_BITS) - 1);
        if self.lease.swap(self.word, renewed) {
            self.word = renewed;
        }
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.lease.swap(self.word, 0);
    }
}

impl Lease {
    fn swap(&self, from: u64, to: u64) -> bool {
        let (success, failure) = (Ordering::AcqRel, Ordering::Relaxed);
        self.0.compare_exchange(from, to, success, failure).is_ok()
    }
}

impl Table {
    /// Takes a lease, unless a live process has it that is not stopped.
    pub(crate) fn try_lease<'a>(
        &self,
        lease: &'a Lease,
        attachment: &Attachment,
    ) -> Option<Held<'a>> {
        let now = now_millis();
        let own = now << SLOT_BITS | (attachment.slot as u64 + 1);
        let found = lease.0.load(Ordering::Relaxed);
        let may_take = found == 0 || self.has_lost(found, now, attachment);
        (may_take && lease.swap(found, own)).then_some(Held { lease, word: own })
    }

    fn has_lost(&self, word: u64, now: u64, attachment: &Attachment) -> bool {
        let slot = (word & ((1 << SLOT_BITS) - 1)) as usize;
        // Garbage is the lease of nobody.
        if slot == 0 || slot > MAX_PROCESSES {
            return true;
        }
        match now.checked_sub(word >> SLOT_BITS) {
            Some(0..=YOUNG_MILLIS) => false,
            Some(..=MAX_MILLIS) => self.is_halted(slot - 1, attachment),
            _ => true,
        }
    }
}

/// Returns the milliseconds of the monotonic clock, the lower 58 bits.
fn now_millis() -> u64 {
    monotonic_coarse_nanos() / 1_000_000
}

#[cfg(test)]
mod tests {
    use super::super::file;
    use super::super::layout::{Geometry, Kind};
    use super::*;
    use crate::ground::sys::page_size;

    fn table() -> Table {
        let kind = Kind::Arena {
            object_bytes: page_size() as u64,
        };
        let geometry = Geometry {
            kind,
            count: 1,
            seed: [0; 2],
        };
        file::create_memfd(geometry).unwrap()
    }

    #[test]
    fn lease_is_one_process_s_until_it_is_dropped_or_lost() {
        let table = table();
        let [first, second] = [table.attach().unwrap(), table.attach().unwrap()];
        let lease = &table.header().evictor;
        // Under a debugger or on a slow machine it may be lost meanwhile.
        let mut held = table.try_lease(lease, &first).unwrap();
        held.renew();
        let now = now_millis();
        assert!(!table.has_lost(now << SLOT_BITS | 1, now, &second));
        assert!(!table.has_lost((now - 100) << SLOT_BITS | 1, now, &second));
        assert!(table.has_lost((now - 1001) << SLOT_BITS | 1, now, &second));
        drop(held);
        let taken = table.try_lease(lease, &second).unwrap();
        assert_eq!(taken.word & 63, second.slot as u64 + 1);
        table.detach(&first, std::iter::empty());
        let slot_of_none = (now - 10) << SLOT_BITS | 1;
        assert!(table.has_lost(slot_of_none, now, &second));
    }

    #[test]
    fn garbage_is_the_lease_of_nobody() {
        let table = table();
        let own = table.attach().unwrap();
        let now = now_millis();
        for garbage in [1, 63, u64::MAX, 49, (now + 5) << SLOT_BITS | 1] {
            assert!(table.has_lost(garbage, now, &own), "{garbage:x}");
        }
    }
}
