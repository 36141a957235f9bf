//! The thread's life: started by a mark, parked while nothing is due, and gone when
//! nothing is volatile and no arena is registered.

use std::sync::Condvar;
use std::time::Duration;

use super::batches::offer_due;
use super::deferral::Deferral;
use super::delay::offer_delay;
use super::purge::{purge_lru, purge_partial_objects};
use super::retry::Retry;
use crate::ground::sys::thread::{self, Thread};
use crate::observation::pressure::{self, Level};
use crate::verbs::volatile::arenas::LiveArenas;
use crate::verbs::volatile::engine::{CHUNK_BYTES, can_offer};
use crate::verbs::volatile::priority::Timestamp;
use crate::verbs::volatile::registry::{ENGINE, OFFER_THREAD, take_orphaned};

/// How long the thread waits for something to become volatile before it exits.
const IDLE_EXIT: Duration = Duration::from_secs(10);

/// How soon it looks again while memory is short: what it purges takes time to show in
/// the pressure.
const PRESSURE_INTERVAL: Duration = Duration::from_millis(500);

/// How often it checks, when all that is volatile is offered, that its userfaultfd is still
/// open, and whether the program has ended.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The shortest wait for the next range to become due.
const MIN_WAIT: Duration = Duration::from_millis(5);

/// Notified when something is marked while the thread is parked.
static MARKED: Condvar = Condvar::new();

/// Unparks or starts the thread after a mark, if need be. The caller does not hold
/// ENGINE.
#[inline]
pub(crate) fn notify_marked() {
    if OFFER_THREAD.needs_unpark() {
        unpark();
    }
}

/// Wakes the thread, whether or not it is parked.
pub(super) fn run_soon() {
    MARKED.notify_all();
}

/// Starts the thread in a forked child that inherited volatile memory: what was marked
/// before the fork may not have been offered. The caller does not hold ENGINE.
#[inline]
pub(crate) fn resume_in_child() {
    if take_orphaned() {
        unpark();
    }
}

#[cold]
fn unpark() {
    let registry = ENGINE.lock();
    let was_absent = OFFER_THREAD.unpark();
    drop(registry);
    MARKED.notify_all();
    // If no thread can be started, memory stays resident until the next mark starts one.
    if was_absent && Thread::start_background(c"tenure-offer", run).is_err() {
        OFFER_THREAD.set_absent();
    }
}

fn run() {
    // Without a subscription (no thread can be started) the kernel reclaims what has been
    // offered all the same.
    let _subscription = pressure::subscribe(|_| MARKED.notify_all());
    let mut idle = Duration::ZERO;
    let mut checked = Timestamp::now();
    let mut retry = Retry::new(checked);
    let mut deferral = Deferral::new();
    let mut purged = Timestamp::from_nanos(0);
    let mut purged_lru = purged;
    loop {
        let now = Timestamp::now();
        if now.since(checked) >= CHECK_INTERVAL {
            checked = now;
            if thread::only_own_are_left() {
                end_process();
            }
        }
        let level = pressure::level();
        let is_short = super::short::is_short_at(now);
        let delay = match level {
            Level::None if !is_short => offer_delay(),
            _ => Duration::ZERO,
        };
        let live = LiveArenas::now();
        if !offer_due(delay, &live, &mut deferral) {
            retry.reset_interval();
        }
        retry.run_if_due(Timestamp::now(), &live);
        if level >= Level::Some && now.since(purged) >= PRESSURE_INTERVAL {
            purged = now;
            purge_partial_objects(&live);
        }
        if pressure::is_severe_now() && now.since(purged_lru) >= PRESSURE_INTERVAL {
            purged_lru = now;
            purge_lru(&live);
        }
        rearm();
        // Without the ENGINE lock, because the words may be many.
        let is_parked = try_park(&live);
        let mut registry = ENGINE.lock();
        if is_parked && can_offer() && OFFER_THREAD.is_running() {
            continue;
        }
        registry.arenas.empty_dropped();
        registry.flush_counts();
        let has_volatile = registry.has_volatile();
        let wait = match is_parked {
            false if is_short => MIN_WAIT,
            _ if has_volatile && level >= Level::Some => PRESSURE_INTERVAL,
            false => (delay / 2).clamp(MIN_WAIT, CHECK_INTERVAL),
            true if has_volatile || registry.has_registrations() => CHECK_INTERVAL,
            true if idle >= IDLE_EXIT => {
                let is_complete = live.are_complete(&registry.arenas);
                let has_due = || !is_complete || registry.has_due() || live.has_marked();
                let exits = OFFER_THREAD.try_exit(has_due);
                if exits {
                    registry.engine.close();
                }
                drop(registry);
                if exits {
                    return;
                }
                continue;
            }
            true => IDLE_EXIT,
        };
        let wait = match is_parked {
            true => wait,
            false => deferral.shorten(wait),
        };
        // (What it keeps is not the address space of the arenas, only their tables.)
        drop(live);
        idle = if has_volatile {
            Duration::ZERO
        } else {
            idle + wait
        };
        // Notified or timed out: both are reasons to look again.
        drop(registry.wait(|registry| MARKED.wait_timeout(registry, wait)));
    }
}

/// Ends the process as the C library does in the last thread of a program whose `main` has
/// called pthread_exit(3): it counts tenure's threads as the program's.
fn end_process() -> ! {
    // SAFETY: no other thread of the program is left that could use what the exit handlers
    // destroy.
    unsafe { libc::exit(0) }
}

/// Offers everything anew if the program has closed the userfaultfd, in chunks between
/// which other threads get the ENGINE lock.
fn rearm() {
    let lost = ENGINE.lock().engine.offered_without_protection();
    for chunk in lost.into_iter().flat_map(|part| part.chunks(CHUNK_BYTES)) {
        let mut rest = chunk;
        while !rest.is_empty() {
            rest = ENGINE.lock_in_turn().engine.rearm(rest);
        }
    }
}

/// Returns whether nothing is due; then marks unpark the thread from now on. (Where
/// nothing can be offered, they need not.)
fn try_park(live: &LiveArenas) -> bool {
    let has_due = || {
        let registry = ENGINE.lock();
        let is_known = live.are_complete(&registry.arenas) && !registry.has_due();
        drop(registry);
        !is_known || live.has_marked()
    };
    !can_offer() || OFFER_THREAD.try_park(has_due)
}
