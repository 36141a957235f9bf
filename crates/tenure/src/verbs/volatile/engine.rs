//! What the kernel knows of volatile memory: which ranges it may take pages of,
//! and what it has taken.

use std::sync::LazyLock;

use rangemap::RangeSet;

use super::arena::{Arenas, Region};
use super::marks::Marks;
use super::objects::Objects;
use super::registration::{
    explain_register, map_zeros_where_absent, open_userfaultfd, protect_children, register_copied,
    unmerge,
};
use super::take_back::take_back;
use super::{Outcome, at};
use crate::ground::error::Result;
use crate::ground::range::PageRange;
use crate::ground::sys::advise::{Losing, advise_losing};
use crate::ground::sys::features::Features;
use crate::ground::sys::fork::ForkMutex;
use crate::ground::sys::userfaultfd::Userfaultfd;
use crate::ground::sys::{bars, map};
use crate::observation::stats;

/// The process's volatile memory.
pub(super) struct Engine {
    /// Opened when it is first needed.
    pub(super) uffd: Option<Userfaultfd>,
    /// Ranges of plain addresses.
    pub(super) marks: Marks,
    /// Ranges with a word of their own.
    pub(super) objects: Objects,
    pub(super) arenas: Arenas,
    /// What the kernel may take pages of; registered with the userfaultfd.
    pub(super) offered: RangeSet<usize>,
    /// The sum of it.
    pub(super) offered_bytes: usize,
    /// Pages that are known to be lost and have not been reported.
    pub(super) lost: RangeSet<usize>,
    /// Pages of those that are barred, for want of a userfaultfd.
    pub(super) barred: RangeSet<usize>,
    /// Something could not be offered since this was last looked at: the keeper looks
    /// for objects to try again only then, for there may be very many.
    pub(super) has_refused: bool,
    /// This is a child that could not protect all it inherited: some of
    /// `offered` cannot be accessed at all instead.
    pub(super) closed_to_child: bool,
}

/// Held by who changes anything but a word. What is in a word's state Busy is in
/// the hands of the holder.
pub(super) static ENGINE: LazyLock<ForkMutex<Engine>> = LazyLock::new(|| {
    stats::before_reading(|| ENGINE.lock().count());
    // Before anybody can hold it: also who only unmaps memory does, and a child that
    // is forked in that moment could not go on. Who puts something in asks again
    // whether that has worked.
    let _ = protect_children();
    ForkMutex::new(Engine {
        uffd: None,
        marks: Marks::new(),
        objects: Objects::new(),
        arenas: Arenas::new(),
        offered: RangeSet::new(),
        offered_bytes: 0,
        lost: RangeSet::new(),
        barred: RangeSet::new(),
        has_refused: false,
        closed_to_child: false,
    })
});

/// Whether the kernel can be offered memory: it has to tell what it takes, and
/// to give the rest back without a gap.
pub(super) fn can_offer() -> bool {
    let features = Features::get();
    features.sigbus_on_missing() && features.madv_populate.is_ok()
}

impl Engine {
    /// The process's userfaultfd; opened if there is none, or if somebody has
    /// closed it.
    pub(super) fn open(&mut self) -> Result<&Userfaultfd> {
        if let Some(closed) = self.uffd.take_if(|uffd| !uffd.is_open()) {
            closed.forget();
            for arena in self.arenas.values_mut() {
                arena.is_watched = false;
            }
        }
        match self.uffd {
            Some(ref uffd) => Ok(uffd),
            None => Ok(self.uffd.insert(open_userfaultfd()?)),
        }
    }

    /// Lets the kernel take pages of the range. It is asked again what is mapped
    /// there: since the range was marked that may have changed. With an error
    /// nothing has been done.
    ///
    /// # Safety
    ///
    /// The range is volatile: its contents may go at any time.
    pub(super) unsafe fn offer(&mut self, range: PageRange) -> Result<()> {
        // SAFETY: handed on to the caller.
        let answer = unsafe { self.try_to_offer(range) };
        self.has_refused |= answer.is_err();
        answer
    }

    /// # Safety
    ///
    /// As for [`Engine::offer`].
    unsafe fn try_to_offer(&mut self, range: PageRange) -> Result<()> {
        let mapped = self.check(range)?;
        self.open()?;
        let new = self.unprotected(&mapped);
        let uffd = self.open()?;
        for part in &new {
            unmerge(*part)?;
            map_zeros_where_absent(*part)?;
        }
        for (index, part) in new.iter().enumerate() {
            if let Err(errno) = register_copied(uffd, *part) {
                for done in &new[..index] {
                    // Registered a moment ago; taking that back needs no room.
                    let _ = uffd.unregister(*done);
                }
                return Err(explain_register(range, errno));
            }
        }
        let more_bytes = gap_bytes(&self.offered, range);
        self.offered.insert(range.as_std());
        self.set_offered_bytes(self.offered_bytes + more_bytes);
        // Where the advice is refused (memory locked since it was looked at), the
        // pages simply stay.
        // SAFETY: the caller lets the kernel take the contents; from here on the
        // registration shows each loss.
        let _ = unsafe { advise_losing(range, Losing::Free) };
        Ok(())
    }

