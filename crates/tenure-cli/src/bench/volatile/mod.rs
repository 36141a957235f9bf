//! Experiment: refill buffers that the kernel may take between two uses.

mod chunk;

use std::thread::{self, ScopedJoinHandle};

use anyhow::{Result, bail};
use tenure::page_size;

use self::chunk::{CHUNK_BYTES, Chunk, Contents, Plain, Tenure};
use super::{
    Settings,
    experiment::{Case, CaseResult, Experiment, Recorder, Unit, Way},
    kernel,
    statistics::Better,
};
use crate::text::{bytes_text, count_text, ratio_text};

const CHUNKS: usize = 10;
const ROUNDS: usize = 3;
const TIME: &str = "time";
const FAULTS: &str = "minor faults";
const DONT_NEED: &str = "MADV_DONTNEED";
const TENURE: &str = "tenure";

/// Prepares the experiment.
pub fn experiment(settings: &Settings) -> Result<Experiment> {
    let most_threads = 2;
    let needed = most_threads * CHUNKS * CHUNK_BYTES;
    settings.room.fit(needed, 2, needed)?;
    let cases = [1, most_threads].map(|threads| {
        let name = if threads == 1 {
            "1 thread".to_owned()
        } else {
            format!("{threads} threads")
        };
        let ways = vec![
            way(DONT_NEED, threads, Plain::dont_need).baseline(),
            way("MADV_FREE", threads, Plain::free),
            way(TENURE, threads, Tenure::new).tenure(),
            way("memset only", threads, Plain::kept),
        ];
        Case::new(name, ways)
    });
    Ok(Experiment {
        title: format!(
            "{ROUNDS} times over {CHUNKS} chunks of {} a thread: take back, memset, offer",
            bytes_text(CHUNK_BYTES as f64)
        ),
        notes: vec![
            "Base pages. Only tenure tells whether the contents of the last round were lost; \
             memset only is the floor: nothing is offered."
                .to_owned(),
        ],
        compared: TIME,
        better: Better::Less,
        cases: cases.into(),
        conclude,
    })
}

/// Returns what a chunk is filled with in a round: never zero, which is what a
/// lost page reads as, and in no two successive rounds the same.
fn pattern(round: usize, chunk: usize) -> u8 {
    (round % 16 * 16 + chunk % 15 + 1) as u8
}

/// What one thread has seen.
struct Seen {
    minor_faults: u64,
    purged_runs: usize,
}

fn fill_and_offer<C: Chunk>(chunks: &mut [C]) -> Result<()> {
    for (index, chunk) in chunks.iter_mut().enumerate() {
        chunk.bytes()?.fill(pattern(0, index));
        chunk.offer()?;
    }
    Ok(())
}

