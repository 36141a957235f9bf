//! The thread that looks, and whom it tells.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::judge::Judge;
use super::pause::pause;
use super::reading::{LazilyFree, Reading, Sources};
use super::subscription::Subscriber;
use super::taken::Meter;
use super::{Level, Reason};
use crate::ground::error::{Error, Result};
use crate::ground::sys::fork::{self, ForkMutex, at_fork_once};
use crate::ground::sys::thread::Thread;
use crate::ground::sys::watch::{self, Met, Watched};
use crate::ground::sys::{Errno, psi};

/// Reports of the kernel are listened to after this time only: at its limit a
/// cgroup may have a hundred events a second.
const DEAF: Duration = Duration::from_millis(100);

/// How long to wait where nothing can be read any more.
const NOTHING_TO_READ: Duration = Duration::from_secs(5);

/// The level of the last look; [`NOBODY_LOOKS`], or one more than the level.
static LAST: AtomicU8 = AtomicU8::new(NOBODY_LOOKS);
const NOBODY_LOOKS: u8 = 0;

static STATE: ForkMutex<State> = ForkMutex::new(State {
    entries: Vec::new(),
    has_thread: false,
    judge: Judge::new(),
    meter: Meter::new(),
    alarms: None,
});

struct State {
    entries: Vec<Entry>,
    has_thread: bool,
    judge: Judge,
    /// What who frees lazily sees of the limits.
    meter: Meter,
    /// What the thread listens to, for a child to close its copies.
    alarms: Option<Arc<Vec<Watched>>>,
}

pub(super) struct Entry {
    subscriber: Arc<Subscriber>,
    told: Level,
}

/// The level of the watcher's last look, if there is a watcher.
pub(super) fn last_level() -> Option<Level> {
    match LAST.load(Ordering::Relaxed) {
        1 => Some(Level::None),
        2 => Some(Level::Some),
        3 => Some(Level::Severe),
        _ => None,
    }
}

pub(super) fn last_verdict() -> Option<(Level, Reason)> {
    let state = STATE.lock();
    last_level().map(|_| state.judge.level())
}

/// Takes note that so much was freed lazily, and has the level rise at once if
/// it is taken. Whoever is to be told is told at the watcher's next look.
pub(super) fn note_freed(bytes: usize) {
    let due = STATE.lock().meter.due(Instant::now(), bytes);
    let Some(due) = due else { return };
    // Without the lock, for it takes a while.
    let Some(counts) = due.look() else { return };
    let mut state = STATE.lock();
    if state.meter.take(&due, counts) && !state.entries.is_empty() {
        state.judge.note(Instant::now(), Reason::TakenSoon);
        state.publish();
    }
}

impl State {
    /// Lets everybody see the level, and returns it.
    fn publish(&self) -> Level {
        let (level, _) = self.judge.level();
        LAST.store(level as u8 + 1, Ordering::Relaxed);
        level
    }
}

/// Has the subscriber told of changes; starts the thread if there is none.
pub(super) fn add(subscriber: Arc<Subscriber>) -> Result<()> {
    let system = |call| move |errno| Error::System { call, errno };
    keep_out_of_children().map_err(system("pthread_atfork"))?;
    // What cannot be read is met here, not in the thread.
    Reading::now(&mut LazilyFree::default())?;
    let generation = fork::generation().map_err(system("pthread_atfork"))?;
    let mut state = STATE.lock();
    if !state.has_thread {
        let started = Thread::start_quiet(c"tenure-pressure", move || watch(generation));
        started.map_err(system("clone"))?;
        state.has_thread = true;
    }
    state.entries.push(Entry {
        subscriber,
        told: Level::None,
    });
    Ok(())
}

/// The opposite. Who is not told any more is returned, for its owner to drop.
pub(super) fn remove(subscriber: &Arc<Subscriber>) -> Option<Entry> {
    let mut state = STATE.lock();
    let is_it = |entry: &Entry| Arc::ptr_eq(&entry.subscriber, subscriber);
    let at = state.entries.iter().position(is_it)?;
    let entry = state.entries.swap_remove(at);
    if state.entries.is_empty() {
        // The thread looks for nobody from now on, if it looks at all.
        LAST.store(NOBODY_LOOKS, Ordering::Relaxed);
    }
    Some(entry)
}

