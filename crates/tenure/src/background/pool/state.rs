//! Which places of the arena hold blocks.

use std::sync::Condvar;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use rustix::process::{self, Pid};

use super::BLOCK_BYTES;
use super::arena::{Arena, Run};
use super::options::PoolOptions;
use crate::ground::range::PageRange;
use crate::ground::sys::Errno;
use crate::ground::sys::fork::{self, ForkMutex};
use crate::observation::{headroom, stats};

/// The state of a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Empty,
    /// A thread has claimed it.
    Claimed,
    Filled(Block),
}

/// A block of zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Block {
    /// It is one huge page.
    pub(super) is_huge: bool,
    /// The kernel may have taken its pages.
    pub(super) is_lazy: bool,
    /// The NUMA node of its first page, where there are several and the kernel tells.
    pub(super) node: Option<u16>,
    /// When it was filled, on the monotonic clock.
    pub(super) since_secs: u32,
}

#[derive(Debug)]
pub(super) struct State {
    /// The process that the pool belongs to. The memory of a child made without fork handlers
    /// (`_Fork`, `clone`) lacks the pool's, and one of `vfork` shares this state.
    pid: Option<Pid>,
    pub(super) arena: Option<Arena>,
    pub(super) places: Vec<Place>,
    pub(super) prefill_bytes: usize,
    /// Prefilling begins with the first use.
    pub(super) is_unused: bool,
    /// Memory that is released enters as recycled memory does.
    pub(super) recycles_released: bool,
    pub(super) claimed: usize,
    pub(super) filled: usize,
    pub(super) lazy: usize,
    /// No place may be claimed: the options are changing.
    pub(super) is_closing: bool,
    pub(super) has_thread: bool,
    /// The thread has work before it is due.
    pub(super) is_woken: bool,
    /// Prefilling has failed, and waits for its next turn.
    pub(super) prefill_failed: bool,
}

/// Locked for a moment only: nothing is moved, zeroed or freed meanwhile.
pub(super) static POOL: ForkMutex<State> = ForkMutex::new(State::OFF, State::start_in_child);

/// Notified when claimed places are published, and when the thread has work.
pub(super) static CHANGED: Condvar = Condvar::new();

/// Whether there is a pool.
static IS_ON: AtomicBool = AtomicBool::new(false);

/// The blocks that can be taken.
static FILLED: AtomicUsize = AtomicUsize::new(0);

/// Whether prefilling waits for the first use.
static IS_UNUSED: AtomicBool = AtomicBool::new(false);

/// Whether there is a pool, and released memory enters it.
static RECYCLES_RELEASED: AtomicBool = AtomicBool::new(false);

/// Returns whether there is a pool.
pub(super) fn is_on() -> bool {
    IS_ON.load(Ordering::Relaxed)
}

/// Returns whether memory enters the pool that is released, not recycled.
pub(crate) fn recycles_released() -> bool {
    RECYCLES_RELEASED.load(Ordering::Relaxed)
}

/// Returns how many blocks there are.
pub(super) fn filled() -> usize {
    FILLED.load(Ordering::Relaxed)
}

/// Returns whether this is the first use, for which prefilling has waited.
pub(super) fn is_first_use() -> bool {
    IS_UNUSED.load(Ordering::Relaxed) && {
        let mut pool = POOL.lock();
        let is_first = pool.is_unused && pool.is_own();
        if is_first {
            pool.is_unused = false;
            pool.show_within();
        }
        is_first
    }
}

impl State {
    const OFF: Self = Self {
        pid: None,
        arena: None,
        places: Vec::new(),
        prefill_bytes: 0,
        is_unused: false,
        recycles_released: false,
        claimed: 0,
        filled: 0,
        lazy: 0,
        is_closing: false,
        has_thread: false,
        is_woken: false,
        prefill_failed: false,
    };

    /// Forgets the pool: children do not inherit its memory.
    fn start_in_child(&mut self) {
        // Dropping the list would call the allocator.
        std::mem::forget(std::mem::replace(self, Self::OFF));
        // The counters of a child begin at zero, or are not there yet.
        self.show_within();
    }

