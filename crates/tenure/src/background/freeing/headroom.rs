//! How many bytes may be pending: a release must not make a program fail that
//! would run with `munmap(2)`.
//!
//! # Memory
//!
//! With p pending bytes and the headroom H the program can take H until workers
//! have freed the rest, where `munmap` would leave it H + p. That is enough if
//! workers free p while the program takes H + p. Faulting base pages in takes
//! about four times as long as freeing them, so 4 workers beside 16 threads that
//! fault on the same CPU free as much as those take. Beside 64 threads on one
//! CPU, programs lived that took 600 and 900 MiB of a cgroup of 1 GiB in turn,
//! with p as large as H (Linux 6.18); p is half of H at most.
//!
//! A worker beside n busy threads on a CPU waits some n × 3 ms for its turn,
//! during which they take about n × 10 MiB. Where the headroom is less than
//! [`AMPLE_BYTES`], all workers therefore start with the release; with more they
//! notice in time that memory becomes short.
//!
//! # Addresses
//!
//! One `mmap` can take all that a limit leaves, before a worker could have done
//! anything. Nothing is deferred where RLIMIT_AS or RLIMIT_DATA leaves less than
//! the machine has memory, or under strict overcommit, and pending jobs have at
//! most a sixteenth of the mappings that `vm.max_map_count` allows.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::limits::max_pending_bytes;
use crate::ground::range::PageRange;
use crate::ground::sys::cgroup::KnownLimits;
use crate::ground::sys::{address_limits, pmd_bytes, process, table_bytes};
use crate::observation::headroom::outstanding_bytes;

/// Pending bytes are at most the headroom divided by this.
const PENDING_DIVISOR: usize = 2;

/// From this headroom on, workers need not hurry before they find out why.
const AMPLE_BYTES: usize = 4 << 30;

/// Workers hurry if the pending bytes are more than the headroom divided by
/// this.
const AMPLE_HURRY_DIVISOR: usize = 4;
const HURRY_DIVISOR: usize = 16;

/// The most that a CPU takes of the headroom: faulting huge pages in takes about
/// twice as long on the fastest machines as this says. A reading serves for as long
/// as the rest suffices, whatever all CPUs have taken since. The age is limited
/// because limits can be lowered and a process be moved; workers notice both.
const TAKEN_BYTES_PER_CPU_AND_MS: usize = 16 << 20;
const READING_MAX_AGE: Duration = Duration::from_millis(100);

/// How long a caller takes the groups of this process for those that the limits are of. A
/// process that is moved leaves what is pending in the old groups.
const GROUPS_MAX_AGE: Duration = Duration::from_secs(1);

/// How long known limits serve callers; workers look them up anew while they
/// work.
const KNOWN_MAX_AGE: Duration = Duration::from_secs(10);

/// A job's pages, and what is left of its reservation before and behind them.
const MAPPINGS_PER_JOB: usize = 3;
const MAP_COUNT_DIVISOR: usize = 16;

/// Limits that are looked up ahead of reading the headroom, because they rarely change.
#[derive(Debug)]
pub(super) struct Known {
    limits: KnownLimits,
    max_jobs: usize,
    total_bytes: usize,
    may_be_strict_overcommit: bool,
    cpus: usize,
    found_at: Instant,
    /// When the groups were last those of this process, in milliseconds since `found_at`.
    checked_ms: AtomicU64,
}

impl Known {
    /// Looks everything up; `None` where it cannot be read.
    pub(super) fn find() -> Option<Arc<Self>> {
        Some(Arc::new(Self {
            limits: KnownLimits::find()?,
            max_jobs: process::max_map_count() / (MAP_COUNT_DIVISOR * MAPPINGS_PER_JOB),
            total_bytes: process::mem_total_bytes()?,
            may_be_strict_overcommit: address_limits::may_be_strict_overcommit(),
            cpus: process::online_cpus(),
            found_at: Instant::now(),
            checked_ms: AtomicU64::new(0),
        }))
    }

