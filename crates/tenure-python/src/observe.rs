//! Figures: residency, headroom, pressure, counters.

use std::{
    ptr,
    sync::{Arc, Condvar, Mutex, PoisonError, mpsc},
    thread,
    time::Duration,
};

use pyo3::{exceptions::PyValueError, prelude::*, types::PyDict};
use tenure::{Count, Headroom, pressure};

use crate::error::{self, exception, optional_size};

/// The memory of a process, in bytes. A figure that the kernel does not tell is None.
#[pyclass(frozen, get_all, module = "tenure")]
pub struct Residency {
    /// In memory: RSS.
    rss: usize,
    /// In memory, and free for the kernel to take; counted in `rss`.
    lazily_free: Option<usize>,
    /// `rss` less `lazily_free`.
    rss_without_lazily_free: Option<usize>,
    /// In memory, where pages that several processes share count in parts.
    proportional: Option<usize>,
    /// Swapped out.
    swapped: Option<usize>,
    /// Locked.
    locked: usize,
    /// In huge pages.
    huge_pages: Option<usize>,
    /// Mapped.
    mapped: usize,
}

#[pymethods]
impl Residency {
    fn __repr__(&self) -> String {
        let free = self
            .lazily_free
            .map_or("unknown".to_owned(), |it| it.to_string());
        format!("<tenure.Residency rss={} lazily_free={free}>", self.rss)
    }
}

/// Returns what is in memory of a process: of this one, or of the one with that PID.
///
/// :raises ProcessLookupError: where there is none.
/// :raises PermissionError: where this user may not look.
#[pyfunction]
#[pyo3(signature = (pid = None))]
pub fn residency(py: Python<'_>, pid: Option<&Bound<'_, PyAny>>) -> PyResult<Residency> {
    let pid = match optional_size("pid", pid)?.map(u32::try_from) {
        None => None,
        Some(Ok(pid)) => Some(pid),
        Some(Err(_)) => return Err(PyValueError::new_err("pid must be from 0 to 4294967295")),
    };
    let found = py.detach(|| match pid {
        None => tenure::Residency::of_this_process(),
        Some(pid) => tenure::Residency::of_process(pid),
    });
    let found = found.map_err(exception)?;
    Ok(Residency {
        rss: found.resident_bytes,
        lazily_free: found.lazily_free_bytes,
        rss_without_lazily_free: found.resident_without_lazily_free_bytes(),
        proportional: found.proportional_bytes,
        swapped: found.swapped_bytes,
        locked: found.locked_bytes,
        huge_pages: found.huge_page_bytes,
        mapped: found.mapped_bytes,
    })
}

/// Returns how much more memory this process may take, in bytes: the least that the
/// machine and the memory cgroups around the process leave.
#[pyfunction]
pub fn headroom(py: Python<'_>) -> PyResult<usize> {
    let headroom = py.detach(Headroom::now).map_err(exception)?;
    Ok(headroom.bytes)
}

/// Waits for changes of the pressure level, for the thread that tells subscribers.
#[pyclass(frozen, module = "tenure._native")]
pub struct PressureWatch {
    shared: Arc<Shared>,
    _subscription: pressure::Subscription,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    level: u8,
    is_new: bool,
    is_stopped: bool,
}

impl Shared {
    fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut state);
        self.changed.notify_all();
    }
}

#[pymethods]
impl PressureWatch {
    #[new]
    fn new(py: Python<'_>) -> PyResult<Self> {
        let shared = Arc::new(Shared::default());
        let subscriber = shared.clone();
        let notify = move |level| {
            subscriber.change(|state| {
                state.level = number(level);
                state.is_new = true;
            });
        };
        let subscription = py
            .detach(|| pressure::subscribe(notify))
            .map_err(exception)?;
        Ok(Self {
            shared,
            _subscription: subscription,
        })
    }

    /// Returns the level after a change or a call of `wake`, or None after `stop`.
    fn wait(&self, py: Python<'_>) -> Option<u8> {
        // Not at the gate of forks: the child makes a watch of its own.
        py.detach(|| {
            let state = self.shared.state.lock();
            let mut state = self
                .shared
                .changed
                .wait_while(state.unwrap_or_else(PoisonError::into_inner), |state| {
                    !state.is_new && !state.is_stopped
                })
                .unwrap_or_else(PoisonError::into_inner);
            state.is_new = false;
            (!state.is_stopped).then_some(state.level)
        })
    }

