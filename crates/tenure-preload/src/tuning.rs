//! malloc_trim, mallopt, mallinfo, malloc_info and malloc_stats, for the heap and the real
//! allocator.

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

/// Returns the heap's figures, and adds those of the real allocator, which has blocks from
/// before the heap was on and those below its threshold.
fn figures() -> Mallinfo2 {
    let mut all = real_figures();
    if allocate::is_on() {
        let stats = heap::stats();
        let free_bytes = stats.dirty_bytes + stats.muzzy_bytes;
        let taken_bytes = stats.active_bytes + free_bytes;
        all.arena += taken_bytes;
        all.uordblks += stats.live_bytes;
        all.fordblks += taken_bytes.saturating_sub(stats.live_bytes);
        all.keepcost += free_bytes;
    }
    all
}

fn real_figures() -> Mallinfo2 {
    real::<extern "C" fn() -> Mallinfo2>(c"mallinfo2")
        .map_or_else(Mallinfo2::default, |call| call())
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
    preserve_errno(figures)
}

/// `mallinfo(3)`
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn mallinfo() -> Mallinfo {
    let figures = mallinfo2();
    let int = |figure: usize| c_int::try_from(figure).unwrap_or(c_int::MAX);
    Mallinfo {
        arena: int(figures.arena),
        ordblks: int(figures.ordblks),
        smblks: int(figures.smblks),
        hblks: int(figures.hblks),
        hblkhd: int(figures.hblkhd),
        usmblks: int(figures.usmblks),
        fsmblks: int(figures.fsmblks),
        uordblks: int(figures.uordblks),
        fordblks: int(figures.fordblks),
        keepcost: int(figures.keepcost),
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

/// `mallopt(3)`: the heap has none of glibc's parameters, so that a change of one reaches the
/// real allocator's blocks only.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn mallopt(parameter: c_int, value: c_int) -> c_int {
    let call = real::<extern "C" fn(c_int, c_int) -> c_int>(c"mallopt");
    call.map_or(1, |call| call(parameter, value))
}

/// `malloc_stats(3)`: a line with the heap's figures before the real allocator's.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn malloc_stats() {
    if allocate::is_on() {
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
    if let Some(call) = real::<extern "C" fn()>(c"malloc_stats") {
        call();
    }
}

/// `malloc_info(3)`: while the heap is on, one element `heap` with the figures of
/// [`mallinfo2`], which are those of all blocks.
///
/// # Safety
///
/// `stream` must be open for writing.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn malloc_info(options: c_int, stream: *mut libc::FILE) -> c_int {
    if !allocate::is_on() {
        let call = real::<unsafe extern "C" fn(c_int, *mut libc::FILE) -> c_int>(c"malloc_info");
        // SAFETY: the conditions are those of the function of the same name.
        return call.map_or(libc::ENOSYS, |call| unsafe { call(options, stream) });
    }
    if options != 0 {
        return libc::EINVAL;
    }
    let all = figures();
    // SAFETY: the caller's stream is open for writing, and each `%zu` has a size.
    let written = unsafe {
        libc::fprintf(
            stream,
            c"<malloc version=\"1\">\n<heap nr=\"0\">\n<sizes>\n</sizes>\n\
              <total type=\"rest\" count=\"0\" size=\"%zu\"/>\n\
              <system type=\"current\" size=\"%zu\"/>\n</heap>\n\
              <total type=\"rest\" count=\"0\" size=\"%zu\"/>\n\
              <total type=\"mmap\" count=\"%zu\" size=\"%zu\"/>\n\
              <system type=\"current\" size=\"%zu\"/>\n</malloc>\n"
                .as_ptr(),
            all.fordblks,
            all.arena,
            all.fordblks,
            all.hblks,
            all.hblkhd,
            all.arena,
        )
    };
    if written < 0 { libc::EIO } else { 0 }
}
