//! `tenure.VolatileBuffer`: memory that the kernel may take while nobody uses it.

use std::{
    ffi::c_int,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use pyo3::{
    exceptions::{PyBufferError, PyValueError},
    ffi,
    prelude::*,
};
use tenure::{
    Outcome,
    volatile::{Priority, VolatileOptions},
};

use crate::{buffer, error, fork};

/// Memory of this process that the kernel may take while it is not pinned.
///
/// :param length: the size in bytes, at least 1.
/// :param priority: from 0 (purged first) to 3; 2 by default.
#[pyclass(frozen, module = "tenure", subclass)]
pub struct VolatileBuffer(Arc<Inner>);

struct Inner {
    state: Mutex<State>,
    start: *mut u8,
    len: usize,
    options: VolatileOptions,
}

// SAFETY: `start` is an address of `state`'s buffer, used as the buffer protocol allows.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

struct State {
    buffer: tenure::VolatileBuffer,
    pins: usize,
}

/// Returns the priority of a number from 0 to 3.
pub fn priority(number: i64) -> PyResult<Priority> {
    let place = usize::try_from(number).ok();
    let priority = place.and_then(|place| Priority::ALL.get(place)).copied();
    priority.ok_or_else(|| PyValueError::new_err("priority must be from 0 to 3"))
}

impl Inner {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps the contents in memory, for one user more.
    fn pin(&self) -> tenure::Result<Outcome> {
        let mut state = self.state();
        if state.pins == 0 {
            let outcome = state.buffer.mark_nonvolatile()?;
            if outcome != Outcome::Intact {
                // The lost pages are zeros now, and the next pin is intact.
                state.buffer.mark_volatile_with(self.options);
                return Ok(outcome);
            }
        }
        state.pins += 1;
        Ok(Outcome::Intact)
    }

    fn unpin(&self) {
        let mut state = self.state();
        state.pins -= 1;
        if state.pins == 0 {
            state.buffer.mark_volatile_with(self.options);
        }
    }
}

#[pymethods]
impl VolatileBuffer {
    #[new]
    #[pyo3(signature = (length, *, priority = 2))]
    fn new(py: Python<'_>, length: &Bound<'_, PyAny>, priority: i64) -> PyResult<Self> {
        let length = error::length("length", length)?;
        let options = VolatileOptions::new().priority(self::priority(priority)?);
        let made = py.detach(|| {
            let mut buffer = tenure::VolatileBuffer::new(length)?;
            let start = buffer.range().as_ptr();
            buffer.mark_volatile_with(options);
            Ok(Inner {
                state: Mutex::new(State { buffer, pins: 0 }),
                start,
                len: length,
                options,
            })
        });
        Ok(Self(Arc::new(made.map_err(error::exception)?)))
    }

    /// Pins the contents: returns an object that keeps them while it or a view of it lives.
    fn _pin(&self, py: Python<'_>) -> PyResult<Pin> {
        let outcome = fork::detached(py, || self.0.pin());
        match outcome.map_err(error::exception)? {
            Outcome::Intact => Ok(Pin(self.0.clone())),
            Outcome::Purged(runs) => Err(error::purged(py, &runs, self.0.start.addr())),
        }
    }

    /// Gives the contents up now, as memory pressure would.
    ///
    /// :raises BufferError: while the buffer is pinned.
    fn purge(&self, py: Python<'_>) -> PyResult<()> {
        let purged = fork::detached(py, || {
            let mut state = self.0.state();
            (state.pins == 0).then(|| state.buffer.purge())
        });
        match purged {
            Some(result) => result.map_err(error::exception),
            None => Err(PyBufferError::new_err("the buffer is pinned")),
        }
    }

    /// Whether nothing has been purged at this moment.
    fn is_intact(&self, py: Python<'_>) -> PyResult<bool> {
        fork::detached(py, || self.0.state().buffer.is_intact()).map_err(error::exception)
    }

    /// The size in bytes.
    fn __len__(&self) -> usize {
        self.0.len
    }

    fn __repr__(&self) -> String {
        format!("<tenure.VolatileBuffer of {} bytes>", self.0.len)
    }
}

/// A pin of a VolatileBuffer, with the buffer protocol. Views hold a reference to it.
#[pyclass(frozen, module = "tenure._native")]
pub struct Pin(Arc<Inner>);

#[pymethods]
impl Pin {
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let inner = &slf.get().0;
        // SAFETY: the memory is mapped as long as `inner`, and not volatile while a pin
        // lives; the view keeps this pin.
        unsafe { buffer::export(slf.as_any(), view, (inner.start, inner.len), false, flags) }
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        // Marking changes a word; the lock is held for longer only while the buffer is being
        // purged or examined, without the GIL.
        self.0.unpin();
    }
}
