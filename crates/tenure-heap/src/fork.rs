//! Fork handling: jemalloc's handlers make the child's heap consistent, and the heap's own
//! tells it that it has no decay thread.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use tenure::Errno;

use crate::{decay_thread, deferred, jemalloc, main_thread, stats, sys};

static IS_REGISTERED: AtomicBool = AtomicBool::new(false);

/// Whether other handlers before a fork have run when the heap's do.
static IS_LAST: AtomicBool = AtomicBool::new(false);

/// Registers the heap's fork handlers, if that was not done. [`start`](crate::start()) does
/// so by itself.
///
/// A fork takes the heap's locks last if its handlers are registered first. A handler that
/// was registered before them must not wait for a thread that allocates.
pub fn register_fork_handlers() {
    IS_LAST.store(true, Relaxed);
    // A failure shows again when the heap starts.
    let _ = start();
}

/// Returns whether a fork may hold another allocator's locks when it takes the heap's.
pub(crate) fn is_last() -> bool {
    IS_LAST.load(Relaxed)
}

/// Has children reset what is the heap's own. Its handler in children runs after
/// jemalloc's, which jemalloc registers when it is first called.
pub(crate) fn start() -> Result<(), Errno> {
    if IS_REGISTERED.swap(true, Relaxed) {
        return Ok(());
    }
    jemalloc::refresh();
    sys::atfork_child(in_child).inspect_err(|_| IS_REGISTERED.store(false, Relaxed))
}

unsafe extern "C" fn in_child() {
    deferred::reset();
    decay_thread::reset();
    stats::reset();
    main_thread::reset();
}
