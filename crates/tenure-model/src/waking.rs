//! Owners that mark, and a keeper that sleeps, and goes, when nothing is due.

use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::sync::{Arc, Condvar, Mutex, MutexGuard};
use loom::thread;

use crate::sync::AtomicU8;
use crate::wakefulness::Wakefulness;
use crate::word::{State, Word};
use crate::{Priority, Stamp, check};

struct World {
    words: Vec<Word>,
    keeper: Wakefulness,
    /// How many objects have been offered.
    engine: Mutex<usize>,
    marked: Condvar,
    keepers: AtomicUsize,
}

impl World {
    fn new(objects: usize) -> Arc<Self> {
        Arc::new(Self {
            words: (0..objects).map(|_| Word::nonvolatile()).collect(),
            keeper: Wakefulness::gone(AtomicU8::new(0)),
            engine: Mutex::new(0),
            marked: Condvar::new(),
            keepers: AtomicUsize::new(0),
        })
    }

    /// As `VolatileBuffer::mark_volatile`, and `keeper::has_marked`. Returns
    /// whether a keeper has to be started.
    fn mark(&self, word: usize) -> bool {
        self.words[word].mark(Priority::Normal, Stamp::from_nanos(1));
        if !self.keeper.must_be_woken() {
            return false;
        }
        let engine = self.engine.lock().unwrap();
        let was_gone = self.keeper.wake();
        drop(engine);
        self.marked.notify_all();
        was_gone
    }

    fn has_marked(&self) -> bool {
        let is_marked = |word: &Word| word.read().state() == State::Marked;
        self.words.iter().any(is_marked)
    }

    fn hand_over(&self) {
        let mut offered = self.engine.lock().unwrap();
        for word in self.words.iter().filter(|word| word.take_in_hand()) {
            word.settle(State::Offered);
            *offered += 1;
        }
    }

    /// As the keeper's loop, without its looks every now and then: only marks
    /// wake it. Ends when all is offered.
    fn keep(&self) {
        loop {
            self.hand_over();
            let offered = self.engine.lock().unwrap();
            if *offered == self.words.len() {
                return;
            }
            if self.keeper.falls_asleep(|| self.has_marked()) {
                let woken: MutexGuard<'_, usize> = self.marked.wait(offered).unwrap();
                drop(woken);
            }
        }
    }

    /// The same for a keeper that has waited for long enough.
    fn keep_until_idle(&self) {
        assert_eq!(
            self.keepers.fetch_add(1, Ordering::SeqCst),
            0,
            "two keepers"
        );
        loop {
            self.hand_over();
            let engine = self.engine.lock().unwrap();
            if self.keeper.leaves(|| self.has_marked()) {
                // Another may come as soon as the engine is let go.
                self.keepers.fetch_sub(1, Ordering::SeqCst);
                drop(engine);
                return;
            }
        }
    }
}

/// A keeper that sleeps until it is woken offers all that is marked. (loom tells
/// when all threads wait.)
pub fn no_mark_is_missed() {
    check(|| {
        let world = World::new(2);
        let owner = {
            let world = world.clone();
            thread::spawn(move || world.mark(1))
        };
        let is_first = world.mark(0);
        // Started by whoever finds that there is none.
        if is_first {
            world.keep();
            owner.join().unwrap();
        } else {
            assert!(owner.join().unwrap());
            world.keep();
        }
    });
}

/// The same for a mark that meets a keeper about to fall asleep.
pub fn a_keeper_falling_asleep_sees_the_mark_or_is_woken() {
    check(|| {
        let world = World::new(2);
        assert!(world.mark(0));
        let keeper = {
            let world = world.clone();
            thread::spawn(move || world.keep())
        };
        assert!(!world.mark(1), "there is one");
        keeper.join().unwrap();
    });
}

/// A keeper that goes leaves nothing marked, or the mark starts another; there is
/// never more than one.
pub fn a_keeper_that_goes_leaves_no_mark_behind() {
    check(|| {
        let world = World::new(3);
        assert!(world.mark(0));
        let start = |world: &Arc<World>| {
            let world = world.clone();
            thread::spawn(move || world.keep_until_idle())
        };
        let first = start(&world);
        let owner = {
            let world = world.clone();
            thread::spawn(move || {
                if world.mark(1) {
                    world.keep_until_idle();
                }
            })
        };
        if world.mark(2) {
            world.keep_until_idle();
        }
        owner.join().unwrap();
        first.join().unwrap();
        assert_eq!(*world.engine.lock().unwrap(), 3);
    });
}
