//! The ledger of admitted memory: what this process has admitted and not yet taken,
//! beside the last reading of the limits.
//!
//! A reading alone does not show what other threads are about to take, and memory that
//! becomes resident after a reading is in no reading yet. So the ledger counts:
//!
//! * `committed`: bytes admitted so far, less what was given back unused and what was freed;
//! * `resident`: bytes of these that have become resident;
//! * `released`: resident bytes that their owner has begun to free.
//!
//! A reading takes `resident` before it samples the limits, and `released` after: what was
//! resident before is in the sample for certain, and what is released later is not freed in
//! it. The sum of the sampled free memory and `resident` less `released` is the ceiling of
//! `committed` until the next reading. Every race makes the ceiling too low, never too high:
//! memory that becomes resident, or is freed, while the limits are sampled counts as taken.
//! So an admission is one atomic addition below the ceiling, without a lock; and where the
//! limits cannot be read, the last ceiling holds, less what was admitted since.

use std::sync::atomic::{AtomicIsize, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use crate::ground::sys::process::monotonic_nanos;
use crate::ground::sys::shard::shard_of_thread;

/// How much of a limit stays free, like the watermarks of the kernel's zones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Watermark {
    /// Covers what the kernel takes beside the pages: a batch of charges for each CPU, and page
    /// tables.
    Min,
    /// Where severe pressure begins: a 32nd.
    Low,
    /// A quarter more than what is left when pressure begins (`pressure::Level::Some`), so
    /// that what fills memory up to here does not cause pressure itself: an eighth.
    High,
}

impl Watermark {
    const ALL: [Self; 3] = [Self::Min, Self::Low, Self::High];

    /// Returns how many bytes stay free of a limit of `size_bytes`.
    fn of(self, size_bytes: usize, cpus: usize) -> usize {
        /// A batch of 64 charges, and pages that are freed but still in the CPU's lists.
        const MARGIN_PER_CPU_BYTES: usize = 512 << 10;
        let (divisor, max_bytes) = match self {
            Self::Min => (64, MARGIN_PER_CPU_BYTES.saturating_mul(cpus)),
            Self::Low => (32, 1 << 30),
            Self::High => (8, 5 << 30),
        };
        (size_bytes / divisor).min(max_bytes)
    }
}

/// A limit as a reading finds it: the machine's or a cgroup's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limit {
    pub(crate) size_bytes: usize,
    /// The bytes that can be taken.
    pub(crate) free_bytes: usize,
}

/// How many threads take small amounts without contention.
const SHARDS: usize = 16;

/// The bytes that a shard admits ahead, for several small amounts.
const CREDIT_BYTES: usize = 256 << 10;

/// Larger amounts take no credit.
const MAX_SMALL_BYTES: usize = CREDIT_BYTES / 4;

/// Shards take credit only while this much is left: what they hold is then a small part.
const MIN_SURPLUS_FOR_CREDIT: isize = (16 * SHARDS * CREDIT_BYTES) as isize;

/// Until how old a reading serves: other processes take memory as well.
const MAX_AGE: Duration = Duration::from_millis(100);

/// Counters of the threads that share it, in cache lines of its own.
#[repr(align(128))]
struct Shard {
    /// Committed, and free to be taken by the threads of this shard.
    credit: AtomicUsize,
    resident: AtomicUsize,
    released: AtomicUsize,
}

#[repr(align(128))]
struct CachePadded<T>(T);

pub(crate) struct Ledger {
    committed: CachePadded<AtomicIsize>,
    /// For each [`Watermark`], what `committed` may reach.
    ceilings: [AtomicIsize; Watermark::ALL.len()],
    /// The bytes that were subtracted from `committed` so far.
    returned: AtomicIsize,
    /// From this sum of `committed` and `returned` on a new reading is due: what is freed may
    /// not be free for this process (a child shares it, or another group is charged for it).
    recheck_at: AtomicIsize,
    /// When the last reading began, on the monotonic clock; 0 before the first.
    read_at_nanos: AtomicU64,
    /// The same of the last attempt to read.
    tried_at_nanos: AtomicU64,
    shards: [Shard; SHARDS],
}

impl Ledger {
    pub(crate) const fn new() -> Self {
        Self {
            committed: CachePadded(AtomicIsize::new(0)),
            ceilings: [const { AtomicIsize::new(0) }; Watermark::ALL.len()],
            returned: AtomicIsize::new(0),
            recheck_at: AtomicIsize::new(0),
            read_at_nanos: AtomicU64::new(0),
            tried_at_nanos: AtomicU64::new(0),
            shards: [const {
                Shard {
                    credit: AtomicUsize::new(0),
                    resident: AtomicUsize::new(0),
                    released: AtomicUsize::new(0),
                }
            }; SHARDS],
        }
    }

