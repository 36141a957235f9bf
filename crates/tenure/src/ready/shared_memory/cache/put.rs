//! Putting values into entries: a key's next value is written beside the one that is found, and
//! takes its place by one change of the word.

use std::sync::atomic::{Ordering, fence};

use super::super::processes::Attachment;
use super::super::table::{Table, pages_of};
use super::super::turn::Turn;
use super::super::word::Reading;
use super::MAX_TRIES;
use super::entries::Seen;
use crate::ground::sys::Errno;
use crate::ground::sys::process::monotonic_coarse_nanos;

/// A value that is to be put.
pub(super) struct New<'a> {
    pub(super) hash: u64,
    /// The parts of the record.
    pub(super) parts: [&'a [u8]; 2],
    pub(super) priority: u64,
    /// Asked when the value is written, and nobody has found it.
    pub(super) is_wanted: &'a dyn Fn() -> bool,
}

impl New<'_> {
    pub(super) fn len(&self) -> u64 {
        self.parts.iter().map(|part| part.len() as u64).sum()
    }
}

/// The result of putting a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Put {
    Inserted(Seen),
    /// Another process has removed or replaced the key's value at the same time, and this one
    /// with it; or it is not wanted any more.
    Overtaken,
    /// The value that it was to replace has changed: nothing was done.
    Changed,
}

impl Table {
    /// Inserts a value, and replaces the key's previous one: until the new one is found, that
    /// is.
    pub(super) fn put(
        &self,
        turn: &mut Turn<'_>,
        attachment: &Attachment,
        new: &New<'_>,
    ) -> Result<Put, Errno> {
        let put = match self.find(new.hash).next() {
            Some(seen) => self.replace(turn, attachment, seen, new)?,
            None => Put::Changed,
        };
        let put = match put {
            // Beside a value that another process replaces: the later one of the two stays.
            Put::Changed => self.put_beside(turn, attachment, new)?,
            put => put,
        };
        if let Put::Inserted(seen) = put {
            self.doom_others(turn, attachment, new.hash, seen.generation);
        }
        Ok(put)
    }

    /// Removes the values of a hash that are older than the newest of them, or than this one.
    fn doom_others(
        &self,
        turn: &mut Turn<'_>,
        attachment: &Attachment,
        hash: u64,
        generation: u64,
    ) {
        // Of two processes that insert the key at the same time one sees both values at least,
        // and dooms the older one, also if that is its own.
        fence(Ordering::SeqCst);
        for _ in 0..MAX_TRIES {
            let mut has_changed = false;
            let mut found = self.find(hash).peekable();
            let newer = found.next_if(|found| found.generation > generation);
            let newest = newer.map_or(generation, |newer| newer.generation);
            for older in found.filter(|found| found.generation < newest) {
                match self.doom(older) {
                    true => self.free_doomed(turn, attachment, older.index),
                    // Another process may have replaced it by one that is older as well.
                    false => has_changed = true,
                }
            }
            if !has_changed {
                break;
            }
        }
    }

