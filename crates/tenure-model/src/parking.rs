//! Owners that mark, and an offer thread that parks, and exits, when nothing is due.

use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::sync::{Arc, Condvar, Mutex, MutexGuard};
use loom::thread;

use crate::check;
use crate::park_state::ParkState;
use crate::priority::{Priority, Timestamp};
use crate::sync::AtomicU8;
use crate::word::{State, Word};

struct World {
    words: Vec<Word>,
    offer_thread: ParkState,
    /// The ENGINE lock; how many objects have been offered.
    engine: Mutex<usize>,
    marked: Condvar,
    /// How many offer threads run.
    threads: AtomicUsize,
}

impl World {
    fn new(objects: usize) -> Arc<Self> {
        Arc::new(Self {
            words: (0..objects).map(|_| Word::nonvolatile()).collect(),
            offer_thread: ParkState::absent(AtomicU8::new(0)),
            engine: Mutex::new(0),
            marked: Condvar::new(),
            threads: AtomicUsize::new(0),
        })
    }

    /// Models `VolatileBuffer::mark_volatile` and `offer_thread::notify_marked`. Returns
    /// whether the caller has to start an offer thread.
    fn mark(&self, word: usize) -> bool {
        self.words[word].mark(Priority::Normal, Timestamp::from_nanos(1));
        if !self.offer_thread.needs_unpark() {
            return false;
        }
        let engine = self.engine.lock().unwrap();
        let was_absent = self.offer_thread.unpark();
        drop(engine);
        self.marked.notify_all();
        was_absent
    }

    fn has_marked(&self) -> bool {
        let is_marked = |word: &Word| word.read().state() == State::Marked;
        self.words.iter().any(is_marked)
    }

    fn offer(&self) {
        let mut offered = self.engine.lock().unwrap();
        for word in self.words.iter().filter(|word| word.try_claim()) {
            word.publish(State::Offered);
            *offered += 1;
        }
    }

    /// Models the offer thread's loop without timeouts: only marks unpark it. Ends when
    /// all is offered.
    fn run(&self) {
        loop {
            self.offer();
            // Without the ENGINE lock, as in `offer_thread::run`.
            let is_parked = self.offer_thread.try_park(|| self.has_marked());
            let offered = self.engine.lock().unwrap();
            if *offered == self.words.len() {
                return;
            }
            if is_parked && !self.offer_thread.is_running() {
                let unparked: MutexGuard<'_, usize> = self.marked.wait(offered).unwrap();
                drop(unparked);
            }
        }
    }

    /// Models the loop of an offer thread that has been idle for long enough to exit.
    fn run_until_idle(&self) {
        assert_eq!(
            self.threads.fetch_add(1, Ordering::SeqCst),
            0,
            "two offer threads"
        );
        loop {
            self.offer();
            let engine = self.engine.lock().unwrap();
            if self.offer_thread.try_exit(|| self.has_marked()) {
                // Another one may start as soon as ENGINE is unlocked.
                self.threads.fetch_sub(1, Ordering::SeqCst);
                drop(engine);
                return;
            }
        }
    }
}

/// An offer thread that parks until it is unparked offers all that is marked. (loom fails
/// when all threads wait.)
pub fn every_mark_is_offered() {
    check(|| {
        let world = World::new(2);
        let owner = {
            let world = world.clone();
            thread::spawn(move || world.mark(1))
        };
        let is_first = world.mark(0);
        // The thread whose mark finds no offer thread starts it.
        if is_first {
            world.run();
            owner.join().unwrap();
        } else {
            assert!(owner.join().unwrap());
            world.run();
        }
    });
}

/// An offer thread that parks while an object is marked sees the mark or is unparked.
pub fn mark_during_park_is_seen_or_unparks() {
    check(|| {
        let world = World::new(2);
        assert!(world.mark(0));
        let offer_thread = {
            let world = world.clone();
            thread::spawn(move || world.run())
        };
        assert!(!world.mark(1), "there is an offer thread");
        offer_thread.join().unwrap();
    });
}

/// An offer thread that exits leaves nothing marked, or the mark starts another one;
/// there is never more than one.
pub fn mark_during_exit_is_seen_or_starts_a_thread() {
    check(|| {
        let world = World::new(3);
        assert!(world.mark(0));
        let start = |world: &Arc<World>| {
            let world = world.clone();
            thread::spawn(move || world.run_until_idle())
        };
        let first = start(&world);
        let owner = {
            let world = world.clone();
            thread::spawn(move || {
                if world.mark(1) {
                    world.run_until_idle();
                }
            })
        };
        if world.mark(2) {
            world.run_until_idle();
        }
        owner.join().unwrap();
        first.join().unwrap();
        assert_eq!(*world.engine.lock().unwrap(), 3);
    });
}
