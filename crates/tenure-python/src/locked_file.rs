//! `tenure.LockedFile`: a mapped file whose used pages stay in memory.

use std::{
    ffi::c_int,
    fs::OpenOptions,
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

use pyo3::{
    exceptions::{PyOSError, PyValueError},
    ffi,
    prelude::*,
};

use crate::{
    error::{exception, optional_size},
    exports::Exports,
};

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
pub struct LockedFile(Exports<tenure::LockedFile>);

/// Returns the exception that `open` raises in Python, with the errno and the path.
fn open_error(error: &std::io::Error, path: &Path) -> PyErr {
    // Only a path with a NUL byte fails before the system is asked.
    let Some(errno) = error.raw_os_error() else {
        return PyValueError::new_err("path: embedded null byte");
    };
    // The library's text ends with the number, which the exception shows itself.
    let message = error.to_string();
    let end = message.rfind(" (os error").unwrap_or(message.len());
    PyOSError::new_err((
        errno,
        message[..end].to_owned(),
        path.as_os_str().to_owned(),
    ))
}

#[pymethods]
impl LockedFile {
    #[new]
    #[pyo3(signature = (path, budget = None))]
    fn new(py: Python<'_>, path: PathBuf, budget: Option<Bound<'_, PyAny>>) -> PyResult<Self> {
        let budget = optional_size("budget", budget.as_ref())?;
        let made = py.detach(|| {
            // A FIFO without a writer would block.
            let mut options = OpenOptions::new();
            let file = options
                .read(true)
                .custom_flags(libc::O_NONBLOCK)
                .open(&path);
            let file = file.map_err(|error| open_error(&error, &path))?;
            // SAFETY: the class says that the file must not be shortened, and the views
            // are read-only: what another process writes is seen by readers of bytes only.
            Ok(unsafe {
                match budget {
                    None => tenure::LockedFile::map(&file),
                    Some(bytes) => tenure::LockedFile::with_budget(&file, bytes),
                }
            })
        });
        let made: PyResult<_> = made;
        let file = made?.map_err(exception)?;
        Ok(Self(Exports::new("file", file)))
    }

    /// Unlocks and unmaps the file. A second call does nothing.
    ///
    /// :raises BufferError: while views of it exist.
    fn release(&self, py: Python<'_>) -> PyResult<()> {
        self.0.release(py)
    }

    /// The bytes that are locked now.
    #[getter]
    fn locked_bytes(&self, py: Python<'_>) -> PyResult<usize> {
        let bytes = self.0.ask(py, tenure::LockedFile::locked_bytes)?;
        bytes.map_err(exception)
    }

    /// The bytes that are in memory now, locked or not.
    #[getter]
    fn resident_bytes(&self, py: Python<'_>) -> PyResult<usize> {
        let bytes = self.0.ask(py, tenure::LockedFile::resident_bytes)?;
        bytes.map_err(exception)
    }

    /// The budget in bytes, or None.
    #[getter]
    fn budget(&self, py: Python<'_>) -> PyResult<Option<usize>> {
        self.0.ask(py, tenure::LockedFile::budget_bytes)
    }

    fn __len__(&self) -> usize {
        self.0.len(tenure::LockedFile::len)
    }

    fn __enter__(slf: Bound<'_, Self>) -> PyResult<Bound<'_, Self>> {
        slf.get().0.ask(slf.py(), |_| ())?;
        Ok(slf)
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyAny>) -> PyResult<()> {
        self.0.release(py)
    }

    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let place = |file: &tenure::LockedFile| (file.range().as_ptr(), file.len());
        // SAFETY: the file is mapped readable until it is dropped.
        unsafe { slf.get().0.export(slf.as_any(), (view, flags), true, place) }
    }

    unsafe fn __releasebuffer__(&self, _view: *mut ffi::Py_buffer) {
        self.0.release_view();
    }
}
