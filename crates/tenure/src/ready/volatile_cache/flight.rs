//! One maker for each missing value.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use super::entries::entry_hash;
use super::segment::Process;
use crate::ground::sys::fork;

/// The values of a shard that are being made, by the hash of their keys: keys with the same
/// hash wait for each other, and then find their own value missing.
pub(super) struct Flights {
    running: Mutex<Vec<Arc<Flight>>>,
    /// How many are running. It changes under the mutex above.
    count: AtomicUsize,
}

#[derive(Debug)]
pub(super) struct Flight {
    hash: u64,
    thread: usize,
    /// The key was inserted or removed after the making began. It changes under the lock of
    /// the shard, as values do.
    is_outdated: AtomicBool,
    end: Mutex<Option<End>>,
    ended: Condvar,
}

/// How making a value has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Inserted,
    /// The maker has failed, or panicked, or the value is out of date.
    Failed,
    /// The cache has no memory for the value.
    Refused,
}

/// The part of a thread that misses a value.
pub(super) enum Missing<'a> {
    /// Makes it.
    Make(Maker<'a>),
    /// Makes it for itself: this thread is making it already.
    MakeAgain(Maker<'a>),
    /// Looks again.
    Made(End),
}

/// The right to make a value. Other threads wait until it is dropped.
pub(super) struct Maker<'a> {
    flights: &'a Flights,
    flight: Arc<Flight>,
    process: Process,
    end: End,
}

impl Flights {
    pub(super) const fn new() -> Self {
        Self {
            running: Mutex::new(Vec::new()),
            count: AtomicUsize::new(0),
        }
    }

    /// Lets one thread make the value of this hash; the others wait for it.
    pub(super) fn enter(&self, hash: u64) -> Missing<'_> {
        let mut running = fork::lock_outer(&self.running);
        let of_hash = || running.iter().filter(|flight| flight.hash == hash);
        let own = of_hash().find(|flight| flight.thread == this_thread());
        let found = own.or_else(|| of_hash().next()).cloned();
        let Some(found) = found else {
            return Missing::Make(self.add(&mut running, hash));
        };
        if found.thread == this_thread() {
            return Missing::MakeAgain(self.add(&mut running, hash));
        }
        drop(running);
        let end = fork::wait_outside(|| {
            let wait = found
                .ended
                .wait_while(lock(&found.end), |end| end.is_none());
            *wait.unwrap_or_else(PoisonError::into_inner)
        });
        Missing::Made(end.unwrap_or(End::Failed))
    }

    /// Lets a thread make the value for itself, whether or not others do.
    pub(super) fn enter_alone(&self, hash: u64) -> Maker<'_> {
        self.add(&mut fork::lock_outer(&self.running), hash)
    }

    fn add(&self, running: &mut Vec<Arc<Flight>>, hash: u64) -> Maker<'_> {
        let flight = Arc::new(Flight {
            hash,
            thread: this_thread(),
            is_outdated: AtomicBool::new(false),
            end: Mutex::new(None),
            ended: Condvar::new(),
        });
        running.push(flight.clone());
        self.count.store(running.len(), Ordering::Relaxed);
        Maker {
            flights: self,
            flight,
            process: Process::this(),
            end: End::Failed,
        }
    }

    /// Has the values not inserted that are being made for keys with this hash of an entry,
    /// because such a key is inserted or removed; all values without a hash. The caller has
    /// locked the shard: a maker that enters later looks for the value once more, and finds
    /// the change.
    pub(super) fn outdate(&self, hash: Option<u32>, except: Option<&Maker<'_>>) {
        if self.count.load(Ordering::Relaxed) == 0 {
            return;
        }
        for flight in fork::lock_outer(&self.running).iter() {
            let is_own = except.is_some_and(|maker| Arc::ptr_eq(&maker.flight, flight));
            if hash.is_none_or(|hash| hash == entry_hash(flight.hash)) && !is_own {
                flight.is_outdated.store(true, Ordering::Relaxed);
            }
        }
    }
}

impl Maker<'_> {
    /// Whether the value must not be inserted. That is certain only under the lock of the
    /// shard.
    pub(super) fn is_outdated(&self) -> bool {
        self.flight.is_outdated.load(Ordering::Relaxed)
    }

    /// Says how it ends; without, the maker has failed.
    pub(super) fn set_end(&mut self, end: End) {
        self.end = end;
    }
}

impl Drop for Maker<'_> {
    fn drop(&mut self) {
        if !self.process.is_this() {
            // The maker has forked: another thread may have held the mutex at that moment.
            return;
        }
        let mut running = fork::lock_outer(&self.flights.running);
        running.retain(|flight| !Arc::ptr_eq(flight, &self.flight));
        self.flights.count.store(running.len(), Ordering::Relaxed);
        drop(running);
        *fork::lock_outer(&self.flight.end) = Some(self.end);
        self.flight.ended.notify_all();
    }
}

/// Returns a number that no other thread has at this time.
fn this_thread() -> usize {
    thread_local!(static HERE: u8 = const { 0 });
    HERE.with(|here| std::ptr::from_ref(here).addr())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
