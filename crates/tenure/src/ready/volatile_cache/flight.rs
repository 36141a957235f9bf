//! One maker for each missing value.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use super::segment::Process;
use crate::ground::sys::fork;

/// The values of a shard that are being made, by the hash of their keys: keys with the same
/// hash wait for each other, and then find their own value missing.
pub(super) struct Flights(Mutex<Vec<Arc<Flight>>>);

struct Flight {
    hash: u64,
    thread: usize,
    end: Mutex<Option<End>>,
    ended: Condvar,
}

/// How making a value has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Inserted,
    /// The maker has failed, or panicked.
    Failed,
    /// The cache has no memory for the value.
    Refused,
}

/// The part of a thread that misses a value.
pub(super) enum Missing<'a> {
    /// Makes it.
    Make(Maker<'a>),
    /// Makes it for itself: this thread is making it already.
    MakeAgain,
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
        Self(Mutex::new(Vec::new()))
    }

    /// Lets one thread make the value of this hash; the others wait for it.
    pub(super) fn enter(&self, hash: u64) -> Missing<'_> {
        let mut flights = fork::lock_outer(&self.0);
        let running = flights.iter().find(|flight| flight.hash == hash).cloned();
        let Some(running) = running else {
            let flight = Arc::new(Flight {
                hash,
                thread: this_thread(),
                end: Mutex::new(None),
                ended: Condvar::new(),
            });
            flights.push(flight.clone());
            return Missing::Make(Maker {
                flights: self,
                flight,
                process: Process::this(),
                end: End::Failed,
            });
        };
        drop(flights);
        if running.thread == this_thread() {
            return Missing::MakeAgain;
        }
        let end = fork::wait_outside(|| {
            let wait = running
                .ended
                .wait_while(lock(&running.end), |end| end.is_none());
            *wait.unwrap_or_else(PoisonError::into_inner)
        });
        Missing::Made(end.unwrap_or(End::Failed))
    }
}

impl Maker<'_> {
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
        fork::lock_outer(&self.flights.0).retain(|flight| !Arc::ptr_eq(flight, &self.flight));
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
