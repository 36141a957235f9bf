//! Numbers of threads, for counters in shards that threads do not share.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use super::reader_slot::ReaderSlot;

/// Returns the shard of the calling thread, out of `count`. Threads take turns, so as many
/// threads as there are shards share none.
pub(crate) fn shard_of_thread(count: usize) -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local!(static NUMBER: Cell<usize> = const { Cell::new(usize::MAX) });
    // A thread that is ending has no thread-local variables any more.
    let number = NUMBER.try_with(|number| {
        if number.get() == usize::MAX {
            number.set(NEXT.fetch_add(1, Ordering::Relaxed));
        }
        number.get()
    });
    number.unwrap_or(0) % count
}

/// How many shards there are for a [`Lease`].
pub(crate) const LEASES: usize = 16;

/// The shards that one thread at a time has for itself; threads without such a one share the
/// others.
const EXCLUSIVE: usize = 12;

/// A shard of counters that the calling thread adds to. With one for itself it needs no
/// locked instruction for that, which takes about 20 cycles.
///
/// A thread takes it with its first use, which may allocate, and returns it when it ends. What
/// the other threads of a parent had is not available to a forked child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lease {
    shard: usize,
}

/// The reader slots of the threads with an exclusive shard.
static READERS: [Reader; EXCLUSIVE] = [const { Reader::new() }; EXCLUSIVE];

/// Aligned so that no two slots share a cache line, or a pair of lines that the CPU fetches
/// together.
#[repr(align(128))]
struct Reader(ReaderSlot);

impl Reader {
    const fn new() -> Self {
        Self(ReaderSlot::new(AtomicUsize::new(0)))
    }
}

/// Returns the reader slot of the calling thread, if it has an exclusive shard.
#[inline]
pub(crate) fn reader_slot_of_thread() -> Option<&'static ReaderSlot> {
    READERS.get(SHARD.get()).map(|reader| &reader.0)
}

/// Returns the slots of all readers. The caller has closed its lock: a thread that takes a slot
/// after this has looked for it finds the lock closed.
pub(crate) fn reader_slots() -> impl Iterator<Item = &'static ReaderSlot> {
    let taken = TAKEN.load(Ordering::SeqCst);
    let is_taken = move |&(shard, _): &(usize, _)| taken & 1 << shard != 0;
    let slots = READERS.iter().enumerate().filter(is_taken);
    slots.map(|(_, reader)| &reader.0)
}

/// Which of the exclusive shards are taken, a bit each.
static TAKEN: AtomicU32 = AtomicU32::new(0);

/// The thread has no lease yet.
const NONE: usize = usize::MAX;

thread_local! {
    /// The shard of the thread's lease. Without a destructor, so that reading it is one load.
    static SHARD: Cell<usize> = const { Cell::new(NONE) };
    static RETURN: Return = const { Return };
}

/// Returns the thread's exclusive shard when the thread ends.
struct Return;

impl Drop for Return {
    fn drop(&mut self) {
        // Destructors that run later share one.
        let shard = SHARD.replace(Lease::shared().shard);
        if shard < EXCLUSIVE {
            // The next thread adds to what this one has stored.
            TAKEN.fetch_and(!(1 << shard), Ordering::Release);
        }
    }
}

impl Lease {
    /// Calls `count` with the lease of the calling thread. It is inlined twice: with an
    /// exclusive shard one comparison tells all that [`shard`](Self::shard) and
    /// [`add`](Self::add) ask.
    #[inline]
    pub(crate) fn with(count: impl FnOnce(Self)) {
        let shard = SHARD.get();
        if shard < EXCLUSIVE {
            count(Self { shard });
        } else {
            Self::with_shared(count);
        }
    }

    #[cold]
    #[inline(never)]
    fn with_shared(count: impl FnOnce(Self)) {
        count(Self::of_thread());
    }

    /// Returns the lease of the calling thread.
    pub(crate) fn of_thread() -> Self {
        match SHARD.get() {
            NONE => Self::take(),
            shard => Self { shard },
        }
    }

    #[cold]
    fn take() -> Self {
        // A thread that is ending could not return it.
        let returns = RETURN.try_with(|_| ()).is_ok();
        let exclusive = returns.then(Self::take_exclusive).flatten();
        let lease = exclusive.unwrap_or_else(Self::shared);
        SHARD.set(lease.shard);
        lease
    }

    fn take_exclusive() -> Option<Self> {
        let mut taken = TAKEN.load(Ordering::Relaxed);
        loop {
            let shard = taken.trailing_ones() as usize;
            if shard >= EXCLUSIVE {
                return None;
            }
            // Sequentially consistent for `reader_slots`.
            let (success, failure) = (Ordering::SeqCst, Ordering::Relaxed);
            match TAKEN.compare_exchange_weak(taken, taken | 1 << shard, success, failure) {
                Ok(_) => return Some(Self { shard }),
                Err(now) => taken = now,
            }
        }
    }

    #[cold]
    fn shared() -> Self {
        let shard = EXCLUSIVE + shard_of_thread(LEASES - EXCLUSIVE);
        Self { shard }
    }

    #[inline]
    fn is_exclusive(self) -> bool {
        self.shard < EXCLUSIVE
    }

    /// Returns the index of the shard, below [`LEASES`].
    #[inline]
    pub(crate) fn shard(self) -> usize {
        self.shard
    }

    /// Adds to a counter that is only changed by this function, with leases of its shard.
    /// Wraps around.
    #[inline]
    pub(crate) fn add(self, counter: &AtomicU64, more: u64) {
        if self.is_exclusive() {
            let sum = counter.load(Ordering::Relaxed).wrapping_add(more);
            counter.store(sum, Ordering::Release);
        } else {
            counter.fetch_add(more, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::thread;

    use super::*;

    /// Other tests of the process may have leases as well.
    #[test]
    fn each_addition_of_many_threads_counts_once() {
        const THREADS: usize = 24;
        const TIMES: u64 = 1000;
        let counters = [const { AtomicU64::new(0) }; LEASES];
        for round in 1..=2 {
            let all_have_one = Barrier::new(THREADS);
            thread::scope(|scope| {
                for _ in 0..THREADS {
                    scope.spawn(|| {
                        let lease = Lease::of_thread();
                        all_have_one.wait();
                        for _ in 0..TIMES {
                            lease.add(&counters[lease.shard()], 1);
                        }
                        assert_eq!(Lease::of_thread(), lease);
                    });
                }
            });
            let sum: u64 = counters.iter().map(|one| one.load(Ordering::Acquire)).sum();
            assert_eq!(sum, round * THREADS as u64 * TIMES);
        }
    }

    #[test]
    fn exclusive_lease_is_of_one_thread_and_returns_with_its_end() {
        let held = Barrier::new(2 * EXCLUSIVE);
        let take = || {
            let lease = Lease::of_thread();
            held.wait();
            lease
        };
        for _ in 0..3 {
            let leases: Vec<Lease> = thread::scope(|scope| {
                let threads: Vec<_> = (0..2 * EXCLUSIVE).map(|_| scope.spawn(take)).collect();
                let ends = threads.into_iter().map(|thread| thread.join().unwrap());
                ends.collect()
            });
            let mut shards: Vec<usize> = leases.iter().map(|lease| lease.shard).collect();
            shards.retain(|&shard| shard < EXCLUSIVE);
            let count = shards.len();
            shards.sort_unstable();
            shards.dedup();
            assert_eq!(shards.len(), count, "{leases:?}");
        }
    }
}
