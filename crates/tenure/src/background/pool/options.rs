//! The options of the pool.

use std::time::Duration;

use super::BLOCK_BYTES;
use super::arena::Arena;
use super::state::{CHANGED, POOL, Place, register_fork_handlers};
use super::thread;
use crate::background::freeing::drain_for_retry;
use crate::ground::error::{Error, Result};
use crate::ground::sys::features::Features;
use crate::ground::sys::{Errno, numa, pending};
use crate::observation::stats::stats as all_stats;

/// How much the pool holds. By default, and in a child of `fork`, it is off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use = "options apply once they are given to `configure`"]
pub struct PoolOptions {
    max_bytes: usize,
    prefill_bytes: usize,
    pub(super) prefill_on_use: bool,
    pub(super) recycle_released: bool,
}

impl PoolOptions {
    /// Returns the options of a pool that is off.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets how much the pool holds at most, in bytes, rounded up to 2 MiB. With 0 it is off.
    pub fn max_bytes(mut self, bytes: usize) -> Self {
        self.max_bytes = bytes;
        self
    }

    /// Sets how much the pool is filled with ahead of need, in bytes: no more than
    /// `max_bytes`, and only while several GiB of memory are left.
    pub fn prefill_bytes(mut self, bytes: usize) -> Self {
        self.prefill_bytes = bytes;
        self
    }

    /// Sets whether the pool is prefilled only from the first use on: when 2 MiB and more are
    /// first populated that it could have filled. Processes that never do take no memory.
    pub fn prefill_on_use(mut self, on_use: bool) -> Self {
        self.prefill_on_use = on_use;
        self
    }

    /// Sets whether all private anonymous memory that this process releases with tenure enters
    /// the pool: by [`munmap`](crate::Mapping::munmap), by
    /// [`discard`](crate::Mapping::discard), and when a [`Mapping`](crate::Mapping) is dropped.
    /// Without it only [recycled](crate::Mapping::recycle) memory does.
    ///
    /// It is for programs in which no released page is still in a pipe (`vmsplice(2)`) or in a
    /// socket (MSG_ZEROCOPY): a reader there would find zeros, or the contents of the memory
    /// that gets the page next. The setting is that of the whole process, for memory that
    /// libraries release with tenure as well.
    pub fn recycle_released(mut self, released: bool) -> Self {
        self.recycle_released = released;
        self
    }
}

/// The pool now, and what it has done in this process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolStats {
    /// The bytes that it may hold; 0 while it is off.
    pub max_bytes: u64,
    /// The bytes that it is filled with ahead of need.
    pub prefill_bytes: u64,
    /// The bytes that it holds.
    pub bytes: u64,
    /// The bytes of these that the kernel may take.
    pub lazily_free_bytes: u64,
    /// Recycled bytes that were kept.
    pub recycled_bytes: u64,
    /// Bytes that were taken from the kernel ahead of need.
    pub prefilled_bytes: u64,
    /// Bytes that were given to populated memory.
    pub given_bytes: u64,
    /// Bytes that were returned to the kernel.
    pub returned_bytes: u64,
}

