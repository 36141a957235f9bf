//! Processes that pin a shared object, purge it, free it, and die.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::thread;

use crate::check;
use crate::shared_word::{State, Word};

/// An object in shared memory.
struct Object {
    word: Word,
    /// Read by processes that have a pin, and changed by the one that has claimed the object:
    /// loom fails if both do at once.
    contents: UnsafeCell<u32>,
    freed: AtomicU32,
}

/// The contents when nobody has purged the object.
const MADE: u32 = 7;

impl Object {
    /// Makes an object, without a pin, or with that of process 0.
    fn live(is_pinned: bool) -> Arc<Self> {
        let object = Self {
            word: Word::default(),
            contents: UnsafeCell::new(MADE),
            freed: AtomicU32::new(0),
        };
        assert!(object.word.claim(0, object.word.read()));
        assert!(object.word.publish(0, State::Live, 2, is_pinned));
        Arc::new(object)
    }

    fn write(&self, value: u32) {
        // SAFETY: loom fails the model if another thread accesses it at the same time.
        self.contents
            .with_mut(|contents| unsafe { *contents = value });
    }

    /// Models `SharedBuffer::pin`, and the drop of its pin.
    fn pin(&self, process: usize) {
        if self.word.pin(process).is_err() {
            let now = self.word.read();
            if now.state() != State::Purged || !self.word.claim(process, now) {
                return;
            }
            self.write(MADE);
            assert!(self.word.publish(process, State::Live, 2, true));
        }
        // SAFETY: as in `write`.
        assert_eq!(self.contents.with(|contents| unsafe { *contents }), MADE);
        self.word.unpin(1 << process);
        self.free_doomed(process);
    }

    /// Models `Table::purge`.
    fn purge(&self, process: usize) {
        let now = self.word.read();
        if now.state() == State::Live && self.word.claim(process, now) {
            self.purge_claimed(process, now.is_doomed());
        }
    }

    fn purge_claimed(&self, process: usize, is_freed: bool) {
        self.write(0);
        let state = if is_freed { State::Free } else { State::Purged };
        if is_freed {
            self.freed.fetch_add(1, Ordering::SeqCst);
        }
        assert!(self.word.publish(process, state, 2, false));
    }

    /// Models `Table::free_doomed`.
    fn free_doomed(&self, process: usize) {
        let now = self.word.read();
        if now.is_doomed() && now.is_claimable() && self.word.claim(process, now) {
            self.purge_claimed(process, true);
        }
    }

    /// Models `Table::clear`.
    fn clear(&self, process: usize, dead: u64) {
        let now = self.word.read();
        if now.processes() & dead == 0 {
            return;
        }
        if now.state() == State::Claimed {
            if self.word.take_over(process, dead) {
                self.purge_claimed(process, self.word.read().is_doomed());
            }
        } else if self.word.unpin(dead).is_doomed() {
            self.free_doomed(process);
        }
    }
}

fn run<const N: usize>(object: &Arc<Object>, acts: [fn(&Object); N]) {
    let threads = acts.map(|act| {
        let object = object.clone();
        thread::spawn(move || act(&object))
    });
    for thread in threads {
        thread.join().unwrap();
    }
}

/// A process with a pin reads what was made, beside one that purges and one that makes it
/// again.
pub fn shared_object_with_a_pin_is_not_purged() {
    check(|| {
        let object = Object::live(false);
        run(&object, [|it| it.pin(1), |it| it.purge(2), |it| it.pin(3)]);
        assert_eq!(object.word.read().processes(), 0);
    });
}

/// The last pin, or who dooms the object, frees it, once.
pub fn doomed_shared_object_is_freed_once_after_its_last_pin() {
    check(|| {
        let object = Object::live(true);
        run(
            &object,
            [
                |it| it.pin(1),
                |it| {
                    it.word.doom();
                    it.word.unpin(1);
                    it.free_doomed(0);
                },
            ],
        );
        assert_eq!(object.freed.load(Ordering::SeqCst), 1);
        assert_eq!(object.word.read().state(), State::Free);
    });
}

/// Process 0 has died with a pin, and process 4 with a claim: others go on, and neither is left.
pub fn what_a_dead_process_has_is_cleared_beside_others() {
    check(|| {
        let object = Object::live(true);
        run(
            &object,
            [|it| it.clear(2, 1), |it| it.pin(1), |it| it.purge(3)],
        );
        assert_eq!(object.word.read().processes(), 0);
    });
    check(|| {
        let object = Object::live(false);
        assert!(object.word.claim(4, object.word.read()));
        run(&object, [|it| it.clear(2, 1 << 4), |it| it.pin(1)]);
        assert_eq!(object.word.read().processes(), 0);
    });
}
