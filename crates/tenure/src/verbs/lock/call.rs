//! A call that locks or unlocks in several steps.
//!
//! It reads the mappings without the registry's mutex: for each of them that takes about
//! 10 µs, and before Linux 6.11 all mappings of the process are read each time. From its
//! beginning on, the registry knows which parts of the range no other call has changed.
//! There the locks are as they were when the call read them; the other parts are no longer
//! its own. If a step fails, the call restores the locks that were there before.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use rangemap::{RangeMap, RangeSet};

use super::registry::{
    self, CallNumber, LockedPart, Registry, is_locked, registry, registry_in_turn, to_change,
};
use super::{LockFlags, LockMode, apply, droppable, explain, find_droppable, limit};
use crate::background::chunk_sizer::ChunkSizer;
use crate::ground::error::{Error, Result};
use crate::ground::range::PageRange;
use crate::ground::sys::vma::{self, Vma};
use crate::ground::sys::{Errno, lock};
use crate::verbs::populate::{CHUNK_TARGET, YIELD_INTERVAL, YIELD_PAUSE};

/// The most mappings that a call locks, unlocks or reads the modes of while it holds the
/// registry's mutex: about 1 ms. No range below [`MIN_CHUNKED_BYTES`] has more.
///
/// [`MIN_CHUNKED_BYTES`]: super::chunked::MIN_CHUNKED_BYTES
pub(super) const MAX_MAPPINGS: usize = 256;

/// The mappings of a range, read without the registry's mutex.
pub(super) struct Cover {
    pub(super) range: PageRange,
    vmas: Vec<Vma>,
    changes: u64,
}

impl Cover {
    pub(super) fn read(range: PageRange) -> Result<Self> {
        let changes = registry::changes();
        let vmas = vma::cover(range)?;
        Ok(Self {
            range,
            vmas,
            changes,
        })
    }

    /// Whether one step may lock or unlock all of it.
    pub(super) fn is_one_step(&self) -> bool {
        self.vmas.len() <= MAX_MAPPINGS
    }

    /// Returns the mappings. The locks that begin or end within one of them have been made
    /// by other code or since the mappings were read.
    pub(super) fn vmas(&self) -> &[Vma] {
        &self.vmas
    }

    /// Whether no other call has changed a lock since. The caller holds the mutex.
    fn is_current(&self) -> bool {
        self.changes == registry::changes()
    }

    /// Returns the locked parts, or `None` where only smaps tells a mode or the mappings
    /// have changed.
    pub(super) fn locked_parts(&self, registry: &Registry) -> Option<Vec<LockedPart>> {
        if self.is_current() {
            registry.known_parts(&self.vmas)
        } else {
            (!is_locked(self.range)).then(Vec::new)
        }
    }
}

/// The state to which a call changes its range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    Lock(LockMode),
    Unlock(LockFlags),
}

/// The part that the kernel refused to change.
#[derive(Debug)]
pub(super) struct Refused {
    pub(super) part: PageRange,
    /// [`DROPPABLE`] for memory that the kernel passes over.
    pub(super) errno: Errno,
}

/// Not an answer of the kernel's to a lock.
const DROPPABLE: Errno = Errno::OPNOTSUPP;

/// A call in progress. Dropping one that locks before it is done restores the previous
/// locks.
pub(super) struct Call {
    number: CallNumber,
    range: PageRange,
    vmas: Vec<Vma>,
    /// The locks before the call.
    before: Vec<LockedPart>,
    /// The parts of the range that earlier calls were still changing, and their targets.
    taken_over: Vec<(PageRange, Target)>,
    is_undone_on_drop: bool,
}

