//! Starts the heap.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};

use tenure::{Errno, Error};

use crate::entry::WORDS;
use crate::options::HeapOptions;
use crate::{decay_thread, fork, huge, jemalloc, late, main_thread, pages, stats, sys, table};

const NOT_YET: u8 = 0;
const STARTING: u8 = 1;
const READY: u8 = 2;
const OFF: u8 = 3;

static STATE: AtomicU8 = AtomicU8::new(NOT_YET);
static THRESHOLD: AtomicUsize = AtomicUsize::new(0);

/// The threshold while the heap is on; before and without it, no size reaches this.
static SERVED_FROM: AtomicUsize = AtomicUsize::new(usize::MAX);

/// The sizes below this one are served without another check; 0 before and without the heap,
/// if it has a threshold, once it was near the end of memory, and while the short way is
/// closed.
static SMALL_LIMIT: AtomicUsize = AtomicUsize::new(0);

static IS_NEAR_END: AtomicBool = AtomicBool::new(false);
static IS_CLOSED: AtomicBool = AtomicBool::new(false);
static CALLERS_COUNT: AtomicBool = AtomicBool::new(false);

/// Starts this process's heap. Without this call, the first allocation starts it with the
/// [default options](HeapOptions::default).
///
/// The first call that succeeds counts; later ones change nothing. A call after a failed one
/// tries again. (An allocation starts the heap only if nobody has tried before.)
///
/// # Errors
///
/// The heap stays off, and all requests go to other allocators:
/// * [`Error::System`] if the kernel gives no memory for its tables (ENOMEM), or does not
///   discard memory although it says so (ENOSYS), as QEMU's user mode before 7.1; EBUSY while
///   another thread is starting the heap; EOPNOTSUPP if the heap was built for smaller pages
///   than the kernel has.
///
/// ```
/// if let Err(error) = tenure_heap::start(tenure_heap::HeapOptions::default()) {
///     eprintln!("blocks come from the system: {error}");
/// }
/// ```
pub fn start(options: HeapOptions) -> Result<(), Error> {
    let (success, failure) = (Ordering::Acquire, Ordering::Acquire);
    let begin = |before| STATE.compare_exchange(before, STARTING, success, failure);
    if let Err(found) = begin(NOT_YET).or_else(|_| begin(OFF)) {
        return match found {
            READY => Ok(()),
            _ => Err(Error::System {
                call: "starting the heap",
                errno: Errno::BUSY,
            }),
        };
    }
    let made = make(&options);
    let (state, threshold) = match made {
        Ok(()) => (READY, options.threshold_bytes),
        Err(_) => (OFF, usize::MAX),
    };
    THRESHOLD.store(threshold, Ordering::Relaxed);
    STATE.store(state, Ordering::Release);
    SERVED_FROM.store(threshold, Ordering::Release);
    set_small_limit();
    made
}

fn make(options: &HeapOptions) -> Result<(), Error> {
    if !jemalloc::has_pages_for(sys::page_bytes()) {
        return Err(Error::System {
            call: "starting a heap that was built for smaller pages than this kernel has \
                   (JEMALLOC_SYS_WITH_LG_PAGE)",
            errno: Errno::NOTSUP,
        });
    }
    if !sys::discards_to_zeros() {
        return Err(Error::System {
            call: "madvise(MADV_DONTNEED)",
            errno: Errno::NOSYS,
        });
    }
    let has_hooks = jemalloc::install_hooks();
    let first = has_hooks.then(jemalloc::claim_early_pages).flatten();
    let first = first.filter(|_| pages::prepare_reserve());
    table::start_span(first.ok_or(Error::System {
        call: "mmap",
        errno: Errno::NOMEM,
    })?);
    fork::start().map_err(|errno| Error::System {
        call: "pthread_atfork",
        errno,
    })?;
    huge::start(options);
    stats::prepare();
    decay_thread::start(options);
    main_thread::watch();
    Ok(())
}

/// Returns the smallest block that the heap serves, in bytes; `usize::MAX` if it is off.
///
/// ```
/// assert_eq!(tenure_heap::threshold_bytes(), 0);
/// ```
#[inline]
#[must_use]
pub fn threshold_bytes() -> usize {
    THRESHOLD.load(Ordering::Relaxed)
}

/// Sets the limits for small blocks by what they depend on.
fn set_small_limit() {
    loop {
        let is_open = has_started()
            && threshold_bytes() == 0
            && !IS_NEAR_END.load(Ordering::SeqCst)
            && !IS_CLOSED.load(Ordering::SeqCst);
        let limit = match is_open {
            true => late::MIN_COUNTED_BYTES,
            false => 0,
        };
        let entry_limit = match CALLERS_COUNT.load(Ordering::SeqCst) {
            true => 0,
            false => limit,
        };
        let is_same = SMALL_LIMIT.swap(limit, Ordering::SeqCst) == limit;
        if WORDS.limit.swap(entry_limit, Ordering::SeqCst) == entry_limit && is_same {
            // Another thread that changes the conditions finds these values, or they are
            // what it stores.
            return;
        }
    }
}

/// Has all requests take the long way, on which another allocator is asked where the heap has
/// no memory.
pub(crate) fn note_end_of_memory() {
    if !IS_NEAR_END.swap(true, Ordering::SeqCst) {
        set_small_limit();
    }
}

/// Has no request be served without another check, or those below [`small_limit`] again; of the
/// latter those that come by way of the [entry points](crate::entry) only if it does not count
/// who calls.
#[doc(hidden)]
pub fn close_short_way(is_closed: bool, callers_count: bool) {
    // In this order: another thread may set the limits in between.
    CALLERS_COUNT.store(callers_count, Ordering::SeqCst);
    IS_CLOSED.store(is_closed, Ordering::SeqCst);
    set_small_limit();
}

/// Returns the size below which [`allocate_small`](crate::allocate_small) serves requests.
#[doc(hidden)]
#[inline]
#[must_use]
pub fn small_limit() -> usize {
    SMALL_LIMIT.load(Ordering::Acquire)
}

/// Returns whether the heap serves a request; starts it if nobody has yet.
#[inline]
pub(crate) fn is_served(size: usize) -> bool {
    size >= SERVED_FROM.load(Ordering::Acquire) || (has_not_started() && start_and_serve(size))
}

#[inline]
fn has_not_started() -> bool {
    STATE.load(Ordering::Relaxed) == NOT_YET
}

/// Returns whether the heap was started.
pub(crate) fn has_started() -> bool {
    STATE.load(Ordering::Acquire) == READY
}

#[cold]
fn start_and_serve(size: usize) -> bool {
    start(HeapOptions::default()).is_ok() && size >= threshold_bytes()
}
