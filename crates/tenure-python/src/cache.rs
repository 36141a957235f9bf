//! The cache of bytes below `tenure.Cache` and `@tenure.cache`: its keys are numbers, which
//! the Python side gives to its keys.

use std::{ffi::c_int, sync::Arc};

use pyo3::{ffi, prelude::*, types::PyDict};
use tenure::{Pinned, VolatileCache};

use crate::{
    buffer::{self, Borrowed},
    error::exception,
    volatile::priority,
};

/// The alignment of each part in a value, which suits any array.
const ALIGNMENT: usize = 64;

/// Byte values under numbers, which stay as long as there is memory for them.
#[pyclass(frozen, module = "tenure._native")]
pub struct Cache(Arc<VolatileCache<u64>>);

/// The places of parts of these lengths in a value, and the value's length.
fn places(lengths: impl Iterator<Item = usize>) -> (Vec<(usize, usize)>, usize) {
    let mut end = 0_usize;
    let places = lengths.map(|len| {
        let start = end.next_multiple_of(ALIGNMENT);
        end = start + len;
        (start, len)
    });
    (places.collect(), end)
}

#[pymethods]
impl Cache {
    #[new]
    fn new() -> Self {
        Self(Arc::new(VolatileCache::new()))
    }

    /// Keeps the bytes of several buffers under a number. Returns their places, or None
    /// where there is no memory to keep them.
    fn insert(
        &self,
        py: Python<'_>,
        key: u64,
        parts: Vec<Bound<'_, PyAny>>,
        priority: u8,
    ) -> PyResult<Option<Vec<(usize, usize)>>> {
        let priority = self::priority(priority)?;
        let parts = parts.iter().map(Borrowed::of);
        let parts = parts.collect::<PyResult<Vec<_>>>()?;
        let (places, len) = places(parts.iter().map(Borrowed::len));
        let inserted = py.detach(|| {
            let mut is_kept = false;
            let result = self.0.insert_with(key, len, priority, |value| {
                for (part, &(start, len)) in parts.iter().zip(&places) {
                    part.copy_into(&mut value[start..start + len]);
                }
                is_kept = true;
            });
            result.map(|()| is_kept)
        });
        let is_kept = inserted.map_err(exception)?;
        Ok(is_kept.then_some(places))
    }

    /// Returns the value of a number, pinned as long as it or a view of it lives.
    fn get(&self, py: Python<'_>, key: u64) -> Option<Value> {
        py.detach(|| self.0.get(&key)).map(Value)
    }

    /// Whether the number has a value at this moment.
    fn contains(&self, py: Python<'_>, key: u64) -> bool {
        py.detach(|| self.0.contains_key(&key))
    }

    /// Removes the value of a number. Returns whether it had one.
    fn remove(&self, py: Python<'_>, key: u64) -> bool {
        py.detach(|| self.0.remove(&key))
    }

    fn clear(&self, py: Python<'_>) {
        py.detach(|| self.0.clear());
    }

    fn __len__(&self, py: Python<'_>) -> usize {
        py.detach(|| self.0.len())
    }

    /// The work and the contents of the cache.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let stats = py.detach(|| self.0.stats());
        let dict = PyDict::new(py);
        for (name, figure) in [
            ("hits", stats.hits),
            ("misses", stats.misses),
            ("insertions", stats.insertions),
            ("refused", stats.refused),
            ("removed", stats.removed),
            ("purged", stats.purged),
            ("evicted", stats.evicted),
            ("values", stats.values),
            ("bytes", stats.bytes),
        ] {
            dict.set_item(name, figure)?;
        }
        Ok(dict)
    }
}

/// A pinned value, with the buffer protocol. Views hold a reference to it.
#[pyclass(frozen, module = "tenure._native")]
pub struct Value(Pinned);

#[pymethods]
impl Value {
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let bytes: &[u8] = &slf.get().0;
        let place = (bytes.as_ptr().cast_mut(), bytes.len());
        // SAFETY: the bytes stay while the pin lives, which the view keeps; it is read-only.
        unsafe { buffer::export(slf.as_any(), view, place, true, flags) }
    }
}