/// Sets the options of the pool of this process. A changed size empties the pool first;
/// `max_bytes` 0 turns it off.
///
/// # Errors
///
/// * [`Error::Unsupported`] without MREMAP_DONTUNMAP (Linux 5.7) or MADV_POPULATE_WRITE
///   (Linux 5.14),
/// * [`Error::System`] with the kernel's answer: ENOMEM without addresses for `max_bytes`
///   (RLIMIT_AS, RLIMIT_DATA, strict overcommit), EAGAIN when no thread can be started, or
///   under `mlockall(MCL_FUTURE)` when RLIMIT_MEMLOCK is smaller,
/// * [`Error::System`] with ESRCH in a child of a process with a pool that was made without
///   `fork(2)`'s handlers (`_Fork`, `clone`, `vfork`): nothing changes.
///
/// The pool is off after any other error.
///
/// ```
/// use tenure::pool::{self, PoolOptions};
///
/// pool::configure(&PoolOptions::new().max_bytes(1 << 30))?;
/// assert_eq!(pool::stats().max_bytes, 1 << 30);
/// # pool::configure(&PoolOptions::new())?;
/// # Ok::<(), tenure::Error>(())
/// ```
pub fn configure(options: &PoolOptions) -> Result<()> {
    let system = |call| move |errno| Error::System { call, errno };
    let places = options.max_bytes.div_ceil(BLOCK_BYTES);
    let max_bytes = places.checked_mul(BLOCK_BYTES);
    let prefill_bytes = max_bytes.map_or(0, |max_bytes| options.prefill_bytes.min(max_bytes));
    let mut pool = POOL.lock();
    if !pool.is_own() {
        return Err(system("fork")(Errno::SRCH));
    }
    if !pool.is_closing && pool.arena.is_some() && pool.places.len() == places {
        pool.set_sources(prefill_bytes, options);
        drop(pool);
        thread::wake();
        return Ok(());
    }
    drop(pool);
    turn_off();
    if places == 0 {
        return Ok(());
    }
    check_features()?;
    register_fork_handlers().map_err(system("pthread_atfork"))?;
    max_bytes.ok_or(Errno::NOMEM).map_err(system("mmap"))?;
    let arena = pending_retry(|| Arena::map(places))
        .map_err(|(call, errno)| Error::System { call, errno })?;
    // The list takes memory, so the kernel is asked first whether it has the addresses.
    let mut list = Vec::new();
    if list.try_reserve_exact(places).is_err() {
        // SAFETY: no other code knows the addresses.
        let _ = unsafe { arena.unmap() };
        return Err(system("malloc")(Errno::NOMEM));
    }
    list.resize(places, Place::Empty);
    pending::set_free(drain_for_retry);
    numa::look_up_nodes();
    let mut pool = POOL.lock();
    if pool.arena.is_some() {
        // Another thread was faster.
        drop(pool);
        // SAFETY: no other code knows the addresses.
        let _ = unsafe { arena.unmap() };
        return Ok(());
    }
    pool.is_closing = false;
    pool.is_woken = true;
    pool.set_arena(Some(arena), list);
    pool.set_sources(prefill_bytes, options);
    drop(pool);
    thread::start().map_err(|errno| {
        turn_off();
        system("clone")(errno)
    })
}

fn pending_retry<T>(
    call: impl Fn() -> std::result::Result<T, (&'static str, Errno)>,
) -> std::result::Result<T, (&'static str, Errno)> {
    match call() {
        Err((_, Errno::NOMEM)) if pending::free() => call(),
        answer => answer,
    }
}

fn check_features() -> Result<()> {
    let features = Features::get();
    for (answer, feature, remedy) in [
        (
            features.mremap_dontunmap,
            "MREMAP_DONTUNMAP",
            "it needs Linux 5.7",
        ),
        (
            features.madv_populate,
            "MADV_POPULATE",
            "it needs Linux 5.14",
        ),
    ] {
        match answer {
            Ok(()) => {}
            // The kernel could not tell.
            Err(errno @ (Errno::NOMEM | Errno::MFILE | Errno::NFILE)) => {
                return Err(Error::System {
                    call: "probing the kernel's features",
                    errno,
                });
            }
            Err(answer) => {
                return Err(Error::Unsupported {
                    verb: "pool",
                    feature,
                    answer,
                    remedy,
                });
            }
        }
    }
    Ok(())
}

/// Empties the pool and unmaps its addresses.
fn turn_off() {
    /// How often a thread that waits for claims looks again.
    const RECHECK_INTERVAL: Duration = Duration::from_secs(1);
    let mut pool = POOL.lock();
    if pool.arena.is_none() {
        return;
    }
    pool.is_closing = true;
    pool.set_sources(0, &PoolOptions::new());
    while pool.claimed > 0 {
        (pool, _) = pool.wait(|pool| CHANGED.wait_timeout(pool, RECHECK_INTERVAL));
    }
    let arena = pool.arena.take();
    let places = std::mem::take(&mut pool.places);
    pool.set_arena(None, Vec::new());
    pool.is_closing = false;
    drop(pool);
    CHANGED.notify_all();
    drop(places);
    if let Some(arena) = arena {
        // SAFETY: no place is claimed, and no other code knows the addresses. An
        // arena that cannot be unmapped (vm.max_map_count) stays reserved, without pages.
        let _ = unsafe { arena.unmap() };
    }
}

/// Returns the pool's size and what it has done.
pub fn stats() -> PoolStats {
    let pool = POOL.lock();
    let (max_bytes, prefill_bytes) = match pool.is_own() {
        true => (pool.places.len() * BLOCK_BYTES, pool.prefill_bytes),
        false => (0, 0),
    };
    drop(pool);
    let all = all_stats();
    PoolStats {
        max_bytes: max_bytes as u64,
        prefill_bytes: prefill_bytes as u64,
        bytes: all.pool_bytes,
        lazily_free_bytes: all.pool_lazily_free_bytes,
        recycled_bytes: all.pool_recycled_bytes,
        prefilled_bytes: all.pool_prefilled_bytes,
        given_bytes: all.pool_given.bytes,
        returned_bytes: all.pool_returned_bytes,
    }
}
