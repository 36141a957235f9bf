//! The threads that read, and the queue of what they read, in the order of the files.

use std::collections::VecDeque;
use std::fs::File;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::scaling::ReaderScaling;
use crate::ground::error::Error;
use crate::ground::sys::page_cache;

/// The most that is read at once, and the size of each reader's buffer.
pub(super) const UNIT_BYTES: u64 = 1 << 20;

/// How many units wait: the files of waiting units are open.
const QUEUE_UNITS: usize = 64;

/// A part of a file that is admitted and missing.
#[derive(Debug)]
pub(super) struct Unit {
    pub(super) file: Arc<File>,
    pub(super) range: Range<u64>,
    /// Nothing behind the unit may be read.
    pub(super) is_exact: bool,
    pub(super) counts: Arc<Counts>,
}

/// The progress of one file.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) pending_units: AtomicUsize,
    pub(super) read_bytes: AtomicU64,
    /// Of units that were skipped after an error.
    pub(super) left_bytes: AtomicU64,
    pub(super) error: Mutex<Option<Error>>,
}

#[derive(Debug)]
struct Queue {
    units: VecDeque<Unit>,
    is_closed: bool,
    scaling: ReaderScaling,
}

#[derive(Debug)]
pub(super) struct Readers {
    queue: Mutex<Queue>,
    changed: Condvar,
    read_bytes: AtomicU64,
    began: Instant,
}

impl Readers {
    pub(super) fn new(max_readers: usize, is_fixed: bool) -> Self {
        Self {
            queue: Mutex::new(Queue {
                units: VecDeque::new(),
                is_closed: false,
                scaling: ReaderScaling::new(max_readers, is_fixed),
            }),
            changed: Condvar::new(),
            read_bytes: AtomicU64::new(0),
            began: Instant::now(),
        }
    }

    pub(super) fn read_bytes(&self) -> u64 {
        self.read_bytes.load(Ordering::Relaxed)
    }

    pub(super) fn elapsed(&self) -> std::time::Duration {
        self.began.elapsed()
    }

    pub(super) fn count(&self) -> usize {
        self.lock().scaling.readers()
    }

    /// Adds a unit. While the queue is full the calling thread reads.
    pub(super) fn push(&self, unit: Unit, buffer: &mut Vec<u8>) {
        unit.counts.pending_units.fetch_add(1, Ordering::Relaxed);
        let mut queue = self.lock();
        queue.units.push_back(unit);
        let is_full = queue.units.len() > QUEUE_UNITS;
        drop(queue);
        self.changed.notify_one();
        if is_full {
            self.read_next(buffer);
        }
    }

    /// Reads the first unit that waits, if there is one.
    pub(super) fn read_next(&self, buffer: &mut Vec<u8>) -> bool {
        let unit = self.lock().units.pop_front();
        let is_some = unit.is_some();
        if let Some(unit) = unit {
            self.read(&unit, buffer);
        }
        is_some
    }

    /// Reads units until the queue is closed and empty: the body of a thread.
    pub(super) fn work(&self, index: usize) {
        let mut buffer = Vec::new();
        loop {
            let mut queue = self.lock();
            let unit = loop {
                let may_read = index < queue.scaling.readers();
                let next = may_read.then(|| queue.units.pop_front()).flatten();
                match next {
                    Some(unit) => break unit,
                    None if queue.is_closed && (queue.units.is_empty() || !may_read) => return,
                    None => queue = self.wait(queue),
                }
            };
            drop(queue);
            self.read(&unit, &mut buffer);
        }
    }

    /// Nothing more comes.
    pub(super) fn close(&self) {
        self.lock().is_closed = true;
        self.changed.notify_all();
    }

    /// Closes the queue when the value is dropped.
    pub(super) fn close_at_end(&self) -> impl Drop {
        struct Close<'a>(&'a Readers);
        impl Drop for Close<'_> {
            fn drop(&mut self) {
                self.0.close();
            }
        }
        Close(self)
    }

    fn read(&self, unit: &Unit, buffer: &mut Vec<u8>) {
        let counts = &unit.counts;
        let wanted = unit.range.end - unit.range.start;
        let has_failed = lock(&counts.error).is_some();
        if has_failed {
            counts.left_bytes.fetch_add(wanted, Ordering::Relaxed);
        } else {
            buffer.resize(UNIT_BYTES as usize, 0);
            let read = read_unit(unit, buffer);
            let (Ok(read_bytes) | Err((read_bytes, _))) = read;
            counts.read_bytes.fetch_add(read_bytes, Ordering::Relaxed);
            let all = self.read_bytes.fetch_add(read_bytes, Ordering::Relaxed) + read_bytes;
            if let Err((_, error)) = read {
                counts
                    .left_bytes
                    .fetch_add(wanted - read_bytes, Ordering::Relaxed);
                lock(&counts.error).get_or_insert(error);
            }
            self.scale(all);
        }
        counts.pending_units.fetch_sub(1, Ordering::Release);
    }

    fn scale(&self, read_bytes: u64) {
        let mut queue = self.lock();
        let before = queue.scaling.readers();
        let is_changed = queue.scaling.record(read_bytes, self.began.elapsed()) != before;
        drop(queue);
        if is_changed {
            self.changed.notify_all();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        lock(&self.queue)
    }

    fn wait<'a>(&self, queue: MutexGuard<'a, Queue>) -> MutexGuard<'a, Queue> {
        self.changed
            .wait(queue)
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the bytes in whole pages that were read; fewer at the end of a file that has
/// become shorter.
fn read_unit(unit: &Unit, buffer: &mut [u8]) -> Result<u64, (u64, Error)> {
    if unit.is_exact {
        // Advice that is refused makes the reading less exact, and nothing else.
        let _ = page_cache::read_ahead(&unit.file, false);
    }
    let page = crate::page_size() as u64;
    let mut at = unit.range.start;
    while at < unit.range.end {
        let wanted = (unit.range.end - at) as usize;
        match page_cache::read(&unit.file, &mut buffer[..wanted], at) {
            Ok(0) => break,
            Ok(read) => at += read as u64,
            Err(errno) => {
                let call = "pread";
                let read_bytes = (at - unit.range.start) / page * page;
                return Err((read_bytes, Error::System { call, errno }));
            }
        }
    }
    Ok((at - unit.range.start).next_multiple_of(page))
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
