//! The loop of ebizzy: copy a random chunk into a block, search in the copy, free the
//! block.

use std::time::Duration;

use fastrand::Rng;
use rustix::mm::Advice;
use tenure::{HugePages, Mapping, PageRange, lazy_free::FreePolicy};

use super::super::job::{BlocksOf, Done, Search};
use super::Parent;
use super::block::{Block, WORD_BYTES, ascending, contain, word_at};
use crate::machine::clock::{Clock, MonotonicClock};
use crate::machine::threads::in_threads;
use crate::measure::prelude::*;

/// Makes chunks and uses each block once, waits, and makes records.
pub fn run(search: Search, parent: &mut Parent) -> Result<Done> {
    let mut rng = Rng::with_seed(search.seed);
    let chunk = |_| Block::of_words(search.chunk_bytes, ascending(&mut rng));
    let chunks: Vec<Block> = (0..search.chunks).map(chunk).collect::<Result<_>>()?;
    let rngs: Vec<Rng> = (0..search.threads).map(|_| rng.fork()).collect();
    let prepare = |rng| Thread::prepare(search, &chunks, rng);
    let threads = match search.block_count {
        // An allocator may keep something for each thread there ever was.
        0 => rngs.into_iter().map(prepare).collect::<Result<_>>()?,
        _ => in_threads(rngs, prepare)?,
    };
    let begin = parent.wait()?;
    let faults_before = kernel::minor_faults_of_all();
    let done = in_threads(threads, |thread| thread.run(begin, &MonotonicClock::SHARED))?;
    Ok(Done {
        rate: done.iter().map(|done| done.rate).sum(),
        all_records: done.iter().map(|done| done.all_records).sum(),
        wrong: done.iter().map(|done| done.wrong).sum(),
        faults: kernel::minor_faults_of_all() - faults_before,
        ..Done::default()
    })
}

pub struct Thread<'a> {
    search: Search,
    chunks: &'a [Block],
    rng: Rng,
    blocks: Blocks,
    pub done: Done,
}

impl<'a> Thread<'a> {
    pub fn prepare(search: Search, chunks: &'a [Block], rng: Rng) -> Result<Self> {
        let mut thread = Self {
            search,
            chunks,
            rng,
            blocks: Blocks::new(search)?,
            done: Done::default(),
        };
        (0..search.block_count).try_for_each(|block| thread.make_record(block))?;
        Ok(thread)
    }

    /// Makes records until the time that began at `begin` is over. A record counts when it
    /// ends while records count; if none does, the first that ends later gives the rate.
    pub fn run(mut self, begin: Duration, clock: &dyn Clock) -> Result<Done> {
        let Search {
            before, counted, ..
        } = self.search;
        let mut records = 0_u32;
        loop {
            let block = self.rng.usize(..self.search.block_count.max(1));
            self.make_record(block)?;
            self.done.all_records += 1;
            let now = clock.now();
            let is_over = now > begin + before + counted;
            if is_over {
                let rate = match records {
                    // Others had the CPUs all the time: the record that has just ended.
                    0 => 1.0 / (now - begin - before).as_secs_f64(),
                    records => f64::from(records) / counted.as_secs_f64(),
                };
                return Ok(Done { rate, ..self.done });
            }
            records += u32::from(now >= begin + before);
        }
    }

    /// Draws a chunk, how much of it is copied, the index of one of the words, and whether
    /// to look for that word or for a missing one behind it.
    pub fn make_record(&mut self, block: usize) -> Result<()> {
        let chunk = &self.chunks[self.rng.usize(..self.chunks.len())];
        let lens = self.search.min_bytes..=self.search.chunk_bytes;
        let count = self.rng.usize(lens) / WORD_BYTES;
        let bytes = &chunk.bytes()[..count * WORD_BYTES];
        let index = self.rng.usize(..count);
        let is_there = self.rng.bool();
        let wanted = word_at(bytes, index) + u64::from(!is_there);
        let start = block * self.search.chunk_bytes;
        let copy = self.blocks.copy(start, bytes)?;
        self.done.wrong += u64::from(contain(copy, wanted) != is_there);
        self.blocks.free(start, self.search.chunk_bytes)
    }
}

/// The blocks of a thread, of which it uses one at a time.
enum Blocks {
    Malloc(Option<Block>),
    MapEachTime(Option<RawMapping>),
    Advised(RawMapping, Advice),
    Tenure(Mapping),
}

impl Blocks {
    fn new(search: Search) -> Result<Self> {
        let len = search.block_count * search.chunk_bytes;
        let advised = |advice| Ok(Self::Advised(RawMapping::base_pages(len)?, advice));
        match search.blocks {
            BlocksOf::Malloc => Ok(Self::Malloc(None)),
            BlocksOf::MapEachTime => Ok(Self::MapEachTime(None)),
            BlocksOf::DontNeed => advised(Advice::LinuxDontNeed),
            BlocksOf::Free => advised(Advice::LinuxFree),
            BlocksOf::Adaptive => {
                let mapping = Mapping::anonymous(len).huge_pages(HugePages::Never);
                Ok(Self::Tenure(mapping.map()?))
            }
        }
    }

    /// Copies `bytes` into the block that begins at `start`, and returns the copy.
    fn copy(&mut self, start: usize, bytes: &[u8]) -> Result<&[u8]> {
        let rest = match self {
            Self::Malloc(block) => return Ok(block.insert(Block::copy_of(bytes)?).bytes()),
            Self::MapEachTime(block) => block
                .insert(RawMapping::base_pages(bytes.len())?)
                .bytes_mut(),
            Self::Advised(mapping, _) => &mut mapping.bytes_mut()[start..],
            Self::Tenure(mapping) => &mut mapping.as_mut_slice()?[start..],
        };
        let copy = &mut rest[..bytes.len()];
        copy.copy_from_slice(bytes);
        Ok(copy)
    }

    /// Frees the block that begins at `start`.
    fn free(&mut self, start: usize, len: usize) -> Result<()> {
        match self {
            Self::Malloc(block) => *block = None,
            Self::MapEachTime(block) => block.take().map_or(Ok(()), RawMapping::unmap)?,
            Self::Advised(mapping, advice) => mapping.advise_part(start..start + len, *advice)?,
            Self::Tenure(mapping) => {
                let block = PageRange::new(mapping.range().start() + start, len)?;
                // SAFETY: the mapping is borrowed mutably, so nobody holds a reference to
                // its bytes, and `copy` writes all that it returns of a block.
                unsafe { block.free(FreePolicy::Adaptive) }?;
            }
        }
        Ok(())
    }
}
