//! The decay thread: reads the headroom, follows memory pressure, and frees what other
//! threads have moved away. While it runs, so does jemalloc's background thread, which purges
//! free pages when their time is over.
//!
//! It starts when blocks are freed and the heap has a few MiB, and exits after ten seconds
//! in which next to nothing was free. Once `main` has called pthread_exit(3), the process
//! ends with its last thread: then the decay thread returns all free pages and exits as soon as
//! it sees no requests for half a second. If no thread can be started, the threads of the
//! program return free pages at once.

use std::sync::atomic::{
    AtomicBool, AtomicU8, AtomicU32, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst,
};
use std::time::Duration;

use tenure::headroom;
use tenure::pressure::{self, Level, Subscription};

use crate::options::HeapOptions;
use crate::start::threshold_bytes;
use crate::{cache, deferred, fork, jemalloc, late, main_thread, pages, stats, sys};

/// The thread's state; it waits on this word.
static STATE: AtomicU32 = AtomicU32::new(ABSENT);
/// There is no thread.
const ABSENT: u32 = 0;
/// The thread runs at every tick.
const RUNNING: u32 = 1;
/// The thread is to run now.
const NOTIFIED: u32 = 2;

/// Whether the next thread that frees a block is to start the decay thread.
static IS_WANTED: AtomicBool = AtomicBool::new(false);

/// The process that has the heap. A child of vfork(2) uses its memory as well, but a thread
/// that the child starts ends when the child calls exec, and holds locks for ever.
static PROCESS: AtomicU32 = AtomicU32::new(0);

/// The decay thread, as pthread_self(3) names it.
static THREAD: AtomicUsize = AtomicUsize::new(0);

/// The addresses of a heap without blocks, and those of one that needs no decay thread.
static INITIAL_BYTES: AtomicUsize = AtomicUsize::new(usize::MAX);
const SMALL_HEAP_BYTES: usize = 8 << 20;

/// The pressure level of the last notification.
static LEVEL: AtomicU8 = AtomicU8::new(0);
static PRESSURE_PURGES: AtomicUsize = AtomicUsize::new(0);

/// Whether the level was above none when the thread last ran.
static IS_UNDER_PRESSURE: AtomicBool = AtomicBool::new(false);

/// How often the thread has published the heap's figures.
static PUBLICATIONS: AtomicUsize = AtomicUsize::new(0);

/// The purges, in which the thread returns pages that nobody else can use or return meanwhile.
static PURGES: Purges = Purges::new();

/// The options, in milliseconds and bytes.
static DIRTY_MS: AtomicUsize = AtomicUsize::new(0);
static MUZZY_MS: AtomicUsize = AtomicUsize::new(0);
static MAX_DIRTY: AtomicUsize = AtomicUsize::new(0);

/// The present limit on dirty memory.
static DIRTY_LIMIT: AtomicUsize = AtomicUsize::new(0);
const FIRST_LIMIT_BYTES: usize = 64 << 20;

/// Dirty memory takes one of so many parts of the headroom at most.
pub(crate) const HEADROOM_PARTS: usize = 8;

/// The shortest and the longest tick, and the ticks of a dirty decay.
const MIN_TICK_MS: usize = 10;
const MAX_TICK_MS: usize = 100;
const DIRTY_TICKS: usize = 20;

/// However short memory is, one of so many parts of what the blocks have may stay dirty, and
/// one of so many parts of the swap that is left: a program that allocates before it frees
/// would fault each page in again, ten times a second. Without swap one would be killed instead.
const ACTIVE_PARTS: usize = 4;
const SWAP_PARTS: usize = 8;

/// While next to nothing is dirty, the headroom is read at one of so many ticks: it takes
/// half a millisecond of the CPU where there are many cgroups.
const READING_TICKS: usize = 8;

/// Under pressure, decay is so many times as fast.
const HURRY: usize = 8;

/// With less free memory than this for so long, the thread exits.
const NEGLIGIBLE_BYTES: usize = 4 << 20;
const IDLE_EXIT: Duration = Duration::from_secs(10);

/// Once the main thread has ended, the thread exits when nothing was requested for so long.
const LAST_EXIT: Duration = Duration::from_millis(500);

/// Sets the limits. Called once, with jemalloc's arenas set up.
pub(crate) fn start(options: &HeapOptions) {
    let ms = |time: Duration| usize::try_from(time.as_millis()).unwrap_or(usize::MAX);
    DIRTY_MS.store(ms(options.dirty_decay), Relaxed);
    MUZZY_MS.store(ms(options.muzzy_decay), Relaxed);
    MAX_DIRTY.store(options.max_dirty_bytes, Relaxed);
    // The headroom is not known yet.
    DIRTY_LIMIT.store(options.max_dirty_bytes.min(FIRST_LIMIT_BYTES), Relaxed);
    INITIAL_BYTES.store(pages::mapped_bytes(), Relaxed);
    PROCESS.store(sys::process(), Relaxed);
}