    /// Empties the ledger in a child of `fork`, which has no other thread.
    pub(super) fn reset(&self) {
        self.committed.0.store(0, Ordering::Relaxed);
        for ceiling in &self.ceilings {
            ceiling.store(0, Ordering::Relaxed);
        }
        self.returned.store(0, Ordering::Relaxed);
        self.recheck_at.store(0, Ordering::Relaxed);
        self.read_at_nanos.store(0, Ordering::Relaxed);
        self.tried_at_nanos.store(0, Ordering::Relaxed);
        for shard in &self.shards {
            shard.credit.store(0, Ordering::Relaxed);
            shard.resident.store(0, Ordering::Relaxed);
            shard.released.store(0, Ordering::Relaxed);
        }
    }

    /// Commits the bytes if that leaves as much as the watermark demands, by the last reading.
    pub(crate) fn take(&self, bytes: usize, watermark: Watermark) -> bool {
        if bytes <= MAX_SMALL_BYTES && self.take_small(bytes) {
            return true;
        }
        self.commit(bytes, watermark) || self.collect_credit() && self.commit(bytes, watermark)
    }

    /// Takes bytes from the shard's credit, which was committed before.
    fn take_small(&self, bytes: usize) -> bool {
        let credit = &self.shard().credit;
        let rest = |credit: usize| credit.checked_sub(bytes);
        let (success, failure) = (Ordering::AcqRel, Ordering::Relaxed);
        if credit.fetch_update(success, failure, rest).is_ok() {
            return true;
        }
        let has_surplus = self.surplus(Watermark::High) >= MIN_SURPLUS_FOR_CREDIT;
        if !has_surplus || self.is_due() || !self.commit(CREDIT_BYTES, Watermark::High) {
            return false;
        }
        credit.fetch_add(CREDIT_BYTES - bytes, Ordering::AcqRel);
        true
    }

    fn commit(&self, bytes: usize, watermark: Watermark) -> bool {
        self.commit_below(bytes, self.ceiling(watermark))
    }

    fn commit_below(&self, bytes: usize, ceiling: isize) -> bool {
        let Ok(bytes) = isize::try_from(bytes) else {
            return false;
        };
        let sum = |committed: isize| {
            let sum = committed.checked_add(bytes)?;
            (sum <= ceiling).then_some(sum)
        };
        let (success, failure) = (Ordering::AcqRel, Ordering::Relaxed);
        self.committed.0.fetch_update(success, failure, sum).is_ok()
    }

    /// Gives all shards' credit back. Returns whether there was any.
    fn collect_credit(&self) -> bool {
        let taken = self.shards.iter();
        let bytes = taken.map(|shard| shard.credit.swap(0, Ordering::AcqRel));
        let bytes: usize = bytes.sum();
        self.give_back(bytes);
        bytes > 0
    }

    /// Subtracts committed bytes that will not be taken.
    pub(crate) fn give_back(&self, bytes: usize) {
        self.committed.0.fetch_sub(bytes as isize, Ordering::AcqRel);
        self.returned.fetch_add(bytes as isize, Ordering::AcqRel);
    }

    /// Returns the bytes that were committed so far, whether they were given back or not.
    fn ever_committed(&self) -> isize {
        self.committed.0.load(Ordering::Acquire) + self.returned.load(Ordering::Acquire)
    }

    /// Records that committed bytes are resident, or that nobody knows: the next reading
    /// tells.
    pub(crate) fn mark_resident(&self, bytes: usize) {
        self.shard().resident.fetch_add(bytes, Ordering::Release);
    }

    /// Runs `free`, which frees resident memory, `max_bytes` at most, and returns
    /// its result and how many bytes it has freed.
    pub(crate) fn release<T>(&self, max_bytes: usize, free: impl FnOnce() -> (T, usize)) -> T {
        self.shard().released.fetch_add(max_bytes, Ordering::SeqCst);
        let (result, freed_bytes) = free();
        self.give_back(freed_bytes);
        let kept_bytes = max_bytes - freed_bytes;
        self.shard()
            .released
            .fetch_sub(kept_bytes, Ordering::SeqCst);
        result
    }

    /// Begins a reading: the caller samples the limits after this.
    pub(super) fn begin_reading(&self, now_nanos: u64) -> ReadingStart {
        ReadingStart {
            at_nanos: now_nanos,
            resident_bytes: self.sum(|shard| &shard.resident),
        }
    }

    /// Ends a reading as [`end_reading`](Self::end_reading) does, and commits the bytes by
    /// it, whatever reading of another thread comes between. Returns whether they fit.
    pub(super) fn end_reading_and_take(
        &self,
        start: &ReadingStart,
        limits: &[Limit],
        cpus: usize,
        bytes: usize,
    ) -> bool {
        let ceiling = self.end_reading(start, limits, cpus);
        self.collect_credit();
        self.commit_below(bytes, ceiling)
    }