/// Takes each chunk back, fills it and offers it again, round after round. The
/// chunks have been filled and offered as in round 0.
fn work_of_thread<C: Chunk>(chunks: &mut [C]) -> Result<Seen> {
    let before = kernel::minor_faults();
    let mut purged_runs = 0;
    for round in 1..=ROUNDS {
        for (index, chunk) in chunks.iter_mut().enumerate() {
            let contents = chunk.take_back()?;
            let bytes = chunk.bytes()?;
            match contents {
                // All of it is checked at the end; here a look must do, for it
                // is timed.
                Contents::Intact => check_ends(bytes, pattern(round - 1, index))?,
                Contents::Purged(runs) => purged_runs += runs,
                Contents::Unknown | Contents::Gone => {}
            }
            bytes.fill(pattern(round, index));
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

/// Checks every byte of what the last round left.
fn check<C: Chunk>(chunks: &mut [C]) -> Result<()> {
    for (index, chunk) in chunks.iter_mut().enumerate() {
        let contents = chunk.take_back()?;
        chunk.settle()?;
        check_contents(chunk.bytes()?, &contents, pattern(ROUNDS, index))?;
    }
    Ok(())
}

fn check_contents(bytes: &[u8], contents: &Contents, expected: u8) -> Result<()> {
    let (old_page, zero_page) = (vec![expected; page_size()], vec![0; page_size()]);
    let (mut old, mut zero) = (0, 0);
    for page in bytes.chunks(page_size()) {
        if page == old_page {
            old += 1;
        } else if page == zero_page {
            zero += 1;
        } else {
            bail!("a page holds neither its old contents nor zeros");
        }
    }
    let is_right = match contents {
        Contents::Intact => zero == 0,
        Contents::Purged(_) => zero > 0,
        Contents::Unknown => true,
        Contents::Gone => old == 0,
    };
    if !is_right {
        bail!("{old} pages have their old contents and {zero} read as zeros");
    }
    Ok(())
}

fn way<C: Chunk + Send + 'static>(
    name: &'static str,
    threads: usize,
    new: fn() -> Result<C>,
) -> Way {
    Way::new(
        name,
        move || {
            let chunks = (0..threads * CHUNKS).map(|_| new());
            let mut chunks = chunks.collect::<Result<Vec<C>>>()?;
            each_thread(&mut chunks, fill_and_offer)?;
            Ok(chunks)
        },
        move |mut chunks, recorder: &mut Recorder<'_>| {
            let seen = recorder.time(TIME, || each_thread(&mut chunks, work_of_thread))?;
            let minor_faults: u64 = seen.iter().map(|seen| seen.minor_faults).sum();
            let purged_runs: usize = seen.iter().map(|seen| seen.purged_runs).sum();
            recorder.record(FAULTS, Unit::Count, minor_faults as f64);
            recorder.record("purged runs", Unit::Count, purged_runs as f64);
            Ok(chunks)
        },
        |mut chunks, _| {
            each_thread(&mut chunks, check)?;
            drop(chunks);
            Ok(tenure::drain(None)?)
        },
    )
}

/// Has each thread do `work` on its own chunks.
fn each_thread<C: Chunk + Send, T: Send>(
    chunks: &mut [C],
    work: fn(&mut [C]) -> Result<T>,
) -> Result<Vec<T>> {
    thread::scope(|scope| {
        let spawn = |chunks| scope.spawn(move || work(chunks));
        let threads: Vec<_> = chunks.chunks_mut(CHUNKS).map(spawn).collect();
        let join = |thread: ScopedJoinHandle<'_, Result<T>>| {
            thread.join().expect("work on chunks does not panic")
        };
        threads.into_iter().map(join).collect()
    })
}

fn conclude(cases: &[CaseResult]) -> String {
    let parts: Vec<String> = cases
        .iter()
        .filter_map(|case| {
            let faults = |way: &str| Some(case.way(way)?.figure(FAULTS)?.series.median);
            Some(format!(
                "with {} it is {} times as fast as with MADV_DONTNEED and takes {} page faults \
                 instead of {}",
                case.name,
                ratio_text(case.tenure()?.median),
                count_text(faults(TENURE)?),
                count_text(faults(DONT_NEED)?),
            ))
        })
        .collect();
    format!("Refilling volatile memory: {}.", parts.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_never_zero_and_change() {
        for round in 0..40 {
            for chunk in 0..CHUNKS {
                assert_ne!(pattern(round, chunk), 0);
                assert_ne!(pattern(round, chunk), pattern(round + 1, chunk));
            }
        }
    }

    #[test]
    fn contents_must_match_what_was_said_of_them() {
        let page = page_size();
        let mut bytes = vec![7; 3 * page];
        check_contents(&bytes, &Contents::Intact, 7).unwrap();
        check_contents(&bytes, &Contents::Unknown, 7).unwrap();
        check_contents(&bytes, &Contents::Gone, 7).unwrap_err();
        check_contents(&bytes, &Contents::Purged(1), 7).unwrap_err();
        bytes[page..2 * page].fill(0);
        check_contents(&bytes, &Contents::Purged(1), 7).unwrap();
        check_contents(&bytes, &Contents::Intact, 7).unwrap_err();
        bytes[0] = 3;
        check_contents(&bytes, &Contents::Unknown, 7).unwrap_err();
    }

    #[test]
    fn an_end_that_changed_is_seen() {
        check_ends(&[1, 0, 1], 1).unwrap();
        check_ends(&[1, 1, 0], 1).unwrap_err();
    }
}
