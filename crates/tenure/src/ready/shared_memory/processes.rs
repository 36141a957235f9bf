//! The attached processes: their slots, and what dead ones have left.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::table::Table;
use super::word::{MAX_PROCESSES, Processes, State};
use crate::ground::error::Result;
use crate::ground::sys::Errno;
use crate::ground::sys::shared_file::ProcessId;

/// The slot of a dead process, which the holder of the lock clears.
const CLEARED: u64 = u64::MAX;

/// How often a process that finds no free slot looks again, a millisecond apart.
const ATTEMPTS: u32 = 50;

/// This process, attached to a file. Other values of it may be attached to the same file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attachment {
    pub(crate) slot: usize,
    pub(crate) process: ProcessId,
}

impl Attachment {
    fn id(&self) -> u64 {
        id(self.process)
    }
}

fn id(process: ProcessId) -> u64 {
    u64::from(process.pid) << 32 | u64::from(process.start)
}

/// The lock of the one process that evicts or clears up; dropping it unlocks.
pub(crate) struct Lock<'a> {
    table: &'a Table,
    id: u64,
}

impl Drop for Lock<'_> {
    fn drop(&mut self) {
        let evictor = &self.table.header().evictor;
        let _ = evictor.compare_exchange(self.id, 0, Ordering::Release, Ordering::Relaxed);
    }
}

impl Table {
    /// Attaches this process: EUSERS if all slots have live processes.
    pub(crate) fn attach(&self) -> Result<Attachment> {
        let process = ProcessId::own();
        for _ in 0..ATTEMPTS {
            for (slot, found) in self.header().processes.iter().enumerate() {
                let (success, failure) = (Ordering::AcqRel, Ordering::Relaxed);
                if found
                    .id
                    .compare_exchange(0, id(process), success, failure)
                    .is_ok()
                {
                    found.namespace.store(process.namespace, Ordering::Release);
                    let attachment = Attachment { slot, process };
                    // Bits of a free slot are garbage.
                    self.clear(&attachment, 1 << slot);
                    return Ok(attachment);
                }
            }
            // A slot that is not used yet will not do for clearing up: the claims of dead
            // processes go to this one.
            if !self.free_dead_slot(process) {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        Err(self.refused("too many processes use it", Errno::USERS))
    }

    /// Ends the attachment. The process has no claims, and no pins but these.
    pub(crate) fn detach(&self, attachment: &Attachment, pinned: impl Iterator<Item = usize>) {
        for index in pinned {
            if let Some(entry) = self.entries().get(index) {
                entry.word.unpin(1 << attachment.slot);
            }
        }
        let slot = &self.header().processes[attachment.slot];
        let (success, failure) = (Ordering::AcqRel, Ordering::Relaxed);
        let _ = slot
            .id
            .compare_exchange(attachment.id(), 0, success, failure);
    }

    /// Takes the lock, unless a live process has it.
    pub(crate) fn try_lock(&self, process: ProcessId) -> Option<Lock<'_>> {
        let evictor = &self.header().evictor;
        let own = id(process);
        let (success, failure) = (Ordering::AcqRel, Ordering::Acquire);
        let holder = evictor.compare_exchange(0, own, success, failure).err();
        if let Some(holder) = holder {
            // A holder that is not attached is garbage.
            let is_alive = holder == own || self.is_attached_and_alive(holder, process);
            if is_alive
                || evictor
                    .compare_exchange(holder, own, success, failure)
                    .is_err()
            {
                return None;
            }
        }
        Some(Lock {
            table: self,
            id: own,
        })
    }

    fn is_attached_and_alive(&self, holder: u64, own: ProcessId) -> bool {
        let mut slots = 0..MAX_PROCESSES;
        slots.any(|slot| {
            let (id, process) = self.process(slot);
            id == holder && !process.is_dead(own.namespace)
        })
    }

    fn process(&self, slot: usize) -> (u64, ProcessId) {
        let slot = &self.header().processes[slot];
        let id = slot.id.load(Ordering::Acquire);
        let process = ProcessId {
            pid: (id >> 32) as u32,
            start: id as u32,
            namespace: slot.namespace.load(Ordering::Acquire),
        };
        (id, process)
    }

    /// Returns how many live processes are attached.
    pub(crate) fn live_processes(&self) -> usize {
        let own = ProcessId::own();
        let slots = 0..MAX_PROCESSES;
        let is_live = |slot: &usize| {
            let (id, process) = self.process(*slot);
            id != 0 && id != CLEARED && !process.is_dead(own.namespace)
        };
        slots.filter(is_live).count()
    }

    /// Ends the pins and claims of dead processes. The holder of the lock calls it.
    pub(crate) fn clear_dead(&self, lock: &Lock<'_>, attachment: &Attachment) {
        let dead = self.mark_dead(lock, attachment.process);
        if dead == 0 {
            return;
        }
        self.clear(attachment, dead);
        self.recount();
        self.free_slots(dead);
    }

    /// Marks the slots of dead processes so that nobody takes them before they are cleared,
    /// and returns them.
    fn mark_dead(&self, _: &Lock<'_>, own: ProcessId) -> Processes {
        let slots = 0..MAX_PROCESSES;
        let marked = slots.filter(|&slot| {
            let (id, process) = self.process(slot);
            let found = &self.header().processes[slot].id;
            let (success, failure) = (Ordering::AcqRel, Ordering::Relaxed);
            // A holder of the lock may have died while it cleared the slot.
            id == CLEARED
                || id != 0
                    && process.is_dead(own.namespace)
                    && found
                        .compare_exchange(id, CLEARED, success, failure)
                        .is_ok()
        });
        marked.fold(0, |dead, slot| dead | 1 << slot)
    }

    fn free_slots(&self, slots: Processes) {
        for (slot, found) in self.header().processes.iter().enumerate() {
            if slots & 1 << slot != 0 {
                let (success, failure) = (Ordering::AcqRel, Ordering::Relaxed);
                let _ = found.id.compare_exchange(CLEARED, 0, success, failure);
            }
        }
    }

    /// Gives the slot of a dead process to this one, which has none: it clears what it left
    /// as the owner of that slot. Returns whether there is a free slot now.
    fn free_dead_slot(&self, process: ProcessId) -> bool {
        let Some(lock) = self.try_lock(process) else {
            return false;
        };
        let dead = self.mark_dead(&lock, process);
        if dead == 0 {
            return false;
        }
        let slot = dead.trailing_zeros() as usize;
        self.clear(&Attachment { slot, process }, dead);
        self.recount();
        self.free_slots(dead);
        true
    }

    /// Ends the pins of these processes, and claims what they have claimed, for this one.
    fn clear(&self, attachment: &Attachment, processes: Processes) {
        for index in 0..self.geometry.count {
            let word = &self.entries()[index].word;
            let now = word.read();
            if now.processes() & processes == 0 {
                continue;
            }
            if now.state() == State::Claimed {
                if word.take_over(attachment.slot, processes) {
                    self.drop_claimed(attachment, index);
                }
            } else if word.unpin(processes).is_doomed() {
                self.free_doomed(attachment, index);
            }
        }
    }
}
