//! The keeper: one thread that offers the kernel what has been volatile for a
//! while, and looks after what is offered.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, PoisonError};
use std::time::Duration;

use super::engine::{ENGINE, Engine, can_offer};
use super::marks::Mark;
use super::objects::Object;
use super::refused::Retry;
use super::wakefulness::Wakefulness;
use super::word::State;
use super::{Stamp, relief};
use crate::ground::range::PageRange;
use crate::ground::sys::advise::finish_batch;
use crate::ground::sys::thread::Thread;
use crate::observation::pressure::{self, Level};
use crate::observation::stats;
use crate::verbs::lazy_free;

/// The default of [`set_hand_over_delay`].
const DEFAULT_DELAY: Duration = Duration::from_millis(100);

/// What is offered while the engine is held: other threads that mark or unmark
/// plain ranges wait for so long. About a millisecond.
const BATCH_BYTES: usize = 16 << 20;

/// How long the keeper waits for something to become volatile before it ends.
const LINGER: Duration = Duration::from_secs(10);

/// How often it looks again while memory is short: what it gives up has to show.
const UNDER_PRESSURE: Duration = Duration::from_millis(500);

/// How often it looks whether its userfaultfd is still open, when all that is
/// volatile is offered.
const LOOK_EVERY: Duration = Duration::from_secs(1);

static KEEPER: Wakefulness = Wakefulness::gone(AtomicU8::new(0));
static MARKED: Condvar = Condvar::new();
static DELAY_NANOS: AtomicU64 = AtomicU64::new(DEFAULT_DELAY.as_nanos() as u64);

/// Sets how long memory is volatile before the kernel is offered it, for the
/// whole process: 100 ms unless set. What is marked and unmarked again within
/// that costs no system call. Zero offers inside the call that marks.
///
/// A [`VolatileBuffer`] that is taken back soon after it was offered, with nothing
/// lost, is offered later the next time: after up to 8 times as long. Under memory
/// pressure ([`Level::Some`] and above) all is offered at once.
///
/// [`VolatileBuffer`]: crate::VolatileBuffer
/// [`Level::Some`]: crate::pressure::Level::Some
///
/// ```
/// use std::time::Duration;
///
/// tenure::set_hand_over_delay(Duration::from_millis(20));
/// # tenure::set_hand_over_delay(Duration::from_millis(100));
/// ```
pub fn set_hand_over_delay(delay: Duration) {
    let nanos = u64::try_from(delay.as_nanos()).unwrap_or(u64::MAX);
    DELAY_NANOS.store(nanos, Ordering::Relaxed);
}

#[inline]
pub(super) fn delay() -> Duration {
    Duration::from_nanos(DELAY_NANOS.load(Ordering::Relaxed))
}

/// Has the keeper know that something has been marked. Not with the engine held.
#[inline]
pub(super) fn has_marked() {
    if KEEPER.must_be_woken() {
        wake();
    }
}

#[cold]
fn wake() {
    let engine = ENGINE.lock();
    let was_gone = KEEPER.wake();
    drop(engine);
    MARKED.notify_all();
    // Without a thread to be had, memory stays until the next mark finds one.
    if was_gone && Thread::start_quiet(c"tenure-keeper", keep).is_err() {
        KEEPER.forget();
    }
}

/// In a child after fork there is no keeper; the next mark starts one.
pub(super) fn forget_in_child() {
    KEEPER.forget();
}

fn keep() {
    // Without it (no thread to be had) the kernel takes what it needs by itself.
    let _subscription = pressure::subscribe(|_| MARKED.notify_all());
    let mut idle = Duration::ZERO;
    let mut retry = Retry::new(Stamp::now());
    loop {
        let level = pressure::level();
        let delay = match level {
            Level::None => delay(),
            Level::Some | Level::Severe => Duration::ZERO,
        };
        if !hand_over(delay) {
            retry.soon();
        }
        retry.try_again(Stamp::now());
        if level >= Level::Some {
            relief::finish_what_is_begun();
        }
        if pressure::is_severe_now() {
            relief::give_some_up();
        }
        let mut engine = ENGINE.lock();
        engine.rearm();
        engine.count();
        let has_volatile = engine.has_volatile();
        let wait = match engine.falls_asleep() {
            _ if has_volatile && level >= Level::Some => UNDER_PRESSURE,
            false => (delay / 2).clamp(Duration::from_millis(5), LOOK_EVERY),
            true if has_volatile => LOOK_EVERY,
            true if idle >= LINGER => {
                if KEEPER.leaves(|| engine.objects.has_marked()) {
                    return;
                }
                continue;
            }
            true => LINGER,
        };
        idle = if has_volatile {
            Duration::ZERO
        } else {
            idle + wait
        };
        // Woken or not: there is something to look at.
        let woken = MARKED.wait_timeout(engine, wait);
        drop(woken.unwrap_or_else(PoisonError::into_inner));
    }
}