pub(crate) fn max_dirty_bytes() -> usize {
    DIRTY_LIMIT.load(Relaxed)
}

pub(crate) fn pressure_purges() -> usize {
    PRESSURE_PURGES.load(Relaxed)
}

/// Returns whether pages decay faster than the options say, or are returned at once.
pub(crate) fn is_under_pressure() -> bool {
    IS_UNDER_PRESSURE.load(Relaxed)
}

fn is_small(mapped_bytes: usize) -> bool {
    mapped_bytes.saturating_sub(INITIAL_BYTES.load(Relaxed)) < SMALL_HEAP_BYTES
}

/// Notes that the heap has more addresses.
pub(crate) fn note_growth(mapped_bytes: usize) {
    if STATE.load(Relaxed) == ABSENT && !is_small(mapped_bytes) {
        set_wanted(true);
    }
}

fn set_wanted(is_wanted: bool) {
    IS_WANTED.store(is_wanted, SeqCst);
    cache::look_at_all(is_wanted);
}

/// Returns whether the next thread that frees a block is to start the decay thread.
#[inline]
pub(crate) fn is_wanted() -> bool {
    IS_WANTED.load(Relaxed)
}

/// Returns whether the heap has so few addresses that it needs no decay thread.
pub(crate) fn is_needless() -> bool {
    is_small(pages::mapped_bytes())
}

/// Starts the decay thread if the heap needs one and has none, and the caller may start one.
#[inline]
pub(crate) fn ensure_running(may_start: impl FnOnce() -> bool) {
    if is_wanted() && may_start() {
        spawn();
    }
}

pub(crate) fn is_running() -> bool {
    STATE.load(Relaxed) != ABSENT
}

/// Returns whether the calling thread may wait for the kernel to free memory.
pub(crate) fn may_wait() -> bool {
    is_running() && THREAD.load(Relaxed) == sys::thread() || late::is_substitute()
}

/// Has the decay thread publish the heap's figures, for a caller that may hold a lock of the
/// heap, as a signal handler may. Returns false if there is no such thread, or it has not.
///
/// The caller waits for a tenth of a second at most: the thread may need a lock that the
/// caller holds.
pub fn publish() -> bool {
    const PAUSE: Duration = Duration::from_millis(1);
    const MAX_PAUSES: usize = 100;
    let before = PUBLICATIONS.load(Relaxed);
    if !is_running() {
        return false;
    }
    run_now();
    let mut pauses = 0;
    while PUBLICATIONS.load(Relaxed) == before && pauses < MAX_PAUSES {
        sys::sleep(PAUSE);
        pauses += 1;
    }
    PUBLICATIONS.load(Relaxed) != before
}

/// Waits while the decay thread returns pages, but no longer than a second for each time: it may
/// get no CPU.
pub(crate) fn wait_for_purge() {
    const PAUSE: Duration = Duration::from_millis(1);
    const MAX_PAUSES: usize = 1000;
    PURGES.wait(MAX_PAUSES, || sys::sleep(PAUSE));
}

struct Purges {
    /// How often one has begun or ended: odd while one lasts.
    count: AtomicUsize,
    /// The count in the last one that lasted too long to wait for it again.
    given_up: AtomicUsize,
}

impl Purges {
    const fn new() -> Self {
        Self {
            count: AtomicUsize::new(0),
            given_up: AtomicUsize::new(0),
        }
    }

    fn begin_or_end(&self) {
        self.count.fetch_add(1, Relaxed);
    }

    fn reset(&self) {
        self.count.store(0, Relaxed);
        self.given_up.store(0, Relaxed);
    }

    fn wait(&self, max_pauses: usize, mut pause: impl FnMut()) {
        let current = self.count.load(Relaxed);
        if current.is_multiple_of(2) || current == self.given_up.load(Relaxed) {
            return;
        }
        for _ in 0..max_pauses {
            if self.count.load(Relaxed) != current {
                return;
            }
            pause();
        }
        self.given_up.store(current, Relaxed);
    }
}

/// Has the decay thread run without waiting for its next tick.
pub(crate) fn run_now() {
    if STATE
        .compare_exchange(RUNNING, NOTIFIED, SeqCst, SeqCst)
        .is_ok()
    {
        sys::futex_wake(&STATE);
    }
}

