//! Purging the places of volatile buffers at once.

use std::collections::TryReserveError;
use std::sync::Arc;

use super::CHUNK_BYTES;
use super::memory::ArenaMemory;
use super::place::Place;
use crate::ground::error::{Error, Result};
use crate::ground::range::PageRange;
use crate::ground::sys::Errno;
use crate::ground::sys::page_runs::PageError;
use crate::ground::sys::pagemap::{self, PageState, Scanner};
use crate::observation::stats::{self, Counter};
use crate::verbs::volatile::engine::can_offer;
use crate::verbs::volatile::error::explain_pages;
use crate::verbs::volatile::registry::{ENGINE, Registry};
use crate::verbs::volatile::word::{State, Word};

impl Place {
    /// Purges the place if it is volatile, and adds the bytes to `cause`.
    pub(crate) fn purge(&self, cause: Counter) -> Result<()> {
        purge_places(self.memory(), &[self.slot], cause).1
    }
}

/// Purges what is still volatile of these slots' places, and adds the bytes to `cause`.
/// Returns the bytes, and the first error; all other places are purged.
pub(crate) fn purge_places(
    memory: &ArenaMemory,
    slots: &[usize],
    cause: Counter,
) -> (usize, Result<()>) {
    let (mut purged_bytes, mut answer) = (0, Ok(()));
    let mut rest = slots;
    while !rest.is_empty() {
        let mut batch_bytes = 0;
        let is_in_batch = |&&slot: &&usize| {
            let is_first = batch_bytes == 0;
            batch_bytes += memory.table.place(slot).len().max(1);
            is_first || batch_bytes <= CHUNK_BYTES
        };
        let count = rest.iter().take_while(is_in_batch).count();
        let (batch, others) = rest.split_at(count);
        let (bytes, purged) = purge_batch(memory, batch, cause);
        purged_bytes += bytes;
        answer = answer.and(purged);
        rest = others;
    }
    (purged_bytes, answer)
}

/// Purges a batch: many small places, or one place chunk by chunk, until its owner wants
/// it back.
fn purge_batch(memory: &ArenaMemory, slots: &[usize], cause: Counter) -> (usize, Result<()>) {
    let mut registry = ENGINE.lock_in_turn();
    if !registry.arenas.has(memory) {
        return (0, Ok(()));
    }
    let claim = |&slot: &usize| {
        let before = memory.table.word(slot).try_claim_volatile()?;
        Some((slot, memory.table.place(slot), before))
    };
    let mut claimed: Vec<(usize, PageRange, State)> = slots.iter().filter_map(claim).collect();
    claimed.sort_unstable_by_key(|(_, place, _)| place.start());
    let (mut purged_bytes, mut answer) = (0, Ok(()));
    let is_next = |a: PageRange, b: PageRange| memory.with_overrun(a).end() == b.start();
    for neighbours in claimed.chunk_by(|(_, a, _), (_, b, _)| is_next(*a, *b)) {
        let (first, last) = (neighbours[0].1, neighbours[neighbours.len() - 1].1);
        let mut purged = Ok(());
        for chunk in PageRange::between(first.start(), last.end()).chunks(CHUNK_BYTES) {
            match registry.purge_pages(memory, chunk, cause) {
                Ok(bytes) => purged_bytes += bytes,
                Err(error) => purged = purged.and(Err(error)),
            }
            if chunk.end() == last.end() {
                break;
            }
            // Unlocked for each chunk, so that other threads get their turn: the words
            // stay claimed.
            drop(registry);
            registry = ENGINE.lock_in_turn();
            if !registry.arenas.has(memory) {
                return (purged_bytes, answer);
            }
            let is_wanted =
                |(slot, ..): &(usize, PageRange, State)| memory.table.word(*slot).is_wanted();
            if neighbours.iter().any(is_wanted) {
                break;
            }
        }
        for &(slot, place, before) in neighbours {
            registry.publish_purge(memory, slot, place, before, purged.is_ok());
        }
        answer = answer.and(purged);
    }
    (purged_bytes, answer)
}

