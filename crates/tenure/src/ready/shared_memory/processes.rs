//! The attached processes: their slots, and what dead ones have left.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::layout::{Kind, Slot};
use super::table::Table;
use super::word::{MAX_PROCESSES, Processes, State};
use crate::ground::error::Result;
use crate::ground::sys::Errno;
use crate::ground::sys::shared_file::ProcessId;

/// A bit of the slot of a dead process: the process whose number follows clears it. (A number
/// has fewer bits.)
const CLEARING: u64 = 1 << 63;

/// The namespace of a process that has not told it yet, or of none.
const UNKNOWN: u64 = u64::MAX;

/// How often a process that finds no free slot looks again, a millisecond apart.
const ATTEMPTS: u32 = 20;

/// This process, attached to a file. Other values of it may be attached to the same file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attachment {
    pub(crate) slot: usize,
    pub(crate) process: ProcessId,
    /// When a call has waited for all of its turns together.
    deadline: Option<Instant>,
}

impl Attachment {
    fn new(slot: usize, process: ProcessId) -> Self {
        Self {
            slot,
            process,
            deadline: None,
        }
    }

    /// Returns the attachment for one call of a program, which waits for others at most so
    /// long, however many turns it takes.
    pub(crate) fn within(&self, limit: Duration) -> Self {
        Self {
            deadline: Some(Instant::now() + limit),
            ..*self
        }
    }

    /// Returns how long the call may still wait; `None` if it has no limit.
    pub(crate) fn time_left(&self) -> Option<Duration> {
        let deadline = self.deadline?;
        Some(deadline.saturating_duration_since(Instant::now()))
    }

    /// Whether the call may wait no longer.
    pub(crate) fn is_late(&self) -> bool {
        self.time_left() == Some(Duration::ZERO)
    }

    fn id(&self) -> u64 {
        id(self.process)
    }
}

fn id(process: ProcessId) -> u64 {
    u64::from(process.pid) << 32 | u64::from(process.start)
}

impl Slot {
    /// Frees the slot, if it still has this value.
    fn free(&self, id: u64) {
        if self.id.load(Ordering::Relaxed) == id {
            self.namespace.store(UNKNOWN, Ordering::Relaxed);
            let (success, failure) = (Ordering::AcqRel, Ordering::Relaxed);
            let _ = self.id.compare_exchange(id, 0, success, failure);
        }
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
                    let attachment = Attachment::new(slot, process);
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
        self.header().processes[attachment.slot].free(attachment.id());
    }

    /// Returns whether the process of a slot is dead or stopped, as far as this one can tell.
    pub(crate) fn is_halted(&self, slot: usize, attachment: &Attachment) -> bool {
        let (id, process) = self.process(slot);
        let own = attachment.process.namespace;
        id == 0 || process.is_dead(own) || process.is_stopped(own)
    }

    /// Returns whether the process of a slot is dead, as far as this one can tell.
    pub(crate) fn is_dead(&self, slot: usize, attachment: &Attachment) -> bool {
        let (id, process) = self.process(slot);
        id == 0 || process.is_dead(attachment.process.namespace)
    }

    fn process(&self, slot: usize) -> (u64, ProcessId) {
        let slot = &self.header().processes[slot];
        let id = slot.id.load(Ordering::Acquire);
        let process = ProcessId {
            pid: ((id & !CLEARING) >> 32) as u32,
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
            id != 0 && id & CLEARING == 0 && !process.is_dead(own.namespace)
        };
        slots.filter(is_live).count()
    }

    /// Ends the pins and claims of dead processes.
    pub(crate) fn clear_dead(&self, attachment: &Attachment) {
        let dead = self.take_dead(attachment.process);
        if dead != 0 {
            self.clear(attachment, dead);
            self.recount();
            self.free_slots(attachment.process, dead);
        }
    }

    /// Takes the slots of dead processes, so that only this one clears them, and returns them.
    /// If it dies, another process takes them.
    fn take_dead(&self, own: ProcessId) -> Processes {
        let taken = (0..MAX_PROCESSES).filter(|&slot| {
            let (id, process) = self.process(slot);
            let found = &self.header().processes[slot].id;
            let (success, failure) = (Ordering::AcqRel, Ordering::Relaxed);
            // The namespace stays: this process could tell, so it is its own.
            id != 0
                && process.is_dead(own.namespace)
                && found
                    .compare_exchange(id, CLEARING | self::id(own), success, failure)
                    .is_ok()
        });
        taken.fold(0, |dead, slot| dead | 1 << slot)
    }

    fn free_slots(&self, own: ProcessId, slots: Processes) {
        for (slot, found) in self.header().processes.iter().enumerate() {
            if slots & 1 << slot != 0 {
                found.free(CLEARING | id(own));
            }
        }
    }

    /// Gives the slot of a dead process to this one, which has none: it clears what it left
    /// as the owner of that slot. Returns whether there is a free slot now.
    fn free_dead_slot(&self, process: ProcessId) -> bool {
        let dead = self.take_dead(process);
        if dead == 0 {
            return false;
        }
        let slot = dead.trailing_zeros() as usize;
        self.clear(&Attachment::new(slot, process), dead);
        self.recount();
        self.free_slots(process, dead);
        true
    }

    /// Ends the pins of these processes, and claims what they have claimed, for this one.
    fn clear(&self, attachment: &Attachment, processes: Processes) {
        self.end_flights(processes);
        for index in 0..self.geometry.count {
            let word = &self.entries()[index].word;
            let now = word.read();
            if now.processes() & processes == 0 {
                continue;
            }
            if now.state() == State::Claimed {
                if word.take_over(attachment.slot, processes) {
                    self.drop_claimed(&mut self.turn_or_go(attachment), attachment, index);
                }
            } else if self.geometry.kind == Kind::Cache && now.state() == State::Live {
                if word.take_over_replacing(attachment.slot, processes) {
                    self.end_replacing(&mut self.turn_or_go(attachment), attachment, index);
                }
            } else if word.unpin(processes).is_doomed() {
                self.free_doomed(&mut self.turn_or_go(attachment), attachment, index);
            }
        }
    }
}
