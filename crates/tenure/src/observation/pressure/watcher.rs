//! The watcher thread, and the subscribers that it notifies.
//!
//! The thread sleeps in `poll` on PSI triggers and `memory.events`, and takes a
//! reading by itself every 0.1 to 5 s ([`poll_interval`]); [`Judge`] turns
//! readings and times into a level, and does nothing else. Files are opened for
//! each reading, because the program could close a cached descriptor, after
//! which its number may refer to another file.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::judge::Judge;
use super::poll_interval::poll_interval;
use super::reading::{LazilyFree, Reading, Sources};
use super::reclaim_meter::ReclaimMeter;
use super::subscription::Subscriber;
use super::{Level, Reason};
use crate::ground::error::{Error, Result};
use crate::ground::sys::fork::{self, ForkMutex};
use crate::ground::sys::thread::Thread;
use crate::ground::sys::watch::{self, Outcome, Watched};
use crate::ground::sys::{Errno, psi};

/// The minimum time between two readings: at its limit a cgroup may have a
/// hundred events a second.
const DEBOUNCE: Duration = Duration::from_millis(100);

/// The time to wait when a reading failed.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// The level of the last reading: [`NO_WATCHER`], or one more than the level.
static LAST: AtomicU8 = AtomicU8::new(NO_WATCHER);
const NO_WATCHER: u8 = 0;

static STATE: ForkMutex<State> = ForkMutex::new(
    State {
        entries: Vec::new(),
        has_thread: false,
        judge: Judge::new(),
        meter: ReclaimMeter::new(),
        notifiers: None,
    },
    State::start_in_child,
);

struct State {
    entries: Vec<Entry>,
    has_thread: bool,
    judge: Judge,
    /// The observations of threads that free lazily, between two readings.
    meter: ReclaimMeter,
    /// The files that the thread polls, for a child to close its copies.
    notifiers: Option<Arc<Vec<Watched>>>,
}

pub(super) struct Entry {
    subscriber: Arc<Subscriber>,
    notified: Level,
}

/// Returns the level of the watcher's last reading, if there is a watcher.
pub(super) fn last_level() -> Option<Level> {
    match LAST.load(Ordering::Relaxed) {
        1 => Some(Level::None),
        2 => Some(Level::Some),
        3 => Some(Level::Severe),
        _ => None,
    }
}

/// Returns the level of the watcher's last reading and its reason.
pub(super) fn last_verdict() -> Option<(Level, Reason)> {
    let state = STATE.lock();
    last_level().map(|_| state.judge.level())
}

/// Records that so many bytes were freed lazily, and raises the level at once
/// if the kernel reclaims too much of it. The watcher notifies subscribers
/// after its next reading.
pub(super) fn record_freed(bytes: usize) {
    let due = STATE.lock().meter.due(Instant::now(), bytes);
    let Some(due) = due else { return };
    // Outside the lock, because it takes a while.
    let Some(counts) = due.read() else { return };
    let mut state = STATE.lock();
    if state.meter.update(&due, counts) && !state.entries.is_empty() {
        state.judge.raise(Instant::now(), Reason::LazyFreeReclaimed);
        state.publish();
    }
}

impl State {
    /// Removes watcher and subscribers. They are forgotten, because dropping them would
    /// call the allocator, and anything that a subscriber owns.
    fn start_in_child(&mut self) {
        std::mem::forget(std::mem::take(&mut self.entries));
        std::mem::forget(std::mem::replace(&mut self.judge, Judge::new()));
        std::mem::forget(std::mem::replace(&mut self.meter, ReclaimMeter::new()));
        if let Some(notifiers) = self.notifiers.take() {
            notifiers.iter().for_each(Watched::close);
            std::mem::forget(notifiers);
        }
        self.has_thread = false;
        LAST.store(NO_WATCHER, Ordering::Relaxed);
    }

    /// Makes the level visible to [`last_level`], and returns it.
    fn publish(&self) -> Level {
        let (level, _) = self.judge.level();
        LAST.store(level as u8 + 1, Ordering::Relaxed);
        level
    }
}