    /// Takes the range back from the kernel, and tells what is lost of it. With
    /// an error it is offered still, and no loss is forgotten.
    pub(super) fn withdraw(&mut self, range: PageRange) -> Result<Outcome> {
        // Before the rest: no page can be taken back from behind a bar.
        for part in parts(&self.barred, range) {
            // SAFETY: only memory that could be read and written is marked.
            unsafe { bars::take_down(part) }.map_err(at("madvise(MADV_GUARD_REMOVE)", part))?;
            self.barred.remove(part.as_std());
        }
        for vma in self.offered_parts(range)? {
            if !self.protects(vma.range.start()) {
                stats::UNPROTECTED_BYTES.add(lose(&mut self.lost, vma.range));
                if self.closed_to_child && !vma.readable {
                    // SAFETY: only memory that could be read and written is
                    // offered; the fork handler took that away.
                    unsafe { map::protect_read_write(vma.range) }
                        .map_err(at("mprotect", vma.range))?;
                }
            } else if let Some(uffd) = &self.uffd {
                take_back(uffd, vma.range, &mut self.lost)?;
            }
        }
        self.stop_watching(range);
        Ok(self.take_report(range))
    }

    /// Ends the volatility of a range whose mappings go away.
    pub(super) fn forget(&mut self, range: PageRange) {
        let before_bytes = self.marks.volatile_bytes();
        self.marks.forget(range);
        stats::VOLATILE_BYTES.sub(before_bytes - self.marks.volatile_bytes());
        let within = |(_, arena): &(&usize, &Region)| range.contains(arena.range);
        let gone: Vec<usize> = self
            .arenas
            .range(range.as_std())
            .filter(within)
            .map(|(&start, _)| start)
            .collect();
        for start in gone {
            self.arenas.remove(&start);
        }
        self.forget_contents(range);
    }

    /// Ends the volatility of a range whose contents go away.
    pub(super) fn forget_contents(&mut self, range: PageRange) {
        if !self.offered.is_empty() {
            self.stop_watching(range);
        }
        if !self.lost.is_empty() {
            self.lost.remove(range.as_std());
        }
        for part in parts(&self.barred, range) {
            // SAFETY: only memory that could be read and written is marked. What
            // is not there any more has no bars either.
            let _ = unsafe { bars::take_down(part) };
            self.barred.remove(part.as_std());
        }
    }

    fn stop_watching(&mut self, range: PageRange) {
        for part in parts(&self.offered, range) {
            let watched = !self.in_arena(part);
            if let Some(uffd) = self.uffd.as_ref().filter(|uffd| watched && uffd.is_open()) {
                // What is not registered any more (mapped over) stays as it is.
                let _ = uffd.unregister(part);
            }
            self.offered.remove(part.as_std());
            self.set_offered_bytes(self.offered_bytes - part.len());
        }
    }

    pub(super) fn set_offered_bytes(&mut self, bytes: usize) {
        self.offered_bytes = bytes;
        stats::OFFERED_BYTES.set(bytes);
    }

    /// All that is volatile.
    pub(super) fn volatile_bytes(&self) -> usize {
        let objects = self.objects.volatile().map(|object| object.range.len());
        self.marks.volatile_bytes() + objects.sum::<usize>()
    }

    /// Brings the process's counters up to date.
    pub(super) fn count(&mut self) {
        for object in self.objects.all() {
            object.count();
        }
        self.count_volatile();
    }

    /// The same for those that say how much is volatile at the moment.
    pub(super) fn count_volatile(&self) {
        let volatile_bytes = self.volatile_bytes();
        stats::VOLATILE_BYTES.set(volatile_bytes);
        let kept_bytes = if can_offer() { 0 } else { volatile_bytes };
        stats::KEPT_FROM_KERNEL_BYTES.set(kept_bytes);
    }

    /// Notices that somebody has closed the userfaultfd: what was offered counts
    /// as lost, is emptied, and protected anew.
    pub(super) fn rearm(&mut self) {
        if self.offered.is_empty() || self.uffd.as_ref().is_some_and(Userfaultfd::is_open) {
            return;
        }
        let all: Vec<PageRange> = self.offered.iter().cloned().map(PageRange::from).collect();
        for range in all {
            // SAFETY: what is offered is volatile.
            if unsafe { self.offer(range) }.is_ok() {
                // SAFETY: it counts as lost, and the registration shows that.
                let _ = unsafe { advise_losing(range, Losing::DontNeed) };
            }
        }
    }

    fn take_report(&mut self, range: PageRange) -> Outcome {
        let runs = parts(&self.lost, range);
        if runs.is_empty() {
            return Outcome::Intact;
        }
        self.lost.remove(range.as_std());
        Outcome::Purged(runs)
    }
}

/// Notes a loss. Returns how many bytes of it are news: what was purged is found
/// missing again when it is unmarked.
pub(super) fn lose(lost: &mut RangeSet<usize>, range: PageRange) -> usize {
    let news = gap_bytes(lost, range);
    lost.insert(range.as_std());
    news
}

/// How much of the range is not in the set.
pub(super) fn gap_bytes(set: &RangeSet<usize>, range: PageRange) -> usize {
    set.gaps(&range.as_std()).map(|gap| gap.len()).sum()
}

/// The parts of the range that are not in the set, in order.
pub(super) fn gaps(set: &RangeSet<usize>, range: PageRange) -> Vec<PageRange> {
    set.gaps(&range.as_std()).map(PageRange::from).collect()
}

/// The parts of the range that are in the set, in order.
pub(super) fn parts(set: &RangeSet<usize>, range: PageRange) -> Vec<PageRange> {
    set.overlapping(range.as_std())
        .filter_map(|part| PageRange::from(part.clone()).intersection(range))
        .collect()
}