#[cold]
fn spawn() {
    if PROCESS.load(Relaxed) != sys::process() {
        return;
    }
    set_wanted(false);
    if STATE
        .compare_exchange(ABSENT, NOTIFIED, SeqCst, SeqCst)
        .is_err()
    {
        return;
    }
    if !sys::start_thread(body) {
        STATE.store(ABSENT, SeqCst);
        // The next growth tries again.
        jemalloc::set_decay(0, 0);
    }
}

/// Records in the child of a fork that it has no decay thread.
pub(crate) fn reset() {
    PROCESS.store(sys::process(), Relaxed);
    STATE.store(ABSENT, SeqCst);
    THREAD.store(0, Relaxed);
    LEVEL.store(0, Relaxed);
    IS_UNDER_PRESSURE.store(false, Relaxed);
    PRESSURE_PURGES.store(0, Relaxed);
    PURGES.reset();
    late::reset();
    jemalloc::reset();
    set_wanted(!is_small(pages::mapped_bytes()));
}

extern "C" fn body(_: *mut std::ffi::c_void) -> *mut std::ffi::c_void {
    sys::name_thread(c"tenure-decay");
    THREAD.store(sys::thread(), Relaxed);
    let mut thread = DecayThread {
        subscription: None,
        hurry: 1,
        busy_at: sys::now(),
        ticks_to_reading: 0,
        requests: 0,
        requested_at: sys::now(),
    };
    // In the child of a fork this also ends a purge that a thread of the parent was in.
    thread.set_decay(1);
    set_background_thread(true);
    loop {
        STATE.store(RUNNING, SeqCst);
        thread.run_once();
        if thread.may_exit() && exit() {
            return std::ptr::null_mut();
        }
        sys::futex_wait(&STATE, RUNNING, Some(tick()));
    }
}

/// Says that there is no decay thread any more, and that the next thread that frees a
/// block is to start one. Returns false if work has arrived meanwhile.
fn exit() -> bool {
    set_background_thread(false);
    if STATE
        .compare_exchange(RUNNING, ABSENT, SeqCst, SeqCst)
        .is_err()
    {
        set_background_thread(true);
        return false;
    }
    set_wanted(true);
    // Blocks may have been cached since the last tick.
    cache::free_all();
    true
}

/// Has jemalloc's background thread run or end. It runs every 100 ms at most, and purges all
/// that was freed since the last of the 200 steps of a decay, which may take twice their
/// time. Decays with longer steps are left to the other threads.
///
/// So are all where another allocator serves small blocks, and a fork takes that one's locks
/// first: jemalloc starts the thread with a lock held, and the C library allocates small blocks
/// for it.
fn set_background_thread(is_on: bool) {
    const MAX_DECAY_MS: usize = 200 * 25;
    let is_served = |time: &AtomicUsize| time.load(Relaxed) <= MAX_DECAY_MS;
    let may_start = threshold_bytes() == 0 || !fork::is_last();
    let is_on = is_on && may_start && is_served(&DIRTY_MS) && is_served(&MUZZY_MS);
    jemalloc::set_background_thread(is_on);
}

fn tick() -> Duration {
    let ms = (DIRTY_MS.load(Relaxed) / DIRTY_TICKS).clamp(MIN_TICK_MS, MAX_TICK_MS);
    Duration::from_millis(ms as u64)
}

struct DecayThread {
    subscription: Option<Subscription>,
    /// Decay is so many times as fast as the options say.
    hurry: usize,
    /// The last time at which more than next to nothing was free.
    busy_at: Duration,
    /// Until the headroom is read although next to nothing is dirty.
    ticks_to_reading: usize,
    /// How many blocks were requested, and since when it is that many.
    requests: usize,
    requested_at: Duration,
}