    fn replace(
        &self,
        turn: &mut Turn<'_>,
        attachment: &Attachment,
        seen: Seen,
        new: &New<'_>,
    ) -> Result<Put, Errno> {
        let entry = &self.entries()[seen.index];
        if !entry.word.begin_replacing(attachment.slot, seen.word) {
            return Ok(Put::Changed);
        }
        let side = 1 - seen.word.side();
        let old_bytes = self.contents(seen.index, seen.word.side());
        let write = |turn: &mut Turn<'_>| {
            // The word may be that of another value.
            if !self.is_unchanged(seen) || entry.tag.load(Ordering::Relaxed) != new.hash {
                return Ok(Put::Changed);
            }
            self.punch_side(turn, seen.index, side)?;
            self.write(turn, (seen.index, side), new)?;
            // Before the question: what outdates this value afterwards has a newer one.
            let generation = self.next_generation(seen.index, side);
            if !(new.is_wanted)() {
                return Ok(Put::Overtaken);
            }
            if !entry.word.switch(attachment.slot, new.priority) {
                return Ok(Put::Overtaken);
            }
            let bytes = &self.header().bytes;
            bytes.fetch_add(pages_of(new.len()), Ordering::Relaxed);
            self.uncount(old_bytes.map_or(0, |(len, _)| pages_of(len)));
            Ok(Put::Inserted(Seen {
                index: seen.index,
                word: Reading::live(new.priority).on_side(side),
                generation,
            }))
        };
        let put = write(turn);
        self.end_replacing(turn, attachment, seen.index);
        put
    }

    /// Frees the side of a value that is not found, and ends this process's right to it.
    pub(in super::super) fn end_replacing(
        &self,
        turn: &mut Turn<'_>,
        attachment: &Attachment,
        index: usize,
    ) {
        let word = &self.entries()[index].word;
        // Where the kernel frees no pages, the next one that replaces the value tries again.
        let _ = self.punch_side(turn, index, 1 - word.read().side());
        if word.unpin(1 << attachment.slot).is_doomed() {
            self.free_doomed(turn, attachment, index);
        }
    }

    fn put_beside(
        &self,
        turn: &mut Turn<'_>,
        attachment: &Attachment,
        new: &New<'_>,
    ) -> Result<Put, Errno> {
        let index = self.claim(turn, attachment, new.hash, new.priority);
        let index = index.ok_or(Errno::BUSY)?;
        self.entries()[index].tag.store(new.hash, Ordering::Relaxed);
        if let Err(errno) = self.write(turn, (index, 0), new) {
            self.drop_claimed(turn, attachment, index);
            return Err(errno);
        }
        if !(new.is_wanted)() {
            self.drop_claimed(turn, attachment, index);
            return Ok(Put::Overtaken);
        }
        let published = self.publish_live(attachment, index, new.len(), new.priority, false);
        let word = &self.entries()[index].word;
        match published {
            Some(generation) => Ok(Put::Inserted(Seen {
                index,
                word: Reading::live(new.priority),
                generation,
            })),
            None if word.has_claim(attachment.slot) => {
                self.drop_claimed(turn, attachment, index);
                // Unless a maker's value was outdated, the previous one is out of date.
                if (new.is_wanted)() {
                    let now = self.header().sequence.load(Ordering::Relaxed);
                    self.doom_others(turn, attachment, new.hash, now);
                }
                Ok(Put::Overtaken)
            }
            None => Err(Errno::BUSY),
        }
    }

    /// Writes a record to a side that this process has for itself.
    fn write(
        &self,
        turn: &mut Turn<'_>,
        (index, side): (usize, usize),
        new: &New<'_>,
    ) -> Result<(), Errno> {
        let (entry, len) = (&self.entries()[index], new.len());
        // Known before there are pages: it says where they are.
        entry.contents[side].len.store(len, Ordering::Relaxed);
        entry
            .used
            .store(monotonic_coarse_nanos(), Ordering::Relaxed);
        let place = self.geometry.place(index, side, len).ok_or(Errno::FBIG)?;
        turn.write(new.parts[0], place)?;
        turn.write(new.parts[1], place + new.parts[0].len() as u64)
    }

    fn next_generation(&self, index: usize, side: usize) -> u64 {
        let generation = self.header().sequence.fetch_add(1, Ordering::Relaxed);
        // A look-up that sees the generation sees the contents, too.
        let contents = &self.entries()[index].contents[side];
        contents.generation.store(generation, Ordering::Release);
        generation
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::file;
    use super::super::super::layout::{Geometry, Kind, SET};
    use super::*;

    const HASH: u64 = 1;

    fn put(table: &Table, attachment: &Attachment, is_wanted: &dyn Fn() -> bool) -> Put {
        let new = New {
            hash: HASH,
            parts: [b"start", b"value"],
            priority: 1,
            is_wanted,
        };
        let mut turn = table.turn_or_go(attachment);
        table.put(&mut turn, attachment, &new).unwrap()
    }

    fn table() -> Table {
        let geometry = Geometry {
            kind: Kind::Cache,
            count: SET,
            seed: [0; 2],
        };
        file::create_memfd(geometry).unwrap()
    }

    #[test]
    fn value_that_is_outdated_just_before_it_is_published_is_not_found() {
        let table = table();
        let own = table.attach().unwrap();
        for outdated in [Some(HASH), None] {
            let outdate_late = || {
                table.outdate(outdated);
                true
            };
            assert_eq!(put(&table, &own, &outdate_late), Put::Overtaken);
            assert_eq!(table.find(HASH).next(), None);
        }
        assert!(matches!(put(&table, &own, &|| true), Put::Inserted(_)));
        assert_eq!(table.find(HASH).count(), 1);
    }

    #[test]
    fn insertion_that_is_overtaken_leaves_no_previous_value() {
        let table = table();
        let [own, other] = [table.attach().unwrap(), table.attach().unwrap()];
        put(&table, &own, &|| true);
        let previous = table.find(HASH).next().unwrap();
        let word = &table.entries()[previous.index].word;
        assert!(word.begin_replacing(other.slot, previous.word));
        let outdate_late = || {
            table.outdate(None);
            true
        };
        assert_eq!(put(&table, &own, &outdate_late), Put::Overtaken);
        assert_eq!(table.find(HASH).next(), None);
        assert!(!word.switch(other.slot, 1));
    }
}