    /// Takes an arena into use, or none.
    pub(super) fn set_arena(&mut self, arena: Option<Arena>, places: Vec<Place>) {
        self.pid = arena.is_some().then(process::getpid);
        (self.arena, self.places) = (arena, places);
        (self.filled, self.lazy) = (0, 0);
        self.show();
    }

    /// Sets what enters the pool: how much ahead of need, whether only from the first use on,
    /// and whether released memory.
    pub(super) fn set_sources(&mut self, prefill_bytes: usize, options: &PoolOptions) {
        self.prefill_bytes = prefill_bytes;
        self.is_unused = options.prefill_on_use;
        self.recycles_released = options.recycle_released;
        self.show_within();
    }

    /// Whether the state is that of this process's own pool, or of none.
    pub(super) fn is_own(&self) -> bool {
        self.pid.is_none_or(|pid| pid == process::getpid())
    }

    /// Shows the state to other threads and processes.
    fn show(&self) {
        self.show_within();
        stats::POOL_BYTES.set(self.filled * BLOCK_BYTES);
        stats::POOL_LAZILY_FREE_BYTES.set(self.lazy * BLOCK_BYTES);
    }

    /// Shows the state to other threads.
    fn show_within(&self) {
        IS_ON.store(self.arena.is_some(), Ordering::Relaxed);
        IS_UNUSED.store(self.is_unused, Ordering::Relaxed);
        let recycles_released = self.arena.is_some() && self.recycles_released;
        RECYCLES_RELEASED.store(recycles_released, Ordering::Relaxed);
        FILLED.store(self.filled, Ordering::Relaxed);
        headroom::set_pooled_bytes((self.filled - self.lazy) * BLOCK_BYTES);
    }

    /// Claims empty places, the first that lie side by side, `max` at most.
    pub(super) fn claim_empty(&mut self, max: usize) -> Option<(Run, PageRange)> {
        let is_empty = |place: &Place| *place == Place::Empty;
        let run = self.first_run(max, false, is_empty)?;
        self.claim(run)
    }

    /// Claims the first blocks that lie side by side and for which `is_wanted`: `max` at
    /// most, or exactly so many. Those of the node `near` go before all others.
    pub(super) fn claim_filled(
        &mut self,
        max: usize,
        is_exact: bool,
        near: Option<u16>,
        is_wanted: impl Fn(Block) -> bool,
    ) -> Option<(Run, PageRange, Vec<Block>)> {
        let run = self.first_filled(max, is_exact, near, is_wanted)?;
        let block = |place: &Place| match place {
            Place::Filled(block) => Some(*block),
            _ => None,
        };
        let blocks = self.places[run.numbers()].iter().filter_map(block);
        let blocks = blocks.collect();
        let (run, range) = self.claim(run)?;
        Some((run, range, blocks))
    }

    /// Claims the first block for which `is_wanted`, one of the node `near` before all others,
    /// without memory of the allocator.
    pub(super) fn claim_block(
        &mut self,
        near: Option<u16>,
        is_wanted: impl Fn(Block) -> bool,
    ) -> Option<(usize, PageRange, Block)> {
        let run = self.first_filled(1, true, near, is_wanted)?;
        let Place::Filled(block) = self.places[run.first] else {
            return None;
        };
        let (run, range) = self.claim(run)?;
        Some((run.first, range, block))
    }

    /// Returns whether there is a block for which `is_wanted`.
    pub(super) fn has_block(&self, is_wanted: impl Fn(Block) -> bool) -> bool {
        self.first_filled(1, true, None, is_wanted).is_some()
    }

    fn first_filled(
        &self,
        max: usize,
        is_exact: bool,
        near: Option<u16>,
        is_wanted: impl Fn(Block) -> bool,
    ) -> Option<Run> {
        let first = |is_near: bool| {
            self.first_run(max, is_exact, |place| match place {
                Place::Filled(block) => (!is_near || block.node == near) && is_wanted(*block),
                _ => false,
            })
        };
        near.and_then(|_| first(true)).or_else(|| first(false))
    }

    fn first_run(
        &self,
        max: usize,
        is_exact: bool,
        is_wanted: impl Fn(&Place) -> bool,
    ) -> Option<Run> {
        if self.is_closing || max == 0 || !self.is_own() {
            return None;
        }
        let mut first = 0;
        while first < self.places.len() {
            let rest = &self.places[first..];
            let count = rest.iter().take(max).take_while(|p| is_wanted(p)).count();
            if count == max || count > 0 && !is_exact {
                return Some(Run { first, count });
            }
            first += count + 1;
        }
        None
    }

