//! The evictor: the thread that purges shared objects while memory is short.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::copies::Copies;
use super::processes::Attachment;
use super::table::Table;
use super::word::MAX_PRIORITY;
use crate::ground::sys::fork;
use crate::ground::sys::thread::Thread;
use crate::observation::pressure::{self, Level, Subscription};

/// A pass purges so many bytes at least, and this part of all.
const MIN_BYTES: u64 = 16 << 20;
const PART: u64 = 16;

/// The pause between two passes. Under severe pressure the kernel kills soon.
const PAUSE: Duration = Duration::from_millis(500);
const SEVERE_PAUSE: Duration = Duration::from_millis(20);

/// Purges while there is pressure; dropping it stops the thread.
pub(super) struct Evictor {
    shared: Arc<Shared>,
    /// Ends first: it calls with the mutex.
    subscription: Option<Subscription>,
    thread: Option<Thread<()>>,
}

struct Shared {
    table: Arc<Table>,
    attachment: Attachment,
    copies: Arc<Copies>,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    level: Level,
    is_stopped: bool,
}

impl Evictor {
    /// Starts the thread, and watches pressure; `None` where one of them is impossible. Then
    /// other processes evict, and insertions.
    pub(super) fn start(
        table: Arc<Table>,
        attachment: Attachment,
        copies: Arc<Copies>,
    ) -> Option<Self> {
        let shared = Arc::new(Shared {
            table,
            attachment,
            copies,
            state: Mutex::new(State {
                level: Level::None,
                is_stopped: false,
            }),
            changed: Condvar::new(),
        });
        let notified = Arc::clone(&shared);
        let notify = move |level| {
            notified.lock().level = level;
            notified.changed.notify_all();
        };
        let subscription = pressure::subscribe(notify).ok()?;
        let of_thread = Arc::clone(&shared);
        let thread = Thread::start_background(c"tenure-evictor", move || of_thread.run()).ok()?;
        Some(Self {
            shared,
            subscription: Some(subscription),
            thread: Some(thread),
        })
    }
}

impl Drop for Evictor {
    fn drop(&mut self) {
        drop(self.subscription.take());
        self.shared.lock().is_stopped = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            // The result only tells whether the thread has panicked; it has ended anyway.
            let _ = thread.join();
        }
    }
}

impl Shared {
    /// The thread: purges while there is pressure, until it is stopped.
    fn run(&self) {
        let mut state = self.lock();
        while !state.is_stopped {
            let level = state.level;
            state = match level {
                Level::None => {
                    let waited = self.changed.wait(state);
                    waited.unwrap_or_else(PoisonError::into_inner)
                }
                _ => {
                    drop(state);
                    self.pass();
                    let pause = match level {
                        Level::Severe => SEVERE_PAUSE,
                        _ => PAUSE,
                    };
                    let is_same = |state: &mut State| !state.is_stopped && state.level == level;
                    let waited = self.changed.wait_timeout_while(self.lock(), pause, is_same);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }

    fn pass(&self) {
        self.copies.clear();
        if self.table.check().is_ok() && self.table.check_descriptor().is_ok() {
            let all = self
                .table
                .header()
                .bytes
                .load(std::sync::atomic::Ordering::Relaxed);
            // `None` where another process is at it.
            let bytes = (all / PART).max(MIN_BYTES);
            let _ = self.table.evict(&self.attachment, bytes, MAX_PRIORITY);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        fork::lock_outer(&self.state)
    }
}