impl Call {
    pub(super) fn begin(cover: Cover, target: Target) -> Result<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let mut registry = registry();
        let is_current = cover.is_current();
        let taken_over = registry.begin(cover.range, number, target);
        drop(registry);
        let mut call = Self {
            number,
            range: cover.range,
            vmas: cover.vmas,
            before: Vec::new(),
            taken_over,
            is_undone_on_drop: false,
        };
        if target == Target::Unlock(LockFlags::ALL) || !is_locked(call.range) {
            return Ok(call);
        }
        if !is_current {
            call.vmas = vma::cover(call.range)?;
        }
        call.before = call.read_locked_parts()?;
        Ok(call)
    }

    fn read_locked_parts(&self) -> Result<Vec<LockedPart>> {
        let mut parts = Vec::new();
        for vmas in self.vmas.chunks(MAX_MAPPINGS) {
            let chunk = PageRange::between(vmas[0].range.start(), vmas[vmas.len() - 1].range.end());
            if !is_locked(chunk) {
                continue;
            }
            let registry = registry_in_turn();
            let own = registry.parts_of(self.number, chunk);
            let own: Vec<Vma> = own.into_iter().flat_map(|part| self.clip(part)).collect();
            match registry.known_parts(&own) {
                Some(known) => parts.extend(known),
                None => {
                    drop(registry);
                    return registry::read_smaps(&self.vmas);
                }
            }
        }
        Ok(parts)
    }

    pub(super) fn vmas(&self) -> &[Vma] {
        &self.vmas
    }

    /// Returns an error if the limit does not allow the lock, which the kernel compares with
    /// one chunk at a time. Otherwise, dropping the call from now on undoes it.
    pub(super) fn check_limit(&mut self) -> Result<()> {
        if let Some(error) = limit::range_error(self.range, &self.before) {
            for &(part, _) in &self.taken_over {
                self.restore(part);
            }
            return Err(error);
        }
        self.is_undone_on_drop = true;
        Ok(())
    }

    pub(super) fn done(mut self) {
        self.is_undone_on_drop = false;
    }

    /// Returns the parts that are, or were about to be, locked in the given modes, without
    /// those that are kept.
    pub(super) fn parts_to_unlock(&self, flags: LockFlags) -> Vec<PageRange> {
        let mut parts = RangeSet::new();
        if flags == LockFlags::ALL {
            parts.insert(self.range.as_std());
        } else {
            let cleared = self.before.iter().filter(|part| flags.contains(part.1));
            let taken_over = self.taken_over.iter().map(|(part, _)| *part);
            for part in cleared.map(|part| part.0).chain(taken_over) {
                parts.insert(part.as_std());
            }
        }
        let registry = registry();
        let unkept = parts
            .into_iter()
            .flat_map(|part| registry.unkept_parts(PageRange::from(part)));
        unkept.collect()
    }

    /// Returns the parts of the range that this call may set to the mode, or unlock. It
    /// unlocks no range that is kept, which may have been mapped since it began.
    fn parts_to_change(
        &self,
        registry: &Registry,
        range: PageRange,
        mode: Option<LockMode>,
    ) -> Vec<PageRange> {
        let own = registry.parts_of(self.number, range);
        match mode {
            Some(_) => own,
            None => {
                let unkept = own.into_iter().flat_map(|part| registry.unkept_parts(part));
                unkept.collect()
            }
        }
    }

    /// Changes the lock of the range in chunks, except in parts that another call has
    /// locked, unlocked or unmapped since this one began.
    pub(super) fn change(
        &self,
        range: PageRange,
        set: impl Fn(PageRange) -> std::result::Result<(), Errno>,
        mode: Option<LockMode>,
    ) -> std::result::Result<(), Refused> {
        let mut chunk_sizer = ChunkSizer::new(CHUNK_TARGET, None);
        let mut rest = range;
        while !rest.is_empty() {
            let chunk = self.first_chunk(rest, chunk_sizer.chunk_bytes());
            let mut registry = to_change(registry_in_turn());
            let started = Instant::now();
            for part in self.parts_to_change(&registry, chunk, mode) {
                let mut changed = part;
                if set(part).is_err() {
                    // A chunk may be one mapping too many (`vm.max_map_count`), where
                    // all of the mapping takes none. Any other failure repeats itself.
                    let end = self.mapping_end(part).min(range.end());
                    let from_part = PageRange::between(part.start(), end);
                    changed = self.parts_to_change(&registry, from_part, mode)[0];
                    set(changed).map_err(|errno| Refused {
                        part: changed,
                        errno,
                    })?;
                }
                let vmas = self.clip(changed);
                if mode.is_some()
                    && let Some(part) = find_droppable(&vmas)
                {
                    let errno = DROPPABLE;
                    return Err(Refused { part, errno });
                }
                registry.record_progress(changed, &vmas, mode);
            }
            drop(registry);
            let elapsed = started.elapsed();
            chunk_sizer.record(chunk.len(), elapsed);
            if elapsed >= YIELD_INTERVAL {
                thread::sleep(YIELD_PAUSE);
            }
            rest = PageRange::between(chunk.end(), range.end());
        }
        Ok(())
    }

    /// Returns the first part of the range, of at most [`MAX_MAPPINGS`] mappings.
    fn first_chunk(&self, range: PageRange, max_bytes: usize) -> PageRange {
        let last = self.index_of(range.start()) + MAX_MAPPINGS - 1;
        let mappings_end = self
            .vmas
            .get(last)
            .map_or(range.end(), |vma| vma.range.end());
        let bytes_end = range.start().saturating_add(max_bytes);
        PageRange::between(range.start(), range.end().min(mappings_end).min(bytes_end))
    }

    /// Returns the end of the mapping in which the part ends.
    fn mapping_end(&self, part: PageRange) -> usize {
        let last = self.vmas.get(self.index_of(part.end() - 1));
        last.map_or(part.end(), |vma| vma.range.end())
    }

    /// Returns the part's mappings.
    fn clip(&self, part: PageRange) -> Vec<Vma> {
        let from_part = &self.vmas[self.index_of(part.start())..];
        let clipped = from_part.iter().map_while(|vma| {
            let range = vma.range.intersection(part)?;
            Some(Vma { range, ..*vma })
        });
        clipped.collect()
    }

    fn index_of(&self, at: usize) -> usize {
        self.vmas.partition_point(|vma| vma.range.end() <= at)
    }

    /// Restores the previous locks and returns the error.
    pub(super) fn fail(&mut self, refused: &Refused, is_marked: bool) -> Error {
        // The limit's figures are those without this call's own locks.
        self.is_undone_on_drop = false;
        self.restore(self.range);
        if refused.errno == DROPPABLE {
            return droppable(self.range, refused.part);
        }
        let errno = refused.errno;
        explain(self.range, errno, &self.vmas, &self.before, is_marked)
    }

    fn restore(&self, range: PageRange) {
        let mut next = range.start();
        // Nothing is charged that was not charged before, and each part as a whole takes
        // no more mappings than before: the kernel has no reason to refuse.
        for (part, mode) in self.previous_locks().overlapping(range.as_std()) {
            let Some(part) = PageRange::from(part.clone()).intersection(range) else {
                continue;
            };
            let unlocked = PageRange::between(next, part.start());
            let _ = self.change(unlocked, lock::munlock, None);
            let _ = self.change(part, |part| apply(part, *mode), Some(*mode));
            next = part.end();
        }
        let unlocked = PageRange::between(next, range.end());
        let _ = self.change(unlocked, lock::munlock, None);
    }

    /// Returns the locks as they would be without this call: the calls that it has taken
    /// parts over from no longer change these.
    fn previous_locks(&self) -> RangeMap<usize, LockMode> {
        let before = self.before.iter();
        let mut locks: RangeMap<usize, LockMode> =
            before.map(|(part, mode)| (part.as_std(), *mode)).collect();
        for (part, target) in &self.taken_over {
            match target {
                Target::Lock(mode) => locks.insert(part.as_std(), *mode),
                Target::Unlock(flags) => {
                    let locked = locks.overlapping(part.as_std());
                    let cleared = locked.filter(|(_, mode)| flags.contains(**mode));
                    let cleared: Vec<_> = cleared
                        .filter_map(|(other, _)| part.intersection(other.clone().into()))
                        .collect();
                    cleared.iter().for_each(|part| locks.remove(part.as_std()));
                }
            }
        }
        locks
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if self.is_undone_on_drop {
            self.restore(self.range);
        }
        registry().end(self.range, self.number);
    }
}

#[cfg(test)]
mod tests;
