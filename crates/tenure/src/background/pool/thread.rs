//! The thread that fills and shrinks the pool.

use std::time::Duration;

use super::BLOCK_BYTES;
use super::recycle::now_secs;
use super::shrink::{
    empty, halve, is_memory_ample, is_memory_short, is_news, let_go, level, may_keep, set_level,
};
use super::state::{Block, CHANGED, POOL, Place, State, is_first_use};
use crate::ground::range::PageRange;
use crate::ground::sys::page_runs::populate_write;
use crate::ground::sys::pagemap;
use crate::ground::sys::thread::Thread;
use crate::ground::sys::{Errno, empty_table, numa, pmd_bytes};
use crate::observation::headroom::{Watermark, take};
use crate::observation::pressure::{self, Level};
use crate::observation::stats;

/// How often the thread looks at the headroom while the pool holds blocks that the kernel
/// cannot take.
pub(super) const TICK: Duration = Duration::from_millis(50);

/// How often it tries again to prefill, where memory was unavailable.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// Starts the thread, if there is a pool and no thread.
///
/// # Errors
///
/// The kernel's error; a later change of the pool tries again.
pub(super) fn start() -> Result<(), Errno> {
    let mut pool = POOL.lock();
    if pool.arena.is_none() || pool.has_thread {
        return Ok(());
    }
    pool.has_thread = true;
    drop(pool);
    Thread::start_background(c"tenure-pool", run)
        .map(drop)
        .inspect_err(|_| POOL.lock().has_thread = false)
}

/// Has the thread look at new blocks, for which it has to be woken if it `sleeps`.
pub(super) fn watch_blocks(sleeps: bool) {
    // A worker does not start it: it would share the worker's descriptor table, and so would
    // the thread that calls other subscribers.
    if !POOL.lock().has_thread {
        // Nobody else would notice that memory becomes short.
        let_go(true);
    }
    if sleeps {
        wake();
    }
}

/// Has the thread begin to prefill, if that has waited for a use.
pub(super) fn note_use() {
    if is_first_use() {
        wake();
    }
}

/// Has the thread fill what was taken.
pub(super) fn wake_for_room() {
    if POOL.lock().prefill_bytes > 0 {
        wake();
    }
}

/// Wakes the thread.
pub(super) fn wake() {
    POOL.lock().is_woken = true;
    CHANGED.notify_all();
}

fn run() {
    set_level(Level::None);
    // Without it, the headroom tells alone.
    let subscription = pressure::subscribe(|level| {
        set_level(level);
        wake();
    });
    // Only after it has perhaps started the thread that calls other subscribers.
    let _ = empty_table::enter();
    loop {
        let mut pool = POOL.lock();
        let wait = wait_of(&pool);
        if !pool.is_woken && wait.is_none_or(|wait| !wait.is_zero()) {
            (pool, _) = pool.wait(|pool| {
                CHANGED.wait_timeout_while(pool, wait.unwrap_or(Duration::MAX), |pool| {
                    !pool.is_woken && pool.arena.is_some()
                })
            });
        }
        if pool.arena.is_none() {
            pool.has_thread = false;
            break;
        }
        pool.is_woken = false;
        pool.prefill_failed = false;
        drop(pool);
        look();
        prefill();
    }
    drop(subscription);
}

/// Returns how long the thread may sleep; `None` until it is woken.
fn wait_of(pool: &State) -> Option<Duration> {
    let resident = pool.filled - pool.lazy;
    match (resident > 0, pool.prefill_failed) {
        (true, _) => Some(TICK),
        (false, true) => Some(RETRY_INTERVAL),
        (false, false) => None,
    }
}

/// Gives back what memory is too short for.
fn look() {
    match level() {
        Level::Severe => drop(empty()),
        Level::Some if is_news() => halve(),
        Level::None if is_memory_ample() => let_go(false),
        Level::Some | Level::None if is_memory_short() => drop(empty()),
        Level::Some | Level::None => let_go(true),
    }
}

/// Populates places until the pool holds what it is to be filled with.
fn prefill() {
    while may_keep() {
        let claimed = {
            let mut pool = POOL.lock();
            let wanted = match pool.is_unused {
                true => 0,
                false => pool.prefill_bytes / BLOCK_BYTES,
            };
            match pool.filled + pool.claimed < wanted {
                true => pool.claim_empty(1),
                false => None,
            }
        };
        let Some((run, range)) = claimed else { return };
        // Lazily free at once, it would be taken and populated in turns.
        let block = is_memory_ample().then(|| populate(range)).flatten();
        let mut pool = POOL.lock();
        pool.prefill_failed = block.is_none();
        pool.publish(run.first, block.map_or(Place::Empty, Place::Filled));
        if block.is_none() {
            return;
        }
    }
    let mut pool = POOL.lock();
    pool.prefill_failed = pool.prefill_bytes > 0;
}

/// Populates a place. `None`, with the place empty, where memory is unavailable.
fn populate(place: PageRange) -> Option<Block> {
    let admission = take(BLOCK_BYTES, Watermark::High)?;
    let answer = populate_write(place);
    admission.mark_resident(BLOCK_BYTES);
    if answer.is_err() {
        // SAFETY: the place is claimed.
        unsafe { super::arena::discard(place) };
        return None;
    }
    stats::POOL_PREFILLED_BYTES.add(BLOCK_BYTES);
    Some(Block {
        is_huge: is_huge(place),
        is_lazy: false,
        node: numa::node_of(place.start()),
        since_secs: now_secs(),
    })
}

fn is_huge(place: PageRange) -> bool {
    let middle = place.start() + BLOCK_BYTES / 2;
    pmd_bytes() == BLOCK_BYTES && pagemap::is_inside_huge_page(middle) == Some(true)
}
