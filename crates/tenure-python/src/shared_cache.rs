//! The cache of bytes below `tenure.SharedCache`: what several processes share by name.
//!
//! A value in the file is a head, which tells the parts' lengths, and the parts: the pickle,
//! and the buffers that lie beside it. Any process of this user may have written what is
//! read here.

use std::{ffi::c_int, iter, sync::Arc};

use pyo3::{exceptions::PyMemoryError, ffi, prelude::*, types::PyDict};
use tenure::{CacheOptions, SharedArena, SharedValue};

use crate::{
    buffer::{self, Borrowed},
    cache::{ALIGNMENT, places},
    error::{exception, optional_size, seconds},
    volatile::priority,
};

/// The first word of a value: bytes of other programs in a file of the same name are none.
const MAGIC: [u8; 8] = *b"tenurPy1";

/// The length of a word.
const WORD: usize = 8;

/// Keys in the file are a multiple of this long, as is the head of the core's record. So the
/// parts of a copied value are aligned like memory of `malloc`.
const KEY_UNIT: u8 = 16;

/// Values of at least so many bytes are freed without the GIL: unmapping them takes time.
const LARGE: usize = 1 << 20;

/// Byte values that processes share.
#[pyclass(frozen, module = "tenure._native")]
pub struct SharedCache {
    /// `None` while it is being dropped.
    values: Option<tenure::SharedCache>,
}

/// Returns the key as it is in the file: padded, with the padding's length in the last byte.
fn padded(key: &[u8]) -> Vec<u8> {
    let unit = usize::from(KEY_UNIT);
    let padding = unit - key.len() % unit;
    let mut padded = Vec::with_capacity(key.len() + padding);
    padded.extend_from_slice(key);
    padded.resize(key.len() + padding, padding as u8);
    padded
}

/// Returns the key without its padding; `None` if it is no key of this package.
fn unpadded(key: &[u8]) -> Option<&[u8]> {
    let &padding = key.last()?;
    let is_padded = key.len().is_multiple_of(usize::from(KEY_UNIT)) && padding <= KEY_UNIT;
    let len = key.len().checked_sub(usize::from(padding))?;
    (is_padded && padding > 0).then(|| &key[..len])
}

/// Joins the parts behind their head. `None` if there is no memory for that.
fn joined(parts: &[Borrowed]) -> Option<Vec<u8>> {
    let head = WORD * (2 + parts.len());
    let lengths = parts.iter().map(Borrowed::len);
    // The head is a part of its own, so that the others are behind it and aligned.
    let (places, len) = places(iter::once(head).chain(lengths));
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(len).ok()?;
    bytes.extend_from_slice(&MAGIC);
    bytes.extend_from_slice(&(parts.len() as u64).to_ne_bytes());
    for part in parts {
        bytes.extend_from_slice(&(part.len() as u64).to_ne_bytes());
    }
    bytes.resize(len, 0);
    for (part, &(start, len)) in parts.iter().zip(&places[1..]) {
        part.copy_into(&mut bytes[start..start + len]);
    }
    Some(bytes)
}

/// Returns where the parts are, at least one; `None` if the bytes are no value of this package.
fn split(bytes: &[u8]) -> Option<Vec<(usize, usize)>> {
    let mut words = bytes.chunks_exact(WORD);
    let mut word = || Some(u64::from_ne_bytes(words.next()?.try_into().ok()?));
    if word()? != u64::from_ne_bytes(MAGIC) {
        return None;
    }
    let count = usize::try_from(word()?).ok().filter(|&count| count > 0)?;
    let (mut places, mut end) = (Vec::new(), WORD.checked_mul(count.checked_add(2)?)?);
    for _ in 0..count {
        let start = end.checked_next_multiple_of(ALIGNMENT)?;
        let len = usize::try_from(word()?).ok()?;
        end = start.checked_add(len)?;
        places.push((start, len));
    }
    (end <= bytes.len()).then_some(places)
}

impl SharedCache {
    fn values(&self) -> &tenure::SharedCache {
        self.values.as_ref().expect("there until it is dropped")
    }
}

#[pymethods]
impl SharedCache {
    /// Opens the cache of a name, or makes one.
    #[new]
    fn new(
        py: Python<'_>,
        name: &str,
        max_bytes: Option<Bound<'_, PyAny>>,
        time_to_live: Option<Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let mut options = CacheOptions::new();
        if let Some(bytes) = optional_size("max_bytes", max_bytes.as_ref())? {
            options = options.max_bytes(bytes);
        }
        if let Some(lifetime) = time_to_live {
            options = options.time_to_live(seconds("time_to_live", &lifetime)?);
        }
        let opened = py.detach(|| tenure::SharedCache::open(name, options));
        Ok(Self {
            values: Some(opened.map_err(exception)?),
        })
    }

