//! Threads that pin and unpin an object, and one that gives it up.

use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use loom::sync::{Arc, Mutex};
use loom::thread;

use crate::check;
use crate::priority::{Priority, Timestamp};
use crate::word::{State, Unpinned, Word};

/// A segment of the cache.
struct Segment {
    word: Word,
    /// Read by holders of a pin, and changed by the one that frees the segment or offers it:
    /// loom fails if both do at once.
    contents: UnsafeCell<u32>,
    /// How often it was freed.
    freed: AtomicU32,
    /// The mutex of the shard: whether the cache has the segment.
    is_attached: Mutex<bool>,
    is_purged: AtomicBool,
}

impl Segment {
    /// Makes a segment that is volatile, and not offered.
    fn marked() -> Arc<Self> {
        let word = Word::nonvolatile();
        word.set_pinned(Priority::Normal);
        assert_eq!(word.unpin(), Unpinned::Volatile);
        Arc::new(Self {
            word,
            contents: UnsafeCell::new(7),
            freed: AtomicU32::new(0),
            is_attached: Mutex::new(true),
            is_purged: AtomicBool::new(false),
        })
    }

    fn write(&self, value: u32) {
        // SAFETY: loom fails the model if another thread accesses it at the same time.
        self.contents
            .with_mut(|contents| unsafe { *contents = value });
    }

    fn free(&self) {
        self.write(0);
        self.freed.fetch_add(1, Ordering::SeqCst);
    }

    /// Models a hit: a pin under the mutex of the shard.
    fn hit(&self) {
        let attached = self.is_attached.lock().unwrap();
        let is_pinned = *attached && self.word.try_pin().is_some();
        drop(attached);
        if is_pinned {
            // SAFETY: as in `write`.
            assert_eq!(self.contents.with(|contents| unsafe { *contents }), 7);
            if self.word.unpin() == Unpinned::Detached {
                self.free();
            }
        }
    }

    /// Models `Attached`: the cache gives the segment up.
    fn give_up(&self) {
        let mut attached = self.is_attached.lock().unwrap();
        let was_attached = std::mem::replace(&mut *attached, false);
        drop(attached);
        if was_attached && !self.word.detach() {
            self.free();
        }
    }

    /// Models an offer that the kernel follows at once, by purging the contents.
    fn offer_and_purge(&self) {
        if self.word.try_claim() {
            self.write(0);
            self.is_purged.store(true, Ordering::SeqCst);
            self.word.publish_offered(true);
        }
    }

    /// Models a look-up that finds the segment offered: it asks the kernel without the
    /// mutex.
    fn hit_offered(&self) {
        if self.word.read().state() == State::Offered && self.word.try_claim_populated() {
            let is_intact = !self.is_purged.load(Ordering::SeqCst);
            let now = Timestamp::from_nanos(64);
            self.word
                .publish_revoked(now, std::time::Duration::ZERO, is_intact);
            self.give_up();
            if self.word.unpin() == Unpinned::Detached {
                self.free();
            }
        } else {
            self.hit();
        }
    }
}

/// The last of two pins and the cache frees the segment, once, when no other has a pin.
pub fn given_up_segment_is_freed_once_after_its_last_pin() {
    check(|| {
        let segment = Segment::marked();
        let hits: Vec<_> = (0..2)
            .map(|_| {
                let segment = segment.clone();
                thread::spawn(move || segment.hit())
            })
            .collect();
        segment.give_up();
        for hit in hits {
            hit.join().unwrap();
        }
        assert_eq!(segment.freed.load(Ordering::SeqCst), 1);
    });
}

/// No look-up gets a pin of a segment that was found purged.
pub fn purged_segment_gets_no_further_pin() {
    check(|| {
        let segment = Segment::marked();
        segment.offer_and_purge();
        let other = {
            let segment = segment.clone();
            thread::spawn(move || segment.hit())
        };
        segment.hit_offered();
        other.join().unwrap();
        assert_eq!(segment.freed.load(Ordering::SeqCst), 1);
    });
}
