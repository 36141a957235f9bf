//! The state that the ENGINE lock guards.

use super::marks::Marks;
use super::objects::Objects;
use crate::ground::range::PageRange;
use crate::observation::stats;
use crate::verbs::volatile::arenas::Arenas;
use crate::verbs::volatile::counts::{COUNTS, Sums};
use crate::verbs::volatile::engine::{Engine, can_offer};
use crate::verbs::volatile::priority::{Priority, Timestamp};

/// How many marks, and how many purged runs, are changed under one ENGINE lock: less than
/// a millisecond.
pub(super) const MAX_RECORDS: usize = 1024;

/// All volatile memory of the process, and the engine that offers it.
pub(crate) struct Registry {
    /// Plain ranges.
    pub(crate) marks: Marks,
    /// Buffers, each with a word of its own.
    pub(crate) objects: Objects,
    /// Buffers of arenas, whose words are in tables.
    pub(in crate::verbs::volatile) arenas: Arenas,
    pub(crate) engine: Engine,
    /// The part of the counts that has been added to the process's counters.
    flushed: Sums,
}

impl Registry {
    pub(super) const fn new() -> Self {
        Self {
            marks: Marks::new(),
            objects: Objects::new(),
            arenas: Arenas::new(),
            engine: Engine::new(),
            flushed: Sums::ZERO,
        }
    }

    /// Returns how much is volatile.
    pub(crate) fn volatile_bytes(&self) -> usize {
        self.marks.volatile_bytes() + COUNTS.sums().volatile_bytes()
    }

    pub(crate) fn has_volatile(&self) -> bool {
        self.volatile_bytes() > 0
    }

    /// Returns whether anything may be registered with the userfaultfd.
    pub(crate) fn has_registrations(&self) -> bool {
        self.engine.is_in_use() && !(self.engine.is_idle() && self.arenas.is_empty())
    }

    /// Returns whether a range or an object waits to be offered.
    pub(crate) fn has_due(&self) -> bool {
        self.marks.due_bytes() > 0 || self.objects.has_marked()
    }

    /// Flushes the counts of marks to the process's counters and sets the gauges.
    pub(crate) fn flush_counts(&mut self) {
        let (sums, flushed) = (COUNTS.sums(), self.flushed);
        let marks = sums.marks - flushed.marks;
        let marked_bytes = sums.marked_bytes - flushed.marked_bytes;
        stats::MARK_VOLATILE.add(marks, marked_bytes);
        let unmarks = sums.unmarks - flushed.unmarks;
        let unmarked_bytes = sums.unmarked_bytes - flushed.unmarked_bytes;
        stats::MARK_NONVOLATILE.add(unmarks, unmarked_bytes);
        self.flushed = sums;
        self.set_gauges();
    }

    fn set_gauges(&self) {
        let volatile_bytes = self.volatile_bytes();
        stats::VOLATILE_BYTES.set(volatile_bytes);
        let revoked_bytes = COUNTS.sums().revoked_bytes;
        let offered_bytes = self.engine.offered_bytes() + self.arenas.offered_bytes(revoked_bytes);
        stats::OFFERED_BYTES.set(offered_bytes);
        let unofferable_bytes = if can_offer() { 0 } else { volatile_bytes };
        stats::UNOFFERABLE_BYTES.set(unofferable_bytes);
    }

    /// Returns the first part of the range, of which as much is recorded as is changed under
    /// one lock.
    pub(super) fn first_part(&self, range: PageRange) -> PageRange {
        let marks_end = self.marks.end_after(range, MAX_RECORDS);
        let purged_end = self.engine.end_after_purged(range, MAX_RECORDS);
        PageRange::between(range.start(), marks_end.min(purged_end))
    }

    /// Marks the first part of the range, which the engine has validated. Returns the rest.
    /// A child that is forked between two parts has marked the first ones only.
    pub(crate) fn mark_part(
        &mut self,
        range: PageRange,
        priority: Priority,
        timestamp: Timestamp,
    ) -> PageRange {
        let part = self.first_part(range);
        let before_bytes = self.marks.volatile_bytes();
        self.marks.mark_validated(part, priority, timestamp);
        stats::VOLATILE_BYTES.add(self.marks.volatile_bytes() - before_bytes);
        PageRange::between(part.end(), range.end())
    }

    /// Ends the volatility of the marked parts of the range. Returns how much was volatile.
    pub(crate) fn set_nonvolatile(&mut self, range: PageRange) -> usize {
        let before_bytes = self.marks.volatile_bytes();
        self.marks.set_nonvolatile(range);
        let done_bytes = before_bytes - self.marks.volatile_bytes();
        stats::VOLATILE_BYTES.sub(done_bytes);
        done_bytes
    }

    /// Ends the volatility of a range whose contents or mappings go away, a chunk of it.
    /// Returns the rest. A forgotten part has no mark any more, so that a child that is
    /// forked between two chunks does not rely on it.
    pub(super) fn forget_chunk(&mut self, range: PageRange) -> PageRange {
        let end = self.engine.forget_chunk(range);
        self.forget_marks(PageRange::between(range.start(), end));
        PageRange::between(end, range.end())
    }

    /// Forgets the marks and the purged pages of a range whose contents or mappings go away.
    pub(super) fn forget_records(&mut self, range: PageRange) {
        self.forget_marks(range);
        self.engine.forget_purged(range);
    }

    pub(super) fn forget_marks(&mut self, range: PageRange) {
        let before_bytes = self.marks.volatile_bytes();
        self.marks.forget(range);
        stats::VOLATILE_BYTES.sub(before_bytes - self.marks.volatile_bytes());
    }

    /// Protects a forked child's copy. Neither allocates nor frees. Returns whether
    /// anything is volatile.
    pub(super) fn start_in_child(&mut self) -> bool {
        // The child's counters begin at zero; the parent flushes these itself.
        self.flushed = COUNTS.sums();
        // The process may never have called tenure: a fork must not create the counters or
        // probe the kernel.
        let has_volatile = self.has_volatile();
        let has_arenas = self.arenas.is_in_use();
        if has_volatile || has_arenas || self.engine.is_in_use() {
            let epoch = self.engine.epoch();
            let was_open = self.engine.reregister_in_child(has_arenas);
            self.arenas.start_in_child(&self.engine, epoch, was_open);
            self.set_gauges();
        }
        has_volatile
    }
}
