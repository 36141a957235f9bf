//! Threads that populate the parts of one range together.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError, RwLock};
use std::thread;
use std::time::{Duration, Instant};

use super::file_method::FileMethod;
use super::headroom::PopulateAdmission;
use super::options::{Access, PopulateOptions, Progress};
use super::plan::{Method, Part, Source, VERB};
use super::pooled::Pooled;
use super::prefault::prefault;
use crate::background::chunk_sizer::{ChunkSizer, ChunkTarget};
use crate::ground::error::{Error, Result};
use crate::ground::range::PageRange;
use crate::ground::sys::prefault::Prefaulter;
use crate::ground::sys::thread::with_workers;
use crate::ground::sys::{numa, pmd_bytes};
use rustix::thread::CpuSet;

/// How long one chunk should take.
pub const CHUNK_DURATION: Duration = Duration::from_millis(2);

/// Another thread's `mmap` waits for the chunks in progress, because they hold the
/// address space's lock (`mmap_lock`), and then for its turn.
pub(in crate::verbs) const CHUNK_TARGET: ChunkTarget = ChunkTarget {
    duration: CHUNK_DURATION,
    initial_bytes: 1 << 20,
    min_bytes: 256 << 10,
    max_bytes: 64 << 20,
};

/// The interval between calls of the progress callback.
pub const REPORT_INTERVAL: Duration = Duration::from_millis(50);

/// How long a worker sleeps after chunks that took [`YIELD_INTERVAL`] together; the
/// kernel extends it to some 50 µs.
///
/// A worker that continues at once takes the `mmap_lock` for reading again before
/// a waiting writer has woken up. The lock keeps admitting readers, one worker
/// after the other, until the writer's wait times out. Beside a thread that maps
/// and unmaps all the time, 4 GiB took 2.1 s and that thread's longest wait was
/// 22 ms; with the pause they are 1.3 to 2.0 s and 5 to 14 ms.
pub(in crate::verbs) const YIELD_PAUSE: Duration = Duration::from_micros(1);
pub(in crate::verbs) const YIELD_INTERVAL: Duration = Duration::from_micros(400);

pub(super) struct Workers<'a> {
    range: PageRange,
    parts: &'a [Part],
    options: &'a PopulateOptions,
    source: Option<Source<'a>>,
    admission: Option<&'a PopulateAdmission>,
    prefaulter: Option<Prefaulter>,
    file_method: FileMethod,
    pooled: Pooled,
    /// The CPUs near the memory. Started threads run there; the calling thread is
    /// not moved.
    cpus: Option<CpuSet>,
    /// The addresses that each worker still has to populate. An idle worker
    /// steals half of the longest span.
    spans: Vec<Mutex<Range<usize>>>,
    done_bytes: AtomicUsize,
    stop: AtomicBool,
    failure: Mutex<Option<Error>>,
    started: Instant,
}

