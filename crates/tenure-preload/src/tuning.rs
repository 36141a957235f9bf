//! mallopt, mallinfo and malloc_trim: the heap's answers while it is on, else the real
//! allocator's.

use std::ffi::{c_int, c_void};

use tenure_heap as heap;

use crate::line::{Bytes, Line};
use crate::reentrancy::preserve_errno;
use crate::{allocate, sys};

/// `struct mallinfo2`: glibc's names, of which the heap has a part.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Mallinfo2 {
    arena: usize,
    ordblks: usize,
    smblks: usize,
    hblks: usize,
    hblkhd: usize,
    usmblks: usize,
    fsmblks: usize,
    uordblks: usize,
    fordblks: usize,
    keepcost: usize,
}

/// `struct mallinfo`, whose figures stop at the largest int.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Mallinfo {
    arena: c_int,
    ordblks: c_int,
    smblks: c_int,
    hblks: c_int,
    hblkhd: c_int,
    usmblks: c_int,
    fsmblks: c_int,
    uordblks: c_int,
    fordblks: c_int,
    keepcost: c_int,
}

fn figures() -> Mallinfo2 {
    let stats = heap::stats();
    let free_bytes = stats.dirty_bytes + stats.muzzy_bytes;
    Mallinfo2 {
        arena: stats.active_bytes + free_bytes,
        uordblks: stats.live_bytes,
        fordblks: (stats.active_bytes + free_bytes).saturating_sub(stats.live_bytes),
        keepcost: free_bytes,
        ..Mallinfo2::default()
    }
}

/// Returns the real function of this name, if there is one.
fn real<F: Copy>(name: &std::ffi::CStr) -> Option<F> {
    const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
    let address = sys::next_symbol(name);
    // SAFETY: the caller names the function's type.
    (!address.is_null()).then(|| unsafe { std::mem::transmute_copy(&address) })
}

/// `mallinfo2(3)`
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn mallinfo2() -> Mallinfo2 {
    if allocate::is_on() {
        return figures();
    }
    real::<extern "C" fn() -> Mallinfo2>(c"mallinfo2")
        .map_or_else(Mallinfo2::default, |call| call())
}

/// `mallinfo(3)`
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn mallinfo() -> Mallinfo {
    if !allocate::is_on() {
        let call = real::<extern "C" fn() -> Mallinfo>(c"mallinfo");
        return call.map_or_else(Mallinfo::default, |call| call());
    }
    let figures = figures();
    let int = |figure: usize| c_int::try_from(figure).unwrap_or(c_int::MAX);
    Mallinfo {
        arena: int(figures.arena),
        uordblks: int(figures.uordblks),
        fordblks: int(figures.fordblks),
        keepcost: int(figures.keepcost),
        ..Mallinfo::default()
    }
}

/// `malloc_trim(3)`: returns all free memory to the kernel at once.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn malloc_trim(pad: usize) -> c_int {
    let trimmed = allocate::is_on() && preserve_errno(heap::trim);
    // The C library may have blocks from before the heap was on.
    let call = real::<extern "C" fn(usize) -> c_int>(c"malloc_trim");
    let others = call.map_or(0, |call| call(pad));
    c_int::from(trimmed) | others
}

/// `mallopt(3)`: the heap has none of glibc's parameters, and accepts all of them.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn mallopt(parameter: c_int, value: c_int) -> c_int {
    let call = real::<extern "C" fn(c_int, c_int) -> c_int>(c"mallopt");
    call.map_or(1, |call| call(parameter, value))
}

/// `malloc_stats(3)`
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn malloc_stats() {
    if !allocate::is_on() {
        if let Some(call) = real::<extern "C" fn()>(c"malloc_stats") {
            call();
        }
        return;
    }
    let stats = heap::stats();
    let mut line = Line::new();
    let bytes = |figure: usize| Bytes(figure as u64);
    line.add(format_args!(
        "tenure: heap: {} in use, {} dirty, {} muzzy, {} retained",
        bytes(stats.live_bytes),
        bytes(stats.dirty_bytes),
        bytes(stats.muzzy_bytes),
        bytes(stats.retained_bytes)
    ));
    line.end();
    line.write_to(libc::STDERR_FILENO);
}
