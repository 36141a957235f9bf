//! The cache of bytes below `tenure.Cache` and `@tenure.cache`: its keys are numbers, each of
//! which belongs to an entry that the Python side keeps under its key.

use std::{
    ffi::c_int,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use pyo3::{ffi, prelude::*, types::PyDict};
use tenure::{Pinned, VolatileCache};

use crate::{
    buffer::{self, Borrowed},
    error::exception,
    volatile::priority,
};

/// The alignment of each part in a value, which suits any array.
pub const ALIGNMENT: usize = 64;

/// Byte values, which stay as long as there is memory for them.
#[pyclass(frozen, module = "tenure._native")]
pub struct Cache {
    values: Arc<VolatileCache<u64>>,
    next: AtomicU64,
}

/// The places of parts of these lengths in a value, and the value's length.
pub fn places(lengths: impl Iterator<Item = usize>) -> (Vec<(usize, usize)>, usize) {
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
        Self {
            values: Arc::new(VolatileCache::new()),
            next: AtomicU64::new(0),
        }
    }

    /// Keeps the bytes of several buffers, one after the other. Returns the entry, or None
    /// where there is no memory to keep them.
    fn insert(
        &self,
        py: Python<'_>,
        parts: Vec<Bound<'_, PyAny>>,
        priority: i64,
    ) -> PyResult<Option<Entry>> {
        let priority = self::priority(priority)?;
        let parts = parts.iter().map(Borrowed::of);
        let parts = parts.collect::<PyResult<Vec<_>>>()?;
        let (places, len) = places(parts.iter().map(Borrowed::len));
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let inserted = py.detach(|| {
            let mut is_kept = false;
            let result = self.values.insert_with(number, len, priority, |value| {
                for (part, &(start, len)) in parts.iter().zip(&places) {
                    part.copy_into(&mut value[start..start + len]);
                }
                is_kept = true;
            });
            result.map(|()| is_kept)
        });
        let is_kept = inserted.map_err(exception)?;
        Ok(is_kept.then(|| Entry {
            values: self.values.clone(),
            number,
            places,
        }))
    }

    fn clear(&self, py: Python<'_>) {
        py.detach(|| self.values.clear());
    }

    fn __len__(&self, py: Python<'_>) -> usize {
        py.detach(|| self.values.len())
    }

    /// The work and the contents of the cache.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let stats = py.detach(|| self.values.stats());
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

/// A value in the cache. It is removed when nobody refers to its entry: an exception in the
/// wrong moment leaves no value that nothing leads to.
#[pyclass(frozen, module = "tenure._native")]
pub struct Entry {
    values: Arc<VolatileCache<u64>>,
    #[pyo3(get)]
    number: u64,
    /// Where the parts are, as offsets and lengths.
    #[pyo3(get)]
    places: Vec<(usize, usize)>,
}

#[pymethods]
impl Entry {
    /// Returns the value, pinned as long as it or a view of it lives, or None.
    fn get(&self, py: Python<'_>) -> Option<Value> {
        py.detach(|| self.values.get(&self.number)).map(Value)
    }

    /// Whether the value is there at this moment.
    fn is_there(&self, py: Python<'_>) -> bool {
        py.detach(|| self.values.contains_key(&self.number))
    }

    /// Removes the value. Returns whether it was there.
    fn remove(&self, py: Python<'_>) -> bool {
        py.detach(|| self.values.remove(&self.number))
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        // The cache holds no lock while it works on a value: this does not wait.
        self.values.remove(&self.number);
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