impl DecayThread {
    fn run_once(&mut self) {
        if self.subscription.is_none() {
            self.subscription = pressure::subscribe(on_pressure).ok();
        }
        let level = LEVEL.load(Relaxed);
        let is_under_pressure = level > Level::None as u8;
        IS_UNDER_PRESSURE.store(is_under_pressure, Relaxed);
        cache::tick(if is_at_once() { 0 } else { max_dirty_bytes() });
        let mut freed_bytes = deferred::free_all();
        if is_at_once() {
            jemalloc::purge_all();
        } else {
            jemalloc::decay();
        }
        jemalloc::refresh();
        let (dirty_bytes, muzzy_bytes) = jemalloc::free_bytes();
        self.ticks_to_reading = self.ticks_to_reading.saturating_sub(1);
        if self.ticks_to_reading == 0 || dirty_bytes >= NEGLIGIBLE_BYTES {
            update_limit();
            self.ticks_to_reading = READING_TICKS;
        }
        let free_bytes = dirty_bytes + muzzy_bytes;
        let staying_bytes = match is_under_pressure {
            true => swappable_dirty_bytes(),
            false => usize::MAX,
        };
        self.set_hurry(if free_bytes >= staying_bytes {
            HURRY
        } else {
            1
        });
        PURGES.begin_or_end();
        if level >= Level::Severe as u8 && free_bytes > staying_bytes {
            jemalloc::purge_down_to(staying_bytes, &["pdirty", "pmuzzy"]);
            PRESSURE_PURGES.fetch_add(1, Relaxed);
        }
        let max_bytes = max_dirty_bytes().saturating_sub(cache::count().1);
        jemalloc::purge_down_to(max_bytes, &["pdirty"]);
        PURGES.begin_or_end();
        stats::publish_latest();
        PUBLICATIONS.fetch_add(1, Relaxed);
        late::set_budget();
        freed_bytes += dirty_bytes + muzzy_bytes;
        if freed_bytes >= NEGLIGIBLE_BYTES {
            self.busy_at = sys::now();
        }
    }

    fn set_hurry(&mut self, hurry: usize) {
        if self.hurry != hurry {
            self.set_decay(hurry);
            PRESSURE_PURGES.fetch_add(usize::from(hurry > 1), Relaxed);
        }
    }

    fn set_decay(&mut self, hurry: usize) {
        self.hurry = hurry;
        let ms = |time: &AtomicUsize| isize::try_from(time.load(Relaxed) / hurry);
        let [dirty_ms, muzzy_ms] = [&DIRTY_MS, &MUZZY_MS].map(|time| ms(time).unwrap_or(-1));
        if is_at_once() {
            jemalloc::set_decay(-1, 0);
        } else {
            // With 0 the threads that free blocks would wait for the kernel.
            let min_ms = MIN_TICK_MS as isize;
            let dirty_ms = if dirty_ms < 0 {
                -1
            } else {
                dirty_ms.max(min_ms)
            };
            jemalloc::set_decay(dirty_ms, muzzy_ms);
        }
    }

    fn may_exit(&mut self) -> bool {
        if main_thread::has_ended() {
            return self.may_exit_as_last();
        }
        sys::now().saturating_sub(self.busy_at) >= IDLE_EXIT
    }

    /// Returns whether the process may be waiting for this thread. All free pages are returned
    /// then: if other threads are left, they need no decay thread before they free a block.
    fn may_exit_as_last(&mut self) -> bool {
        let requests = jemalloc::requests();
        if requests != self.requests {
            self.requests = requests;
            self.requested_at = sys::now();
        }
        let may_exit = sys::now().saturating_sub(self.requested_at) >= LAST_EXIT;
        if may_exit {
            jemalloc::purge_all();
        }
        may_exit
    }
}

/// Returns whether free pages are returned at each tick.
fn is_at_once() -> bool {
    DIRTY_MS.load(Relaxed) == 0 && MUZZY_MS.load(Relaxed) == 0
}

/// Reads the headroom, and sets the limit on dirty memory by it.
fn update_limit() {
    let max_bytes = MAX_DIRTY.load(Relaxed);
    let limit = headroom::read().map_or(max_bytes, |headroom| {
        let by_headroom = headroom.bytes / HEADROOM_PARTS;
        max_bytes.min(by_headroom.max(swappable_dirty_bytes()))
    });
    DIRTY_LIMIT.store(limit, Relaxed);
}

/// Returns how much may stay dirty however short memory is, by jemalloc's last figures.
fn swappable_dirty_bytes() -> usize {
    let wanted_bytes = jemalloc::active_bytes() / ACTIVE_PARTS;
    wanted_bytes.min(headroom::swappable_bytes() / SWAP_PARTS)
}

fn on_pressure(level: Level) {
    LEVEL.store(level as u8, Relaxed);
    if level > Level::None {
        run_now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn purge_that_does_not_end_is_waited_for_once() {
        let purges = Purges::new();
        let pauses = |max_pauses| {
            let mut count = 0;
            purges.wait(max_pauses, || count += 1);
            count
        };
        assert_eq!(pauses(5), 0, "none has begun");
        purges.begin_or_end();
        assert_eq!(pauses(5), 5);
        assert_eq!(pauses(5), 0, "given up");
        purges.begin_or_end();
        assert_eq!(pauses(5), 0, "ended");
        purges.begin_or_end();
        let mut count = 0;
        purges.wait(5, || {
            count += 1;
            purges.begin_or_end();
        });
        assert_eq!(count, 1, "ended meanwhile");
    }
}
