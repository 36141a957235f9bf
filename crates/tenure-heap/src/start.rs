//! Starts the heap.

use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

use tenure::{Errno, Error};

use crate::options::HeapOptions;
use crate::space::SPACE;
use crate::{decay_thread, fork, huge, limits, slack};

const NOT_YET: u8 = 0;
const STARTING: u8 = 1;
const READY: u8 = 2;
const OFF: u8 = 3;

static STATE: AtomicU8 = AtomicU8::new(NOT_YET);
static THRESHOLD: AtomicUsize = AtomicUsize::new(256 << 10);

/// Starts this process's heap: reserves its addresses, up to 44 TiB and at least 1 TiB.
/// No memory is taken. Without this call, the first allocation starts the heap with the
/// [default options](HeapOptions::default).
///
/// The first call that succeeds counts; later ones change nothing. A call after a failed one
/// tries again. (An allocation starts the heap only if nobody has tried before.)
///
/// # Errors
///
/// The heap stays off, and all requests go to other allocators:
/// * [`Error::Unsupported`] if addresses are limited (`RLIMIT_AS`), count as memory
///   (`vm.overcommit_memory` is 2), or fewer than 1 TiB are free,
/// * [`Error::System`] if the kernel refuses for another reason; EBUSY while another
///   thread is starting the heap.
///
/// ```
/// if let Err(error) = tenure_heap::start(tenure_heap::HeapOptions::default()) {
///     eprintln!("large blocks come from the system: {error}");
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
        Ok(()) => (READY, options.min_bytes()),
        Err(_) => (OFF, usize::MAX),
    };
    THRESHOLD.store(threshold, Ordering::Relaxed);
    STATE.store(state, Ordering::Release);
    made
}

fn make(options: &HeapOptions) -> Result<(), Error> {
    fork::start().map_err(|errno| Error::System {
        call: "pthread_atfork",
        errno,
    })?;
    huge::start(options);
    limits::start(options);
    decay_thread::start(options);
    SPACE.reserve()?;
    slack::set_live(0);
    Ok(())
}

/// Returns the smallest block that the heap serves, in bytes; `usize::MAX` while it is
/// off.
///
/// ```
/// let is_large = |size| size >= tenure_heap::threshold_bytes();
/// assert!(!is_large(16));
/// ```
#[inline]
#[must_use]
pub fn threshold_bytes() -> usize {
    THRESHOLD.load(Ordering::Relaxed)
}

/// Returns whether the heap is on; starts it if nobody has yet.
#[inline]
pub(crate) fn is_ready() -> bool {
    STATE.load(Ordering::Acquire) == READY || start_by_itself()
}

#[cold]
fn start_by_itself() -> bool {
    STATE.load(Ordering::Acquire) == NOT_YET && start(HeapOptions::default()).is_ok()
}
