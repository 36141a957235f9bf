//! The order of reading: one thread looks for what is missing and admits it, in the order of
//! the files, so that the budget is used from the front whoever reads.

use std::collections::VecDeque;
use std::fs::File;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use super::super::{clip, ranges};
use super::admit::{Admitted, stopped_by_headroom};
use super::readers::{Counts, Readers, UNIT_BYTES, Unit, lock};
use super::{FileOutcome, Progress, StoppedBy, Wanted, WarmOptions, Warmed};
use crate::ground::error::{Error, Result};
use crate::ground::sys::page_size;
use crate::ground::sys::thread::Workers;

/// The interval between calls of the progress callback.
const REPORT_INTERVAL: Duration = Duration::from_millis(50);

pub(super) struct Planner<'a, T, D> {
    readers: &'a Readers,
    options: &'a WarmOptions,
    done: D,
    admitted: Admitted,
    budget_bytes: u64,
    /// Set when nothing more may be read.
    is_full: Option<StoppedBy>,
    /// Files whose outcome has not been told, in order.
    pending: VecDeque<(T, FileOutcome, Arc<Counts>)>,
    sums: Warmed,
    buffer: Vec<u8>,
    reported: Instant,
}

impl<'a, T, D: FnMut(T, FileOutcome)> Planner<'a, T, D> {
    pub(super) fn new(readers: &'a Readers, options: &'a WarmOptions, done: D) -> Result<Self> {
        Ok(Self {
            readers,
            options,
            done,
            admitted: Admitted::new()?,
            budget_bytes: options.budget_bytes.map_or(u64::MAX, whole_pages),
            is_full: None,
            pending: VecDeque::new(),
            sums: Warmed::default(),
            buffer: Vec::new(),
            reported: Instant::now(),
        })
    }

    /// Queues what is missing of a file.
    pub(super) fn add(&mut self, wanted: Wanted<T>) {
        let mut outcome = FileOutcome::default();
        let counts = Arc::new(Counts::default());
        let file = Arc::new(wanted.file);
        match examine(&file, &wanted.ranges) {
            Err(error) => outcome.error = Some(error),
            Ok(found) => {
                outcome.resident_bytes = found.resident_bytes;
                if self.is_full.is_none() && !self.admitted.keep(found.resident_bytes) {
                    self.is_full = Some(stopped_by_headroom());
                }
                for run in found.missing {
                    outcome.left_bytes += self.add_run(&file, run, found.len, &counts);
                }
            }
        }
        self.pending.push_back((wanted.tag, outcome, counts));
        self.tell();
    }

    /// Queues a missing run. Returns how many bytes of it may not be read.
    fn add_run(
        &mut self,
        file: &Arc<File>,
        run: Range<u64>,
        len: u64,
        counts: &Arc<Counts>,
    ) -> u64 {
        let end = run.end.min(run.start.saturating_add(self.budget_bytes));
        let mut at = run.start;
        while at < end && self.is_full.is_none() {
            let range = at..end.min(at + UNIT_BYTES);
            let bytes = range.end - range.start;
            if !self.admitted.read(bytes) {
                self.is_full = Some(stopped_by_headroom());
                break;
            }
            self.budget_bytes -= bytes;
            at = range.end;
            let unit = Unit {
                file: Arc::clone(file),
                // Reading ahead crosses the end of a run by two windows, which may have any
                // size; but nothing lies behind the end of the file.
                is_exact: end < len,
                range,
                counts: Arc::clone(counts),
            };
            self.readers.push(unit, &mut self.buffer);
            self.report_if_due();
        }
        if at < run.end {
            let reason = self.is_full.get_or_insert(StoppedBy::Budget);
            self.sums.stopped_by.get_or_insert_with(|| reason.clone());
        }
        run.end - at
    }

    /// Reads what is queued with the other readers, and tells all outcomes.
    pub(super) fn finish(&mut self, others: &Workers) {
        while self.readers.read_next(&mut self.buffer) {
            self.report_if_due();
            self.tell();
        }
        while !others.are_finished() {
            thread::park_timeout(Duration::from_millis(1));
            self.report_if_due();
            self.tell();
        }
        self.tell();
        if let Some(progress) = &self.options.progress {
            progress(self.progress());
        }
    }

    pub(super) fn into_result(self) -> Warmed {
        Warmed {
            readers: self.readers.count(),
            ..self.sums
        }
    }

    /// Tells the outcomes of the files that are read, in order.
    fn tell(&mut self) {
        let is_read = |(_, _, counts): &(T, FileOutcome, Arc<Counts>)| {
            counts.pending_units.load(Ordering::Acquire) == 0
        };
        while self.pending.front().is_some_and(is_read) {
            let Some((tag, mut outcome, counts)) = self.pending.pop_front() else {
                return;
            };
            outcome.read_bytes = counts.read_bytes.load(Ordering::Relaxed);
            outcome.left_bytes += counts.left_bytes.load(Ordering::Relaxed);
            outcome.error = outcome.error.or_else(|| lock(&counts.error).take());
            self.sums.resident_bytes += outcome.resident_bytes;
            self.sums.read_bytes += outcome.read_bytes;
            self.sums.left_bytes += outcome.left_bytes;
            self.sums.failed_files += u64::from(outcome.error.is_some());
            (self.done)(tag, outcome);
        }
    }

    fn report_if_due(&mut self) {
        if let Some(progress) = &self.options.progress
            && self.reported.elapsed() >= REPORT_INTERVAL
        {
            progress(self.progress());
            self.reported = Instant::now();
        }
    }

    fn progress(&self) -> Progress {
        Progress {
            read_bytes: self.readers.read_bytes(),
            elapsed: self.readers.elapsed(),
        }
    }
}

/// The missing and the resident parts of the wanted ranges.
#[derive(Debug, Default)]
struct Found {
    len: u64,
    missing: Vec<Range<u64>>,
    resident_bytes: u64,
}

fn examine(file: &File, wanted: &[Range<u64>]) -> Result<Found> {
    let mut found = Found {
        len: clip(file, &(0..u64::MAX))?.0.end,
        ..Found::default()
    };
    for range in wanted {
        let (pages, is_sparse) = clip(file, range)?;
        let (before, resident_before) = (found.missing.len(), found.resident_bytes);
        let scanned =
            ranges::scan(
                file,
                pages.clone(),
                is_sparse,
                &mut |range, is_resident| match is_resident {
                    true => found.resident_bytes += range.end - range.start,
                    false => found.missing.push(range),
                },
            );
        match scanned {
            Ok(()) => {}
            // All of it is read where the kernel does not tell.
            Err(Error::Unsupported { .. }) => {
                found.missing.truncate(before);
                found.resident_bytes = resident_before;
                found.missing.extend(ranges::data(file, pages, is_sparse)?);
            }
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

fn whole_pages(bytes: u64) -> u64 {
    bytes / page_size() as u64 * page_size() as u64
}