impl Registry {
    /// Publishes a claimed slot that was in the state `before`.
    fn publish_purge(
        &mut self,
        memory: &ArenaMemory,
        slot: usize,
        place: PageRange,
        before: State,
        is_purged: bool,
    ) {
        let word = memory.table.word(slot);
        let is_offered = before == State::Offered || is_purged && can_offer();
        let after = match is_offered {
            true => State::Offered,
            false => State::Refused,
        };
        if is_offered {
            self.arenas.count_offered(before, place);
        }
        // A wanted word is published at once, perhaps before all is purged.
        match is_purged && !word.is_wanted() {
            true => word.publish_purged(after),
            false => word.publish(after),
        }
    }

    fn purge_pages(
        &mut self,
        memory: &ArenaMemory,
        range: PageRange,
        cause: Counter,
    ) -> Result<usize> {
        if !can_offer()
            || self
                .offer_pages(memory, range, &mut Scanner::new())
                .is_err()
        {
            // SAFETY: the caller has claimed the volatile places in the range.
            return unsafe { self.engine.purge_behind_guards(range, cause) };
        }
        let Self { arenas, engine, .. } = self;
        let mut purged_bytes = 0;
        for part in arenas.of(memory).blocks.registered(range) {
            // SAFETY: as above.
            purged_bytes += unsafe { engine.purge_part(part, cause) }?;
        }
        Ok(purged_bytes)
    }
}

/// Purges the rest of each buffer of which the kernel has purged a page, because the
/// program can no longer use it.
pub(crate) fn purge_partial(memory: &Arc<ArenaMemory>) -> Result<()> {
    let absent = absent_parts(memory)?;
    if absent.is_empty() {
        return Ok(());
    }
    let offered = |(slot, word): (usize, &Word)| {
        let reading = word.read();
        let is_partial = reading.state() == State::Offered && !reading.is_purged();
        is_partial.then(|| (memory.table.place(slot), slot))
    };
    let words = memory.table.words().iter().enumerate();
    let mut places = try_collect(words.filter_map(offered))?;
    places.sort_unstable_by_key(|(place, _)| place.start());
    for part in absent {
        let first = places.partition_point(|(place, _)| place.end() <= part.start());
        let touched = places[first..]
            .iter()
            .take_while(|(place, _)| place.start() < part.end());
        let slots = try_collect(touched.map(|&(_, slot)| slot))?;
        let cause = stats::PURGED_UNDER_PRESSURE_BYTES;
        purge_places(memory, &slots, cause).1?;
    }
    Ok(())
}

/// Returns the parts of the registered blocks that have no pages: purged, or of no buffer.
fn absent_parts(memory: &ArenaMemory) -> Result<Vec<PageRange>> {
    let registered = {
        let mut registry = ENGINE.lock();
        if !registry.arenas.has(memory) {
            return Ok(Vec::new());
        }
        let blocks = &registry.arenas.of(memory).blocks;
        try_collect(blocks.registered(memory.range))?
    };
    let mut absent = Vec::new();
    for part in registered {
        for chunk in part.chunks(CHUNK_BYTES) {
            let runs = pagemap::scan(chunk).map_err(PageError::Scan);
            let runs = runs.map_err(explain_pages)?;
            let missing = runs.iter().filter(|run| run.state == PageState::Absent);
            absent.try_reserve(runs.len()).map_err(no_memory)?;
            absent.extend(missing.map(|run| run.range));
        }
    }
    Ok(absent)
}

/// Collects as many items as there are, under memory pressure, where there may be no memory for
/// them: Rust ends a process for a list that cannot fail.
fn try_collect<T>(items: impl Iterator<Item = T>) -> Result<Vec<T>> {
    let mut list = Vec::new();
    for item in items {
        list.try_reserve(1).map_err(no_memory)?;
        list.push(item);
    }
    Ok(list)
}

fn no_memory(_: TryReserveError) -> Error {
    explain_pages(PageError::Scan(Errno::NOMEM))
}