    /// Returns whether the limits were found less than `age` ago, and are those of the
    /// groups that this process was in less than `groups_age` ago.
    pub(super) fn holds_for(&self, age: Duration, groups_age: Duration) -> bool {
        let since_found = self.found_at.elapsed();
        let checked = Duration::from_millis(self.checked_ms.load(Ordering::Relaxed));
        if since_found >= age {
            return false;
        }
        if since_found.saturating_sub(checked) < groups_age {
            return true;
        }
        let is_current = self.limits.is_current();
        if is_current {
            let checked_ms = since_found.as_millis() as u64;
            self.checked_ms.store(checked_ms, Ordering::Relaxed);
        }
        is_current
    }

    /// Reads a lower bound of the headroom, in bytes, to compare it with
    /// `pending_bytes`. A figure that cannot be read leaves none. Inactive page cache in
    /// cgroups counts only where there is too little without.
    pub(super) fn headroom_beside(&self, pending_bytes: usize) -> usize {
        // From here on everything fits, and memory is not short.
        let ample_bytes = pending_bytes.saturating_mul(AMPLE_HURRY_DIVISOR);
        let enough_bytes = pending_bytes
            .saturating_mul(HURRY_DIVISOR)
            .min(ample_bytes.max(AMPLE_BYTES));
        let free_bytes = process::mem_free_bytes();
        let available_bytes = if free_bytes < enough_bytes {
            process::mem_available_bytes().unwrap_or(0)
        } else {
            free_bytes
        };
        let unused_bytes = self.limits.unused_bytes().unwrap_or(0);
        let in_groups = if unused_bytes < enough_bytes {
            self.limits.unused_or_cached_bytes().unwrap_or(0)
        } else {
            unused_bytes
        };
        // Memory that other threads are about to take is no headroom.
        available_bytes
            .min(in_groups)
            .saturating_sub(outstanding_bytes())
    }

    /// Reads the same with the time.
    pub(super) fn read_beside(&self, pending_bytes: usize) -> Reading {
        Reading {
            at: Instant::now(),
            headroom_bytes: self.headroom_beside(pending_bytes),
        }
    }

    /// Returns whether `bytes` more may stay mapped for a while.
    fn has_addresses_for(&self, bytes: usize, job_count: usize) -> bool {
        let needed_bytes = self.total_bytes.saturating_add(bytes);
        !self.may_be_strict_overcommit
            && job_count < self.max_jobs
            && address_limits::mappable_bytes().is_some_and(|left| left >= needed_bytes)
    }
}

/// A reading of the headroom.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reading {
    /// When it began.
    at: Instant,
    pub(super) headroom_bytes: usize,
}

/// The limits and the last reading, which callers use before they read the headroom.
#[derive(Debug)]
pub(super) struct HeadroomCache {
    pub(super) known: Option<Arc<Known>>,
    /// The last reading, by a caller or a worker.
    reading: Option<Reading>,
}

/// How much of a release may be deferred.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fit {
    /// The bytes that fit; the caller frees the others.
    pub(super) bytes: usize,
    /// Whether memory is short with these bytes pending.
    pub(super) is_short: bool,
}

impl HeadroomCache {
    pub(super) const EMPTY: Self = Self {
        known: None,
        reading: None,
    };

    /// Returns how many of `bytes` fit beside `pending_bytes` in `job_count`
    /// jobs.
    pub(super) fn fit(
        &mut self,
        bytes: usize,
        is_private: bool,
        pending_bytes: usize,
        job_count: usize,
    ) -> Fit {
        let none = Fit {
            bytes: 0,
            is_short: true,
        };
        if pending_bytes >= max_pending_bytes() {
            return none;
        }
        let all_bytes = pending_bytes.saturating_add(bytes);
        let covers = |known: &Arc<Known>, last: Reading| {
            last.covers(all_bytes, last.at.elapsed(), known.cpus)
        };
        let is_covered = (self.known.as_ref().zip(self.reading))
            .is_some_and(|(known, last)| covers(known, last));
        let known = if is_covered {
            self.known.clone()
        } else {
            self.known()
        };
        let Some(known) = known else { return none };
        // A reservation is longer than its range by a table at most.
        let reserved_bytes = bytes.saturating_mul(2).saturating_add(table_bytes(bytes));
        if !known.has_addresses_for(reserved_bytes, job_count) {
            return none;
        }
        if is_covered {
            let is_short = false;
            return Fit { bytes, is_short };
        }
        let reading = known.read_beside(all_bytes);
        self.record(reading);
        let headroom_bytes = reading.headroom_bytes;
        let by_addresses = fitting_bytes(bytes, pending_bytes, headroom_bytes);
        if by_addresses < bytes && is_private {
            // The bytes may be nearly empty. All that a process has of shared memory need
            // not be in its mappings.
            let memory_bytes = process::resident_bytes().map_or(bytes, |all| all.min(bytes));
            let fits = fitting_bytes(memory_bytes, pending_bytes, headroom_bytes) == memory_bytes;
            if fits {
                let is_short = is_short(headroom_bytes, pending_bytes + memory_bytes);
                return Fit { bytes, is_short };
            }
        }
        Fit {
            bytes: by_addresses,
            is_short: is_short(headroom_bytes, pending_bytes + by_addresses),
        }
    }

