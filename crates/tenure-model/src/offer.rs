//! An owner that marks and unmarks, the offer thread, and the kernel that reclaims.

use std::time::Duration;

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
    /// The ENGINE lock.
    engine: Mutex<()>,
    kernel: Mutex<Kernel>,
}

/// The kernel's state of the page, which changes atomically: page tables have a lock.
#[derive(Default)]
struct Kernel {
    is_offered: bool,
    is_purged: bool,
}

impl Object {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            word: Word::nonvolatile(),
            contents: UnsafeCell::new(0),
            engine: Mutex::new(()),
            kernel: Mutex::new(Kernel::default()),
        })
    }

    fn mark(&self) {
        self.word.mark(Priority::Normal, Timestamp::from_nanos(16));
    }

    /// Models `VolatileBuffer::mark_nonvolatile` of a buffer of an arena. Returns whether
    /// it was purged.
    fn unmark(&self) -> bool {
        match self.word.unmark() {
            Unmarked::WasNonvolatile => panic!("it was marked"),
            Unmarked::Intact => false,
            Unmarked::NeedsEngine => self.revoke_offer(),
        }
    }

    /// Models `Place::revoke_offer`.
    fn revoke_offer(&self) -> bool {
        if self.word.try_claim_populated() {
            let mut kernel = self.kernel.lock().unwrap();
            let is_intact = !kernel.is_purged;
            if is_intact {
                kernel.is_offered = false;
            }
            drop(kernel);
            if is_intact {
                self.publish_revoked();
                return false;
            }
            self.word.publish(State::Offered);
        }
        while self.word.try_claim_volatile().is_none() {
            drop(self.engine.lock().unwrap());
            if self.word.want() {
                thread::yield_now();
            }
        }
        let engine = self.engine.lock().unwrap();
        let mut kernel = self.kernel.lock().unwrap();
        kernel.is_offered = false;
        let is_purged = std::mem::take(&mut kernel.is_purged);
        drop((kernel, engine));
        self.publish_revoked();
        is_purged
    }

    fn publish_revoked(&self) {
        let now = Timestamp::from_nanos(32);
        self.word.publish_revoked(now, Duration::ZERO, true);
    }

    /// Models `offer_slots` for a buffer that was due.
    fn offer(&self) {
        let _engine = self.engine.lock().unwrap();
        if self.word.try_claim() {
            self.kernel.lock().unwrap().is_offered = true;
            self.word.publish_offered(true);
        }
    }

    /// Models `offer_slots` for a large buffer: the ENGINE lock is released between the
    /// chunks.
    fn offer_large(&self) {
        let engine = self.engine.lock().unwrap();
        let is_claimed = self.word.try_claim();
        drop(engine);
        if is_claimed {
            if !self.word.is_wanted() {
                let _engine = self.engine.lock().unwrap();
                self.kernel.lock().unwrap().is_offered = true;
            }
            let _engine = self.engine.lock().unwrap();
            self.word.publish_offered(false);
        }
    }

    /// Models the kernel, which purges an offered object.
    fn reclaim(&self) {
        let mut kernel = self.kernel.lock().unwrap();
        if kernel.is_offered && !kernel.is_purged {
            self.set(0);
            kernel.is_purged = true;
        }
    }

    /// Models `purge_places`, which purges a marked or offered buffer.
    fn purge(&self) {
        let engine = self.engine.lock().unwrap();
        let is_claimed = self.word.try_claim_volatile().is_some();
        if is_claimed {
            let mut kernel = self.kernel.lock().unwrap();
            kernel.is_offered = true;
            if !kernel.is_purged {
                self.set(0);
                kernel.is_purged = true;
            }
        }
        // Released between the chunks.
        drop(engine);
        if is_claimed {
            let _engine = self.engine.lock().unwrap();
            self.word.publish_purged(State::Offered);
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

/// The same for a large object, which is offered chunk by chunk until its owner wants it.
pub fn large_object_is_offered_until_it_is_wanted() {
    check(|| {
        let object = Object::new();
        let offering = {
            let object = object.clone();
            thread::spawn(move || {
                object.offer_large();
                object.reclaim();
            })
        };
        object.own(1, 1);
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