    /// Has `wait` return the level once more.
    fn wake(&self) {
        self.shared.change(|state| state.is_new = true);
    }

    /// Has `wait` return None, now and later.
    fn stop(&self) {
        self.shared.change(|state| state.is_stopped = true);
    }
}

/// Returns how short memory is: 0 (not), 1 (somewhat) or 2 (severely).
#[pyfunction]
pub fn pressure_level(py: Python<'_>) -> u8 {
    number(py.detach(pressure::level))
}

fn number(level: pressure::Level) -> u8 {
    match level {
        pressure::Level::None => 0,
        pressure::Level::Some => 1,
        _ => 2,
    }
}

/// Writes out what the streams of C hold: `stdout` and `stderr`, then the others, for which
/// it waits so many seconds. (A thread that waits for input has its stream locked.)
#[pyfunction]
pub fn flush_c_streams(py: Python<'_>, max_wait: f64) {
    unsafe extern "C" {
        static stdout: *mut libc::FILE;
        static stderr: *mut libc::FILE;
    }
    let max_wait = Duration::try_from_secs_f64(max_wait).unwrap_or_default();
    py.detach(|| {
        // SAFETY: the streams are those of the C library, which are there for the whole run.
        unsafe {
            libc::fflush(stdout);
            libc::fflush(stderr);
        }
        let (sender, is_done) = mpsc::channel();
        let flush_all = move || {
            // SAFETY: the call has no preconditions.
            unsafe { libc::fflush(ptr::null_mut()) };
            // The caller may have gone on.
            let _ = sender.send(());
        };
        // The thread ends with the process. Without one the other streams are lost, which
        // is better than to hang.
        if thread::Builder::new().spawn(flush_all).is_ok() {
            let _ = is_done.recv_timeout(max_wait);
        }
    });
}

/// Purges all volatile memory of this process that is not pinned.
#[pyfunction]
pub fn purge_all(py: Python<'_>) -> PyResult<()> {
    py.detach(tenure::volatile::purge_all).map_err(exception)
}

/// Sets after how many seconds volatile memory is offered to the kernel; 0: at once.
#[pyfunction]
pub fn set_offer_delay(seconds: &Bound<'_, PyAny>) -> PyResult<()> {
    tenure::volatile::set_offer_delay(error::seconds("seconds", seconds)?);
    Ok(())
}

/// Leaves a helper that frees this process's memory behind its end.
#[pyfunction]
pub fn enable_teardown(py: Python<'_>) -> PyResult<()> {
    py.detach(tenure::teardown::enable).map_err(exception)
}

/// Returns what tenure has done in this process: a dict of calls and bytes.
#[pyfunction]
pub fn stats(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let stats = py.detach(tenure::stats);
    let dict = PyDict::new(py);
    let verbs = [
        ("populate", stats.populate),
        ("lock", stats.lock),
        ("unlock", stats.unlock),
        ("lazy_free", stats.lazy_free),
        ("mark_volatile", stats.mark_volatile),
        ("mark_nonvolatile", stats.mark_nonvolatile),
        ("munmap", stats.munmap),
        ("discard", stats.discard),
        ("punch", stats.punch),
        ("deferred_free", stats.deferred_free),
        ("eager_free", stats.eager_free),
        ("freed_under_pressure", stats.freed_under_pressure),
    ];
    for (name, Count { calls, bytes, .. }) in verbs {
        dict.set_item(format!("{name}_calls"), calls)?;
        dict.set_item(format!("{name}_bytes"), bytes)?;
    }
    let figures = [
        ("purged_by_kernel_bytes", stats.purged_by_kernel_bytes),
        ("purged_on_request_bytes", stats.purged_on_request_bytes),
        (
            "purged_under_pressure_bytes",
            stats.purged_under_pressure_bytes,
        ),
        ("unprotected_bytes", stats.unprotected_bytes),
        ("volatile_bytes", stats.volatile_bytes),
        ("offered_bytes", stats.offered_bytes),
        ("offer_failed_bytes", stats.offer_failed_bytes),
        ("unofferable_bytes", stats.unofferable_bytes),
        ("pending_release_bytes", stats.pending_release_bytes),
        ("freed_by_caller_bytes", stats.freed_by_caller_bytes),
    ];
    for (name, bytes) in figures {
        dict.set_item(name, bytes)?;
    }
    Ok(dict)
}
