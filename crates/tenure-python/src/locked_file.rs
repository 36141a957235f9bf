//! `tenure.LockedFile`: a mapped file whose used pages stay in memory.

use std::{
    ffi::c_int,
    fs::OpenOptions,
    os::unix::fs::OpenOptionsExt as _,
    path::PathBuf,
    sync::{Mutex, MutexGuard, PoisonError},
};

use pyo3::{
    exceptions::{PyBufferError, PyValueError},
    ffi,
    prelude::*,
};

use crate::{buffer, error::exception, fork};

/// A file, mapped read-only, whose pages stay in memory once they were used.
///
/// It has the buffer protocol: `memoryview(file)`, `numpy.frombuffer(file, ...)`. It is
/// unlocked and unmapped by `release()`, at the end of a `with` block, or with the last
/// reference. A process that shortens the file meanwhile kills this one (SIGBUS), as with
/// any mapped file.
///
/// :param path: a regular file.
/// :param budget: the most that stays locked, in bytes; the least recently used parts are
///     let go. None: no bound.
/// :raises OSError: where RLIMIT_MEMLOCK is lower than the file's size, among others.
#[pyclass(frozen, module = "tenure")]
pub struct LockedFile(Mutex<State>);

struct State {
    /// `None` once it is released.
    file: Option<tenure::LockedFile>,
    exports: usize,
}

impl LockedFile {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn release_in(&self, py: Python<'_>) -> PyResult<()> {
        fork::detached(py, || {
            let mut state = self.state();
            match state.exports {
                0 => {
                    state.file = None;
                    Ok(())
                }
                exports => Err(exports),
            }
        })
        .map_err(|exports| {
            PyBufferError::new_err(format!(
                "cannot release the file: {exports} views of it exist"
            ))
        })
    }

    /// Asks the file something without the GIL.
    fn ask<T: Send>(
        &self,
        py: Python<'_>,
        ask: impl FnOnce(&tenure::LockedFile) -> tenure::Result<T> + Send,
    ) -> PyResult<T> {
        match fork::detached(py, || self.state().file.as_ref().map(ask)) {
            Some(answer) => answer.map_err(exception),
            None => Err(PyValueError::new_err("the file is released")),
        }
    }
}

#[pymethods]
impl LockedFile {
    #[new]
    #[pyo3(signature = (path, budget = None))]
    fn new(py: Python<'_>, path: PathBuf, budget: Option<usize>) -> PyResult<Self> {
        let made = py.detach(|| {
            // A FIFO without a writer would block.
            let mut options = OpenOptions::new();
            let file = options
                .read(true)
                .custom_flags(libc::O_NONBLOCK)
                .open(&path)?;
            // SAFETY: the class says that the file must not be shortened, and the views
            // are read-only: what another process writes is seen by readers of bytes only.
            Ok(unsafe {
                match budget {
                    None => tenure::LockedFile::map(&file),
                    Some(bytes) => tenure::LockedFile::with_budget(&file, bytes),
                }
            })
        });
        let made: Result<_, std::io::Error> = made;
        let file = made.map_err(PyErr::from)?.map_err(exception)?;
        Ok(Self(Mutex::new(State {
            file: Some(file),
            exports: 0,
        })))
    }

    /// Unlocks and unmaps the file. A second call does nothing.
    ///
    /// :raises BufferError: while views of it exist.
    fn release(&self, py: Python<'_>) -> PyResult<()> {
        self.release_in(py)
    }

    /// The bytes that are locked now.
    #[getter]
    fn locked_bytes(&self, py: Python<'_>) -> PyResult<usize> {
        self.ask(py, tenure::LockedFile::locked_bytes)
    }

    /// The bytes that are in memory now, locked or not.
    #[getter]
    fn resident_bytes(&self, py: Python<'_>) -> PyResult<usize> {
        self.ask(py, tenure::LockedFile::resident_bytes)
    }

    /// The budget in bytes, or None.
    #[getter]
    fn budget(&self, py: Python<'_>) -> PyResult<Option<usize>> {
        self.ask(py, |file| Ok(file.budget_bytes()))
    }

    fn __len__(&self) -> usize {
        self.state()
            .file
            .as_ref()
            .map_or(0, tenure::LockedFile::len)
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyAny>) -> PyResult<()> {
        self.release_in(py)
    }

    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let mut state = slf.get().state();
        let Some(file) = &state.file else {
            return Err(PyValueError::new_err("the file is released"));
        };
        let bytes = (file.range().as_ptr(), file.len());
        // SAFETY: the file is mapped readable until all exports are released.
        unsafe { buffer::export(slf.as_any(), view, bytes, true, flags) }?;
        state.exports += 1;
        Ok(())
    }

    unsafe fn __releasebuffer__(&self, _view: *mut ffi::Py_buffer) {
        self.state().exports -= 1;
    }
}
