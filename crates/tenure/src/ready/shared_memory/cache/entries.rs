//! The entries of a cache: a key's value is in one of the entries of a set.

use std::ops::Range;
use std::sync::atomic::{Ordering, fence};

use super::super::layout::SET;
use super::super::processes::Attachment;
use super::super::table::{Table, pages_of};
use super::super::turn::Turn;
use super::super::word::{Reading, State};
use super::record::{self, Record};
use crate::ground::sys::process::monotonic_coarse_nanos;
use crate::ground::sys::shared_file;

/// A use is recorded when the last one was longer ago, so that processes that find a value all
/// the time do not contend for its entry.
const USE_NANOS: u64 = 16_000_000;

/// How often a look-up that finds no value looks for one that has moved.
const MAX_LOOKS: usize = 16;

/// A value as a look-up has seen it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) index: usize,
    /// Without the process that replaces the value.
    pub(super) word: Reading,
    pub(super) generation: u64,
}

impl Seen {
    fn is_value(&self) -> bool {
        self.word.state() == State::Live && !self.word.is_doomed()
    }
}

impl Table {
    pub(super) fn set(&self, hash: u64) -> Range<usize> {
        let sets = self.geometry.count / SET;
        let first = (hash as usize & (sets - 1)) * SET;
        first..first + SET
    }

    fn look(&self, index: usize) -> Seen {
        let entry = &self.entries()[index];
        let word = entry.word.read();
        // The contents are complete before the generation is stored, and so is the tag.
        let generation = entry.contents[word.side()]
            .generation
            .load(Ordering::Acquire);
        Seen {
            index,
            word: word.unowned(),
            generation,
        }
    }

    fn see(&self, index: usize) -> Option<Seen> {
        Some(self.look(index)).filter(Seen::is_value)
    }

    /// Returns what may be the key's values, the newest first. (There are two if two processes
    /// insert it at the same time, until one of them, or a look-up, removes the older one.)
    pub(super) fn find(&self, hash: u64) -> impl Iterator<Item = Seen> + use<> {
        let first = self.set(hash).start;
        let has_tag = |index: usize| self.entries()[index].tag.load(Ordering::Relaxed) == hash;
        // The tag is read later: it is that of the value if the value is unchanged after that.
        let is_it = |seen: &Seen| seen.is_value() && has_tag(seen.index);
        let mut found = std::array::from_fn::<_, SET, _>(|nth| {
            let index = first + nth;
            // Read before as well, so that most entries take one access.
            has_tag(index).then(|| self.look(index)).filter(is_it)
        });
        let mut before = None;
        for _ in 0..MAX_LOOKS {
            // A value that has moved to an entry that was looked at before is in none of them.
            if found.iter().any(Option::is_some) {
                break;
            }
            let seen = std::array::from_fn::<_, SET, _>(|nth| self.look(first + nth));
            found = seen.map(|seen| Some(seen).filter(is_it));
            if before.replace(seen) == Some(seen) {
                break;
            }
        }
        if found.iter().flatten().count() > 1 {
            found.sort_unstable_by_key(|seen| std::cmp::Reverse(seen.map(|it| it.generation)));
        }
        found.into_iter().flatten()
    }

    /// Copies the record of a value. `None` if it was purged or replaced meanwhile.
    pub(super) fn copy(&self, seen: Seen) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        self.copy_to(&mut bytes, seen, usize::MAX)?;
        Some(bytes)
    }

    /// Whether a value has this key; it copies no other key than one of the same length.
    pub(super) fn has_key(&self, seen: Seen, key: &[u8]) -> bool {
        let mut bytes = Vec::new();
        let head = self.copy_to(&mut bytes, seen, record::HEAD);
        let start = head.and_then(|()| record::start_bytes(&bytes));
        let start = start.filter(|&start| start == record::HEAD + key.len());
        let start = start.and_then(|start| self.copy_to(&mut bytes, seen, start));
        start.is_some() && bytes.get(record::HEAD..) == Some(key)
    }

    /// Copies the key of a value. `None` as for [`copy`](Self::copy), and for a corrupt one.
    pub(super) fn copy_key(&self, seen: Seen) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        self.copy_to(&mut bytes, seen, record::HEAD)?;
        let start = record::start_bytes(&bytes)?;
        self.copy_to(&mut bytes, seen, start)?;
        Some(Record::parse(&bytes)?.key.to_vec())
    }

    /// Appends the bytes of a record up to `end`.
    fn copy_to(&self, bytes: &mut Vec<u8>, seen: Seen, end: usize) -> Option<()> {
        let (len, place) = self.contents(seen.index, seen.word.side())?;
        let (len, done) = (usize::try_from(len).ok()?, bytes.len());
        let more = len.min(end).checked_sub(done)?;
        self.check_sealed_descriptor().ok()?;
        shared_file::read_to(self.fd(), bytes, more, place + done as u64).ok()?;
        // The word changes before the bytes do: if it is unchanged, so were they.
        fence(Ordering::SeqCst);
        self.is_unchanged(seen).then_some(())
    }

    /// Whether the value is still the one that was seen.
    pub(super) fn is_unchanged(&self, seen: Seen) -> bool {
        self.see(seen.index) == Some(seen)
    }

    /// Returns the memory of a value.
    pub(super) fn bytes(&self, seen: Seen) -> u64 {
        let contents = self.contents(seen.index, seen.word.side());
        contents.map_or(0, |(len, _)| pages_of(len))
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

    /// Has a value not be found any more, if it is still the one that was seen. (If another one
    /// has taken its place with the same word at this moment, that one is lost.)
    pub(super) fn doom(&self, seen: Seen) -> bool {
        self.is_unchanged(seen) && self.entries()[seen.index].word.doom_value(seen.word)
    }

    /// Has the values not be found any more that are older than one of the same key. After that
    /// they are not found either if the newer one is purged.
    pub(super) fn doom_older(&self, newest: Seen, older: impl Iterator<Item = Seen>) {
        for seen in older.filter(|seen| seen.generation < newest.generation) {
            self.doom(seen);
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
            // One that is replaced cannot be purged.
            let may_go = |seen: &Seen| self.entries()[seen.index].word.read().is_claimable();
            let values = values.filter(|seen| seen.word.priority() <= max_priority && may_go(seen));
            let used = |index: usize| self.entries()[index].used.load(Ordering::Relaxed);
            let victim = values.min_by_key(|seen| (seen.word.priority(), used(seen.index)))?;
            self.purge(turn, attachment, victim.index, victim.word)
                .ok()?;
        }
        None
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