/// Adds a subscriber; starts the thread if there is none.
pub(super) fn add(subscriber: Arc<Subscriber>) -> Result<()> {
    let system = |call| move |errno| Error::System { call, errno };
    register_fork_handlers().map_err(system("pthread_atfork"))?;
    // Errors are returned here, before there is a thread.
    Reading::now(&mut LazilyFree::default())?;
    let generation = fork::generation().map_err(system("pthread_atfork"))?;
    let mut state = STATE.lock();
    if !state.has_thread {
        let started = Thread::start_background(c"tenure-pressure", move || watch(generation));
        started.map_err(system("clone"))?;
        state.has_thread = true;
    }
    state.entries.push(Entry {
        subscriber,
        notified: Level::None,
    });
    Ok(())
}

/// Removes a subscriber, and returns its entry for the caller to drop.
pub(super) fn remove(subscriber: &Arc<Subscriber>) -> Option<Entry> {
    let mut state = STATE.lock();
    let is_it = |entry: &Entry| Arc::ptr_eq(&entry.subscriber, subscriber);
    let at = state.entries.iter().position(is_it)?;
    let entry = state.entries.swap_remove(at);
    if state.entries.is_empty() {
        // From now on the thread takes no readings for `level`.
        LAST.store(NO_WATCHER, Ordering::Relaxed);
    }
    Some(entry)
}

fn watch(generation: usize) {
    let mut notifiers = Notifiers::default();
    let mut lazily_free = LazilyFree::default();
    loop {
        let at = Instant::now();
        let mut interval = RETRY_INTERVAL;
        if let Ok((reading, mut sources, _)) = Reading::now(&mut lazily_free) {
            let limits = std::mem::take(&mut sources.limits);
            notifiers.set_sources(sources);
            let mut state = STATE.lock();
            state.meter.set_limits(limits);
            let verdict = state.judge.update(at, reading);
            drop(state);
            if !notify_subscribers(generation) {
                return;
            }
            interval = poll_interval(&verdict, notifiers.reports_stalls);
        }
        thread::sleep(interval.min(DEBOUNCE));
        notifiers.wait(interval.saturating_sub(DEBOUNCE));
    }
}

/// Notifies the subscribers whose last level differs. Returns whether there is
/// any subscriber: if not, the thread has deregistered itself and must end.
fn notify_subscribers(generation: usize) -> bool {
    loop {
        let mut state = STATE.lock();
        // `notify` may fork, and return in the child.
        if fork::generation() != Ok(generation) {
            return false;
        }
        if state.entries.is_empty() {
            state.has_thread = false;
            state.notifiers = None;
            state.judge = Judge::new();
            state.meter = ReclaimMeter::new();
            return false;
        }
        let level = state.publish();
        let mut entries = state.entries.iter_mut();
        let Some(entry) = entries.find(|entry| entry.notified != level) else {
            return true;
        };
        entry.notified = level;
        let subscriber = Arc::clone(&entry.subscriber);
        drop(state);
        if !subscriber.notify(level) {
            drop(remove(&subscriber));
        }
    }
}

/// The files by which the kernel reports events.
#[derive(Default)]
struct Notifiers {
    /// `None` if the files have to be opened again.
    sources: Option<Sources>,
    files: Arc<Vec<Watched>>,
    reports_stalls: bool,
}

impl Notifiers {
    /// Opens the files of `sources`, if they have changed.
    fn set_sources(&mut self, sources: Sources) {
        if self.sources.as_ref() == Some(&sources) {
            return;
        }
        // Locked while files are opened, because a child forked concurrently
        // would keep them open.
        let mut state = STATE.lock();
        let pressure_file = sources.pressure_file.as_deref();
        let trigger = psi::arm(pressure_file.unwrap_or(psi::SYSTEM.as_ref()));
        self.reports_stalls = trigger.is_ok();
        let trigger = trigger.ok().map(|(watched, _)| watched);
        let events = sources.event_files.iter();
        let events = events.filter_map(|file| Watched::open(file).ok());
        self.files = Arc::new(trigger.into_iter().chain(events).collect());
        // The previous files are closed outside the lock: the kernel takes some
        // milliseconds to disarm a trigger.
        let previous = state.notifiers.replace(Arc::clone(&self.files));
        drop(state);
        drop(previous);
        self.sources = Some(sources);
    }

    fn wait(&mut self, timeout: Duration) {
        if watch::wait(&self.files, timeout) == Outcome::Closed {
            self.sources = None;
        }
    }
}

/// Has forks start children without watcher and subscribers.
pub(crate) fn register_fork_handlers() -> std::result::Result<(), Errno> {
    static ENTRY: fork::Entry = fork::Entry::new(&STATE);
    fork::register(&ENTRY)
}