    /// Keeps a reading, unless a later one is known.
    pub(super) fn record(&mut self, reading: Reading) {
        if self.reading.is_none_or(|last| last.at <= reading.at) {
            self.reading = Some(reading);
        }
    }

    /// Returns whether more is pending than the headroom is.
    pub(super) fn is_exceeded_by(&mut self, pending_bytes: usize) -> bool {
        let known = self.known();
        known.is_none_or(|known| known.headroom_beside(pending_bytes) < pending_bytes)
    }

    /// Looks the limits up, unless they are known and hold.
    fn known(&mut self) -> Option<Arc<Known>> {
        let holds = |known: &Arc<Known>| known.holds_for(KNOWN_MAX_AGE, GROUPS_MAX_AGE);
        if !self.known.as_ref().is_some_and(holds) {
            self.known = Known::find();
        }
        self.known.clone()
    }
}

impl Reading {
    /// Returns whether so many pending bytes fit and memory is not short beside
    /// them, whatever `cpus` CPUs have taken in the `age` of the reading.
    fn covers(&self, pending_bytes: usize, age: Duration, cpus: usize) -> bool {
        let age_ms = age.as_millis() as usize + 1;
        let taken_bytes = age_ms
            .saturating_mul(TAKEN_BYTES_PER_CPU_AND_MS)
            .saturating_mul(cpus);
        let left_bytes = self.headroom_bytes.saturating_sub(taken_bytes);
        age < READING_MAX_AGE && left_bytes >= AMPLE_BYTES && !is_short(left_bytes, pending_bytes)
    }
}

/// Returns how many of `bytes` fit: what the caller frees itself increases the
/// headroom.
fn fitting_bytes(bytes: usize, pending_bytes: usize, headroom_bytes: usize) -> usize {
    let pending_share = pending_bytes.saturating_mul(PENDING_DIVISOR);
    if headroom_bytes / PENDING_DIVISOR >= pending_bytes.saturating_add(bytes) {
        return bytes;
    }
    let free_bytes = headroom_bytes.saturating_add(bytes);
    (free_bytes.saturating_sub(pending_share) / (PENDING_DIVISOR + 1)).min(bytes)
}

/// Returns whether workers have to hurry.
pub(super) fn is_short(headroom_bytes: usize, pending_bytes: usize) -> bool {
    let divisor = if headroom_bytes < AMPLE_BYTES {
        HURRY_DIVISOR
    } else {
        AMPLE_HURRY_DIVISOR
    };
    pending_bytes > headroom_bytes / divisor
}

