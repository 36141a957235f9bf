//! Which process this is, without a system call.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// How often the process or one of its ancestors has been forked, seen from the child.
static GENERATION: AtomicUsize = AtomicUsize::new(0);

/// A process among those that fork has made of one program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Process(usize);

impl Process {
    pub(crate) fn this() -> Self {
        static IS_REGISTERED: AtomicBool = AtomicBool::new(false);
        extern "C" fn in_child() {
            GENERATION.fetch_add(1, Ordering::Relaxed);
        }
        if !IS_REGISTERED.swap(true, Ordering::Relaxed) {
            // SAFETY: the shared library is never unloaded. Without memory for it a child
            // counts the pages of its parent's caches.
            unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        }
        Self(GENERATION.load(Ordering::Relaxed))
    }

    /// Returns whether the process is the one that runs this.
    pub(crate) fn is_this(self) -> bool {
        self.0 == GENERATION.load(Ordering::Relaxed)
    }
}
