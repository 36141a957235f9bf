//! `tenure.Mapping`: memory of one's own, as a buffer.

use std::ffi::c_int;

use pyo3::{ffi, prelude::*};
use tenure::{Access, HugePages, populate::PopulateOptions};

use crate::{
    error::{self, exception},
    exports::Exports,
    populate::run,
};

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
pub struct Mapping(Exports<tenure::Mapping>);

#[pymethods]
impl Mapping {
    #[new]
    #[pyo3(signature = (length, *, populate = false, huge_pages = None))]
    fn new(
        py: Python<'_>,
        length: &Bound<'_, PyAny>,
        populate: bool,
        huge_pages: Option<bool>,
    ) -> PyResult<Self> {
        let length = error::length("length", length)?;
        let builder = tenure::Mapping::anonymous(length);
        let builder = match huge_pages {
            None => builder,
            Some(true) => builder.huge_pages(HugePages::Always),
            Some(false) => builder.huge_pages(HugePages::Never),
        };
        let mapping = py.detach(|| builder.map()).map_err(exception)?;
        if populate {
            let options = PopulateOptions::new(Access::Write);
            // SAFETY: the mapping lives until the call returns, and nobody else has it.
            unsafe { run(py, mapping.range(), options, None) }?;
        }
        Ok(Self(Exports::new("mapping", mapping)))
    }

    /// Gives the memory back. A second call does nothing.
    ///
    /// :raises BufferError: while views of the mapping exist.
    fn release(&self, py: Python<'_>) -> PyResult<()> {
        self.0.release(py)
    }

    /// The size in bytes; 0 once it is released.
    fn __len__(&self) -> usize {
        self.0.len(|mapping| mapping.len())
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
        let place = |mapping: &tenure::Mapping| (mapping.as_ptr(), mapping.len());
        // SAFETY: the mapping is writable, and mapped until it is dropped.
        unsafe {
            slf.get()
                .0
                .export(slf.as_any(), (view, flags), false, place)
        }
    }

    unsafe fn __releasebuffer__(&self, _view: *mut ffi::Py_buffer) {
        self.0.release_view();
    }

    fn __repr__(&self) -> String {
        match self.__len__() {
            0 => "<tenure.Mapping, released>".to_owned(),
            len => format!("<tenure.Mapping of {len} bytes>"),
        }
    }
}
