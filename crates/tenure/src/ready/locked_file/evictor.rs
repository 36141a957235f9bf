//! The evictor: the thread that keeps a locked file within its budget.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::chunks::Chunks;
use super::clock::Clock;
use crate::ground::error::{Error, Result};
use crate::ground::range::PageRange;
use crate::ground::sys::advise::{LockState, lock_state};
use crate::ground::sys::thread::Thread;
use crate::ground::sys::{Errno, fork, lock, process};

/// The pause between two scans: the minimum while pages are faulted in, doubled after
/// each scan that finds none, up to the maximum.
const MIN_PAUSE: Duration = Duration::from_millis(10);
const MAX_PAUSE: Duration = Duration::from_millis(100);

/// How much longer than a scan the pause after it is at least, so that scanning takes
/// at most 3 % of a CPU. (Evicting is not limited: the faults of other threads cause
/// it.)
const MIN_PAUSE_PER_SCAN: u32 = 30;

/// Keeps the locked part of a range within a budget; dropping it stops the thread.
pub(super) struct Evictor {
    shared: Arc<Shared>,
    thread: Option<Thread<()>>,
    /// The generation of the process that has the thread and the locks.
    generation: usize,
}

struct Shared {
    chunks: Chunks,
    /// Each pass begins with reading it.
    budget_bytes: AtomicUsize,
    state: Mutex<State>,
    stopped: Mutex<bool>,
    stop: Condvar,
}

struct State {
    clock: Clock,
    /// Chunks that the kernel refused to lock again (before Linux 5.18).
    unlocked: Vec<PageRange>,
}

/// The chunks that a scan looks at.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Scope {
    All,
    /// Chunks that may have grown. A full, independent chunk only shrinks when the
    /// evictor evicts it, or when the file is truncated; then other chunks are evicted
    /// too early.
    NotFull,
}

/// The result of a pass: a scan for locked pages, and the evictions after it.
struct Pass {
    has_growth: bool,
    evicted_bytes: usize,
    /// The CPU time of the scan.
    scan_time: Duration,
}

impl Evictor {
    /// Starts the thread.
    ///
    /// # Safety
    ///
    /// The chunks must belong to a shared mapping until the evictor is dropped.
    pub(super) unsafe fn start(chunks: Chunks, budget_bytes: usize) -> Result<Self> {
        let generation = fork::generation().map_err(system("pthread_atfork"))?;
        let shared = Arc::new(Shared {
            chunks,
            budget_bytes: AtomicUsize::new(budget_bytes),
            state: Mutex::new(State {
                clock: Clock::new(chunks.count(), budget_bytes),
                unlocked: Vec::new(),
            }),
            stopped: Mutex::new(false),
            stop: Condvar::new(),
        });
        // A first pass in the caller: if the kernel does not tell what is resident, the
        // caller gets the error, which the thread could only ignore.
        shared.pass(Scope::All)?;
        let of_thread = Arc::clone(&shared);
        let thread = Thread::start_background(c"tenure-evictor", move || of_thread.run())
            .map_err(system("clone"))?;
        Ok(Self {
            shared,
            thread: Some(thread),
            generation,
        })
    }

    pub(super) fn budget_bytes(&self) -> usize {
        self.shared.budget_bytes.load(Ordering::Relaxed)
    }

    /// Changes the budget, which holds from the next pass on.
    pub(super) fn set_budget(&self, budget_bytes: usize) {
        let budget = &self.shared.budget_bytes;
        budget.store(budget_bytes, Ordering::Relaxed);
    }

    /// Evicts chunks until the budget holds. Returns the number of evicted bytes.
    pub(super) fn trim(&self) -> Result<usize> {
        // A forked child has no locks, and the thread may have held the mutex at the
        // fork.
        if self.is_in_child() {
            return Ok(0);
        }
        Ok(self.shared.pass(Scope::All)?.evicted_bytes)
    }

    fn is_in_child(&self) -> bool {
        fork::generation() != Ok(self.generation)
    }
}

impl Drop for Evictor {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else {
            return;
        };
        if self.is_in_child() {
            // The child has no such thread to join or detach.
            std::mem::forget(thread);
            return;
        }
        *lock_mutex(&self.shared.stopped) = true;
        self.shared.stop.notify_all();
        // The result only tells whether the thread has panicked; it has ended anyway.
        let _ = thread.join();
    }
}

impl Shared {
    /// The thread: makes passes until it is stopped.
    fn run(&self) {
        let scope = match self.chunks.are_independent() {
            true => Scope::NotFull,
            false => Scope::All,
        };
        let mut pause = MIN_PAUSE;
        loop {
            let (stopped, _) = self
                .stop
                .wait_timeout_while(lock_mutex(&self.stopped), pause, |stopped| !*stopped)
                .unwrap_or_else(PoisonError::into_inner);
            if *stopped {
                return;
            }
            drop(stopped);
            pause = match self.pass(scope) {
                Ok(pass) => {
                    let pause = match pass.has_growth {
                        true => MIN_PAUSE,
                        false => (pause * 2).min(MAX_PAUSE),
                    };
                    pause.max(pass.scan_time * MIN_PAUSE_PER_SCAN)
                }
                // For example no descriptor is left for /proc: the next pass retries.
                Err(_) => MAX_PAUSE,
            };
        }
    }

    /// Scans for locked pages, and evicts chunks until the budget holds.
    fn pass(&self, scope: Scope) -> Result<Pass> {
        let mut state = lock_mutex(&self.state);
        let State { clock, unlocked } = &mut *state;
        clock.set_budget(self.budget_bytes.load(Ordering::Relaxed));
        unlocked.retain(|&chunk| lock::mlock_onfault(chunk).is_err());

        let chunks = self.chunks;
        let began = process::thread_time();
        let is_full = |index| clock.locked_bytes(index) == chunks.get(index).len();
        let locked = chunks.present_bytes(|index| scope == Scope::NotFull && is_full(index))?;
        let mut pass = Pass {
            has_growth: false,
            evicted_bytes: 0,
            scan_time: process::thread_time() - began,
        };
        for (index, &bytes) in locked.iter().enumerate() {
            pass.has_growth |= clock.update(index, bytes);
        }
        while let Some(index) = clock.next_victim() {
            let chunk = chunks.get(index);
            // SAFETY: the chunk is part of a shared mapping, as `start` requires of its
            // caller.
            match unsafe { lock::dontneed_locked(chunk) } {
                Ok(()) => {}
                // The next pass locks it again.
                Err(_) if lock_state(chunk) == Ok(LockState::Unlocked) => unlocked.push(chunk),
                // Still locked: the next pass sees it as a refault.
                Err(_) => continue,
            }
            pass.evicted_bytes += locked[index];
        }
        Ok(pass)
    }
}

fn lock_mutex<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // The next pass reads the state anew, whatever a panic has left.
    fork::lock_outer(mutex)
}

fn system(call: &'static str) -> impl Fn(Errno) -> Error {
    move |errno| Error::System { call, errno }
}
