//! The loop of the reference: each thread refills its chunks again and again, and
//! offers each of them in between.

use std::thread::{self, ScopedJoinHandle};

use anyhow::{Result, bail};
use tenure::page_size;

use super::{
    super::{
        Settings,
        experiment::{Case, Recorder, Unit, Way},
        kernel,
        sizes::Sizes,
        touch,
    },
    TIME,
    chunk::{self, Chunk, Contents, Plain, Tenure},
    delay::AtOnce,
};
use crate::text::bytes_text;

/// As in the reference, for each thread.
const CHUNKS: usize = 10;
const CHUNK_LEN: usize = 8 << 20;

pub const DONT_NEED: &str = "MADV_DONTNEED";
pub const TENURE: &str = "tenure";
pub const AT_ONCE: &str = "tenure, offered at once";
pub const MEMSET: &str = "memset alone";
pub const FAULTS: &str = "minor faults";

/// Makes a case for each number of threads.
pub fn cases(settings: &Settings, notes: &mut Vec<String>) -> Result<Vec<Case>> {
    let (passes, threads): (usize, &[usize]) = match settings.sizes {
        Sizes::Quick => (2, &[1, 2]),
        Sizes::Middle => (10, &[1, 2, 4, 8]),
        Sizes::Full => (100, &[1, 2, 4, 8]),
    };
    let most = threads[threads.len() - 1] * CHUNKS;
    let fitted = settings.room.fit(most * CHUNK_LEN, 2, most * page_size())?;
    notes.extend(fitted.note);
    let chunk_len = fitted.len / most / page_size() * page_size();
    let is_full = settings.sizes == Sizes::Full;
    if is_full {
        // Long cases get no other warm-up.
        touch::memory_once(most * chunk_len)?;
    }
    let title = format!(
        "Each thread {passes} times over {CHUNKS} chunks of {}: take back, memset, offer",
        bytes_text(chunk_len as f64)
    );
    let case = |&threads: &usize| {
        let work = Work {
            threads,
            chunk_len,
            passes,
        };
        let name = match threads {
            1 => "1 thread".to_owned(),
            _ => format!("{threads} threads"),
        };
        let case = Case::new(name, work.ways()).in_table(&title);
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

/// What one thread has seen.
struct Seen {
    minor_faults: u64,
    purged_runs: usize,
}

impl Work {
    fn ways(self) -> Vec<Way> {
        vec![
            self.way(DONT_NEED, Plain::dont_need).baseline(),
            self.way("MADV_FREE", Plain::free),
            self.way(AT_ONCE, Tenure::new),
            self.way(TENURE, Tenure::new).tenure(),
            self.way(MEMSET, Plain::kept),
        ]
    }

    fn way<C: Chunk + 'static>(self, name: &'static str, new: fn(usize) -> Result<C>) -> Way {
        Way::new(
            name,
            move || {
                let held = (name == AT_ONCE).then(AtOnce::begin);
                let chunks = (0..self.threads * CHUNKS).map(|_| new(self.chunk_len));
                let mut chunks = chunks.collect::<Result<Vec<C>>>()?;
                each_thread(&mut chunks, fill_and_offer)?;
                Ok((chunks, held))
            },
            move |(mut chunks, held), recorder: &mut Recorder<'_>| {
                let refill = |chunks: &mut [C]| refill(chunks, self.passes);
                let seen = recorder.time(TIME, || each_thread(&mut chunks, refill))?;
                let minor_faults: u64 = seen.iter().map(|seen| seen.minor_faults).sum();
                let purged_runs: usize = seen.iter().map(|seen| seen.purged_runs).sum();
                recorder.record(FAULTS, Unit::Count, minor_faults as f64);
                recorder.record("purged runs", Unit::Count, purged_runs as f64);
                Ok((chunks, held))
            },
            move |(mut chunks, _held), _| {
                each_thread(&mut chunks, |chunks| check(chunks, self.passes))?;
                drop(chunks);
                Ok(tenure::drain(None)?)
            },
        )
    }
}

/// Returns what a chunk is filled with in a pass: never zero, which is what a
/// lost page reads as, and in no two successive passes the same.
fn pattern(pass: usize, chunk: usize) -> u8 {
    (pass % 16 * 16 + chunk % 15 + 1) as u8
}

fn fill_and_offer<C: Chunk>(chunks: &mut [C]) -> Result<()> {
    for (index, chunk) in chunks.iter_mut().enumerate() {
        chunk.bytes()?.fill(pattern(0, index));
        chunk.offer()?;
    }
    Ok(())
}

/// Takes each chunk back, fills it and offers it again, pass after pass. The
/// chunks have been filled and offered as in pass 0.
fn refill<C: Chunk>(chunks: &mut [C], passes: usize) -> Result<Seen> {
    let before = kernel::minor_faults();
    let mut purged_runs = 0;
    for pass in 1..=passes {
        for (index, chunk) in chunks.iter_mut().enumerate() {
            let contents = chunk.take_back()?;
            let bytes = chunk.bytes()?;
            match contents {
                // All of it is checked at the end; here a look must do, for it
                // is timed.
                Contents::Intact => check_ends(bytes, pattern(pass - 1, index))?,
                Contents::Purged(runs) => purged_runs += runs.len(),
                Contents::Unknown | Contents::Gone => {}
            }
            bytes.fill(pattern(pass, index));
            chunk.offer()?;
        }
    }
    Ok(Seen {
        minor_faults: kernel::minor_faults() - before,
        purged_runs,
    })
}

fn check_ends(bytes: &[u8], expected: u8) -> Result<()> {
    match [bytes[0], bytes[bytes.len() - 1]] {
        ends if ends == [expected; 2] => Ok(()),
        ends => bail!("said to be intact, but holds {ends:?} instead of {expected}"),
    }
}

/// Checks every byte of what the last pass left.
fn check<C: Chunk>(chunks: &mut [C], passes: usize) -> Result<()> {
    for (index, chunk) in chunks.iter_mut().enumerate() {
        let contents = chunk.take_back()?;
        chunk.settle()?;
        chunk::check(chunk.bytes()?, &contents, pattern(passes, index))?;
    }
    Ok(())
}

/// Has each thread do `work` on its own chunks.
fn each_thread<C: Chunk, T: Send>(
    chunks: &mut [C],
    work: impl Fn(&mut [C]) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    let work = &work;
    thread::scope(|scope| {
        let spawn = |chunks| scope.spawn(move || work(chunks));
        let threads: Vec<_> = chunks.chunks_mut(CHUNKS).map(spawn).collect();
        let join = |thread: ScopedJoinHandle<'_, Result<T>>| {
            thread.join().expect("work on chunks does not panic")
        };
        threads.into_iter().map(join).collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_never_zero_and_change() {
        for pass in 0..40 {
            for chunk in 0..CHUNKS {
                assert_ne!(pattern(pass, chunk), 0);
                assert_ne!(pattern(pass, chunk), pattern(pass + 1, chunk));
            }
        }
    }

    #[test]
    fn an_end_that_changed_is_seen() {
        check_ends(&[1, 0, 1], 1).unwrap();
        check_ends(&[1, 1, 0], 1).unwrap_err();
    }
}
