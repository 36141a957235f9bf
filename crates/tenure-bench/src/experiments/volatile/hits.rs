//! The hits of a cache in several threads: a value is a page, which the kernel may purge,
//! or a page of a file in the page cache.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::rc::Rc;
use std::time::Duration;

use fastrand::Rng;
use tenure::VolatileBuffer;

use super::arena::offered;
use super::region::{self, Contents, Region as _};
use crate::machine::threads::in_threads;
use crate::measure::prelude::*;

const TABLE: &str = "Hits of values of a page, each thread those of its own part";
const HITS: &str = "hits";
/// The byte that fills every volatile value.
const OLD: u8 = 7;

/// Makes a case for each number of threads: as many as there are CPUs, and fewer.
pub fn cases(settings: &Settings, notes: &mut Vec<String>) -> Result<Vec<Case>> {
    let values = settings.sizes.pick(&[8_192, 32_768, 32_768]);
    let fitted = settings
        .headroom
        .fit(values * page_size(), 4, page_size())?;
    notes.extend(fitted.note);
    let file = files::random_file(fitted.len, &mut Rng::with_seed(settings.seed))?;
    let file = Rc::new(file);
    let cpus = std::thread::available_parallelism()?.get();
    let work = |threads| Work {
        threads,
        values: fitted.len / page_size(),
        seed: settings.seed,
    };
    let case = |threads| {
        let ways = work(threads).ways(&file);
        Case::new(threads_text(threads), ways)
            .in_table(TABLE)
            .comparing(HITS)
    };
    Ok(thread_counts(cpus).map(case).collect())
}

/// Returns the powers of two up to `cpus`, and 2 also of a single CPU.
fn thread_counts(cpus: usize) -> impl Iterator<Item = usize> {
    (0..usize::BITS)
        .map(|power| 1 << power)
        .take_while(move |&threads| threads <= cpus.max(2))
}

#[derive(Clone, Copy)]
struct Work {
    threads: usize,
    values: usize,
    seed: u64,
}

impl Work {
    fn ways(self, file: &Rc<File>) -> Vec<Way> {
        vec![self.pread(file.clone()).baseline(), self.tenure().tenure()]
    }

    fn tenure(self) -> Way {
        Way::new(
            "tenure",
            move || Ok(self.shuffled(offered(self.values, page_size(), OLD)?)),
            move |mut buffers, recorder| {
                let contents = self.hit(recorder, &mut buffers, |value, _| value.unmark())?;
                Ok((buffers, contents))
            },
            |(mut buffers, contents): (Vec<VolatileBuffer>, Vec<Contents>), _| {
                let mut pairs = buffers.iter_mut().zip(&contents);
                pairs.try_for_each(|(buffer, contents)| region::check(buffer, contents, OLD))
            },
        )
    }

    /// Reads each page into one buffer of the thread, and returns its first bytes.
    fn pread(self, file: Rc<File>) -> Way {
        let checked = file.clone();
        Way::new(
            "pread",
            move || Ok(self.shuffled((0..self.values).collect())),
            move |mut pages: Vec<usize>, recorder| {
                let file = &*file;
                let first_bytes = self.hit(recorder, &mut pages, |page, buffer| {
                    file.read_exact_at(buffer, (*page * page_size()) as u64)?;
                    Ok(*buffer.first_chunk().context("a page of no bytes")?)
                })?;
                Ok((pages, first_bytes))
            },
            move |(pages, first_bytes): (Vec<usize>, Vec<[u8; 8]>), _| {
                let len = self.values * page_size();
                // SAFETY: the file has no name, has this length, and nobody writes to it
                // any more.
                let mapping = unsafe { files::map_for_reading(&checked, len) }?;
                let mut pairs = pages.into_iter().zip(first_bytes);
                let is_right = pairs
                    .all(|(page, bytes)| mapping.bytes()[page * page_size()..].starts_with(&bytes));
                ensure!(is_right, "pread has read something else");
                Ok(())
            },
        )
    }

    /// Puts the values in random order, so that each thread has some all over the memory.
    fn shuffled<V>(self, mut values: Vec<V>) -> Vec<V> {
        Rng::with_seed(self.seed).shuffle(&mut values);
        values
    }

    /// Hits each value once, with a buffer of the thread's, and records the rate from the first thread's start to the
    /// last one's end.
    fn hit<V: Send, A: Send>(
        self,
        recorder: &mut Recorder<'_>,
        values: &mut [V],
        hit: impl Fn(&mut V, &mut [u8]) -> Result<A> + Sync,
    ) -> Result<Vec<A>> {
        let clock = recorder.clock();
        let hit_all = |part: &mut [V]| {
            let mut buffer = vec![1; page_size()];
            let mut answers = Vec::with_capacity(part.len());
            let start = clock.now();
            for value in part {
                answers.push(hit(value, &mut buffer)?);
            }
            anyhow::Ok((start, clock.now(), answers))
        };
        let count = values.len();
        let parts = values.chunks_mut(count.div_ceil(self.threads));
        let done = in_threads(parts, hit_all)?;
        let start = done.iter().map(|part| part.0).min().unwrap_or_default();
        let end: Duration = done.iter().map(|part| part.1).max().unwrap_or_default();
        let rate = count as f64 / (end - start).as_secs_f64();
        recorder.record(HITS, Unit::PerSecond, rate);
        Ok(done.into_iter().flat_map(|part| part.2).collect())
    }
}

#[cfg(test)]
#[path = "../../../tests/unit/volatile/hits.rs"]
mod tests;