    fn claim(&mut self, run: Run) -> Option<(Run, PageRange)> {
        let range = self.arena.as_ref()?.range(run);
        for number in run.numbers() {
            self.replace(number, Place::Claimed);
        }
        self.show();
        Some((run, range))
    }

    /// Ends the claim of a place.
    pub(super) fn publish(&mut self, number: usize, place: Place) {
        self.publish_all(number, std::iter::once(place));
    }

    /// Ends the claims of adjacent places from a number on.
    pub(super) fn publish_all(&mut self, first: usize, places: impl Iterator<Item = Place>) {
        for (number, place) in (first..).zip(places) {
            self.replace(number, place);
        }
        self.show();
        if self.claimed == 0 {
            CHANGED.notify_all();
        }
    }

    fn replace(&mut self, number: usize, now: Place) {
        let before = std::mem::replace(&mut self.places[number], now);
        let count = |place: Place| match place {
            Place::Empty => (0, 0, 0),
            Place::Claimed => (1, 0, 0),
            Place::Filled(block) => (0, 1, usize::from(block.is_lazy)),
        };
        let (less, more) = (count(before), count(now));
        self.claimed = self.claimed + more.0 - less.0;
        self.filled = self.filled + more.1 - less.1;
        self.lazy = self.lazy + more.2 - less.2;
    }
}

/// Has forks start children without a pool.
pub(crate) fn register_fork_handlers() -> Result<(), Errno> {
    static ENTRY: fork::Entry = fork::Entry::new(&POOL);
    fork::register(&ENTRY)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block_of(node: Option<u16>) -> Block {
        Block {
            is_huge: false,
            is_lazy: false,
            node,
            since_secs: 0,
        }
    }

    fn state_of(places: usize) -> State {
        let mut state = State::OFF;
        let arena = Arena::map(places).unwrap();
        state.set_arena(Some(arena), vec![Place::Empty; places]);
        state
    }

    fn end(mut state: State) {
        let arena = state.arena.take().unwrap();
        state.set_arena(None, Vec::new());
        // SAFETY: no other code knows the addresses.
        unsafe { arena.unmap() }.unwrap();
    }

    #[test]
    fn claim_prefers_blocks_of_the_near_node() {
        let mut state = state_of(6);
        let (run, _) = state.claim_empty(6).unwrap();
        let nodes = [Some(0), None, Some(1), Some(1), Some(0), Some(1)];
        let filled = |node| Place::Filled(block_of(node));
        state.publish_all(run.first, nodes.map(filled).into_iter());
        let claim = |state: &mut State, near| {
            let claimed = state.claim_block(near, |_| true);
            claimed.map(|(number, _, _)| number)
        };
        let (run, _, blocks) = state.claim_filled(2, true, Some(1), |_| true).unwrap();
        assert_eq!((run.first, blocks), (2, vec![block_of(Some(1)); 2]));
        assert_eq!(claim(&mut state, Some(1)), Some(5));
        assert_eq!(
            claim(&mut state, Some(1)),
            Some(0),
            "none of the node is left"
        );
        state.publish(0, filled(Some(0)));
        let (run, _, _) = state.claim_filled(2, true, Some(0), |_| true).unwrap();
        assert_eq!(run.first, 0, "no two of the node lie side by side");
        assert_eq!(claim(&mut state, None), Some(4));
        assert_eq!(claim(&mut state, Some(0)), None);
        state.publish_all(0, [Place::Empty; 6].into_iter());
        end(state);
    }

    #[test]
    fn pool_of_another_process_has_nothing_to_claim() {
        let mut state = state_of(2);
        let (run, _) = state.claim_empty(1).unwrap();
        state.publish(run.first, Place::Filled(block_of(None)));
        // A child made without fork handlers finds this.
        state.pid = Pid::from_raw(1);
        assert!(state.claim_block(None, |_| true).is_none() && state.claim_empty(1).is_none());
        state.pid = Some(process::getpid());
        assert!(state.claim_block(None, |_| true).is_some() && state.claim_empty(1).is_some());
        end(state);
    }
}