fn watch(generation: usize) {
    let mut alarms = Alarms::default();
    let mut lazily_free = LazilyFree::default();
    loop {
        let at = Instant::now();
        let mut rest = NOTHING_TO_READ;
        if let Ok((reading, mut sources, _)) = Reading::now(&mut lazily_free) {
            let limits = std::mem::take(&mut sources.limits);
            alarms.follow(sources);
            let mut state = STATE.lock();
            state.meter.follow(limits);
            let verdict = state.judge.take(at, reading);
            drop(state);
            if !tell(generation) {
                return;
            }
            rest = pause(&verdict, alarms.reports_stalls);
        }
        thread::sleep(rest.min(DEAF));
        alarms.wait(rest.saturating_sub(DEAF));
    }
}

/// Tells all who have not been told. Returns whether there is anybody: if not,
/// the thread is gone for everybody else.
fn tell(generation: usize) -> bool {
    loop {
        let mut state = STATE.lock();
        // `notify` may fork, and return in the child.
        if fork::generation() != Ok(generation) {
            return false;
        }
        if state.entries.is_empty() {
            state.has_thread = false;
            state.alarms = None;
            state.judge = Judge::new();
            state.meter = Meter::new();
            return false;
        }
        let level = state.publish();
        let mut entries = state.entries.iter_mut();
        let Some(entry) = entries.find(|entry| entry.told != level) else {
            return true;
        };
        entry.told = level;
        let subscriber = Arc::clone(&entry.subscriber);
        drop(state);
        if !subscriber.tell(level) {
            drop(remove(&subscriber));
        }
    }
}

/// What the kernel reports by itself.
#[derive(Default)]
struct Alarms {
    /// None to listen to them anew.
    sources: Option<Sources>,
    files: Arc<Vec<Watched>>,
    reports_stalls: bool,
}

impl Alarms {
    /// Listens to these from now on.
    fn follow(&mut self, sources: Sources) {
        if self.sources.as_ref() == Some(&sources) {
            return;
        }
        // Held while files are opened: a child that is forked meanwhile would keep them.
        let mut state = STATE.lock();
        let pressure_file = sources.pressure_file.as_deref();
        let trigger = psi::arm(pressure_file.unwrap_or(psi::SYSTEM.as_ref()));
        self.reports_stalls = trigger.is_ok();
        let trigger = trigger.ok().map(|(watched, _)| watched);
        let events = sources.event_files.iter();
        let events = events.filter_map(|file| Watched::open(file).ok());
        self.files = Arc::new(trigger.into_iter().chain(events).collect());
        // Those of before are closed without the lock: the kernel takes some
        // milliseconds to disarm a trigger.
        let before = state.alarms.replace(Arc::clone(&self.files));
        drop(state);
        drop(before);
        self.sources = Some(sources);
    }

    fn wait(&mut self, most: Duration) {
        if watch::wait(&self.files, most) == Met::Gone {
            self.sources = None;
        }
    }
}

/// Makes fork handlers, if that has not been done.
pub(crate) fn prepare() {
    let _ = keep_out_of_children();
}

/// Has children begin without watcher and subscribers.
fn keep_out_of_children() -> std::result::Result<(), Errno> {
    unsafe extern "C" fn prepare() {
        STATE.hold();
    }
    unsafe extern "C" fn parent() {
        // SAFETY: `prepare` has run in this thread.
        unsafe { STATE.let_go(|_| ()) };
    }
    unsafe extern "C" fn child() {
        // SAFETY: `prepare` has run in the thread that this is a copy of.
        unsafe {
            STATE.let_go(|state| {
                // Forgotten, for to drop them is the allocator's business, and
                // anything that a subscriber holds.
                std::mem::forget(std::mem::take(&mut state.entries));
                std::mem::forget(std::mem::replace(&mut state.judge, Judge::new()));
                std::mem::forget(std::mem::replace(&mut state.meter, Meter::new()));
                if let Some(alarms) = state.alarms.take() {
                    alarms.iter().for_each(Watched::close);
                    std::mem::forget(alarms);
                }
                state.has_thread = false;
                LAST.store(NOBODY_LOOKS, Ordering::Relaxed);
            });
        }
    }
    static IS_REGISTERED: AtomicBool = AtomicBool::new(false);
    at_fork_once(&IS_REGISTERED, prepare, parent, child)
}
