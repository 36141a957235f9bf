//! Offering the kernel the places of volatile buffers.

use super::blocks::BLOCK_BYTES;
use super::memory::ArenaMemory;
use super::{Arenas, CHUNK_BYTES};
use crate::ground::error::Result;
use crate::ground::range::PageRange;
use crate::ground::sys::advise::{DestructiveAdvice, advise_each, flush_lazyfree_batch};
use crate::ground::sys::page_runs::PageError;
use crate::ground::sys::pagemap::{PageRun, PageState, Scanner};
use crate::ground::sys::{map, merged};
use crate::observation::stats;
use crate::verbs::volatile::engine::{Engine, left_out_of};
use crate::verbs::volatile::error::{at, explain_pages};
use crate::verbs::volatile::registry::{ENGINE, Registry};
use crate::verbs::volatile::word::{State, Word};

/// Blocks between two registered ones are registered as well if they are no more than
/// these, so that an arena has few mappings.
const MAX_GAP_BYTES: usize = 8 * BLOCK_BYTES;

/// Offers the places of the slots whose words `claim` claims. Returns whether the kernel
/// has accepted all of them.
pub(super) fn offer_slots(
    memory: &ArenaMemory,
    slots: &[usize],
    claim: impl Fn(&Word) -> bool,
) -> bool {
    let mut all_offered = true;
    let mut registry = ENGINE.lock_in_turn();
    if !registry.arenas.has(memory) {
        return true;
    }
    let claimed = slots.iter().filter(|&&slot| claim(memory.table.word(slot)));
    let mut places: Vec<(usize, PageRange)> = claimed
        .map(|&slot| (slot, memory.table.place(slot)))
        .collect();
    places.sort_unstable_by_key(|(_, place)| place.start());
    let (small, large): (Vec<_>, Vec<_>) = places
        .into_iter()
        .partition(|(_, place)| place.len() <= CHUNK_BYTES);
    let is_next = |a: PageRange, b: PageRange| memory.with_overrun(a).end() == b.start();
    let groups = small.chunk_by(|(_, a), (_, b)| is_next(*a, *b));
    all_offered &= registry.offer_groups(memory, &groups.collect::<Vec<_>>());
    flush_lazyfree_batch();
    drop(registry);
    for (slot, place) in large {
        all_offered &= offer_large(memory, slot, place);
    }
    all_offered
}

/// Offers a claimed place chunk by chunk. Stops when its owner wants it back: the rest of
/// it then stays resident.
fn offer_large(memory: &ArenaMemory, slot: usize, place: PageRange) -> bool {
    let word = memory.table.word(slot);
    let (mut is_populated, mut is_all_offered) = (true, true);
    let mut first_epoch = None;
    for chunk in place.chunks(CHUNK_BYTES) {
        if word.is_wanted() {
            is_populated = false;
            break;
        }
        // A lock for each chunk, so that other threads get their turn.
        let mut registry = ENGINE.lock_in_turn();
        if !registry.arenas.has(memory) {
            return true;
        }
        let offered = registry.offer_pages(memory, chunk, &mut Scanner::new());
        let epoch = registry.arenas.of(memory).epoch;
        if *first_epoch.get_or_insert(epoch) != epoch {
            // The protection of the chunks before has ended.
            registry.engine.record_unprotected_part(place);
        }
        drop(registry);
        match offered {
            Ok(offered) => {
                is_populated &= contents_bytes(&offered.runs, chunk) == chunk.len();
                is_all_offered &= offered.left_out.is_empty();
            }
            Err(_) => is_all_offered = false,
        }
    }
    flush_lazyfree_batch();
    let mut registry = ENGINE.lock();
    if !registry.arenas.has(memory) {
        return true;
    }
    let is_populated = is_all_offered.then_some(is_populated);
    registry.publish_place(memory, slot, place.len(), is_populated)
}

