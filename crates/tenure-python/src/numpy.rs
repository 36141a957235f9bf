//! The heap under the arrays of numpy 1.22 to 2.4.
//!
//! Numpy takes the data of arrays from a handler, a struct of functions in a capsule
//! (NEP 49). `PyDataMem_SetHandler` sets one for a context of `contextvars`, and a new
//! thread begins with the default one. So the functions in the default handler's struct
//! are replaced, which all threads use that have set no other. `owns` tells the heap's
//! blocks by their address: what was allocated before is freed by the functions before.

use std::{
    ffi::{CStr, c_char, c_uint, c_void},
    mem::offset_of,
    sync::OnceLock,
};

use pyo3::{ffi, prelude::*};
use tenure::{Access, PageRange, populate::PopulateOptions};

use crate::heap::{heap_is_installed, resize, serve, serve_zeroed};

/// `PyDataMemAllocator`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Allocator {
    context: *mut c_void,
    malloc: extern "C" fn(*mut c_void, usize) -> *mut c_void,
    calloc: extern "C" fn(*mut c_void, usize, usize) -> *mut c_void,
    realloc: extern "C" fn(*mut c_void, *mut c_void, usize) -> *mut c_void,
    free: extern "C" fn(*mut c_void, *mut c_void, usize),
}

// SAFETY: the context belongs to functions that any thread may call.
unsafe impl Send for Allocator {}
// SAFETY: as above.
unsafe impl Sync for Allocator {}

/// `PyDataMem_Handler`.
#[repr(C)]
struct Handler {
    name: [c_char; 127],
    version: u8,
    allocator: Allocator,
}

/// The version of the struct.
const VERSION: u8 = 1;

/// The name of the handler whose functions are replaced.
const NAME: &CStr = c"default_allocator";

/// The name of handlers' capsules.
const CAPSULE: &CStr = c"mem_handler";

/// The places in numpy's table of `PyArray_GetNDArrayCFeatureVersion` and
/// `PyDataMem_DefaultHandler`, and the first version with handlers (1.22).
const FEATURE_VERSION_AT: usize = 211;
const DEFAULT_HANDLER_AT: usize = 306;
const MIN_FEATURE_VERSION: c_uint = 0x0f;

/// The functions that were there before.
static INNER: OnceLock<Allocator> = OnceLock::new();

fn inner() -> Allocator {
    // The functions below are installed after it was set.
    *INNER.get().expect("set before numpy is served")
}

extern "C" fn malloc(_: *mut c_void, size: usize) -> *mut c_void {
    let block = serve(size);
    if !block.is_null() {
        return block;
    }
    let inner = inner();
    (inner.malloc)(inner.context, size)
}

extern "C" fn calloc(_: *mut c_void, count: usize, size: usize) -> *mut c_void {
    let block = serve_zeroed(count, size);
    if !block.is_null() {
        return block;
    }
    let inner = inner();
    (inner.calloc)(inner.context, count, size)
}

extern "C" fn realloc(context: *mut c_void, block: *mut c_void, size: usize) -> *mut c_void {
    if tenure_heap::owns(block.cast()) {
        // SAFETY: the block is the heap's, and the caller's own.
        return unsafe { resize(block, size, |size| malloc(context, size)) };
    }
    let inner = inner();
    (inner.realloc)(inner.context, block, size)
}

extern "C" fn free(_: *mut c_void, block: *mut c_void, size: usize) {
    if tenure_heap::owns(block.cast()) {
        // SAFETY: the block is the heap's, and the caller gives it up.
        unsafe { tenure_heap::deallocate(block.cast()) };
    } else {
        let inner = inner();
        (inner.free)(inner.context, block, size);
    }
}

/// Returns the default handler of the numpy that this capsule with its C API is of.
///
/// # Safety
///
/// The capsule is `_ARRAY_API` of numpy.
unsafe fn default_handler(api: &Bound<'_, PyAny>) -> PyResult<Option<*mut Handler>> {
    let py = api.py();
    // SAFETY: the function checks that the object is a capsule of this name.
    let table = unsafe { ffi::PyCapsule_GetPointer(api.as_ptr(), std::ptr::null()) };
    if table.is_null() {
        return Err(PyErr::fetch(py));
    }
    let table: *const *const c_void = table.cast_const().cast();
    // SAFETY: a table of any version has this entry, which is such a function.
    let feature_version: extern "C" fn() -> c_uint =
        unsafe { std::mem::transmute(*table.add(FEATURE_VERSION_AT)) };
    if feature_version() < MIN_FEATURE_VERSION {
        return Ok(None);
    }
    // SAFETY: tables from this version on have the address of a variable there, which is set
    // once numpy is imported.
    let capsule = unsafe { *(*table.add(DEFAULT_HANDLER_AT)).cast::<*mut ffi::PyObject>() };
    // SAFETY: the function checks that it is a capsule of that name.
    let handler = unsafe { ffi::PyCapsule_GetPointer(capsule, CAPSULE.as_ptr()) };
    if handler.is_null() {
        return Err(PyErr::fetch(py));
    }
    Ok(Some(handler.cast()))
}

/// Serves the arrays of numpy, whose `_ARRAY_API` is given, from the heap, which is installed.
/// Returns whether they are served.
#[pyfunction]
pub fn serve_numpy(api: &Bound<'_, PyAny>) -> PyResult<bool> {
    if INNER.get().is_some() || !heap_is_installed() {
        return Ok(INNER.get().is_some());
    }
    // SAFETY: the function is called with numpy's capsule only.
    let Some(handler) = (unsafe { default_handler(api)? }) else {
        return Ok(false);
    };
    // SAFETY: the struct of a handler lives as long as numpy, and has these two fields in
    // every version.
    let (name, version) = unsafe { (CStr::from_ptr((*handler).name.as_ptr()), (*handler).version) };
    if version != VERSION || name != NAME {
        return Ok(false);
    }
    let start = handler.addr() + offset_of!(Handler, allocator);
    if !is_writable(start, size_of::<Allocator>()) {
        return Ok(false);
    }
    // SAFETY: a handler of this version has these fields.
    let before = unsafe { (*handler).allocator };
    if INNER.set(before).is_ok() {
        // SAFETY: the memory is writable. Numpy reads handlers with the GIL held, as it is
        // here. The functions mean what those mean that they replace, and free what those
        // have allocated.
        unsafe {
            (*handler).allocator = Allocator {
                context: std::ptr::null_mut(),
                malloc,
                calloc,
                realloc,
                free,
            };
        }
    }
    Ok(true)
}

/// Whether memory can be written to.
fn is_writable(start: usize, len: usize) -> bool {
    let in_page = start % tenure::page_size();
    let Ok(range) = PageRange::covering(start - in_page, len + in_page) else {
        return false;
    };
    let options = PopulateOptions::new(Access::Write).threads(1);
    // SAFETY: the struct stays mapped, and populating changes no contents.
    unsafe { range.populate_with(&options) }.is_ok()
}

/// Whether numpy's default handler takes memory from the heap.
#[pyfunction]
pub fn numpy_is_served() -> bool {
    INNER.get().is_some()
}
