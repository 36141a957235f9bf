//! The entries of a cache: a key's value is in one of the entries of a set.

use std::ops::Range;
use std::sync::atomic::{Ordering, fence};

use super::super::layout::SET;
use super::super::processes::Attachment;
use super::super::table::{Table, pages_of};
use super::super::turn::Turn;
use super::super::word::{Reading, State};
use crate::ground::sys::process::monotonic_coarse_nanos;
use crate::ground::sys::{Errno, shared_file};

/// A use is recorded when the last one was longer ago, so that processes that find a value all
/// the time do not contend for its entry.
const USE_NANOS: u64 = 16_000_000;

/// A value as a look-up has seen it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    index: usize,
    word: Reading,
    generation: u64,
}

impl Table {
    fn set(&self, hash: u64) -> Range<usize> {
        let sets = self.geometry.count / SET;
        let first = (hash as usize & (sets - 1)) * SET;
        first..first + SET
    }

    fn see(&self, index: usize) -> Option<Seen> {
        let entry = &self.entries()[index];
        let word = entry.word.read();
        // The contents are complete before the generation is stored.
        let generation = entry.generation.load(Ordering::Acquire);
        let is_value = word.state() == State::Live && !word.is_doomed();
        is_value.then_some(Seen {
            index,
            word,
            generation,
        })
    }

    /// Returns what may be the key's values, the newest first. (There are two while two
    /// processes insert it.)
    pub(super) fn find(&self, hash: u64) -> impl Iterator<Item = Seen> + use<> {
        let entries = self.set(hash).filter_map(|index| {
            let is_it = self.entries()[index].tag.load(Ordering::Relaxed) == hash;
            is_it.then(|| self.see(index))?
        });
        let mut found = [None; SET];
        for (place, seen) in found.iter_mut().zip(entries) {
            *place = Some(seen);
        }
        found.sort_unstable_by_key(|seen| std::cmp::Reverse(seen.map(|it: Seen| it.generation)));
        found.into_iter().flatten()
    }

    /// Copies the record of a value. `None` if it was purged or replaced meanwhile.
    pub(super) fn copy(&self, seen: Seen) -> Option<Vec<u8>> {
        let (_, len, place) = self.entry(seen.index)?;
        let mut bytes = Vec::new();
        shared_file::read_to(self.fd(), &mut bytes, usize::try_from(len).ok()?, place).ok()?;
        // A purge claims the word first: if that is unchanged, so were the bytes.
        fence(Ordering::SeqCst);
        (self.see(seen.index) == Some(seen)).then_some(bytes)
    }

    /// Records that the value was used.
    pub(super) fn record_use(&self, seen: Seen) {
        let used = &self.entries()[seen.index].used;
        let now = monotonic_coarse_nanos();
        if now.wrapping_sub(used.load(Ordering::Relaxed)) > USE_NANOS {
            used.store(now, Ordering::Relaxed);
        }
    }

    /// Removes a value, if it is still the one that was seen. Returns whether it was. If others
    /// change pages all the time, its pages stay until a process evicts, or needs the entry.
    pub(super) fn remove(&self, attachment: &Attachment, seen: Seen) -> bool {
        let is_removed = self.doom(seen);
        if is_removed && let Some(mut turn) = self.turn(attachment) {
            self.free_doomed(&mut turn, attachment, seen.index);
        }
        is_removed
    }

    fn doom(&self, seen: Seen) -> bool {
        self.see(seen.index) == Some(seen) && {
            // Between the two, another process may have put a value of the set there: then
            // that one is lost.
            let word = self.entries()[seen.index].word.doom();
            word.is_doomed() && word.state() == State::Live
        }
    }

    /// Claims an entry of the key's set. If it has no free one, the value of the lowest
    /// priority goes that was used least recently, but none of a higher priority.
    pub(super) fn claim(
        &self,
        turn: &mut Turn<'_>,
        attachment: &Attachment,
        hash: u64,
        max_priority: u64,
    ) -> Option<usize> {
        for _ in 0..SET {
            let free = self.set(hash).find(|&index| {
                let word = &self.entries()[index].word;
                let now = word.read();
                now.state() == State::Free && word.claim(attachment.slot, now)
            });
            if free.is_some() {
                return free;
            }
            let doomed = self.set(hash).find(|&index| {
                let now = self.entries()[index].word.read();
                now.is_doomed() && now.is_claimable()
            });
            if let Some(index) = doomed {
                self.free_doomed(turn, attachment, index);
                continue;
            }
            let values = self.set(hash).filter_map(|index| self.see(index));
            let values = values.filter(|seen| seen.word.priority() <= max_priority);
            let used = |index: usize| self.entries()[index].used.load(Ordering::Relaxed);
            let victim = values.min_by_key(|seen| (seen.word.priority(), used(seen.index)))?;
            self.purge(turn, attachment, victim.index, victim.word)
                .ok()?;
        }
        None
    }

    /// Writes the parts of a record to a claimed entry, and publishes it.
    pub(super) fn put(
        &self,
        turn: &mut Turn<'_>,
        attachment: &Attachment,
        (index, hash): (usize, u64),
        parts: [&[u8]; 2],
        priority: u64,
    ) -> Result<Seen, Errno> {
        let entry = &self.entries()[index];
        let len = parts.iter().map(|part| part.len() as u64).sum();
        // Known before there are pages: it says where they are.
        entry.len.store(len, Ordering::Relaxed);
        entry.tag.store(hash, Ordering::Relaxed);
        entry
            .used
            .store(monotonic_coarse_nanos(), Ordering::Relaxed);
        let place = self.geometry.place(index, len).ok_or(Errno::FBIG)?;
        let written = turn.write(parts[0], place).and_then(|()| {
            let behind = place + parts[0].len() as u64;
            turn.write(parts[1], behind)
        });
        if let Err(errno) = written {
            self.drop_claimed(turn, attachment, index);
            return Err(errno);
        }
        let published = self.publish_live(attachment, index, len, priority, false);
        let generation = published.ok_or(Errno::BUSY)?;
        // Of two processes that insert the key at the same time one sees both values at least,
        // and the later value stays.
        fence(Ordering::SeqCst);
        for older in self.find(hash).skip(1) {
            if self.doom(older) {
                self.free_doomed(turn, attachment, older.index);
            }
        }
        let word = Reading::live(priority);
        Ok(Seen {
            index,
            word,
            generation,
        })
    }

    /// Returns all values that there are now.
    pub(super) fn values(&self) -> impl Iterator<Item = Seen> {
        (0..self.geometry.count).filter_map(|index| self.see(index))
    }

    /// Returns how many values there are, and their bytes in whole pages.
    pub(super) fn count_values(&self) -> (u64, u64) {
        let values = self.values().filter_map(|seen| self.entry(seen.index));
        values.fold((0, 0), |(count, bytes), (_, len, _)| {
            (count + 1, bytes + pages_of(len))
        })
    }
}
