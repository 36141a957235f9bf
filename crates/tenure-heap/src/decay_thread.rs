//! The decay thread: decays freed blocks, reads the headroom and follows memory
//! pressure. It starts when a few MiB are dirty, parks while nothing is, and exits after ten
//! seconds of that: a program whose `main` calls pthread_exit(3) ends with its last thread.

use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::time::Duration;

use tenure::pressure::{self, Level, Subscription};

use crate::decay::{Decay, decay_dirty, decay_muzzy, return_oldest};
use crate::options::HeapOptions;
use crate::stats::stats;
use crate::{class, limits, shard, slack, sys};

/// The thread's state; it parks on this word.
static STATE: AtomicU32 = AtomicU32::new(ABSENT);
/// There is no thread.
const ABSENT: u32 = 0;
/// The thread is parked, because nothing is dirty.
const PARKED: u32 = 1;
/// The thread runs at every tick.
const RUNNING: u32 = 2;
/// The thread is to run now.
const NOTIFIED: u32 = 3;

/// The pressure level of the last notification.
static LEVEL: AtomicU8 = AtomicU8::new(0);

/// The shortest tick, and the ticks of a dirty decay: ages need not be exact.
const MIN_TICK: Duration = Duration::from_millis(10);
const DIRTY_TICKS: u32 = 5;

static TICK_NANOS: AtomicU64 = AtomicU64::new(0);
static MUZZY_TICKS: AtomicU32 = AtomicU32::new(0);

/// How long the thread stays parked before it exits.
const IDLE_EXIT: Duration = Duration::from_secs(10);

/// After so many ticks in which nothing decayed, the few dirty blocks are in use.
const IDLE_TICKS: u32 = 10;

pub(crate) fn start(options: &HeapOptions) {
    let tick = (options.dirty_decay / DIRTY_TICKS).max(MIN_TICK);
    let nanos = u64::try_from(tick.as_nanos()).unwrap_or(u64::MAX);
    let muzzy_ticks = options.muzzy_decay.as_nanos() / tick.as_nanos();
    TICK_NANOS.store(nanos, Relaxed);
    MUZZY_TICKS.store(u32::try_from(muzzy_ticks).unwrap_or(u32::MAX), Relaxed);
}

/// Starts or unparks the decay thread; if `now`, it runs at once. Returns false if no
/// thread can be started.
pub(crate) fn ensure_running(now: bool) -> bool {
    match STATE.load(SeqCst) {
        ABSENT => return spawn(),
        PARKED => unpark(),
        RUNNING if now => unpark(),
        _ => {}
    }
    true
}

fn unpark() {
    STATE.store(NOTIFIED, SeqCst);
    sys::futex_wake(&STATE);
}

fn spawn() -> bool {
    let (absent, notified) = (ABSENT, NOTIFIED);
    if STATE
        .compare_exchange(absent, notified, SeqCst, SeqCst)
        .is_err()
    {
        return true;
    }
    let started = sys::start_thread(body);
    if !started {
        STATE.store(ABSENT, SeqCst);
    }
    started
}

/// Records in the child of a fork that it has no decay thread.
pub(crate) fn reset() {
    STATE.store(ABSENT, SeqCst);
    LEVEL.store(0, Relaxed);
}

extern "C" fn body(_: *mut std::ffi::c_void) -> *mut std::ffi::c_void {
    sys::name_thread(c"tenure-decay");
    let tick = Duration::from_nanos(TICK_NANOS.load(Relaxed));
    let mut thread = DecayThread {
        tick,
        next_tick: sys::now(),
        idle_ticks: 0,
        subscription: None,
    };
    loop {
        STATE.store(RUNNING, SeqCst);
        thread.run_once();
        if thread.can_park() {
            if !thread.park() {
                return std::ptr::null_mut();
            }
        } else {
            let rest = thread.next_tick.saturating_sub(sys::now());
            sys::futex_wait(&STATE, RUNNING, Some(rest));
        }
    }
}

struct DecayThread {
    tick: Duration,
    /// The time of the next tick.
    next_tick: Duration,
    idle_ticks: u32,
    subscription: Option<Subscription>,
}

impl DecayThread {
    fn run_once(&mut self) {
        if self.subscription.is_none() {
            self.subscription = pressure::subscribe(on_pressure).ok();
        }
        let now = sys::now();
        if now >= self.next_tick {
            // Ticks count the thread's rounds, not time: otherwise, on a busy machine,
            // blocks that were just freed would be old.
            limits::advance();
            self.next_tick = now + self.tick;
            limits::update_headroom();
            slack::set_live(stats().live_bytes);
            self.run_tick();
        }
        if LEVEL.load(Relaxed) > Level::None as u8 {
            decay_dirty(0, Decay::ToRetained);
            decay_muzzy(0);
        }
        let excess = limits::excess_bytes();
        if excess > 0 {
            return_oldest(excess);
        }
    }

    fn run_tick(&mut self) {
        class::refresh_all();
        let decayed_bytes = decay_dirty(DIRTY_TICKS + 1, Decay::ToMuzzy);
        decay_muzzy(MUZZY_TICKS.load(Relaxed));
        self.idle_ticks = if decayed_bytes > 0 {
            0
        } else {
            self.idle_ticks + 1
        };
    }

    fn can_park(&self) -> bool {
        let is_dirty = shard::all()
            .iter()
            .any(|shard| shard.counts.dirty_bytes.get() > 0);
        let is_in_use = self.idle_ticks >= IDLE_TICKS && limits::is_negligible();
        limits::muzzy_bytes() == 0 && (!is_dirty || is_in_use)
    }

    /// Parks the thread. Returns `false` if it exits: then the next dirty block starts another.
    fn park(&mut self) -> bool {
        self.subscription = None;
        limits::clear_headroom();
        // A thread that frees a block counts it as dirty, then reads STATE; this thread
        // sets STATE to PARKED, then reads the count. One of the two sees the other.
        if STATE
            .compare_exchange(RUNNING, PARKED, SeqCst, SeqCst)
            .is_ok()
        {
            let end = sys::now() + IDLE_EXIT;
            while limits::is_negligible() && STATE.load(SeqCst) == PARKED {
                let rest = end.saturating_sub(sys::now());
                if rest.is_zero() && !stays() {
                    return false;
                }
                sys::futex_wait(&STATE, PARKED, Some(rest));
            }
        }
        self.idle_ticks = 0;
        self.next_tick = sys::now();
        true
    }
}

/// Says that there is no thread any more, unless it was unparked or memory became dirty
/// meanwhile.
fn stays() -> bool {
    let change = |from, to| STATE.compare_exchange(from, to, SeqCst, SeqCst).is_ok();
    if !change(PARKED, ABSENT) {
        return true;
    }
    // As for parking. If another thread has been started already, this one may exit.
    !limits::is_negligible() && change(ABSENT, RUNNING)
}

fn on_pressure(level: Level) {
    LEVEL.store(level as u8, Relaxed);
    if level > Level::None {
        unpark();
    }
}
