//! The loop of the reference: each thread refills its chunks pass after pass, and
//! each chunk is volatile in between.

use super::TIME;
use super::region::{self, AtOnce, Contents, DONT_NEED, FREE, KEPT, Region, advised};
use crate::machine::threads::in_threads;
use crate::measure::prelude::*;

/// As in the reference, for each thread.
const CHUNKS: usize = 10;
const CHUNK_LEN: usize = 8 << 20;
const AT_ONCE: &str = "tenure, offered at once";

/// Makes a case for each number of threads.
pub fn cases(settings: &Settings, notes: &mut Vec<String>) -> Result<Vec<Case>> {
    const ALL: &[usize] = &[1, 2, 4, 8];
    let (passes, threads) = settings
        .sizes
        .pick(&[(2, &ALL[..2]), (10, ALL), (100, ALL)]);
    let chunks = threads[threads.len() - 1] * CHUNKS;
    let len = chunks * CHUNK_LEN;
    let fitted = settings.headroom.fit(len, 2, chunks * page_size())?;
    notes.extend(fitted.note);
    let chunk_len = fitted.len / chunks / page_size() * page_size();
    let is_full = settings.sizes == Sizes::Full;
    if is_full {
        // Long cases get no other warm-up.
        touch::memory_once(chunks * chunk_len)?;
    }
    let title = format!(
        "Each thread {passes} times over {CHUNKS} chunks of {}: unmark, memset, mark",
        bytes_text(chunk_len as f64)
    );
    let case = |&threads: &usize| {
        let work = Work {
            threads,
            chunk_len,
            passes,
        };
        let case = Case::new(threads_text(threads), work.ways()).in_table(&title);
        if is_full { case.long() } else { case }
    };
    Ok(threads.iter().map(case).collect())
}

#[derive(Clone, Copy)]
struct Work {
    threads: usize,
    chunk_len: usize,
    passes: usize,
}

impl Work {
    fn ways(self) -> Vec<Way> {
        vec![
            self.way("MADV_DONTNEED", advised(DONT_NEED)).baseline(),
            self.way("MADV_FREE", advised(FREE)),
            self.way(AT_ONCE, region::buffer),
            self.way("tenure", region::buffer).tenure(),
            self.way("memset alone", advised(KEPT)),
        ]
    }

    fn way<R: Region + 'static>(
        self,
        name: &'static str,
        new: impl Fn(usize) -> Result<R> + 'static,
    ) -> Way {
        Way::new(
            name,
            move || {
                let at_once = (name == AT_ONCE).then(AtOnce::begin);
                let chunks = (0..self.threads * CHUNKS).map(|_| new(self.chunk_len));
                let mut chunks = chunks.collect::<Result<Vec<R>>>()?;
                in_threads(chunks.chunks_mut(CHUNKS), fill_and_mark)?;
                Ok((chunks, at_once))
            },
            move |(mut chunks, at_once), recorder| {
                let refill = |chunks: &mut [R]| refill(chunks, self.passes);
                let counts =
                    recorder.time(TIME, || in_threads(chunks.chunks_mut(CHUNKS), refill))?;
                let (faults, purged): (Vec<u64>, Vec<usize>) = counts.into_iter().unzip();
                let (faults, purged) = (faults.iter().sum::<u64>(), purged.iter().sum::<usize>());
                recorder.record("minor faults", Unit::Count, faults as f64);
                recorder.record("purged runs", Unit::Count, purged as f64);
                Ok((chunks, at_once))
            },
            move |(mut chunks, _at_once), _| {
                in_threads(chunks.chunks_mut(CHUNKS), |chunks| {
                    check(chunks, self.passes)
                })?;
                drop(chunks);
                Ok(tenure::drain(None)?)
            },
        )
    }
}

/// Returns the byte that fills a chunk in a pass: never zero, which a purged page
/// reads as, and never the same in two successive passes.
fn pattern(pass: usize, chunk: usize) -> u8 {
    (pass % 16 * 16 + chunk % 15 + 1) as u8
}

fn fill_and_mark<R: Region>(chunks: &mut [R]) -> Result<()> {
    for (index, chunk) in chunks.iter_mut().enumerate() {
        chunk.bytes()?.fill(pattern(0, index));
        chunk.mark()?;
    }
    Ok(())
}

/// Unmarks, fills and marks each chunk, pass after pass, after [`fill_and_mark`].
/// Returns the minor faults of this thread and the purged runs that it found.
fn refill<R: Region>(chunks: &mut [R], passes: usize) -> Result<(u64, usize)> {
    let before = kernel::minor_faults();
    let mut purged_runs = 0;
    for pass in 1..=passes {
        for (index, chunk) in chunks.iter_mut().enumerate() {
            let contents = chunk.unmark()?;
            let bytes = chunk.bytes()?;
            match contents {
                // Only the ends, because this is timed; `check` reads all bytes.
                Contents::Intact => check_ends(bytes, pattern(pass - 1, index))?,
                Contents::Purged(runs) => purged_runs += runs.len(),
                Contents::Unknown | Contents::Discarded => {}
            }
            bytes.fill(pattern(pass, index));
            chunk.mark()?;
        }
    }
    Ok((kernel::minor_faults() - before, purged_runs))
}

fn check_ends(bytes: &[u8], expected: u8) -> Result<()> {
    let ends = [bytes[0], bytes[bytes.len() - 1]];
    ensure!(
        ends == [expected; 2],
        "intact, but holds {ends:?} instead of {expected}"
    );
    Ok(())
}

/// Checks every byte after the last pass.
fn check<R: Region>(chunks: &mut [R], passes: usize) -> Result<()> {
    for (index, chunk) in chunks.iter_mut().enumerate() {
        let contents = chunk.unmark()?;
        region::check(chunk, &contents, pattern(passes, index))?;
    }
    Ok(())
}

#[cfg(test)]
#[path = "../../../tests/unit/volatile/refill.rs"]
mod tests;
