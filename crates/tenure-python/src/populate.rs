//! `tenure.populate`: faults the pages of a buffer in.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use pyo3::{
    exceptions::{PyTypeError, PyValueError},
    prelude::*,
};
use tenure::{
    Access, PageRange, page_size,
    populate::{CancelToken, PopulateOptions},
};

use crate::{
    buffer::Borrowed,
    error::{exception, optional_size},
};

/// The pauses after which the caller looks for the end, signals and progress: the first,
/// which doubles, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_micros(50), Duration::from_millis(20));

/// Faults all pages of a buffer in now, by several threads. Contents do not change.
///
/// :param buffer: an object with the buffer protocol whose memory is writable: an array, a
///     bytearray, an mmap. Whole pages are faulted in.
/// :param progress: called from this thread now and then, with the bytes done and the bytes in all.
///     An exception of it cancels the work, and is raised here.
/// :param threads: how many threads; None for as many as help.
/// :raises MemoryError: where the memory is not there, before any of it is taken.
#[pyfunction]
#[pyo3(signature = (buffer, *, progress = None, threads = None))]
pub fn populate(
    py: Python<'_>,
    buffer: &Bound<'_, PyAny>,
    progress: Option<&Bound<'_, PyAny>>,
    threads: Option<Bound<'_, PyAny>>,
) -> PyResult<()> {
    let threads = optional_size("threads", threads.as_ref())?;
    if threads == Some(0) {
        return Err(PyValueError::new_err("threads must be at least 1"));
    }
    if progress.is_some_and(|progress| !progress.is_callable()) {
        return Err(PyTypeError::new_err("progress must be callable"));
    }
    let bytes = Borrowed::of(buffer)?;
    if bytes.len() == 0 {
        return Ok(());
    }
    let in_page = bytes.start().addr() % page_size();
    let range = PageRange::covering(bytes.start().addr() - in_page, bytes.len() + in_page);
    let range = range.map_err(exception)?;
    let mut options = PopulateOptions::new(Access::Write);
    if let Some(threads) = threads {
        options = options.threads(threads);
    }
    // SAFETY: the memory stays mapped while `bytes` lives. Python objects do not rely on
    // missing pages.
    unsafe { run(py, range, options, progress) }
}

/// Populates a range without the GIL, and ends early with what a signal handler or the
/// callback raises.
///
/// # Safety
///
/// As for [`PageRange::populate_in_background`], until this returns.
pub unsafe fn run(
    py: Python<'_>,
    range: PageRange,
    options: PopulateOptions,
    progress: Option<&Bound<'_, PyAny>>,
) -> PyResult<()> {
    let (done, token) = (Arc::new(AtomicUsize::new(0)), CancelToken::new());
    let counter = done.clone();
    let options = options
        .cancel(&token)
        .progress(move |progress| counter.store(progress.done_bytes, Ordering::Relaxed));
    // SAFETY: as the caller promises: the handle is waited for below.
    let handle = py.detach(|| unsafe { range.populate_in_background(&options) });
    let handle = handle.map_err(exception)?;
    let mut told = 0;
    let mut look = || {
        py.check_signals()?;
        let now = done.load(Ordering::Relaxed);
        match progress {
            Some(progress) if now != told => {
                told = now;
                progress.call1((now, range.len())).map(drop)
            }
            _ => Ok(()),
        }
    };
    let (mut stopped, mut pause) = (None, PAUSES.0);
    while !handle.is_finished() && stopped.is_none() {
        py.detach(|| thread::sleep(pause));
        pause = (2 * pause).min(PAUSES.1);
        stopped = look().err();
    }
    if stopped.is_some() {
        token.cancel();
    }
    let result = py.detach(|| handle.wait());
    match stopped {
        Some(error) => Err(error),
        None => {
            result.map_err(exception)?;
            look()
        }
    }
}
