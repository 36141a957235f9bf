//! Errors as the exceptions that Python programs expect.

use std::time::Duration;

use pyo3::{
    create_exception,
    exceptions::{
        PyException, PyMemoryError, PyOSError, PyOverflowError, PyTypeError, PyValueError,
    },
    prelude::*,
};
use tenure::{Error, PageRange};

create_exception!(
    tenure,
    Purged,
    PyException,
    "Contents of a VolatileBuffer were purged.\n\n\
     `ranges` lists what was lost, as pairs of an offset and a length in bytes. These\n\
     bytes are zeros now; all others are as they were."
);

/// Returns the exception that fits the error: MemoryError where memory is short, ValueError
/// for arguments, OSError with the errno otherwise.
pub fn exception(error: Error) -> PyErr {
    let message = error.to_string();
    match (&error, error.errno()) {
        (Error::LockLimit { .. } | Error::ProcessLockLimit { .. } | Error::Hole { .. }, errno) => {
            PyOSError::new_err((errno, message))
        }
        (_, libc::ENOMEM) => PyMemoryError::new_err(message),
        (_, libc::EINVAL) => PyValueError::new_err(message),
        (_, errno) => PyOSError::new_err((errno, message)),
    }
}

/// Returns the exception for purged pages of a buffer that begins at `start`.
pub fn purged(py: Python<'_>, runs: &[PageRange], start: usize) -> PyErr {
    let ranges: Vec<_> = runs
        .iter()
        .map(|run| (run.start() - start, run.len()))
        .collect();
    let bytes: usize = runs.iter().map(|run| run.len()).sum();
    let error = Purged::new_err(format!(
        "{bytes} bytes of the buffer were purged; they are zeros now"
    ));
    match error.value(py).setattr("ranges", ranges) {
        Ok(()) => error,
        Err(failed) => failed,
    }
}

/// Returns the error of an argument that is no number of the kind: TypeError and ValueError
/// have its name.
fn named(name: &str, value: &Bound<'_, PyAny>, error: PyErr) -> PyErr {
    let py = value.py();
    if error.is_instance_of::<PyTypeError>(py) {
        return PyTypeError::new_err(format!("{name}: {}", error.value(py)));
    }
    if !error.is_instance_of::<PyOverflowError>(py) {
        return error;
    }
    match value.lt(0) {
        Ok(true) => PyValueError::new_err(format!("{name} must not be negative")),
        Ok(false) => PyValueError::new_err(format!("{name} is too large")),
        Err(failed) => failed,
    }
}

/// Returns the number that an argument is.
pub fn size(name: &str, value: &Bound<'_, PyAny>) -> PyResult<usize> {
    value.extract().map_err(|error| named(name, value, error))
}

/// Returns the length that an argument is, of memory that is mapped.
pub fn length(name: &str, value: &Bound<'_, PyAny>) -> PyResult<usize> {
    match size(name, value)? {
        0 => Err(PyValueError::new_err(format!("{name} must be at least 1"))),
        length if isize::try_from(length).is_err() => {
            Err(PyValueError::new_err(format!("{name} is too large")))
        }
        length => Ok(length),
    }
}

/// Returns the time that an argument is, in seconds.
pub fn seconds(name: &str, value: &Bound<'_, PyAny>) -> PyResult<Duration> {
    let seconds = value.extract();
    let seconds = seconds.map_err(|error| named(name, value, error))?;
    Duration::try_from_secs_f64(seconds)
        .map_err(|error| PyValueError::new_err(format!("{name}: {error}")))
}

/// Returns the number that an argument is, if it is not None.
pub fn optional_size(name: &str, value: Option<&Bound<'_, PyAny>>) -> PyResult<Option<usize>> {
    value.map(|value| size(name, value)).transpose()
}