    /// Removes a name. Processes that use the cache keep it.
    #[staticmethod]
    fn unlink(py: Python<'_>, name: &str) -> PyResult<()> {
        py.detach(|| SharedArena::remove(name)).map_err(exception)
    }

    /// Returns the parts of a copy of a value, or None.
    fn get(&self, py: Python<'_>, key: &[u8]) -> Option<Vec<SharedPart>> {
        py.detach(|| {
            let value = self.values().get(&padded(key))?;
            let places = split(&value)?;
            let value = Arc::new(Copied(Some(value)));
            let parts = places.into_iter().map(|place| SharedPart {
                value: value.clone(),
                place,
            });
            Some(parts.collect())
        })
    }

    /// Inserts the bytes of several buffers, one after the other. The key has no value
    /// afterwards where there is no memory for it.
    fn insert(
        &self,
        py: Python<'_>,
        key: &[u8],
        parts: Vec<Bound<'_, PyAny>>,
        priority: i64,
    ) -> PyResult<()> {
        let priority = self::priority(priority)?;
        let parts = parts.iter().map(Borrowed::of);
        let parts = parts.collect::<PyResult<Vec<_>>>()?;
        let inserted = py.detach(|| {
            let bytes = joined(&parts)?;
            Some(self.values().insert(&padded(key), &bytes, priority))
        });
        match inserted {
            Some(result) => result.map_err(exception),
            None => Err(PyMemoryError::new_err("no memory for a copy of the value")),
        }
    }

    fn contains(&self, py: Python<'_>, key: &[u8]) -> bool {
        py.detach(|| self.values().contains_key(&padded(key)))
    }

    /// Removes a value. Returns whether it was there.
    fn remove(&self, py: Python<'_>, key: &[u8]) -> bool {
        py.detach(|| self.values().remove(&padded(key)))
    }

    /// Returns the keys of all values.
    fn keys(&self, py: Python<'_>) -> Vec<Vec<u8>> {
        py.detach(|| {
            let mut keys = Vec::new();
            self.values().retain(|key| {
                keys.extend(unpadded(key).map(<[u8]>::to_vec));
                true
            });
            keys
        })
    }

    fn clear(&self, py: Python<'_>) {
        py.detach(|| self.values().clear());
    }

    /// The work of this object, what all processes have evicted, and what is in the cache.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let stats = py.detach(|| self.values().stats()).map_err(exception)?;
        let dict = PyDict::new(py);
        for (name, figure) in [
            ("hits", stats.hits),
            ("misses", stats.misses),
            ("insertions", stats.insertions),
            ("refused", stats.refused),
            ("removed", stats.removed),
            ("evicted", stats.evicted),
            ("values", stats.values),
            ("bytes", stats.bytes),
        ] {
            dict.set_item(name, figure)?;
        }
        Ok(dict)
    }
}

impl Drop for SharedCache {
    fn drop(&mut self) {
        // It waits for a thread of its own, which may be at work.
        let values = self.values.take();
        Python::attach(|py| py.detach(|| drop(values)));
    }
}

/// A copied value, which is freed without the GIL where that takes time.
struct Copied(Option<SharedValue>);

impl Copied {
    fn bytes(&self) -> &[u8] {
        self.0.as_deref().unwrap_or_default()
    }
}

impl Drop for Copied {
    fn drop(&mut self) {
        let value = self.0.take();
        if value.as_ref().is_some_and(|value| value.len() >= LARGE) {
            Python::attach(|py| py.detach(|| drop(value)));
        }
    }
}

/// A part of a copied value, with the buffer protocol. Views hold a reference to it.
#[pyclass(frozen, module = "tenure._native")]
pub struct SharedPart {
    value: Arc<Copied>,
    /// The offset and the length, within the value.
    place: (usize, usize),
}

#[pymethods]
impl SharedPart {
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let (start, len) = slf.get().place;
        let bytes = &slf.get().value.bytes()[start..start + len];
        let place = (bytes.as_ptr().cast_mut(), len);
        // SAFETY: the copy stays while this lives, which the view keeps; it is read-only.
        unsafe { buffer::export(slf.as_any(), view, place, true, flags) }
    }
}
