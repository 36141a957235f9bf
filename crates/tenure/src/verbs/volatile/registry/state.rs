//! The state that the ENGINE lock guards.

use super::marks::Marks;
use super::objects::Objects;
use crate::ground::range::PageRange;
use crate::observation::stats;
use crate::verbs::volatile::engine::{Engine, can_offer};

/// All volatile memory of the process, and the engine that offers it.
pub(crate) struct Registry {
    /// Plain ranges.
    pub(crate) marks: Marks,
    /// Buffers, each with a word of its own.
    pub(crate) objects: Objects,
    pub(crate) engine: Engine,
}

impl Registry {
    pub(super) const fn new() -> Self {
        Self {
            marks: Marks::new(),
            objects: Objects::new(),
            engine: Engine::new(),
        }
    }

    /// Returns how much is volatile.
    pub(crate) fn volatile_bytes(&self) -> usize {
        let objects = self.objects.volatile().map(|object| object.range.len());
        self.marks.volatile_bytes() + objects.sum::<usize>()
    }

    pub(crate) fn has_volatile(&self) -> bool {
        self.marks.volatile_bytes() > 0 || self.objects.volatile().next().is_some()
    }

    /// Returns whether a range or an object waits to be offered.
    pub(crate) fn has_due(&self) -> bool {
        self.marks.due_bytes() > 0 || self.objects.has_marked()
    }

    /// Flushes the objects' local counts to the process's counters and sets the gauges.
    pub(crate) fn flush_counts(&self) {
        for object in self.objects.all() {
            object.flush_counts();
        }
        self.set_gauges();
    }

    fn set_gauges(&self) {
        let volatile_bytes = self.volatile_bytes();
        stats::VOLATILE_BYTES.set(volatile_bytes);
        let unofferable_bytes = if can_offer() { 0 } else { volatile_bytes };
        stats::UNOFFERABLE_BYTES.set(unofferable_bytes);
    }

    /// Ends the volatility of a range whose contents or mappings go away.
    pub(super) fn forget(&mut self, range: PageRange) {
        let before_bytes = self.marks.volatile_bytes();
        self.marks.forget(range);
        stats::VOLATILE_BYTES.sub(before_bytes - self.marks.volatile_bytes());
        self.engine.forget(range);
    }

    /// Protects a forked child's copy. Neither allocates nor frees.
    pub(super) fn start_in_child(&mut self) {
        // The child's counters begin at zero; the parent flushes these itself.
        for object in self.objects.all() {
            let _parents = object.local_counts.take_delta();
        }
        // The process may never have called tenure: a fork must not create the counters or
        // probe the kernel.
        if self.has_volatile() || self.engine.is_in_use() {
            self.set_gauges();
            self.engine.reregister_in_child();
        }
    }
}
