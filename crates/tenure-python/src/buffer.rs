//! The buffer protocol, in both directions.

use std::{ffi::c_int, mem::MaybeUninit, ptr};

use pyo3::{exceptions::PyBufferError, ffi, prelude::*};

/// Fills a view in, of `len` bytes at `start`.
///
/// # Safety
///
/// `view` is a pointer from `__getbuffer__`, and the bytes stay mapped, readable and (unless
/// `is_read_only`) writable until `owner` is deallocated or the view is released.
pub unsafe fn export(
    owner: &Bound<'_, PyAny>,
    view: *mut ffi::Py_buffer,
    (start, len): (*mut u8, usize),
    is_read_only: bool,
    flags: c_int,
) -> PyResult<()> {
    if view.is_null() {
        return Err(PyBufferError::new_err("no view to fill in"));
    }
    let len = ffi::Py_ssize_t::try_from(len)?;
    // SAFETY: as the caller promises; the function refuses a writable view of what is
    // read-only, and takes a reference of its own to the owner.
    let filled = unsafe {
        ffi::PyBuffer_FillInfo(
            view,
            owner.as_ptr(),
            start.cast(),
            len,
            c_int::from(is_read_only),
            flags,
        )
    };
    match filled {
        0 => Ok(()),
        _ => Err(PyErr::fetch(owner.py())),
    }
}

/// The bytes of another object, which keeps them where they are as long as this lives.
pub struct Borrowed(Box<ffi::Py_buffer>);

// SAFETY: the view is plain data that any thread may read; it is released with the GIL held.
unsafe impl Send for Borrowed {}
// SAFETY: as above.
unsafe impl Sync for Borrowed {}

impl Borrowed {
    /// Borrows the bytes of an object, contiguous in the order of C or Fortran.
    pub fn of(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let mut view = Box::new(MaybeUninit::<ffi::Py_buffer>::uninit());
        // SAFETY: the view is writable, and initialized where the function succeeds.
        let got = unsafe {
            ffi::PyObject_GetBuffer(
                object.as_ptr(),
                view.as_mut_ptr(),
                ffi::PyBUF_ANY_CONTIGUOUS,
            )
        };
        if got != 0 {
            return Err(PyErr::fetch(object.py()));
        }
        // SAFETY: as above.
        Ok(Self(unsafe { view.assume_init() }))
    }

    /// The address.
    pub fn start(&self) -> *const u8 {
        self.0.buf.cast_const().cast()
    }

    /// The length in bytes.
    pub fn len(&self) -> usize {
        usize::try_from(self.0.len).unwrap_or(0)
    }

    /// Copies the bytes. Another thread may write to them meanwhile: then the copy has
    /// either.
    pub fn copy_into(&self, into: &mut [u8]) {
        let len = self.len().min(into.len());
        if len > 0 {
            // SAFETY: the exporter keeps the bytes mapped and readable while the view is
            // not released, and `into` is a borrow of its own.
            unsafe { ptr::copy_nonoverlapping(self.start(), into.as_mut_ptr(), len) };
        }
    }
}

impl Drop for Borrowed {
    fn drop(&mut self) {
        Python::attach(|_| {
            // SAFETY: the view was filled in by `PyObject_GetBuffer`, is released once, and
            // the GIL is held.
            unsafe { ffi::PyBuffer_Release(&mut *self.0) };
        });
    }
}
