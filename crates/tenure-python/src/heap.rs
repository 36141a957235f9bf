//! `tenure.heap.install`: the heap under a running interpreter.
//!
//! `PyMem_SetAllocator` replaces the functions of a domain; the heap serves its blocks. `owns`
//! tells the heap's blocks by their address, so what was allocated before is freed by whoever
//! allocated it.

use std::{
    ffi::{c_int, c_void},
    mem::MaybeUninit,
    ptr,
    sync::OnceLock,
    time::Duration,
};

use pyo3::{prelude::*, types::PyDict};
use tenure_heap::HeapOptions;

use crate::error::{self, exception};

/// `PyMemAllocatorEx`: the same in every version since 3.5, though not a part of the stable
/// ABI.
#[repr(C)]
#[derive(Clone, Copy)]
struct Allocator {
    context: *mut c_void,
    malloc: extern "C" fn(*mut c_void, usize) -> *mut c_void,
    calloc: extern "C" fn(*mut c_void, usize, usize) -> *mut c_void,
    realloc: extern "C" fn(*mut c_void, *mut c_void, usize) -> *mut c_void,
    free: extern "C" fn(*mut c_void, *mut c_void),
}

// SAFETY: the context belongs to functions that any thread may call.
unsafe impl Send for Allocator {}
// SAFETY: as above.
unsafe impl Sync for Allocator {}

/// `PYMEM_DOMAIN_RAW`: the domain of blocks from malloc. pymalloc, which serves the other domains,
/// leaves blocks of more than 512 bytes to it.
const RAW: c_int = 0;

unsafe extern "C" {
    fn PyMem_GetAllocator(domain: c_int, allocator: *mut Allocator);
    fn PyMem_SetAllocator(domain: c_int, allocator: *const Allocator);
}

/// The functions that were there before.
static INNER: OnceLock<Allocator> = OnceLock::new();

/// The alignment that C's `malloc` promises.
const ALIGN: usize = 16;

fn inner() -> Allocator {
    // The functions below are installed after it was set.
    *INNER.get().expect("set before the heap is installed")
}

/// Returns a block of the heap; null if the heap does not serve that size.
pub fn serve(size: usize) -> *mut c_void {
    match size >= tenure_heap::threshold_bytes() {
        true => tenure_heap::allocate(size, ALIGN).cast(),
        false => ptr::null_mut(),
    }
}

/// Returns a block of zeros, as [`serve`].
pub fn serve_zeroed(count: usize, size: usize) -> *mut c_void {
    match count.checked_mul(size) {
        Some(bytes) if bytes >= tenure_heap::threshold_bytes() => {
            tenure_heap::allocate_zeroed(bytes, ALIGN).cast()
        }
        _ => ptr::null_mut(),
    }
}

/// Resizes a block of the heap, or moves it to one of `malloc` where the heap does not serve
/// that size. Null, and the block stays, if there is no memory.
///
/// # Safety
///
/// The block is the heap's and the caller's own, and used no more unless null is returned.
pub unsafe fn resize(
    block: *mut c_void,
    size: usize,
    malloc: impl Fn(usize) -> *mut c_void,
) -> *mut c_void {
    // SAFETY: as the caller promises.
    let resized = unsafe { tenure_heap::reallocate(block.cast(), size.max(1)) };
    if !resized.is_null() {
        return resized.cast();
    }
    let copy = malloc(size);
    if !copy.is_null() {
        // SAFETY: the block is the heap's, and has so many bytes.
        let old = unsafe { tenure_heap::usable_size(block.cast()) };
        // SAFETY: both blocks have at least the smaller size, and are different.
        unsafe { ptr::copy_nonoverlapping(block.cast::<u8>(), copy.cast(), old.min(size)) };
        // SAFETY: the block is the heap's, and its bytes are in the copy.
        unsafe { tenure_heap::deallocate(block.cast()) };
    }
    copy
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

extern "C" fn free(_: *mut c_void, block: *mut c_void) {
    if tenure_heap::owns(block.cast()) {
        // SAFETY: the block is the heap's, and the caller gives it up.
        unsafe { tenure_heap::deallocate(block.cast()) };
    } else {
        let inner = inner();
        (inner.free)(inner.context, block);
    }
}

fn seconds(name: &str, value: Option<&Bound<'_, PyAny>>, default: Duration) -> PyResult<Duration> {
    value.map_or(Ok(default), |value| error::seconds(name, value))
}

/// Starts the heap and installs it. Returns whether it was installed by this call.
#[pyfunction]
#[pyo3(signature = (dirty_decay = None, muzzy_decay = None))]
pub fn heap_install(
    py: Python<'_>,
    dirty_decay: Option<&Bound<'_, PyAny>>,
    muzzy_decay: Option<&Bound<'_, PyAny>>,
) -> PyResult<bool> {
    let defaults = HeapOptions::default();
    let options = HeapOptions {
        dirty_decay: seconds("dirty_decay", dirty_decay, defaults.dirty_decay)?,
        muzzy_decay: seconds("muzzy_decay", muzzy_decay, defaults.muzzy_decay)?,
        ..defaults
    };
    if INNER.get().is_some() {
        return Ok(false);
    }
    py.detach(|| tenure_heap::start(options))
        .map_err(exception)?;
    let mut before = MaybeUninit::uninit();
    // SAFETY: the function writes the whole struct.
    let before = unsafe {
        PyMem_GetAllocator(RAW, before.as_mut_ptr());
        before.assume_init()
    };
    if INNER.set(before).is_err() {
        return Ok(false);
    }
    let allocator = Allocator {
        // A thread without the GIL may call a function from before with this context.
        context: before.context,
        malloc,
        calloc,
        realloc,
        free,
    };
    // SAFETY: the functions have the meaning of those that they replace, may be called by any
    // thread with or without the GIL, and free what those have allocated.
    unsafe { PyMem_SetAllocator(RAW, &allocator) };
    Ok(true)
}

/// Whether the heap is installed in this interpreter.
#[pyfunction]
pub fn heap_is_installed() -> bool {
    INNER.get().is_some()
}

/// The memory that the heap holds: a dict of bytes.
#[pyfunction]
pub fn heap_stats(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let stats = tenure_heap::stats();
    let dict = PyDict::new(py);
    for (name, figure) in [
        ("in_use_bytes", stats.live_bytes),
        ("retained_bytes", stats.retained_bytes),
        ("dirty_bytes", stats.dirty_bytes),
        ("muzzy_bytes", stats.muzzy_bytes),
        ("returned_bytes", stats.returned_bytes),
        ("blocks", stats.live_blocks),
    ] {
        dict.set_item(name, figure)?;
    }
    Ok(dict)
}
