//! The Python package of tenure: the module `tenure._native`, on which the Python files of
//! the package build. It converts; what it does is described where it comes from, in
//! `tenure`, and for Python users in the docstrings and docs/PYTHON.md.
//!
//! # The GIL and locks
//!
//! A lock of this crate is taken only where the GIL is released, and no thread waits for
//! the GIL while it holds one. So a thread that holds the GIL may wait for a lock, and
//! there is no cycle.

mod buffer;
mod cache;
mod error;
mod exports;
mod fork;
mod heap;
mod locked_file;
mod mapping;
mod numpy;
mod observe;
mod populate;
mod shared_cache;
mod volatile;

use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

use pyo3::{exceptions::PyImportError, ffi, prelude::*};

/// The interpreter of this process that has imported the module. Classes and exceptions are
/// its objects, which others must not use.
static INTERPRETER: AtomicI64 = AtomicI64::new(NONE);
const NONE: i64 = -1;

fn refuse_second_interpreter() -> PyResult<()> {
    // SAFETY: the calling thread has the GIL, and with it an interpreter.
    let own = unsafe { ffi::PyInterpreterState_GetID(ffi::PyInterpreterState_Get()) };
    match INTERPRETER.compare_exchange(NONE, own, Relaxed, Relaxed) {
        Err(first) if first != own => Err(PyImportError::new_err(
            "another interpreter of this process has imported tenure: one can use it",
        )),
        _ => Ok(()),
    }
}

#[pymodule(gil_used = true)]
mod _native {
    use super::*;

    #[pymodule_export]
    use super::{
        cache::{Cache, Entry, Value},
        error::Purged,
        fork::{after_fork, before_fork},
        heap::{heap_install, heap_is_installed, heap_stats},
        locked_file::LockedFile,
        mapping::Mapping,
        numpy::{numpy_is_served, serve_numpy},
        observe::{
            PressureWatch, Residency, enable_teardown, flush_c_streams, headroom, pressure_level,
            purge_all, residency, set_offer_delay, stats,
        },
        populate::populate,
        shared_cache::{SharedCache, SharedPart},
        volatile::{Pin, VolatileBuffer},
    };

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        refuse_second_interpreter()?;
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
