//! Threads that bring the parts of a range in together.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError, RwLock};
use std::thread;
use std::time::{Duration, Instant};

use super::faster::FasterWay;
use super::options::{PopulateOptions, Progress};
use super::plan::{Part, Source, VERB, Way};
use super::ways::bring_in;
use crate::background::pace::{Pace, Wish};
use crate::ground::error::{Error, Result};
use crate::ground::range::PageRange;
use crate::ground::sys::thread::beside;
use crate::ground::sys::touch::Toucher;
use crate::ground::sys::{numa, pmd_bytes};
use rustix::thread::CpuSet;

/// Another thread's `mmap` waits for the chunks that are under way, and for its
/// turn behind them.
const CHUNKS: Wish = Wish {
    takes: Duration::from_millis(2),
    first_bytes: 1 << 20,
    least_bytes: 256 << 10,
    most_bytes: 64 << 20,
};

/// How often the progress callback is called.
const REPORT_EVERY: Duration = Duration::from_millis(50);

/// How long a thread steps back after chunks that took [`HELD`] together; the
/// kernel makes it some 50 µs.
///
/// A thread that goes straight on takes the address space's lock again before
/// whoever waits for it has woken up, and so for a long time: it lets the lock's
/// readers pass until the one who waits is tired of it, one thread after the
/// other. Beside another that maps and unmaps all the time, 4 GiB took 2.1 s and
/// the longest wait was 22 ms; with the pause it is 1.3 to 2.0 s and 5 to 14 ms.
const GIVE_WAY: Duration = Duration::from_micros(1);
const HELD: Duration = Duration::from_micros(400);

pub(super) struct Crew<'a> {
    range: PageRange,
    parts: &'a [Part],
    options: &'a PopulateOptions,
    source: Option<Source<'a>>,
    toucher: Option<Toucher>,
    faster: FasterWay,
    /// Near the memory; for the threads that are started, not for the caller.
    cpus: Option<CpuSet>,
    /// What each thread still has before it. Whoever is done takes half of the
    /// longest.
    spans: Vec<Mutex<Range<usize>>>,
    done_bytes: AtomicUsize,
    stop: AtomicBool,
    failure: Mutex<Option<Error>>,
    begun: Instant,
}

impl<'a> Crew<'a> {
    pub(super) fn new(
        range: PageRange,
        parts: &'a [Part],
        options: &'a PopulateOptions,
        source: Option<Source<'a>>,
    ) -> Result<Self> {
        let toucher = if parts.iter().any(|part| part.way == Way::Touch) {
            Some(Toucher::new().map_err(|errno| Error::System {
                call: "memfd_create",
                errno,
            })?)
        } else {
            None
        };
        let threads = options.threads_for(range);
        Ok(Self {
            range,
            parts,
            options,
            source,
            toucher,
            faster: FasterWay::default(),
            cpus: numa::cpus_for(range),
            spans: divide(range, threads).into_iter().map(Mutex::new).collect(),
            done_bytes: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
            failure: Mutex::new(None),
            begun: Instant::now(),
        })
    }

    /// Does all of the work; the calling thread does its share of it.
    pub(super) fn run(&self) -> Result<()> {
        let gate = &RwLock::new(());
        // Starting a thread maps a stack, for which it would have to wait if others
        // were populating already.
        let closed = gate.write().unwrap_or_else(PoisonError::into_inner);
        let work = |index| {
            if let Some(cpus) = &self.cpus {
                numa::run_on(cpus);
            }
            drop(gate.read());
            self.work(index, &mut || ());
        };
        // What has no thread of its own is taken over by the others.
        beside(c"tenure-populate", 1..self.spans.len(), &work, |others| {
            drop(closed);
            let mut reporter = Reporter::new(self);
            self.work(0, &mut || reporter.now_and_then());
            while !others.are_finished() {
                thread::park_timeout(Duration::from_millis(1));
                reporter.now_and_then();
            }
        });
        self.answer()
    }

    fn answer(&self) -> Result<()> {
        let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(error) = failure.take() {
            return Err(error);
        }
        let done_bytes = self.done_bytes.load(Ordering::Relaxed);
        if done_bytes < self.range.len() {
            return Err(Error::Cancelled {
                verb: VERB,
                range: self.range,
                done_bytes,
            });
        }
        if let Some(progress) = &self.options.progress {
            progress(self.progress());
        }
        Ok(())
    }

    fn progress(&self) -> Progress {
        Progress {
            done_bytes: self.done_bytes.load(Ordering::Relaxed),
            total_bytes: self.range.len(),
            elapsed: self.begun.elapsed(),
        }
    }

