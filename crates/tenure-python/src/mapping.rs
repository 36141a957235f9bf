//! `tenure.Mapping`: memory of one's own, as a buffer.

use std::{
    ffi::c_int,
    sync::{Mutex, MutexGuard, PoisonError},
};

use pyo3::{
    exceptions::{PyBufferError, PyValueError},
    ffi,
    prelude::*,
};
use tenure::{Access, HugePages};

use crate::{buffer, error::exception, fork};

/// Anonymous memory of this process, zeroed: `mmap(2)`.
///
/// It has the buffer protocol: `memoryview(mapping)`, `numpy.frombuffer(mapping, ...)`.
/// `release()`, the end of a `with` block, or the last reference give the memory back in
/// microseconds, whatever its size: threads behind the caller free the pages.
///
/// :param length: the size in bytes, at least 1; rounded up to whole pages in memory.
/// :param populate: fault all pages in now, in parallel, so that no later use waits.
/// :param huge_pages: True asks for huge pages, False forbids them, None leaves it to the
///     system's setting.
/// :raises MemoryError: where the memory is not there, before any of it is taken.
#[pyclass(frozen, module = "tenure")]
pub struct Mapping(Mutex<State>);

struct State {
    /// `None` once it is released.
    mapping: Option<tenure::Mapping>,
    /// Views, and calls that use the memory.
    exports: usize,
}

impl Mapping {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn release_in(&self, py: Python<'_>) -> PyResult<()> {
        let released = fork::detached(py, || {
            let mut state = self.state();
            if state.exports > 0 {
                return Err(state.exports);
            }
            Ok(state.mapping.take())
        });
        match released {
            Ok(mapping) => {
                py.detach(|| drop(mapping));
                Ok(())
            }
            Err(exports) => Err(PyBufferError::new_err(format!(
                "cannot release the mapping: {exports} views of it exist"
            ))),
        }
    }
}

#[pymethods]
impl Mapping {
    #[new]
    #[pyo3(signature = (length, *, populate = false, huge_pages = None))]
    fn new(
        py: Python<'_>,
        length: usize,
        populate: bool,
        huge_pages: Option<bool>,
    ) -> PyResult<Self> {
        if length == 0 {
            return Err(PyValueError::new_err("length must be at least 1"));
        }
        let made = py.detach(|| {
            let builder = tenure::Mapping::anonymous(length);
            let mapping = match huge_pages {
                None => builder,
                Some(true) => builder.huge_pages(HugePages::Always),
                Some(false) => builder.huge_pages(HugePages::Never),
            }
            .map()?;
            if populate {
                mapping.populate(.., Access::Write)?;
            }
            Ok(mapping)
        });
        Ok(Self(Mutex::new(State {
            mapping: Some(made.map_err(exception)?),
            exports: 0,
        })))
    }

    /// Gives the memory back. A second call does nothing.
    ///
    /// :raises BufferError: while views of the mapping exist.
    fn release(&self, py: Python<'_>) -> PyResult<()> {
        self.release_in(py)
    }

    /// The size in bytes; 0 once it is released.
    fn __len__(&self) -> usize {
        self.state().mapping.as_ref().map_or(0, |it| it.len())
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
        let Some(mapping) = &state.mapping else {
            return Err(PyValueError::new_err("the mapping is released"));
        };
        let bytes = (mapping.as_ptr(), mapping.len());
        // SAFETY: the mapping is writable, and stays until all exports are released.
        unsafe { buffer::export(slf.as_any(), view, bytes, false, flags) }?;
        state.exports += 1;
        Ok(())
    }

    unsafe fn __releasebuffer__(&self, _view: *mut ffi::Py_buffer) {
        self.state().exports -= 1;
    }

    fn __repr__(&self) -> String {
        match self.__len__() {
            0 => "<tenure.Mapping, released>".to_owned(),
            len => format!("<tenure.Mapping of {len} bytes>"),
        }
    }
}