impl Registry {
    /// Offers groups of claimed places, in each of which a place begins where the one before
    /// and its overrun, which has no contents to lose, end: together, and group by group from
    /// the first that the kernel has not accepted.
    fn offer_groups(&mut self, memory: &ArenaMemory, groups: &[&[(usize, PageRange)]]) -> bool {
        let mut scanner = Scanner::new();
        let mut prepare = |places: &&[(usize, PageRange)]| {
            self.prepare_offer(memory, around(places), &mut scanner)
        };
        let mut prepared: Vec<Option<Prepared>> =
            groups.iter().map(|places| prepare(places).ok()).collect();
        // The protection of groups that were prepared before another one has ended.
        let epoch = self.arenas.of(memory).epoch;
        for group in &mut prepared {
            group.take_if(|group| group.epoch != epoch);
        }
        let parts = prepared.iter().flatten().flat_map(|group| &group.parts);
        let parts: Vec<PageRange> = parts.copied().collect();
        let mut freed = match memory.may_share_pages() || merged::may_be_any() {
            // Some may have to be left out.
            true => 0,
            // SAFETY: the caller has claimed the volatile places, and the parts are registered,
            // so that each purged page is SIGBUS.
            false => unsafe { advise_each(&parts, DestructiveAdvice::Free) },
        };
        let mut all_offered = true;
        for (places, prepared) in groups.iter().zip(prepared) {
            match prepared {
                Some(group) if group.parts.len() <= freed => {
                    freed -= group.parts.len();
                    let offered = OfferedPages {
                        runs: group.runs,
                        left_out: Vec::new(),
                    };
                    all_offered &= self.publish_group(memory, places, &offered);
                }
                _ => {
                    // Those after it are not freed, but for groups that have no pages.
                    freed = 0;
                    all_offered &= self.offer_neighbours(memory, places, &mut scanner);
                }
            }
        }
        all_offered
    }

    /// Offers the claimed places of a group.
    fn offer_neighbours(
        &mut self,
        memory: &ArenaMemory,
        places: &[(usize, PageRange)],
        scanner: &mut Scanner,
    ) -> bool {
        if let Ok(offered) = self.offer_pages(memory, around(places), scanner) {
            return self.publish_group(memory, places, &offered);
        }
        // One unofferable place does not block its neighbours.
        let mut all_offered = true;
        for &(slot, place) in places {
            let offered = self.offer_pages(memory, place, scanner).ok();
            let is_populated = offered.and_then(|offered| offered.is_populated(place));
            all_offered &= self.publish_place(memory, slot, place.len(), is_populated);
        }
        all_offered
    }

    /// Publishes claimed slots that were offered, with these pages. Returns whether the kernel was
    /// offered all of them.
    fn publish_group(
        &mut self,
        memory: &ArenaMemory,
        places: &[(usize, PageRange)],
        offered: &OfferedPages,
    ) -> bool {
        places.iter().fold(true, |all, &(slot, place)| {
            let is_populated = offered.is_populated(place);
            all & self.publish_place(memory, slot, place.len(), is_populated)
        })
    }

    /// Publishes a claimed slot after an offer, of which this tells whether there was a page
    /// everywhere; `None` if the kernel was not offered all of it. Returns whether it was.
    fn publish_place(
        &mut self,
        memory: &ArenaMemory,
        slot: usize,
        len: usize,
        is_populated: Option<bool>,
    ) -> bool {
        let word = memory.table.word(slot);
        match is_populated {
            Some(is_populated) => {
                self.arenas.offered_bytes += len;
                word.publish_offered(is_populated);
                true
            }
            None => {
                stats::OFFER_FAILED_BYTES.add(len);
                word.publish(State::Refused);
                false
            }
        }
    }

    /// Lets the kernel purge the pages of claimed places.
    pub(super) fn offer_pages(
        &mut self,
        memory: &ArenaMemory,
        range: PageRange,
        scanner: &mut Scanner,
    ) -> Result<OfferedPages> {
        let prepared = self.prepare_offer(memory, range, scanner)?;
        let mut left_out = Vec::new();
        for part in prepared.parts {
            // SAFETY: the caller has claimed the volatile places in the range.
            let freed = unsafe {
                let may_share = memory.may_share_pages();
                self.engine.free_part(part, may_share, scanner)
            };
            left_out.extend(freed?);
        }
        Ok(OfferedPages {
            runs: prepared.runs,
            left_out,
        })
    }

    /// Protects the pages of claimed places.
    fn prepare_offer(
        &mut self,
        memory: &ArenaMemory,
        range: PageRange,
        scanner: &mut Scanner,
    ) -> Result<Prepared> {
        self.restore_protection(memory)?;
        let runs = scanner.scan(range).map_err(PageError::Scan);
        let runs = runs.map_err(explain_pages)?;
        let Self { arenas, engine, .. } = self;
        for run in runs.iter().filter(|run| run.state != PageState::Absent) {
            arenas.register(engine, memory, run.range)?;
        }
        let space = arenas.of(memory);
        let populated = runs.iter().any(|run| run.state != PageState::Absent);
        let parts = match populated {
            true => space.blocks.registered(range).collect(),
            false => Vec::new(),
        };
        Ok(Prepared {
            runs,
            parts,
            epoch: space.epoch,
        })
    }

