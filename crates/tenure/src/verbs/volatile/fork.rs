//! A child after fork has the ranges, but not their protection: its own
//! userfaultfd gives it back, before the child can touch a page.

use std::sync::OnceLock;

use super::engine::{ENGINE, can_offer};
use super::keeper;
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
    keeper::forget_in_child();
    // SAFETY: `prepare` has run in the thread that this is a copy of.
    unsafe {
        ENGINE.let_go(|engine| {
            // The inherited one belongs to the parent's address space.
            let was_open = engine.uffd.as_ref().is_some_and(Userfaultfd::is_open);
            match engine.uffd.take() {
                Some(closed) if !was_open => closed.forget(),
                parents => drop(parents),
            }
            // The child's counters have begun at zero.
            for object in engine.objects.all() {
                let _parents = object.tally.news();
            }
            engine.count_volatile();
            engine.set_offered_bytes(engine.offered_bytes);
            if engine.offered.is_empty() && engine.arenas.is_empty() {
                return;
            }
            engine.uffd = can_offer().then(Userfaultfd::open).and_then(Result::ok);
            for arena in engine.arenas.values_mut() {
                // Where it was not watched, pages in use may be missing. The
                // offered parts follow.
                arena.is_watched = arena.is_watched
                    && was_open
                    && (engine.uffd.as_ref())
                        .is_some_and(|uffd| uffd.register(arena.range).is_ok());
            }
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
                    engine.closed_to_child = true;
                    let _ = map::protect_none(part);
                }
            }
        });
    }
}
