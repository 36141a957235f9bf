//! The thread that keeps a locked file within its budget.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::chunks::Chunks;
use super::queue::Queue;
use crate::ground::error::{Error, Result};
use crate::ground::range::PageRange;
use crate::ground::sys::advise::{LockState, lock_state};
use crate::ground::sys::thread::Thread;
use crate::ground::sys::{Errno, fork, lock, process};

/// The time between two looks: the shortest while pages come in, twice as long
/// after each look that finds none, up to the longest.
const SHORTEST: Duration = Duration::from_millis(10);
const LONGEST: Duration = Duration::from_millis(100);

/// How much longer than the search for what has come in the pauses are: it takes
/// 3 % of a CPU at most. (What letting go takes, others have caused.)
const REST: u32 = 30;

/// Keeps what is locked of a range within a budget; stops when it is dropped.
pub(super) struct Keeper {
    shared: Arc<Shared>,
    thread: Option<Thread<()>>,
    /// The process that the thread and the locks are in.
    generation: usize,
}

struct Shared {
    chunks: Chunks,
    budget_bytes: usize,
    state: Mutex<State>,
    stopped: Mutex<bool>,
    stop: Condvar,
}

struct State {
    queue: Queue,
    /// Chunks that the kernel would not lock again (before Linux 5.18).
    unlocked: Vec<PageRange>,
}

/// Which chunks to look at.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Scope {
    All,
    /// Those that may have grown. Of a full one that is independent nothing
    /// leaves but by our own doing, or when the file is cut: then others go
    /// before their time.
    NotFull,
}

/// What a look found, and did.
struct Look {
    came_in: bool,
    let_go_bytes: usize,
    /// What finding out took this thread.
    search: Duration,
}

impl Keeper {
    /// # Safety
    ///
    /// The chunks must be those of a shared mapping, and stay it until the
    /// keeper is dropped.
    pub(super) unsafe fn start(chunks: Chunks, budget_bytes: usize) -> Result<Self> {
        let generation = fork::generation().map_err(system("pthread_atfork"))?;
        let shared = Arc::new(Shared {
            chunks,
            budget_bytes,
            state: Mutex::new(State {
                queue: Queue::new(chunks.count(), budget_bytes),
                unlocked: Vec::new(),
            }),
            stopped: Mutex::new(false),
            stop: Condvar::new(),
        });
        // A kernel that does not tell what is locked is met here, not in the
        // thread, which could only go on.
        shared.look(Scope::All)?;
        let of_thread = Arc::clone(&shared);
        let thread = Thread::start_quiet(c"tenure-budget", move || of_thread.keep())
            .map_err(system("clone"))?;
        Ok(Self {
            shared,
            thread: Some(thread),
            generation,
        })
    }

    pub(super) fn budget_bytes(&self) -> usize {
        self.shared.budget_bytes
    }

    /// Brings what is locked under the budget now. Returns what was let go.
    pub(super) fn trim(&self) -> Result<usize> {
        // A child has no locks; and the thread may have held the mutex when the
        // child was forked.
        if self.is_a_childs() {
            return Ok(0);
        }
        Ok(self.shared.look(Scope::All)?.let_go_bytes)
    }

    fn is_a_childs(&self) -> bool {
        fork::generation() != Ok(self.generation)
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else {
            return;
        };
        if self.is_a_childs() {
            // There is no such thread here to wait for or to detach.
            std::mem::forget(thread);
            return;
        }
        *whole(&self.shared.stopped) = true;
        self.shared.stop.notify_all();
        // It does not panic; and if it did, it has ended.
        let _ = thread.join();
    }
}

impl Shared {
    /// The thread: looks again and again.
    fn keep(&self) {
        let scope = match self.chunks.are_independent() {
            true => Scope::NotFull,
            false => Scope::All,
        };
        let mut pause = SHORTEST;
        loop {
            let (stopped, _) = self
                .stop
                .wait_timeout_while(whole(&self.stopped), pause, |stopped| !*stopped)
                .unwrap_or_else(PoisonError::into_inner);
            if *stopped {
                return;
            }
            drop(stopped);
            pause = match self.look(scope) {
                Ok(look) if look.came_in => SHORTEST.max(look.search * REST),
                Ok(look) => (pause * 2).min(LONGEST).max(look.search * REST),
                // No descriptor left for /proc, say: tried again.
                Err(_) => LONGEST,
            };
        }
    }

    /// Sees what has come in, and lets go what is over the budget.
    fn look(&self, scope: Scope) -> Result<Look> {
        let mut state = whole(&self.state);
        let State { queue, unlocked } = &mut *state;
        unlocked.retain(|&chunk| lock::mlock_onfault(chunk).is_err());

        let chunks = self.chunks;
        let began = process::thread_time();
        let is_full = |index| queue.locked_bytes(index) == chunks.get(index).len();
        let locked = chunks.present_bytes(|index| scope == Scope::NotFull && is_full(index))?;
        let mut look = Look {
            came_in: false,
            let_go_bytes: 0,
            search: process::thread_time() - began,
        };
        for (index, &bytes) in locked.iter().enumerate() {
            look.came_in |= queue.see(index, bytes);
        }
        while let Some(index) = queue.next_over_budget() {
            let chunk = chunks.get(index);
            // SAFETY: a part of a shared mapping, as the caller of `start` has
            // promised.
            match unsafe { lock::let_go(chunk) } {
                Ok(()) => {}
                // To be locked again at the next look.
                Err(_) if lock_state(chunk) == Ok(LockState::Unlocked) => unlocked.push(chunk),
                // Still locked: for the queue it has come back at once.
                Err(_) => continue,
            }
            look.let_go_bytes += locked[index];
        }
        Ok(look)
    }
}

fn whole<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What a panic left behind is seen anew at the next look.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn system(call: &'static str) -> impl Fn(Errno) -> Error {
    move |errno| Error::System { call, errno }
}