    /// Has the arena protected by the engine's userfaultfd. If an earlier protection has
    /// ended, all that was offered counts as purged from now on.
    pub(super) fn restore_protection(&mut self, memory: &ArenaMemory) -> Result<()> {
        let Self { arenas, engine, .. } = self;
        let space = arenas.of(memory);
        if engine.uffd_of(space.epoch).is_some() {
            space.was_protected = true;
            if !memory.is_kept() {
                // This may be a child, whose first use of the arena this is.
                engine.open_epoch()?;
                memory.set_kept(engine.is_kept());
            }
            return Ok(());
        }
        for (slot, word) in memory.table.words().iter().enumerate() {
            // One that is claimed may have been offered before.
            // The kernel may have accepted a part of what it refused.
            let before = word.read().unclaimed_state();
            let was_offered = matches!(before, State::Offered | State::Refused);
            if was_offered && space.was_protected {
                engine.record_unprotected_part(memory.table.place(slot));
                // The owner finds the record only where the word does not say that all was populated.
                if let Some(before) = word.try_claim_volatile() {
                    word.publish(before);
                }
            }
        }
        space.was_protected = false;
        memory.set_kept(false);
        if space.is_inaccessible {
            // SAFETY: arenas are readable and writable except where the fork handler has
            // found no way to protect what was offered, which is recorded as purged now.
            unsafe { map::protect_read_write(space.range) }.map_err(at("mprotect", space.range))?;
            space.is_inaccessible = false;
        }
        space.blocks.clear();
        space.epoch = engine.open_epoch()?;
        space.was_protected = true;
        memory.set_kept(engine.is_kept());
        Ok(())
    }
}

impl Arenas {
    /// Registers the blocks of these pages, and a few blocks before them if that closes a
    /// gap.
    fn register(
        &mut self,
        engine: &mut Engine,
        memory: &ArenaMemory,
        pages: PageRange,
    ) -> Result<()> {
        let space = self.of(memory);
        let (epoch, blocks) = (space.epoch, &mut space.blocks);
        let unregistered =
            |(part, is_registered): (PageRange, bool)| (!is_registered).then_some(part);
        let parts: Vec<PageRange> = blocks.parts(pages).filter_map(unregistered).collect();
        for part in parts {
            let mut part = blocks.covering(part);
            if let Some(gap) = blocks.gap_before(part)
                && gap.len() <= MAX_GAP_BYTES
            {
                part = PageRange::between(gap.start(), part.end());
            }
            engine.register_part(part, epoch)?;
            blocks.set(part, true);
        }
        Ok(())
    }
}

/// Pages that are about to be offered.
struct Prepared {
    /// Which pages there are.
    runs: Vec<PageRun>,
    /// The registered parts that have some.
    parts: Vec<PageRange>,
    /// In which they are protected.
    epoch: u64,
}

/// Pages that were offered.
pub(super) struct OfferedPages {
    /// Which pages there are.
    runs: Vec<PageRun>,
    /// Those that were left out, because another process has them, too.
    left_out: Vec<PageRange>,
}

impl OfferedPages {
    /// Returns whether a place has contents everywhere; `None` if pages of it were left out.
    fn is_populated(&self, place: PageRange) -> Option<bool> {
        let is_all_offered = left_out_of(place, &self.left_out).next().is_none();
        is_all_offered.then(|| contents_bytes(&self.runs, place) == place.len())
    }
}

/// Returns the addresses from the first place of a group to the last.
fn around(places: &[(usize, PageRange)]) -> PageRange {
    PageRange::between(places[0].1.start(), places[places.len() - 1].1.end())
}

/// Returns how many bytes of the place have contents, by the runs of pages around it.
fn contents_bytes(runs: &[PageRun], place: PageRange) -> usize {
    let first = runs.partition_point(|run| run.range.end() <= place.start());
    let within = runs[first..]
        .iter()
        .take_while(|run| run.range.start() < place.end());
    let has_contents =
        |run: &&PageRun| matches!(run.state, PageState::Present | PageState::Swapped);
    let parts = within
        .filter(has_contents)
        .filter_map(|run| run.range.intersection(place));
    parts.map(|part| part.len()).sum()
}
