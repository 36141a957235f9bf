//! What waits to be freed.

use std::collections::VecDeque;
use std::sync::{Condvar, OnceLock};
use std::time::Instant;

use super::tempo::Tempo;
use crate::ground::range::PageRange;
use crate::ground::sys::Errno;
use crate::ground::sys::fork::{ForkMutex, at_fork};
use crate::observation::stats;

/// Memory that nobody can see any more.
#[derive(Debug)]
pub(super) struct Load {
    /// All addresses that go away, the unused rest of the reservation included.
    pub(super) reservation: PageRange,
    /// Where the pages are, with gaps where the range had parts that stayed.
    pages: PageRange,
    /// How much of it has been moved there.
    moved_bytes: usize,
    /// Where the part begins that no worker has taken.
    next: usize,
    /// How many chunks workers have in hand.
    in_hand: usize,
}

/// A chunk that one worker frees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Chunk {
    pub(super) range: PageRange,
    /// Of the load that it is a part of, which is its name.
    reservation: PageRange,
}

#[derive(Debug)]
pub(super) struct Queue {
    loads: VecDeque<Load>,
    /// What has been moved away and is not free yet.
    pub(super) pending_bytes: usize,
    pub(super) workers: usize,
    /// How many threads wait until all is free.
    pub(super) waiting: usize,
    /// Memory is short, or there is less room than waits to be freed.
    pub(super) is_short: bool,
    pub(super) tempo: Tempo,
    /// Addresses that the kernel has refused to unmap; their pages are gone.
    pub(super) refused: Vec<PageRange>,
}

/// Held while memory is on its way from its owner to the queue, so that a fork
/// finds it in one place or the other.
pub(super) static QUEUE: ForkMutex<Queue> = ForkMutex::new(Queue::EMPTY);
pub(super) static ARRIVED: Condvar = Condvar::new();
pub(super) static FREED: Condvar = Condvar::new();

impl Queue {
    pub(super) const EMPTY: Self = Self {
        loads: VecDeque::new(),
        pending_bytes: 0,
        workers: 0,
        waiting: 0,
        is_short: false,
        tempo: Tempo::ONE,
        refused: Vec::new(),
    };

    /// Sees to it that the next `count` calls of `push` need no memory.
    pub(super) fn has_places(&mut self, count: usize) -> bool {
        self.loads.try_reserve(count).is_ok()
    }

    pub(super) fn push(&mut self, reservation: PageRange, pages: PageRange, moved_bytes: usize) {
        self.set_pending(self.pending_bytes + moved_bytes);
        self.loads.push_back(Load {
            reservation,
            pages,
            moved_bytes,
            next: pages.start(),
            in_hand: 0,
        });
    }

    fn set_pending(&mut self, bytes: usize) {
        self.pending_bytes = bytes;
        stats::PENDING_RELEASE_BYTES.set(bytes);
    }

    /// Takes the next chunk, of the oldest load that has one.
    pub(super) fn take(&mut self, chunk_bytes: usize) -> Option<Chunk> {
        let load = self.loads.iter_mut().find(|load| load.has_more())?;
        let end = load.next.saturating_add(chunk_bytes).min(load.pages.end());
        let range = PageRange::between(load.next, end);
        load.next = end;
        load.in_hand += 1;
        Some(Chunk {
            range,
            reservation: load.reservation,
        })
    }

    /// Takes note that a chunk is free, and returns its load when all of that
    /// is: its addresses are then the caller's to unmap.
    pub(super) fn done(&mut self, chunk: Chunk) -> Option<Load> {
        let of_chunk = |load: &Load| load.reservation == chunk.reservation;
        let at = self.loads.iter().position(of_chunk)?;
        let load = &mut self.loads[at];
        load.in_hand -= 1;
        if load.in_hand > 0 || load.has_more() {
            return None;
        }
        self.loads.remove(at)
    }

    /// Takes note that the addresses of a load are unmapped.
    pub(super) fn forget(&mut self, load: &Load) {
        self.set_pending(self.pending_bytes - load.moved_bytes);
        if self.loads.is_empty() {
            self.tempo.pause();
            self.is_short = false;
        }
    }

    pub(super) fn has_more(&self) -> bool {
        self.loads.iter().any(Load::has_more)
    }

    /// Whether another worker would have work and should exist.
    pub(super) fn wants_worker(&self) -> bool {
        self.has_more() && self.workers < self.tempo.wanted()
    }

    /// What no worker has in hand yet.
    fn untaken_bytes(&self) -> usize {
        self.loads
            .iter()
            .map(|load| load.pages.end() - load.next)
            .sum()
    }

    pub(super) fn learn(&mut self, bytes: usize, most: usize) {
        let left_bytes = self.untaken_bytes();
        self.tempo.learn(bytes, Instant::now(), left_bytes, most);
    }
}

impl Load {
    fn has_more(&self) -> bool {
        self.next < self.pages.end()
    }
}

/// Has children begin with an empty queue and no worker: what is pending here
/// is not mapped there.
pub(super) fn keep_out_of_children() -> Result<(), Errno> {
    unsafe extern "C" fn prepare() {
        QUEUE.hold();
    }
    unsafe extern "C" fn parent() {
        // SAFETY: `prepare` has run in this thread.
        unsafe { QUEUE.let_go(|_| ()) };
    }
    unsafe extern "C" fn child() {
        // A `Load` owns nothing that the allocator would have to free.
        // SAFETY: `prepare` has run in the thread that this is a copy of.
        unsafe {
            QUEUE.let_go(|queue| {
                queue.loads.clear();
                queue.refused.clear();
                // The child's counters begin at zero.
                queue.pending_bytes = 0;
                queue.workers = 0;
                queue.waiting = 0;
                queue.is_short = false;
                queue.tempo = Tempo::ONE;
            });
        }
    }
    static REGISTERED: OnceLock<Result<(), Errno>> = OnceLock::new();
    *REGISTERED.get_or_init(|| at_fork(prepare, parent, child))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ground::sys::page_size;

    fn range(from: usize, to: usize) -> PageRange {
        PageRange::between(from * page_size(), to * page_size())
    }

    #[test]
    fn loads_are_shared_and_end_with_their_last_chunk() {
        let mut queue = Queue::EMPTY;
        assert!(queue.has_places(1));
        queue.push(range(10, 20), range(12, 17), 5);
        queue.push(range(30, 40), range(30, 32), 2);
        assert_eq!(queue.pending_bytes, 7);
        let mut take = || queue.take(3 * page_size()).unwrap();
        let (first, second, third) = (take(), take(), take());
        let ranges = [first, second, third].map(|chunk| chunk.range);
        assert_eq!(ranges, [range(12, 15), range(15, 17), range(30, 32)]);
        assert!(!queue.has_more() && queue.take(page_size()).is_none());
        assert!(queue.done(second).is_none(), "the first is still in hand");
        let load = queue.done(third).unwrap();
        assert_eq!(load.reservation, range(30, 40));
        queue.forget(&load);
        assert_eq!(queue.pending_bytes, 5);
        let load = queue.done(first).unwrap();
        queue.forget(&load);
        assert_eq!(queue.pending_bytes, 0);
    }
}