/// Divides parts into those of `fitting_bytes` at most and the rest. A part is
/// cut where page tables can still move whole.
pub(super) fn split_parts(
    parts: Vec<PageRange>,
    mut fitting_bytes: usize,
) -> (Vec<PageRange>, Vec<PageRange>) {
    let (mut fitting, mut rest) = (Vec::with_capacity(parts.len()), Vec::new());
    for part in parts {
        let cut = match part.start().checked_add(fitting_bytes) {
            Some(end) if end < part.end() => end - end % pmd_bytes(),
            _ => part.end(),
        };
        let cut = cut.max(part.start());
        let pieces = [(part.start(), cut), (cut, part.end())];
        let [first, second] = pieces.map(|(start, end)| PageRange::between(start, end));
        fitting_bytes = fitting_bytes.saturating_sub(part.len());
        fitting.extend(Some(first).filter(|piece| !piece.is_empty()));
        rest.extend(Some(second).filter(|piece| !piece.is_empty()));
    }
    (fitting, rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;
    const GIB: usize = 1 << 30;

    #[test]
    fn release_beside_ample_headroom_fits_whole() {
        assert_eq!(fitting_bytes(8 * GIB, 0, 40 * GIB), 8 * GIB);
        assert!(!is_short(40 * GIB, 8 * GIB));
    }

    #[test]
    fn pending_bytes_are_half_of_headroom_at_most() {
        for (bytes, pending, headroom) in [
            (2 * GIB, 0, GIB),
            (600 * MIB, 0, 400 * MIB),
            (GIB, 256 * MIB, 2 * GIB),
            (GIB, 2 * GIB, GIB),
            (GIB, 0, 0),
            (usize::MAX, usize::MAX, usize::MAX),
        ] {
            let fitting = fitting_bytes(bytes, pending, headroom);
            let freed = bytes - fitting;
            let bound = headroom.saturating_add(freed) / PENDING_DIVISOR;
            assert!(
                fitting == 0 || pending + fitting <= bound,
                "{bytes} {pending} {headroom}: {fitting}"
            );
            assert!(fitting < bytes);
        }
        assert!(is_short(GIB, 200 * MIB), "a release that may starve");
        assert!(!is_short(GIB, 4 * MIB));
    }

    #[test]
    fn split_parts_cuts_one_part_at_a_page_table() {
        let half = pmd_bytes() / 2;
        let part = |from: usize, to: usize| PageRange::between(from * half, to * half);
        let parts = || vec![part(10, 20), part(30, 40)];
        assert_eq!(split_parts(parts(), 20 * half), (parts(), vec![]));
        assert_eq!(split_parts(parts(), 0), (vec![], parts()));
        let (fitting, rest) = split_parts(parts(), 15 * half);
        assert_eq!(fitting, [part(10, 20), part(30, 34)]);
        assert_eq!(rest, [part(34, 40)]);
    }

    #[test]
    fn reading_covers_releases_while_its_rest_is_ample() {
        let reading = |headroom_bytes| Reading {
            at: Instant::now(),
            headroom_bytes,
        };
        let ms = Duration::from_millis;
        // 2 CPUs take less than 3.2 GiB in 100 ms.
        assert!(reading(8 * GIB).covers(GIB, ms(99), 2));
        assert!(!reading(8 * GIB).covers(GIB, ms(99), 4));
        assert!(!reading(6 * GIB).covers(GIB, ms(99), 2));
        assert!(!reading(8 * GIB).covers(2 * GIB, ms(99), 2));
        assert!(reading(64 * GIB).covers(2 * GIB, ms(99), 2));
        assert!(!reading(64 * GIB).covers(2 * GIB, READING_MAX_AGE, 2));
        assert!(!reading(2 * GIB).covers(MIB, ms(0), 2));
        assert!(!reading(8 * GIB).covers(MIB, ms(1), usize::MAX));
    }

    #[test]
    fn cache_keeps_the_later_of_two_readings() {
        let mut cache = HeadroomCache::EMPTY;
        let earlier = Instant::now();
        let later = earlier + Duration::from_millis(1);
        for (at, kept) in [(earlier, GIB), (later, 2 * GIB), (earlier, 2 * GIB)] {
            let headroom_bytes = if at == later { 2 * GIB } else { GIB };
            cache.record(Reading { at, headroom_bytes });
            assert_eq!(cache.reading.unwrap().headroom_bytes, kept);
        }
    }

    #[test]
    fn known_headroom_is_below_machine_memory() {
        let known = Known::find().unwrap();
        let headroom_bytes = known.headroom_beside(usize::MAX);
        assert!(headroom_bytes > 0 && headroom_bytes < known.total_bytes);
        assert!(known.limits.is_current());
    }
}
