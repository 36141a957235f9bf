//! Protecting a forked child's copy of arenas.

use super::Arenas;
use crate::ground::sys::map;
use crate::verbs::volatile::counts::COUNTS;
use crate::verbs::volatile::engine::Engine;
use crate::verbs::volatile::word::State;

impl Arenas {
    /// Registers the child's copy with its own userfaultfd. Where that fails, what is
    /// offered becomes inaccessible: zeros must never pass for contents.
    ///
    /// Runs in the fork handler: makes system calls only, and neither allocates nor frees.
    ///
    /// `parents_epoch` is the one in which the parent was protected, if its userfaultfd
    /// `was_open` or a thread of the parent kept it.
    pub(in crate::verbs::volatile) fn start_in_child(
        &mut self,
        engine: &Engine,
        parents_epoch: u64,
        was_open: bool,
    ) {
        // The offers that owners have revoked are subtracted from it.
        self.offered_bytes = COUNTS.sums().revoked_bytes as usize;
        for space in self.spaces.values_mut() {
            // Another thread may be about to unmap it.
            let Some(memory) = space.memory.upgrade() else {
                continue;
            };
            let was_open = was_open || memory.is_kept();
            memory.set_kept(false);
            let was_protected = space.was_protected && space.epoch == parents_epoch && was_open;
            let uffd = engine.uffd_of(engine.epoch()).filter(|_| was_protected);
            let is_protected = uffd.is_some_and(|uffd| {
                let mut blocks = space.blocks.registered(space.range);
                let all_registered = blocks.all(|part| uffd.register(part).is_ok());
                if !all_registered {
                    let _ = uffd.unregister(space.range);
                }
                all_registered
            });
            for (slot, word) in memory.table.words().iter().enumerate() {
                let state = word.read().state();
                if state == State::Busy {
                    // The thread that has claimed it does not exist in the child.
                    word.publish(State::Offered);
                }
                if matches!(state, State::Busy | State::Offered | State::Refused) {
                    let place = memory.table.place(slot);
                    if state != State::Refused {
                        self.offered_bytes += place.len();
                    }
                    // The kernel may have accepted a part of what it refused.
                    if !is_protected && space.was_protected {
                        space.is_inaccessible = true;
                        let _ = map::protect_none(place);
                    }
                }
            }
            if is_protected {
                space.epoch = engine.epoch();
            }
        }
    }
}
