//! How the heap begins.

use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

use tenure::{Errno, Error};

use crate::options::HeapOptions;
use crate::space::SPACE;
use crate::{fork, huge, keeper, limits, spare};

const NOT_YET: u8 = 0;
const STARTING: u8 = 1;
const READY: u8 = 2;
const OFF: u8 = 3;

static STATE: AtomicU8 = AtomicU8::new(NOT_YET);
static THRESHOLD: AtomicUsize = AtomicUsize::new(256 << 10);

/// Starts the heap of this process: reserves its addresses, 44 TiB where there are as
/// many and 1 TiB at least. No memory is taken. Who does not call it gets the
/// [default options](HeapOptions::default) with the first block.
///
/// The first call counts; later ones change nothing.
///
/// # Errors
///
/// The heap stays off, and all requests go to other allocators:
/// * [`Error::Unsupported`] where addresses are limited (`RLIMIT_AS`), are charged as
///   memory (`vm.overcommit_memory` is 2), or there are less than 1 TiB,
/// * [`Error::System`] when the kernel refuses for another reason; EBUSY while
///   another thread is starting it, EALREADY if it could not be started before.
///
/// ```
/// if let Err(error) = tenure_heap::start(tenure_heap::HeapOptions::default()) {
///     eprintln!("large blocks come from the system: {error}");
/// }
/// ```
pub fn start(options: HeapOptions) -> Result<(), Error> {
    let (success, failure) = (Ordering::Acquire, Ordering::Acquire);
    let already = |errno| Error::System {
        call: "starting the heap",
        errno,
    };
    match STATE.compare_exchange(NOT_YET, STARTING, success, failure) {
        Ok(_) => {}
        Err(READY) => return Ok(()),
        Err(STARTING) => return Err(already(Errno::BUSY)),
        Err(_) => return Err(already(Errno::ALREADY)),
    }
    let made = make(&options);
    let (state, threshold) = match made {
        Ok(()) => (READY, options.least_bytes()),
        Err(_) => (OFF, usize::MAX),
    };
    THRESHOLD.store(threshold, Ordering::Relaxed);
    STATE.store(state, Ordering::Release);
    made
}

fn make(options: &HeapOptions) -> Result<(), Error> {
    fork::look_after_children().map_err(|errno| Error::System {
        call: "pthread_atfork",
        errno,
    })?;
    huge::start(options);
    limits::start(options);
    keeper::start(options);
    SPACE.reserve()?;
    spare::set_live(0);
    Ok(())
}

/// The smallest block that the heap serves, in bytes; `usize::MAX` while it is off.
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

/// Whether there is a heap; starts it if nobody has yet.
#[inline]
pub(crate) fn is_ready() -> bool {
    STATE.load(Ordering::Acquire) == READY || start_by_itself()
}

#[cold]
fn start_by_itself() -> bool {
    STATE.load(Ordering::Acquire) == NOT_YET && start(HeapOptions::default()).is_ok()
}
