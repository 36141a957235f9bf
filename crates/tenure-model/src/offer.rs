//! An owner that marks and unmarks, the offer thread, and the kernel that reclaims.

use loom::cell::UnsafeCell;
use loom::sync::{Arc, Mutex};
use loom::thread;

use crate::check;
use crate::priority::{Priority, Timestamp};
use crate::word::{State, Unmarked, Word};

/// An object of one page.
struct Object {
    word: Word,
    /// The owner touches it while it is nonvolatile, the kernel while it is offered:
    /// loom fails if both do at once.
    contents: UnsafeCell<u32>,
    engine: Mutex<Engine>,
}

/// The state that the ENGINE lock guards.
#[derive(Default)]
struct Engine {
    is_offered: bool,
    is_purged: bool,
}

impl Object {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            word: Word::nonvolatile(),
            contents: UnsafeCell::new(0),
            engine: Mutex::new(Engine::default()),
        })
    }

    fn mark(&self) {
        self.word.mark(Priority::Normal, Timestamp::from_nanos(1));
    }

    /// Models `VolatileBuffer::mark_nonvolatile`. Returns whether it was purged.
    fn unmark(&self) -> bool {
        match self.word.unmark() {
            Unmarked::WasNonvolatile => panic!("it was marked"),
            Unmarked::Intact => false,
            Unmarked::NeedsEngine => {
                let mut engine = self.engine.lock().unwrap();
                engine.is_offered = false;
                self.word.publish(State::Nonvolatile);
                std::mem::take(&mut engine.is_purged)
            }
        }
    }

    /// Models `Registry::offer_batch` for an object that was due.
    fn offer(&self) {
        let mut engine = self.engine.lock().unwrap();
        if self.word.try_claim() {
            engine.is_offered = true;
            self.word.publish(State::Offered);
        }
    }

    /// Models the kernel, which purges an offered object.
    fn reclaim(&self) {
        let mut engine = self.engine.lock().unwrap();
        if engine.is_offered && !engine.is_purged {
            self.set(0);
            engine.is_purged = true;
        }
    }

    /// Models `Registry::purge_object`, which purges a marked or offered object.
    fn purge(&self) {
        let mut engine = self.engine.lock().unwrap();
        if self.word.try_claim() || self.word.read().state() == State::Offered {
            engine.is_offered = true;
            if !engine.is_purged {
                self.set(0);
                engine.is_purged = true;
            }
            self.word.publish(State::Offered);
        }
    }

    fn set(&self, value: u32) {
        // SAFETY: loom fails the model if another thread accesses it at the same time.
        self.contents
            .with_mut(|contents| unsafe { *contents = value });
    }

    fn get(&self) -> u32 {
        // SAFETY: as in `set`.
        self.contents.with(|contents| unsafe { *contents })
    }

    /// Models an owner that writes, marks and unmarks the object, in this order.
    fn own(&self, rounds: u32, marks: u32) {
        for round in 1..=rounds {
            self.set(round);
            for _ in 0..marks {
                self.mark();
            }
            let is_purged = self.unmark();
            assert_eq!(self.get(), if is_purged { 0 } else { round });
        }
    }
}

/// An unmarked object belongs to its owner alone, with the reported contents.
pub fn unmarked_object_is_neither_offered_nor_reclaimed() {
    check(|| {
        let object = Object::new();
        let offering = {
            let object = object.clone();
            thread::spawn(move || {
                for _ in 0..2 {
                    object.offer();
                    object.reclaim();
                }
            })
        };
        object.own(2, 1);
        offering.join().unwrap();
    });
}

/// Marking an object again while the offer thread has claimed it changes nothing but the
/// mark: the unmarked object belongs to its owner alone, with the reported contents.
pub fn marking_claimed_object_again_renews_only_the_mark() {
    check(|| {
        let object = Object::new();
        let offering = {
            let object = object.clone();
            thread::spawn(move || {
                object.offer();
                object.reclaim();
            })
        };
        object.own(1, 2);
        offering.join().unwrap();
    });
}

/// An unmarked object belongs to its owner alone, with the reported contents, also where
/// a second thread purges it while it is volatile.
pub fn unmarked_object_is_not_purged() {
    check(|| {
        let object = Object::new();
        let [offering, purging] = [Object::offer, Object::purge].map(|act| {
            let object = object.clone();
            thread::spawn(move || act(&object))
        });
        object.own(2, 1);
        offering.join().unwrap();
        purging.join().unwrap();
    });
}
