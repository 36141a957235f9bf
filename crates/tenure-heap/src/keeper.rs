//! The thread that ages blocks, reads the room and follows memory pressure. It sleeps
//! as long as nothing is warm, and starts when a few MiB first are.

use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::time::Duration;

use tenure::pressure::{self, Level, Subscription};

use crate::aging::{Fate, age_lazy, age_warm, give_back_oldest};
use crate::options::HeapOptions;
use crate::stats::stats;
use crate::{class, limits, shard, spare, sys};

/// What it is doing; threads sleep and wake on this word.
static DOING: AtomicU32 = AtomicU32::new(NOTHING);
/// There is none.
const NOTHING: u32 = 0;
/// Nothing is warm.
const ASLEEP: u32 = 1;
/// It looks at every tick.
const AWAKE: u32 = 2;
/// It is to look now.
const CALLED: u32 = 3;

/// How short memory is, as last told.
static LEVEL: AtomicU8 = AtomicU8::new(0);

/// The ticks of a second, at most: ages need not be exact.
const SHORTEST_TICK: Duration = Duration::from_millis(10);
const TICKS_WARM: u32 = 5;

static TICK_NANOS: AtomicU64 = AtomicU64::new(0);
static TICKS_LAZY: AtomicU32 = AtomicU32::new(0);

/// After as many ticks in which nothing was old the little that is warm is in use.
const TICKS_IN_USE: u32 = 10;

pub(crate) fn start(options: &HeapOptions) {
    let tick = (options.warm_for / TICKS_WARM).max(SHORTEST_TICK);
    let nanos = u64::try_from(tick.as_nanos()).unwrap_or(u64::MAX);
    let lazy = options.lazy_for.as_nanos() / tick.as_nanos();
    TICK_NANOS.store(nanos, Relaxed);
    TICKS_LAZY.store(u32::try_from(lazy).unwrap_or(u32::MAX), Relaxed);
}

/// Has the keeper look after what is warm, at once if `now`. Returns false if there is
/// no keeper to be had.
pub(crate) fn is_wanted(now: bool) -> bool {
    match DOING.load(SeqCst) {
        NOTHING => return begin(),
        ASLEEP => call(),
        AWAKE if now => call(),
        _ => {}
    }
    true
}

fn call() {
    DOING.store(CALLED, SeqCst);
    sys::wake(&DOING);
}

fn begin() -> bool {
    let (none, begun) = (NOTHING, CALLED);
    if DOING.compare_exchange(none, begun, SeqCst, SeqCst).is_err() {
        return true;
    }
    let started = sys::start_thread(body);
    if !started {
        DOING.store(NOTHING, SeqCst);
    }
    started
}

/// The child of a fork has none.
pub(crate) fn reset() {
    DOING.store(NOTHING, SeqCst);
    LEVEL.store(0, Relaxed);
}

extern "C" fn body(_: *mut std::ffi::c_void) -> *mut std::ffi::c_void {
    sys::name_thread(c"tenure-heap");
    let tick = Duration::from_nanos(TICK_NANOS.load(Relaxed));
    let mut keeper = Keeper {
        tick,
        next: sys::now(),
        ticks_in_use: 0,
        subscription: None,
    };
    loop {
        DOING.store(AWAKE, SeqCst);
        keeper.look();
        if keeper.may_sleep() {
            keeper.sleep();
        } else {
            let rest = keeper.next.saturating_sub(sys::now());
            sys::sleep_on(&DOING, AWAKE, Some(rest));
        }
    }
}

struct Keeper {
    tick: Duration,
    /// When the next tick is.
    next: Duration,
    ticks_in_use: u32,
    subscription: Option<Subscription>,
}

impl Keeper {
    fn look(&mut self) {
        if self.subscription.is_none() {
            self.subscription = pressure::subscribe(told).ok();
        }
        let now = sys::now();
        if now >= self.next {
            // By looks and not by time: on a busy machine blocks that were freed just now
            // would be old.
            limits::advance();
            self.next = now + self.tick;
            limits::read_room();
            spare::set_live(stats().live_bytes);
            self.age();
        }
        if LEVEL.load(Relaxed) > Level::None as u8 {
            age_warm(0, Fate::GivenBack);
            age_lazy(0);
        }
        let excess = limits::excess_bytes();
        if excess > 0 {
            give_back_oldest(excess);
        }
    }

    fn age(&mut self) {
        class::refresh_all();
        let aged = age_warm(TICKS_WARM + 1, Fate::Lazy);
        age_lazy(TICKS_LAZY.load(Relaxed));
        self.ticks_in_use = if aged > 0 { 0 } else { self.ticks_in_use + 1 };
    }

    fn may_sleep(&self) -> bool {
        let is_warm = shard::all()
            .iter()
            .any(|shard| shard.tally.warm_bytes.get() > 0);
        let is_in_use = self.ticks_in_use >= TICKS_IN_USE && limits::is_negligible();
        limits::lazy_bytes() == 0 && (!is_warm || is_in_use)
    }

    fn sleep(&mut self) {
        self.subscription = None;
        limits::forget_room();
        // Who frees a block notes that it is warm, then looks whether we sleep; we say
        // that we sleep, then look whether anything is warm.
        if DOING
            .compare_exchange(AWAKE, ASLEEP, SeqCst, SeqCst)
            .is_ok()
        {
            while limits::is_negligible() && DOING.load(SeqCst) == ASLEEP {
                sys::sleep_on(&DOING, ASLEEP, None);
            }
        }
        self.ticks_in_use = 0;
        self.next = sys::now();
    }
}

fn told(level: Level) {
    LEVEL.store(level as u8, Relaxed);
    if level > Level::None {
        call();
    }
}
