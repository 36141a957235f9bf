//! Experiment: take a block, copy a chunk into it, search in the copy, free the
//! block (the loop of ebizzy).

use std::{
    sync::Arc,
    thread::{self, ScopedJoinHandle},
};

use anyhow::{Result, bail};
use fastrand::Rng;
use rustix::mm::{Advice, MapFlags};
use tenure::Mapping;

use super::{
    Settings,
    experiment::{Case, CaseResult, Experiment, Recorder, Unit, Way},
    raw::RawMapping,
    statistics::Better,
};
use crate::text::{bytes_text, count_text, ratio_text};

const CHUNK_BYTES: usize = 256 << 10;
const CHUNKS: usize = 128;
const WORD_BYTES: usize = size_of::<u64>();
const RECORDS_PER_THREAD: usize = 600;
const RECORDS: &str = "records";

/// Prepares the experiment.
pub fn experiment(settings: &Settings) -> Result<Experiment> {
    // The chunks and one block for each thread, with room to spare.
    settings
        .room
        .fit(2 * CHUNKS * CHUNK_BYTES, 2, 2 * CHUNKS * CHUNK_BYTES)?;
    let chunks: Arc<Vec<Vec<u8>>> = {
        let mut rng = Rng::with_seed(settings.seed);
        Arc::new((0..CHUNKS).map(|_| ascending_words(&mut rng)).collect())
    };
    let cases = [1, 2].map(|threads| {
        let work = Work {
            chunks: chunks.clone(),
            threads,
            seed: settings.seed,
        };
        let name = if threads == 1 {
            "1 thread".to_owned()
        } else {
            format!("{threads} threads")
        };
        let ways = vec![
            way("munmap", &work, MapEachTime::new),
            way("MADV_DONTNEED", &work, Advise::dont_need).baseline(),
            way("MADV_FREE", &work, Advise::free),
            way("tenure", &work, LazilyFree::new).tenure(),
        ];
        Case::new(name, ways)
    });
    Ok(Experiment {
        title: format!(
            "take a block of {}, copy into it, search in it, free it ({} times a thread)",
            bytes_text(CHUNK_BYTES as f64),
            count_text(RECORDS_PER_THREAD as f64),
        ),
        notes: vec![
            "No memory pressure: the gain of lazy freeing shrinks as pressure grows.".to_owned(),
        ],
        compared: RECORDS,
        better: Better::More,
        cases: cases.into(),
        conclude,
    })
}

/// Makes a chunk of random words in ascending order, at least 2 apart.
fn ascending_words(rng: &mut Rng) -> Vec<u8> {
    let mut word = 0;
    let mut chunk = Vec::with_capacity(CHUNK_BYTES);
    while chunk.len() < CHUNK_BYTES {
        word += 2 + u64::from(rng.u32(..));
        chunk.extend_from_slice(&word.to_ne_bytes());
    }
    chunk
}

/// How a block is taken and freed.
trait Blocks {
    /// Returns a block whose contents do not matter.
    fn take(&mut self) -> Result<&mut [u8]>;
    /// Frees the block that was taken.
    fn free(&mut self) -> Result<()>;
}

/// A new mapping for each block.
struct MapEachTime(Option<RawMapping>);

impl MapEachTime {
    fn new() -> Result<Self> {
        Ok(Self(None))
    }
}

impl Blocks for MapEachTime {
    fn take(&mut self) -> Result<&mut [u8]> {
        let mapping = RawMapping::anonymous(CHUNK_BYTES, MapFlags::PRIVATE)?;
        // SAFETY: `anonymous` maps writable memory.
        Ok(unsafe { self.0.insert(mapping).bytes_mut() })
    }

    fn free(&mut self) -> Result<()> {
        self.0.take().map_or(Ok(()), RawMapping::unmap)
    }
}

/// One mapping, and advice when the block is freed.
struct Advise {
    mapping: RawMapping,
    advice: Advice,
}

impl Advise {
    fn new(advice: Advice) -> Result<Self> {
        let mapping = RawMapping::base_pages(CHUNK_BYTES)?;
        Ok(Self { mapping, advice })
    }

    fn dont_need() -> Result<Self> {
        Self::new(Advice::LinuxDontNeed)
    }

    fn free() -> Result<Self> {
        Self::new(Advice::LinuxFree)
    }
}

impl Blocks for Advise {
    fn take(&mut self) -> Result<&mut [u8]> {
        // SAFETY: `base_pages` maps writable memory.
        Ok(unsafe { self.mapping.bytes_mut() })
    }

    fn free(&mut self) -> Result<()> {
        self.mapping.advise(self.advice)
    }
}

/// One mapping, freed lazily by tenure.
struct LazilyFree(Mapping);

impl LazilyFree {
    fn new() -> Result<Self> {
        let mapping = Mapping::anonymous(CHUNK_BYTES)
            .huge_pages(tenure::HugePages::Never)
            .map()?;
        Ok(Self(mapping))
    }
}

