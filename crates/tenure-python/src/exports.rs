//! Memory that is released by its owner, and not while views of it exist.

use std::{
    ffi::c_int,
    sync::{Mutex, MutexGuard, PoisonError},
};

use pyo3::{
    exceptions::{PyBufferError, PyValueError},
    ffi,
    prelude::*,
};

use crate::{buffer, fork};

/// A value with memory that the buffer protocol exports.
pub struct Exports<T> {
    /// The name of the value in messages.
    name: &'static str,
    state: Mutex<State<T>>,
}

struct State<T> {
    /// `None` once it is released.
    value: Option<T>,
    /// Views that exist.
    views: usize,
}

impl<T: Send> Exports<T> {
    pub fn new(name: &'static str, value: T) -> Self {
        Self {
            name,
            state: Mutex::new(State {
                value: Some(value),
                views: 0,
            }),
        }
    }

    fn state(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn released(&self) -> PyErr {
        PyValueError::new_err(format!("the {} is released", self.name))
    }

    /// Drops the value, without the GIL. Nothing happens if it is released.
    pub fn release(&self, py: Python<'_>) -> PyResult<()> {
        let taken = fork::detached(py, || {
            let mut state = self.state();
            match state.views {
                0 => Ok(state.value.take()),
                views => Err(views),
            }
        });
        match taken {
            Ok(value) => {
                py.detach(|| drop(value));
                Ok(())
            }
            Err(views) => Err(PyBufferError::new_err(format!(
                "cannot release the {}: {views} views of it exist",
                self.name
            ))),
        }
    }

    /// Asks the value something without the GIL.
    pub fn ask<R: Send>(&self, py: Python<'_>, ask: impl FnOnce(&T) -> R + Send) -> PyResult<R> {
        let answer = fork::detached(py, || self.state().value.as_ref().map(ask));
        answer.ok_or_else(|| self.released())
    }

    /// Returns a length of the value, 0 once it is released.
    pub fn len(&self, len: impl FnOnce(&T) -> usize) -> usize {
        self.state().value.as_ref().map_or(0, len)
    }

    /// Fills a view in, of the memory that `place` returns.
    ///
    /// # Safety
    ///
    /// `view` is a pointer from `__getbuffer__` of `owner`, which holds this; the memory
    /// stays mapped and readable, and writable unless `is_read_only`, until the value is
    /// dropped; and `__releasebuffer__` calls [`release_view`](Self::release_view).
    pub unsafe fn export(
        &self,
        owner: &Bound<'_, PyAny>,
        (view, flags): (*mut ffi::Py_buffer, c_int),
        is_read_only: bool,
        place: impl FnOnce(&T) -> (*mut u8, usize),
    ) -> PyResult<()> {
        let mut state = self.state();
        let Some(value) = &state.value else {
            return Err(self.released());
        };
        let place = place(value);
        // SAFETY: as the caller promises; the value is not dropped while views are counted.
        unsafe { buffer::export(owner, view, place, is_read_only, flags) }?;
        state.views += 1;
        Ok(())
    }

    /// Counts a view less.
    pub fn release_view(&self) {
        self.state().views -= 1;
    }
}
