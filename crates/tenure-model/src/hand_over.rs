//! An owner that marks and unmarks, the keeper that hands over, and the kernel
//! that takes.

use loom::cell::UnsafeCell;
use loom::sync::{Arc, Mutex};
use loom::thread;

use crate::word::{State, Word};
use crate::{Priority, Stamp, Unmarked, check};

/// An object of one page.
struct Object {
    word: Word,
    /// Touched by the owner while it is nonvolatile, and by the kernel while it
    /// is offered: loom tells if both do at once.
    contents: UnsafeCell<u32>,
    engine: Mutex<Engine>,
}

/// What the kernel knows.
#[derive(Default)]
struct Engine {
    is_offered: bool,
    is_lost: bool,
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
        self.word.mark(Priority::Normal, Stamp::from_nanos(1));
    }

    /// As `VolatileBuffer::mark_nonvolatile`. Returns whether it was lost.
    fn unmark(&self) -> bool {
        match self.word.unmark() {
            Unmarked::WasNot => panic!("it was marked"),
            Unmarked::Intact => false,
            Unmarked::Ask => {
                let mut engine = self.engine.lock().unwrap();
                engine.is_offered = false;
                self.word.settle(State::Nonvolatile);
                std::mem::take(&mut engine.is_lost)
            }
        }
    }

    /// As the keeper's `offer_batch` for an object that was due.
    fn hand_over(&self) {
        let mut engine = self.engine.lock().unwrap();
        if self.word.take_in_hand() {
            engine.is_offered = true;
            self.word.settle(State::Offered);
        }
    }

    /// The kernel takes what it has been offered.
    fn reclaim(&self) {
        let mut engine = self.engine.lock().unwrap();
        if engine.is_offered && !engine.is_lost {
            self.set(0);
            engine.is_lost = true;
        }
    }

    /// As `VolatileBuffer::purge` and the keeper's relief: whatever is volatile.
    fn purge(&self) {
        let mut engine = self.engine.lock().unwrap();
        if self.word.take_in_hand() || self.word.read().state() == State::Offered {
            engine.is_offered = true;
            if !engine.is_lost {
                self.set(0);
                engine.is_lost = true;
            }
            self.word.settle(State::Offered);
        }
    }

    fn set(&self, value: u32) {
        // SAFETY: loom sees to it that nobody else is here.
        self.contents
            .with_mut(|contents| unsafe { *contents = value });
    }

    fn get(&self) -> u32 {
        // SAFETY: as above.
        self.contents.with(|contents| unsafe { *contents })
    }

    /// Uses it, lets it go, and asks for it again.
    fn own(&self, rounds: u32, marks: u32) {
        for round in 1..=rounds {
            self.set(round);
            for _ in 0..marks {
                self.mark();
            }
            let is_lost = self.unmark();
            assert_eq!(self.get(), if is_lost { 0 } else { round });
        }
    }
}

/// What is unmarked is its owner's alone, and as it was told.
pub fn what_is_unmarked_is_neither_offered_nor_taken() {
    check(|| {
        let object = Object::new();
        let keeper = {
            let object = object.clone();
            thread::spawn(move || {
                for _ in 0..2 {
                    object.hand_over();
                    object.reclaim();
                }
            })
        };
        object.own(2, 1);
        keeper.join().unwrap();
    });
}

/// The same, where it is marked again while the keeper has it in hand.
pub fn marking_again_changes_no_more_than_the_mark() {
    check(|| {
        let object = Object::new();
        let keeper = {
            let object = object.clone();
            thread::spawn(move || {
                object.hand_over();
                object.reclaim();
            })
        };
        object.own(1, 2);
        keeper.join().unwrap();
    });
}

/// The same, with a second thread that takes whatever is volatile.
pub fn what_is_unmarked_is_not_purged() {
    check(|| {
        let object = Object::new();
        let [keeper, relief] = [Object::hand_over, Object::purge].map(|act| {
            let object = object.clone();
            thread::spawn(move || act(&object))
        });
        object.own(2, 1);
        keeper.join().unwrap();
        relief.join().unwrap();
    });
}