impl<'a> Workers<'a> {
    pub(super) fn new(
        range: PageRange,
        parts: &'a [Part],
        options: &'a PopulateOptions,
        source: Option<Source<'a>>,
        admission: Option<&'a PopulateAdmission>,
    ) -> Result<Self> {
        let prefaulter = if parts.iter().any(|part| part.method == Method::Touch) {
            Some(Prefaulter::new().map_err(|errno| Error::System {
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
            admission,
            prefaulter,
            file_method: FileMethod::default(),
            pooled: Pooled::default(),
            cpus: numa::cpus_for(range),
            spans: divide(range, threads).into_iter().map(Mutex::new).collect(),
            done_bytes: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
            failure: Mutex::new(None),
            started: Instant::now(),
        })
    }

    /// Populates the whole range; the calling thread is one of the workers.
    pub(super) fn run(&self) -> Result<()> {
        let gate = &RwLock::new(());
        // All threads start before the first fault: starting a thread maps a stack,
        // and that mmap would wait for threads that are populating already.
        let closed_gate = gate.write().unwrap_or_else(PoisonError::into_inner);
        let work = |index| {
            if let Some(cpus) = &self.cpus {
                numa::run_on(cpus);
            }
            drop(gate.read());
            self.stop_if_panicking(|| self.work(index, &mut || ()));
        };
        // The others steal the span of a thread that could not be started.
        with_workers(c"tenure-populate", 1..self.spans.len(), &work, |others| {
            drop(closed_gate);
            let mut reporter = Reporter::new(self);
            // The progress callback may panic.
            self.stop_if_panicking(|| {
                self.work(0, &mut || reporter.report_if_due());
                while !others.are_finished() {
                    thread::park_timeout(Duration::from_millis(1));
                    reporter.report_if_due();
                }
            });
        });
        self.result()
    }

    /// Runs `work`, and stops all workers if it panics: the panic continues once they have
    /// ended.
    fn stop_if_panicking(&self, work: impl FnOnce()) {
        struct Stop<'a>(&'a AtomicBool);
        impl Drop for Stop<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Relaxed);
            }
        }
        let stop = Stop(&self.stop);
        work();
        std::mem::forget(stop);
    }

    fn result(&self) -> Result<()> {
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
            elapsed: self.started.elapsed(),
        }
    }

    fn work(&self, index: usize, after_chunk: &mut dyn FnMut()) {
        let mut chunk_sizer = ChunkSizer::new(CHUNK_TARGET, self.options.chunk_bytes);
        let mut unyielded = Duration::ZERO;
        while !self.stop.load(Ordering::Relaxed) && !self.options.cancel.is_cancelled() {
            let Some((chunk, part)) = self.next_chunk(index, chunk_sizer.chunk_bytes()) else {
                return;
            };
            let method = match part.method {
                Method::Fastest => self.file_method.choose(),
                method => method,
            };
            let before = Instant::now();
            let prefault = |range| self.prefault(range, method, part.access);
            let result = match method {
                Method::Pool => self.pooled.fill(chunk, prefault),
                _ => prefault(chunk),
            };
            let elapsed = before.elapsed();
            if let Err(error) = result {
                self.stop.store(true, Ordering::Relaxed);
                let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
                failure.get_or_insert(error);
                return;
            }
            chunk_sizer.record(chunk.len(), elapsed);
            self.file_method.record(method, chunk.len(), elapsed);
            self.done_bytes.fetch_add(chunk.len(), Ordering::Relaxed);
            unyielded += elapsed;
            if unyielded >= YIELD_INTERVAL {
                thread::sleep(YIELD_PAUSE);
                unyielded = Duration::ZERO;
            }
            after_chunk();
        }
    }

    /// Faults in what is a chunk, or a part of one.
    fn prefault(&self, range: PageRange, method: Method, access: Access) -> Result<()> {
        // Counted before, because other threads read the limits meanwhile.
        let admitted = self.admission.map(|all| (all, all.bytes_in(range)));
        let prefaulter = self.prefaulter.as_ref();
        let result = prefault(range, method, access, self.source, prefaulter);
        if let Some((admission, bytes)) = admitted {
            admission.mark_resident(bytes);
        }
        result
    }

    /// Takes the next chunk of this worker's span, or of a span that it steals.
    fn next_chunk(&self, index: usize, chunk_bytes: usize) -> Option<(PageRange, Part)> {
        loop {
            if let Some(next) = self.next_own_chunk(index, chunk_bytes) {
                return Some(next);
            }
            let longest = (0..self.spans.len()).max_by_key(|&other| self.span(other).len())?;
            let stolen = steal_half(&mut self.span(longest));
            if stolen.is_empty() {
                return None;
            }
            *self.span(index) = stolen;
        }
    }

    fn next_own_chunk(&self, index: usize, chunk_bytes: usize) -> Option<(PageRange, Part)> {
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

/// Returns the bytes at whose multiples a range is split: what a page of page tables maps,
/// but no more than leaves work for each thread, because that is 512 MiB with pages of 64 KiB.
pub(super) fn span_unit() -> usize {
    pmd_bytes().min(32 << 20)
}

/// Splits the range into one span per thread, at boundaries of page-table pages
/// (and of huge pages) where these are short.
fn divide(range: PageRange, threads: usize) -> Vec<Range<usize>> {
    let each = range.len().div_ceil(threads).next_multiple_of(span_unit());
    let mut spans = vec![range.as_std()];
    while spans.len() < threads {
        let rest = spans.pop().unwrap_or_default();
        let cut = (rest.start + each) / span_unit() * span_unit();
        let cut = cut.clamp(rest.start, rest.end);
        spans.extend([rest.start..cut, cut..rest.end]);
    }
    spans
}

/// Steals the upper half of a span, or the whole span if it is too short to be
/// split: its own thread may not exist.
fn steal_half(span: &mut Range<usize>) -> Range<usize> {
    let middle = (span.start + span.len() / 2).next_multiple_of(span_unit());
    let from = if middle < span.end {
        middle
    } else {
        span.start
    };
    let stolen = from..span.end;
    span.end = from;
    stolen
}

struct Reporter<'a> {
    workers: &'a Workers<'a>,
    last: Instant,
}

impl<'a> Reporter<'a> {
    fn new(workers: &'a Workers<'a>) -> Self {
        Self {
            workers,
            last: Instant::now(),
        }
    }

    fn report_if_due(&mut self) {
        if let Some(progress) = &self.workers.options.progress
            && self.last.elapsed() >= REPORT_INTERVAL
        {
            progress(self.workers.progress());
            self.last = Instant::now();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ground::sys::page_size;

    #[test]
    fn divide_for_any_thread_count_covers_the_range_once() {
        let page = page_size();
        for pages in [1, 511, 512, 513, 5000] {
            let range = PageRange::new(3 * span_unit() + 5 * page, pages * page).unwrap();
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
    fn steal_half_of_short_span_takes_it_whole() {
        let unit = span_unit();
        let mut span = unit..5 * unit;
        assert_eq!(steal_half(&mut span), 3 * unit..5 * unit);
        assert_eq!(span, unit..3 * unit);
        let mut span = unit..unit + page_size();
        assert_eq!(steal_half(&mut span), unit..unit + page_size());
        assert!(span.is_empty());
        assert!(steal_half(&mut span).is_empty());
    }
}