impl Engine {
    /// Whether nothing is due; then marks have to wake the keeper from now on.
    /// (Where nothing can be offered, they need not.)
    fn falls_asleep(&self) -> bool {
        if !can_offer() {
            return true;
        }
        KEEPER.falls_asleep(|| self.marks.due_bytes() > 0 || self.objects.has_marked())
    }

    fn has_volatile(&self) -> bool {
        self.marks.volatile_bytes() > 0 || self.objects.volatile().next().is_some()
    }
}

/// Something that is volatile, and due.
#[derive(Clone, Debug)]
pub(super) enum Due {
    Plain(PageRange),
    Object(Arc<Object>),
}

impl Due {
    pub(super) fn range(&self) -> PageRange {
        match self {
            Self::Plain(range) => *range,
            Self::Object(object) => object.range,
        }
    }
}

/// Offers the kernel all that has been volatile for longer than `delay`. Returns
/// whether all of it could be.
fn hand_over(delay: Duration) -> bool {
    if !can_offer() {
        return true;
    }
    let mut all_offered = true;
    let mut due = ENGINE.lock().due(delay);
    due.sort_unstable_by_key(|due| due.range().start());
    let mut rest = &due[..];
    while !rest.is_empty() {
        let batch = first_batch(rest);
        for due in &rest[..batch] {
            lazy_free::forget_freed(due.range());
        }
        // Taken anew for each batch, so that others get their turn.
        all_offered &= ENGINE.lock().offer_batch(&rest[..batch]);
        rest = &rest[batch..];
    }
    all_offered
}

/// Offers an object at once, if it is still marked.
pub(super) fn offer_now(object: &Arc<Object>) {
    if !can_offer() {
        return;
    }
    lazy_free::forget_freed(object.range);
    ENGINE.lock().offer_batch(&[Due::Object(object.clone())]);
}

/// How many of the ranges, in order of address, make up the first batch.
fn first_batch(due: &[Due]) -> usize {
    let mut bytes = 0;
    let more = due.iter().take_while(|due| {
        bytes += due.range().len();
        bytes <= BATCH_BYTES
    });
    more.count().max(1)
}

impl Engine {
    /// What has been volatile for longer than `delay` and is not offered, or not
    /// since it was marked again. Objects may have to wait for longer.
    fn due(&self, delay: Duration) -> Vec<Due> {
        let now = Stamp::now();
        let plain = self
            .marks
            .volatile()
            .filter_map(|(range, mark)| match mark {
                Mark::Volatile {
                    due: true, stamp, ..
                } if now.since(stamp) >= delay => Some(Due::Plain(range)),
                _ => None,
            });
        let objects = self.objects.volatile().filter(|object| {
            let reading = object.word.read();
            reading.state() == State::Marked
                && now.since(reading.stamp()) >= object.patience.prolong(delay)
        });
        plain.chain(objects.cloned().map(Due::Object)).collect()
    }

    /// Offers what is still due of a batch, neighbours in one piece. Returns whether
    /// all of that could be.
    pub(super) fn offer_batch(&mut self, batch: &[Due]) -> bool {
        let mut all_offered = true;
        let mut in_hand: Vec<&Due> = batch.iter().filter(|due| self.takes_in_hand(due)).collect();
        in_hand.sort_unstable_by_key(|due| due.range().start());
        for neighbours in in_hand.chunk_by(|a, b| a.range().end() == b.range().start()) {
            let (first, last) = (
                neighbours[0].range(),
                neighbours[neighbours.len() - 1].range(),
            );
            let all = PageRange::between(first.start(), last.end());
            // SAFETY: all of it is volatile: taken in hand above, with the engine
            // held ever since.
            let offered = unsafe { self.offer(all) }.is_ok();
            for due in neighbours {
                // SAFETY: as above. One that is not fit must not keep the others.
                let offered = offered || unsafe { self.offer(due.range()) }.is_ok();
                self.settle(due, offered);
                all_offered &= offered;
            }
        }
        finish_batch();
        all_offered
    }

    fn takes_in_hand(&self, due: &Due) -> bool {
        match due {
            Due::Plain(range) => self.marks.is_due(*range),
            Due::Object(object) => object.word.take_in_hand(),
        }
    }

    /// What cannot be offered stays as it is. A range is not tried again before it is
    /// marked again; an object is ([`Retry`]), and unmarking it asks the engine.
    fn settle(&mut self, due: &Due, offered: bool) {
        if !offered {
            stats::NOT_OFFERED_BYTES.add(due.range().len());
        }
        match due {
            Due::Plain(range) => self.marks.settle(*range, offered),
            Due::Object(object) => object.word.settle(State::Offered),
        }
    }
}
