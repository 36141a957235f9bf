//! A child after fork has the ranges, but not their protection: its own
//! userfaultfd gives it back, before the child can touch a page.

use std::sync::OnceLock;

use super::engine::ENGINE;
use crate::ground::sys::fork::at_fork;
use crate::ground::sys::userfaultfd::Userfaultfd;
use crate::ground::sys::{Errno, map};
use crate::observation::stats;

/// Has every later fork protect the child's copy of volatile ranges.
pub(super) fn protect_children() -> Result<(), Errno> {
    static REGISTERED: OnceLock<Result<(), Errno>> = OnceLock::new();
    // Its handler before ours, which sets what that one has cleared.
    stats::begin();
    *REGISTERED.get_or_init(|| at_fork(prepare, parent, child))
}

unsafe extern "C" fn prepare() {
    ENGINE.hold();
}

unsafe extern "C" fn parent() {
    // SAFETY: `prepare` has run in this thread.
    unsafe { ENGINE.let_go(|_| ()) };
}

/// Makes system calls only: neither allocates nor frees.
unsafe extern "C" fn child() {
    // SAFETY: `prepare` has run in the thread that this is a copy of.
    unsafe {
        ENGINE.let_go(|engine| {
            // The inherited one belongs to the parent's address space.
            if let Some(parents) = engine.uffd.take() {
                if parents.is_open() {
                    drop(parents);
                } else {
                    parents.forget();
                }
            }
            if engine.offered.is_empty() {
                return;
            }
            // The child's counters have begun at zero.
            engine.set_offered_bytes(engine.offered_bytes);
            engine.uffd = Userfaultfd::open().ok();
            for part in engine.offered.iter() {
                let part = part.clone().into();
                let protected = engine
                    .uffd
                    .as_ref()
                    .is_some_and(|uffd| uffd.register(part).is_ok());
                if !protected {
                    // Zeros must never pass for contents: no access at all is
                    // the next best. (What the child does not have at all,
                    // memory marked MADV_DONTFORK, needs neither.)
                    engine.barred = true;
                    let _ = map::protect_none(part);
                }
            }
        });
    }
}
