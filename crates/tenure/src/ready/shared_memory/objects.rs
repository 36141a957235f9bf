//! Making, purging and freeing objects: one process claims an object, and others leave it
//! alone until that has published it.

use std::sync::atomic::Ordering;

use super::layout::{Kind, SIDES};
use super::processes::Attachment;
use super::table::{Table, pages_of};
use super::turn::{self, Turn};
use super::word::{Reading, State};
use crate::ground::sys::Errno;
use crate::observation::stats::{CACHE_EVICTED, SHARED_PURGED};

impl Table {
    /// Claims an entry that is free. Returns its index; `None` if all are taken.
    pub(crate) fn claim_free(&self, attachment: &Attachment, hint: usize) -> Option<usize> {
        let count = self.geometry.count;
        let mut indices = (0..count).map(|nth| hint.wrapping_add(nth) % count);
        indices.find(|&index| {
            let word = &self.entries()[index].word;
            let now = word.read();
            now.state() == State::Free && word.claim(attachment.slot, now)
        })
    }

    /// Publishes the contents of a claimed entry, and counts them. Returns the generation;
    /// `None` if the claim was lost.
    pub(crate) fn publish_live(
        &self,
        attachment: &Attachment,
        index: usize,
        len: u64,
        priority: u64,
        is_pinned: bool,
    ) -> Option<u64> {
        let entry = self.entries().get(index)?;
        let generation = self.header().sequence.fetch_add(1, Ordering::Relaxed);
        // A look-up that sees the generation sees the contents, too.
        entry.generation().store(generation, Ordering::Release);
        let live = State::Live;
        let is_published = entry
            .word
            .publish(attachment.slot, live, priority, is_pinned);
        if is_published {
            let bytes = &self.header().bytes;
            bytes.fetch_add(pages_of(len), Ordering::Relaxed);
        }
        is_published.then_some(generation)
    }

    /// Purges an object whose word was read, unless it has changed since, or has a pin.
    /// Returns the bytes that were freed; a doomed object, and one of a cache, is freed.
    ///
    /// Where the kernel frees no pages, a doomed object stays doomed, and a value of a cache
    /// becomes it. What may have lost a part is purged.
    pub(crate) fn purge(
        &self,
        turn: &mut Turn<'_>,
        attachment: &Attachment,
        index: usize,
        seen: Reading,
    ) -> Result<u64, Errno> {
        // Also one whose length is corrupt: it has no pages that anyone finds.
        let Some(entry) = self.entries().get(index) else {
            return Ok(0);
        };
        if matches!(seen.state(), State::Free | State::Claimed)
            || !entry.word.claim(attachment.slot, seen)
        {
            return Ok(0);
        }
        // Read while it is claimed; a corrupt length counts as none.
        let bytes = self.entry(index).map_or(0, |(_, len, _)| pages_of(len));
        let is_live = seen.state() == State::Live;
        let is_freed = seen.is_doomed() || self.geometry.kind == Kind::Cache;
        if self.geometry.kind != Kind::Cache {
            entry.tag.fetch_add(1, Ordering::Relaxed);
        }
        if let Err(errno) = self.punch(turn, index) {
            let is_partly_freed = is_live && !turn::is_one_chunk(bytes);
            let word = match is_freed {
                true => seen.doomed(),
                false if is_partly_freed => Reading::purged(seen.priority()),
                false => seen,
            };
            if entry.word.restore(attachment.slot, word) && is_partly_freed && !is_freed {
                self.uncount(bytes);
            }
            return Err(errno);
        }
        self.publish_gone(attachment, index, is_freed, seen.priority());
        if !is_live {
            return Ok(0);
        }
        self.uncount(bytes);
        if seen.is_doomed() {
            return Ok(bytes);
        }
        let counter = match self.geometry.kind {
            Kind::Cache => CACHE_EVICTED,
            Kind::Arena { .. } => SHARED_PURGED,
        };
        counter.add(1, bytes);
        let header = self.header();
        header.purged.fetch_add(1, Ordering::Relaxed);
        header.purged_bytes.fetch_add(bytes, Ordering::Relaxed);
        Ok(bytes)
    }