    /// Ends a reading with the limits that the caller has sampled since it began. The ceilings
    /// of two readings that overlap are both low enough.
    /// Returns the ceiling of [`Watermark::Min`].
    pub(super) fn end_reading(&self, start: &ReadingStart, limits: &[Limit], cpus: usize) -> isize {
        let released_bytes = self.sum(|shard| &shard.released);
        let resident_bytes = start.resident_bytes as isize - released_bytes as isize;
        let ceilings = Watermark::ALL.map(|watermark| {
            let left = |limit: &Limit| {
                let free_bytes = isize::try_from(limit.free_bytes).unwrap_or(isize::MAX / 2);
                free_bytes.min(isize::MAX / 2) - watermark.of(limit.size_bytes, cpus) as isize
            };
            let left_bytes = limits.iter().map(left).min().unwrap_or(isize::MAX / 2);
            let ceiling = left_bytes + resident_bytes;
            self.ceilings[watermark as usize].store(ceiling, Ordering::Release);
            ceiling
        });
        let sizes = limits.iter().map(|limit| limit.size_bytes);
        self.set_recheck(start.at_nanos, sizes.min().unwrap_or(0));
        self.read_at_nanos
            .store(start.at_nanos.max(1), Ordering::Release);
        ceilings[0]
    }

    /// Ends a reading that has failed: the last one holds.
    pub(super) fn abandon_reading(&self, start: &ReadingStart) {
        self.set_recheck(start.at_nanos, 0);
    }

    /// Sets when the next reading is due.
    fn set_recheck(&self, tried_at_nanos: u64, size_bytes: usize) {
        /// Where little is left a reading for each small admission would cost more than it
        /// tells.
        const MIN_BYTES: isize = 1 << 20;
        // A quarter only, because other processes take memory as well.
        let until_bytes = self.surplus(Watermark::Min) / 4;
        let until_bytes = until_bytes.max(size_bytes as isize / 32).max(MIN_BYTES);
        self.recheck_at
            .store(self.ever_committed() + until_bytes, Ordering::Release);
        self.tried_at_nanos.store(tried_at_nanos, Ordering::Release);
    }

    /// Whether a new reading is due: the last attempt is old, or much was admitted since.
    pub(crate) fn is_due(&self) -> bool {
        self.is_due_after(MAX_AGE)
    }

    /// Whether a new reading is due where one serves for so long.
    pub(crate) fn is_due_after(&self, age: Duration) -> bool {
        let tried_at_nanos = self.tried_at_nanos.load(Ordering::Acquire);
        let age_nanos = monotonic_nanos().saturating_sub(tried_at_nanos);
        u128::from(age_nanos) > age.as_nanos()
            || self.ever_committed() > self.recheck_at.load(Ordering::Acquire)
    }

    pub(crate) fn has_reading(&self) -> bool {
        self.read_at_nanos() > 0
    }

    pub(super) fn read_at_nanos(&self) -> u64 {
        self.read_at_nanos.load(Ordering::Acquire)
    }

    /// Returns how much more can be admitted by the last reading; negative if the limit's
    /// reserve is taken.
    pub(crate) fn surplus(&self, watermark: Watermark) -> isize {
        self.ceiling(watermark) - self.committed.0.load(Ordering::Acquire)
    }

    /// Returns whether less is left than halfway from the low to the high watermark. What this
    /// process admits leaves more, so that others take memory, too.
    pub(crate) fn is_reserve_short(&self) -> bool {
        let surplus = |watermark| self.surplus(watermark);
        self.has_reading() && surplus(Watermark::Low) + surplus(Watermark::High) < 0
    }

    /// Returns the bytes that are admitted and not resident yet.
    pub(crate) fn outstanding_bytes(&self) -> usize {
        let committed = self.committed.0.load(Ordering::Acquire);
        let taken = self.sum(|shard| &shard.resident) + self.sum(|shard| &shard.credit);
        let released = self.sum(|shard| &shard.released);
        let outstanding = committed - taken as isize + released as isize;
        usize::try_from(outstanding).unwrap_or(0)
    }

    fn ceiling(&self, watermark: Watermark) -> isize {
        self.ceilings[watermark as usize].load(Ordering::Acquire)
    }

    /// Sums a counter over all shards. It wraps, like the counters: a shard may have
    /// subtracted more than it has added.
    fn sum(&self, counter: fn(&Shard) -> &AtomicUsize) -> usize {
        let values = self.shards.iter().map(counter);
        values.fold(0, |sum, value| {
            sum.wrapping_add(value.load(Ordering::SeqCst))
        })
    }

    fn shard(&self) -> &Shard {
        &self.shards[shard_of_thread(SHARDS)]
    }
}

/// A reading that has begun.
pub(super) struct ReadingStart {
    at_nanos: u64,
    resident_bytes: usize,
}

#[cfg(test)]
#[path = "ledger_tests.rs"]
mod tests;