impl Blocks for LazilyFree {
    fn take(&mut self) -> Result<&mut [u8]> {
        Ok(self.0.as_mut_slice()?)
    }

    fn free(&mut self) -> Result<()> {
        // SAFETY: the mapping is borrowed mutably, so nobody holds a reference
        // to its bytes, and the next user of the block writes all of it before
        // reading any.
        Ok(unsafe { self.0.range().lazy_free() }?)
    }
}

#[derive(Clone)]
struct Work {
    chunks: Arc<Vec<Vec<u8>>>,
    threads: usize,
    seed: u64,
}

impl Work {
    /// Draws what thread `thread` looks for: a chunk, the index of one of its
    /// words, and whether to look for that word or for a missing one behind it.
    fn searches(&self, thread: usize) -> impl Iterator<Item = (usize, usize, bool)> + use<> {
        let mut rng = Rng::with_seed(self.seed ^ (thread as u64 + 1) << 32);
        (0..RECORDS_PER_THREAD).map(move |_| {
            let (chunk, word) = (rng.usize(..CHUNKS), rng.usize(..CHUNK_BYTES / WORD_BYTES));
            (chunk, word, rng.bool())
        })
    }

    fn expected_hits(&self) -> usize {
        let of_thread = |thread| self.searches(thread).filter(|search| search.2).count();
        (0..self.threads).map(of_thread).sum()
    }

    fn hits_of_thread(&self, thread: usize, blocks: &mut dyn Blocks) -> Result<usize> {
        let mut hits = 0;
        for (chunk, word, is_there) in self.searches(thread) {
            let chunk = &self.chunks[chunk];
            let wanted = word_at(chunk, word) + u64::from(!is_there);
            let block = blocks.take()?;
            block.copy_from_slice(chunk);
            hits += usize::from(contains(block, wanted));
            blocks.free()?;
        }
        Ok(hits)
    }

    /// Does the work of all threads, each with its own blocks.
    fn hits<B: Blocks>(&self, new: fn() -> Result<B>) -> Result<usize> {
        thread::scope(|scope| {
            let spawn = |thread| scope.spawn(move || self.hits_of_thread(thread, &mut new()?));
            let threads: Vec<_> = (0..self.threads).map(spawn).collect();
            let join = |thread: ScopedJoinHandle<'_, Result<usize>>| {
                thread.join().expect("searching does not panic")
            };
            threads.into_iter().map(join).sum()
        })
    }
}

fn word_at(bytes: &[u8], index: usize) -> u64 {
    u64::from_ne_bytes(bytes.as_chunks::<WORD_BYTES>().0[index])
}

/// Looks for `wanted` among ascending words.
fn contains(bytes: &[u8], wanted: u64) -> bool {
    let (words, _) = bytes.as_chunks::<WORD_BYTES>();
    words
        .binary_search_by_key(&wanted, |&word| u64::from_ne_bytes(word))
        .is_ok()
}

fn way<B: Blocks + 'static>(name: &'static str, work: &Work, new: fn() -> Result<B>) -> Way {
    let (work, expected) = (work.clone(), work.expected_hits());
    let records = (work.threads * RECORDS_PER_THREAD) as f64;
    Way::new(
        name,
        || Ok(()),
        move |(), recorder: &mut Recorder<'_>| {
            let (hits, seconds) = recorder.measure(|| work.hits(new));
            recorder.record(RECORDS, Unit::PerSecond, records / seconds);
            hits
        },
        move |hits, _| {
            if hits != expected {
                bail!("{hits} searches found their word, not {expected}");
            }
            Ok(tenure::drain(None)?)
        },
    )
}

fn conclude(cases: &[CaseResult]) -> String {
    let parts: Vec<String> = cases
        .iter()
        .filter_map(|case| {
            let ratio = ratio_text(case.tenure()?.median);
            Some(format!("{ratio} times as many with {}", case.name))
        })
        .collect();
    format!(
        "Beside blocks freed with MADV_DONTNEED, lazily freed ones let the loop do {}.",
        parts.join(" and ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_found_and_missing_ones_are_not() {
        let chunk = ascending_words(&mut Rng::with_seed(3));
        assert_eq!(chunk.len(), CHUNK_BYTES);
        for index in [0, 1, 777, CHUNK_BYTES / WORD_BYTES - 1] {
            assert!(contains(&chunk, word_at(&chunk, index)));
            assert!(!contains(&chunk, word_at(&chunk, index) + 1));
        }
    }

    #[test]
    fn a_spoilt_copy_misses_words() {
        let chunk = ascending_words(&mut Rng::with_seed(3));
        let wanted = word_at(&chunk, 99);
        assert!(!contains(&vec![0; CHUNK_BYTES], wanted));
    }
}
