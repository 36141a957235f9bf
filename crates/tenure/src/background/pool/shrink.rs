//! The pool gives memory back.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};

use super::BLOCK_BYTES;
use super::arena::{discard, free_lazily};
use super::recycle::now_secs;
use super::state::{Block, POOL, Place, filled, is_on};
use super::thread::TICK;
use crate::ground::sys::affinity;
use crate::observation::headroom::{LEDGER, Watermark, refresh};
use crate::observation::pressure::Level;
use crate::observation::stats;

/// After how long a block that nobody has taken becomes lazily free.
pub(super) const IDLE_SECS: u32 = 5;

/// How many blocks one claim gives back.
const BATCH: usize = 64;

/// The pressure level that the pool was last told of.
static LEVEL: AtomicU8 = AtomicU8::new(0);

/// How many threads wait for released memory that they are about to take.
static WAITING: AtomicUsize = AtomicUsize::new(0);

/// Whether the thread has not acted on the level yet.
static IS_NEWS: AtomicBool = AtomicBool::new(false);

pub(super) fn set_level(level: Level) {
    LEVEL.store(level as u8, Ordering::Relaxed);
    IS_NEWS.store(true, Ordering::Release);
}

/// Returns once for each notification that it was not acted on.
pub(super) fn is_news() -> bool {
    IS_NEWS.swap(false, Ordering::Acquire)
}

pub(super) fn level() -> Level {
    match LEVEL.load(Ordering::Relaxed) {
        0 => Level::None,
        1 => Level::Some,
        _ => Level::Severe,
    }
}

/// Whether more may be kept.
pub(super) fn may_keep() -> bool {
    level() == Level::None && WAITING.load(Ordering::Relaxed) == 0
}

/// Runs `wait`, meanwhile nothing that is released enters the pool.
pub(in crate::background) fn without_recycling<T>(wait: impl FnOnce() -> T) -> T {
    struct Waiting;
    impl Drop for Waiting {
        fn drop(&mut self) {
            WAITING.fetch_sub(1, Ordering::Relaxed);
        }
    }
    WAITING.fetch_add(1, Ordering::Relaxed);
    let _waiting = Waiting;
    wait()
}

/// Whether so much memory is left that all CPUs cannot take it before the thread looks
/// again: only then may blocks be there that the kernel cannot take.
pub(super) fn is_memory_ample() -> bool {
    /// Faulting huge pages in takes about twice as long on the fastest machines.
    const BYTES_PER_CPU_AND_MS: usize = 16 << 20;
    if LEDGER.is_due() {
        // On an error the last reading holds.
        let _ = refresh();
    }
    let per_tick = TICK.as_millis() as usize * BYTES_PER_CPU_AND_MS;
    let ample_bytes = (2 * per_tick).saturating_mul(affinity::process_cpu_count());
    let left_bytes = LEDGER.surplus(Watermark::High);
    usize::try_from(left_bytes).is_ok_and(|left_bytes| left_bytes >= ample_bytes)
}

/// Whether memory is so short that pressure is severe.
pub(super) fn is_memory_short() -> bool {
    LEDGER.surplus(Watermark::Low) <= 0
}

/// Returns all blocks to the kernel. Returns whether there were any.
pub(crate) fn empty() -> bool {
    is_on() && give_back(usize::MAX) > 0
}

/// Returns up to `blocks` blocks to the kernel, and says how many.
pub(super) fn give_back(blocks: usize) -> usize {
    let mut given = 0;
    while given < blocks {
        let max = BATCH.min(blocks - given);
        // Those that the kernel cannot take by itself first.
        let claimed = {
            let mut pool = POOL.lock();
            let resident = pool.claim_filled(max, false, None, |block| !block.is_lazy);
            resident.or_else(|| pool.claim_filled(max, false, None, |_| true))
        };
        let Some((run, range, _)) = claimed else {
            break;
        };
        // SAFETY: the places are claimed.
        unsafe { discard(range) };
        stats::POOL_RETURNED_BYTES.add(range.len());
        let places = std::iter::repeat_n(Place::Empty, run.count);
        POOL.lock().publish_all(run.first, places);
        given += run.count;
    }
    given
}

/// Makes blocks lazily free: those that are idle, or all.
pub(super) fn let_go(all: bool) {
    let now = now_secs();
    let is_due = |block: Block| {
        let age_secs = now.saturating_sub(block.since_secs);
        !block.is_lazy && (all || age_secs >= IDLE_SECS)
    };
    loop {
        let claimed = POOL.lock().claim_filled(BATCH, false, None, is_due);
        let Some((run, range, blocks)) = claimed else {
            break;
        };
        // SAFETY: the places are claimed, and zeros.
        let is_lazy = unsafe { free_lazily(range) };
        let places = blocks.into_iter().map(|block| match is_lazy {
            true => Place::Filled(Block { is_lazy, ..block }),
            // Locked, perhaps: not asked again for each tick.
            false => Place::Empty,
        });
        if !is_lazy {
            // SAFETY: the places are claimed.
            unsafe { discard(range) };
            stats::POOL_RETURNED_BYTES.add(range.len());
        }
        POOL.lock().publish_all(run.first, places);
    }
}

/// Returns half of the pool to the kernel, and makes the rest lazily free.
pub(super) fn halve() {
    give_back(filled().div_ceil(2));
    let_go(true);
}

const _: () = assert!(BATCH * BLOCK_BYTES <= 128 << 20);