    fn work(&self, index: usize, after_chunk: &mut dyn FnMut()) {
        let mut pace = Pace::new(CHUNKS, self.options.chunk_bytes);
        let mut held = Duration::ZERO;
        while !self.stop.load(Ordering::Relaxed) && !self.options.cancel.is_cancelled() {
            let Some((chunk, part)) = self.take(index, pace.chunk_bytes()) else {
                return;
            };
            let way = match part.way {
                Way::Fastest => self.faster.choose(),
                way => way,
            };
            let before = Instant::now();
            let answer = bring_in(
                chunk,
                way,
                self.options.access,
                self.source,
                self.toucher.as_ref(),
            );
            let took = before.elapsed();
            if let Err(error) = answer {
                self.stop.store(true, Ordering::Relaxed);
                let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
                failure.get_or_insert(error);
                return;
            }
            pace.learn(chunk.len(), took);
            self.faster.learn(way, chunk.len(), took);
            self.done_bytes.fetch_add(chunk.len(), Ordering::Relaxed);
            held += took;
            if held >= HELD {
                thread::sleep(GIVE_WAY);
                held = Duration::ZERO;
            }
            after_chunk();
        }
    }

    /// Takes the next chunk of this thread's span, or of what it can take over.
    fn take(&self, index: usize, chunk_bytes: usize) -> Option<(PageRange, Part)> {
        loop {
            if let Some(taken) = self.take_own(index, chunk_bytes) {
                return Some(taken);
            }
            let longest = (0..self.spans.len()).max_by_key(|&other| self.span(other).len())?;
            let share = take_half(&mut self.span(longest));
            if share.is_empty() {
                return None;
            }
            *self.span(index) = share;
        }
    }

    fn take_own(&self, index: usize, chunk_bytes: usize) -> Option<(PageRange, Part)> {
        let mut span = self.span(index);
        if span.is_empty() {
            return None;
        }
        let at = self
            .parts
            .partition_point(|part| part.range.end() <= span.start);
        let part = self.parts[at];
        let bytes = chunk_bytes.next_multiple_of(part.page_bytes);
        let end = span
            .start
            .saturating_add(bytes)
            .min(span.end)
            .min(part.range.end());
        let chunk = PageRange::between(span.start, end);
        span.start = end;
        Some((chunk, part))
    }

    fn span(&self, index: usize) -> std::sync::MutexGuard<'_, Range<usize>> {
        self.spans[index]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// Cuts the range into one span for each thread. The cuts lie where page-table
/// pages (and huge pages) begin.
fn divide(range: PageRange, threads: usize) -> Vec<Range<usize>> {
    let each = range.len().div_ceil(threads).next_multiple_of(pmd_bytes());
    let mut spans = vec![range.as_std()];
    while spans.len() < threads {
        let rest = spans.pop().unwrap_or_default();
        let cut = (rest.start + each) / pmd_bytes() * pmd_bytes();
        let cut = cut.clamp(rest.start, rest.end);
        spans.extend([rest.start..cut, cut..rest.end]);
    }
    spans
}

/// Takes the upper half of a span over, or all of it where it is too short to
/// be shared: its thread may not exist.
fn take_half(span: &mut Range<usize>) -> Range<usize> {
    let middle = (span.start + span.len() / 2).next_multiple_of(pmd_bytes());
    let from = if middle < span.end {
        middle
    } else {
        span.start
    };
    let share = from..span.end;
    span.end = from;
    share
}

struct Reporter<'a> {
    crew: &'a Crew<'a>,
    last: Instant,
}

impl<'a> Reporter<'a> {
    fn new(crew: &'a Crew<'a>) -> Self {
        Self {
            crew,
            last: Instant::now(),
        }
    }

    fn now_and_then(&mut self) {
        if let Some(progress) = &self.crew.options.progress
            && self.last.elapsed() >= REPORT_EVERY
        {
            progress(self.crew.progress());
            self.last = Instant::now();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ground::sys::page_size;

    #[test]
    fn spans_cover_the_range_once_whatever_the_number_of_threads() {
        let page = page_size();
        for pages in [1, 511, 512, 513, 5000] {
            let range = PageRange::new(3 * pmd_bytes() + 5 * page, pages * page).unwrap();
            for threads in [1, 2, 3, 7, 64] {
                let spans = divide(range, threads);
                assert_eq!(spans.len(), threads);
                assert_eq!(spans[0].start, range.start());
                assert_eq!(spans[threads - 1].end, range.end());
                for pair in spans.windows(2) {
                    assert_eq!(pair[0].end, pair[1].start);
                }
            }
        }
    }

    #[test]
    fn half_is_taken_over_and_the_last_rest_whole() {
        let pmd = pmd_bytes();
        let mut span = pmd..5 * pmd;
        assert_eq!(take_half(&mut span), 3 * pmd..5 * pmd);
        assert_eq!(span, pmd..3 * pmd);
        let mut span = pmd..pmd + page_size();
        assert_eq!(take_half(&mut span), pmd..pmd + page_size());
        assert!(span.is_empty());
        assert!(take_half(&mut span).is_empty());
    }
}
