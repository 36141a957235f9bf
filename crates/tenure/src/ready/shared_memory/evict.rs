//! Purge order: the lowest priority first, and of one priority the least recently used.

use std::collections::BinaryHeap;
use std::sync::atomic::Ordering;

use super::lease::Held;
use super::processes::Attachment;
use super::table::{Table, pages_of};
use super::word::State;

/// An object that may be purged, in the order of purging.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    priority: u64,
    used: u64,
    index: usize,
    bytes: u64,
}

/// The candidates that are purged first, of which all but the last are fewer than the bytes
/// that are wanted.
#[derive(Debug, Default)]
struct First {
    candidates: BinaryHeap<Candidate>,
    bytes: u64,
}

impl First {
    fn add(&mut self, candidate: Candidate, wanted_bytes: u64) {
        let last = self.candidates.peek();
        if self.bytes >= wanted_bytes && last.is_some_and(|last| *last <= candidate) {
            return;
        }
        self.bytes = self.bytes.saturating_add(candidate.bytes);
        self.candidates.push(candidate);
        while let Some(last) = self.candidates.peek()
            && self.bytes - last.bytes >= wanted_bytes
        {
            self.bytes -= last.bytes;
            self.candidates.pop();
        }
    }
}

impl Table {
    /// Purges unpinned objects, none of a higher priority, until so many bytes are freed, and
    /// frees doomed ones. Returns the bytes that were purged: fewer if others change pages all
    /// the time, or the call is late. `None` if another process evicts at this moment.
    pub(crate) fn evict(
        &self,
        attachment: &Attachment,
        wanted_bytes: u64,
        max_priority: u64,
    ) -> Option<u64> {
        let mut held = self.try_lease(&self.header().evictor, attachment)?;
        self.clear_dead(attachment);
        Some(self.purge_first(&mut held, attachment, wanted_bytes, max_priority))
    }

    fn purge_first(
        &self,
        held: &mut Held<'_>,
        attachment: &Attachment,
        wanted_bytes: u64,
        max_priority: u64,
    ) -> u64 {
        let mut first = First::default();
        for index in 0..self.geometry.count {
            let entry = &self.entries()[index];
            let now = entry.word.read();
            if now.is_doomed() {
                if now.is_claimable()
                    && let Some(mut turn) = self.turn(attachment)
                {
                    self.free_doomed(&mut turn, attachment, index);
                }
                continue;
            }
            let is_candidate = now.state() == State::Live && now.is_claimable();
            if is_candidate && now.priority() <= max_priority && wanted_bytes > 0 {
                let candidate = Candidate {
                    priority: now.priority(),
                    used: entry.used.load(Ordering::Relaxed),
                    index,
                    // A corrupt length counts as none.
                    bytes: self.entry(index).map_or(0, |(_, len, _)| pages_of(len)),
                };
                first.add(candidate, wanted_bytes);
            }
        }
        let mut purged = 0;
        for candidate in first.candidates.into_sorted_vec() {
            let Some(entry) = self.entries().get(candidate.index) else {
                continue;
            };
            // Others free as much as this one would.
            let turn = (!attachment.is_late()).then(|| self.turn(attachment));
            let Some(mut turn) = turn.flatten() else {
                break;
            };
            held.renew();
            let now = entry.word.read();
            // An object that was used meanwhile is not the oldest any more.
            if entry.used.load(Ordering::Relaxed) == candidate.used {
                let freed = self.purge(&mut turn, attachment, candidate.index, now);
                purged += freed.unwrap_or(0);
            }
        }
        purged
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lowest_priority_then_oldest_is_chosen() {
        let mut first = First::default();
        let all = [(2, 1), (0, 9), (1, 5), (1, 4), (0, 8), (3, 0)];
        for (index, (priority, used)) in all.into_iter().enumerate() {
            let bytes = 10;
            first.add(
                Candidate {
                    priority,
                    used,
                    index,
                    bytes,
                },
                25,
            );
        }
        let chosen = first.candidates.into_sorted_vec();
        let chosen: Vec<_> = chosen.iter().map(|it| (it.priority, it.used)).collect();
        assert_eq!(chosen, [(0, 8), (0, 9), (1, 4)]);
    }
}
