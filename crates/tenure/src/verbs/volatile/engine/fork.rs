//! Protecting a forked child's copy of volatile memory.

use super::state::{Engine, can_offer};
use crate::ground::sys::map;
use crate::ground::sys::userfaultfd::Userfaultfd;

impl Engine {
    /// Registers a forked child's copy with a userfaultfd of its own, before the child
    /// can touch a page: `userfaultfd(2)` and `ioctl(UFFDIO_REGISTER)`. A range that
    /// cannot be registered becomes inaccessible: `mprotect(PROT_NONE)`. Opens the
    /// userfaultfd also where only arenas need it.
    ///
    /// Runs in the fork handler: makes system calls only, and neither allocates nor frees.
    /// Returns whether the parent's userfaultfd was open.
    pub(crate) fn reregister_in_child(&mut self, has_arenas: bool) -> bool {
        // The inherited userfaultfd belongs to the parent's address space.
        let was_open = self.uffd.as_ref().is_some_and(Userfaultfd::is_open);
        match self.uffd.take() {
            Some(closed) if !was_open => closed.forget(),
            parents => drop(parents),
        }
        if self.offered.is_empty() && !has_arenas {
            return was_open;
        }
        self.uffd = can_offer().then(Userfaultfd::open).and_then(Result::ok);
        self.epoch += 1;
        for part in self.offered.iter() {
            let is_registered =
                (self.uffd.as_ref()).is_some_and(|uffd| uffd.register(part).is_ok());
            if !is_registered {
                // Zeros must never pass for contents, so the child must not read the
                // range. (Memory that the child does not have, because of MADV_DONTFORK,
                // needs neither.)
                self.is_child_without_access = true;
                let _ = map::protect_none(part);
            }
        }
        was_open
    }
}