    /// Drops a claimed object, of which nobody knows how far it was made or purged.
    pub(crate) fn drop_claimed(&self, turn: &mut Turn<'_>, attachment: &Attachment, index: usize) {
        let Some(entry) = self.entries().get(index) else {
            return;
        };
        if self.geometry.kind != Kind::Cache {
            entry.tag.fetch_add(1, Ordering::Relaxed);
        }
        // The length says where the pages are.
        let has_no_pages = self.punch(turn, index).is_ok();
        let now = entry.word.read();
        let is_freed = now.is_doomed() || self.geometry.kind == Kind::Cache;
        if is_freed && !has_no_pages {
            // The evictor tries again.
            let word = Reading::purged(now.priority()).doomed();
            entry.word.restore(attachment.slot, word);
            return;
        }
        self.publish_gone(attachment, index, is_freed, now.priority());
    }

    /// Frees a doomed object, if nobody has a pin of it any more.
    pub(crate) fn free_doomed(&self, turn: &mut Turn<'_>, attachment: &Attachment, index: usize) {
        let Some(entry) = self.entries().get(index) else {
            return;
        };
        let now = entry.word.read();
        if now.is_doomed() && now.is_claimable() {
            // After a failure it stays doomed, and the evictor tries again.
            let _ = self.purge(turn, attachment, index, now);
        }
    }

    /// Publishes a claimed object that has no pages, or whose pages are freed before it is made
    /// again.
    pub(super) fn publish_gone(
        &self,
        attachment: &Attachment,
        index: usize,
        is_freed: bool,
        priority: u64,
    ) {
        let entry = &self.entries()[index];
        let state = if is_freed { State::Free } else { State::Purged };
        if is_freed {
            // No handle finds the next object in its place.
            let next = self.header().sequence.fetch_add(1, Ordering::Relaxed);
            entry.generation().store(next, Ordering::Release);
        }
        entry.word.publish(attachment.slot, state, priority, false);
    }

    /// Frees the pages of a claimed object.
    fn punch(&self, turn: &mut Turn<'_>, index: usize) -> Result<(), Errno> {
        match self.geometry.kind {
            Kind::Cache => (0..SIDES).try_for_each(|side| self.punch_side(turn, index, side)),
            Kind::Arena { .. } => match self.contents(index, 0) {
                Some((len, place)) => turn.punch(place, pages_of(len)),
                None => Ok(()),
            },
        }
    }

    /// Frees the pages on one side of a cache's entry, which the process has claimed, or whose
    /// other side it owns.
    pub(super) fn punch_side(
        &self,
        turn: &mut Turn<'_>,
        index: usize,
        side: usize,
    ) -> Result<(), Errno> {
        // A corrupt length counts as none.
        if let Some((len, place)) = self.contents(index, side)
            && len > 0
        {
            turn.punch(place, pages_of(len))?;
        }
        let contents = &self.entries()[index].contents[side];
        contents.len.store(0, Ordering::Relaxed);
        Ok(())
    }

    pub(super) fn uncount(&self, bytes: u64) {
        let less = |now: u64| Some(now.saturating_sub(bytes));
        let order = Ordering::Relaxed;
        let _ = self.header().bytes.fetch_update(order, order, less);
    }

    /// Counts the bytes anew: what a dead process was about to count is lost otherwise.
    pub(crate) fn recount(&self) {
        let entries = 0..self.geometry.count;
        let live = entries.filter_map(|index| {
            let (entry, len, _) = self.entry(index)?;
            (entry.word.read().state() == State::Live).then(|| pages_of(len))
        });
        let bytes = live.fold(0, u64::saturating_add);
        self.header().bytes.store(bytes, Ordering::Relaxed);
    }
}
