//! malloc and free: the short way of most calls to jemalloc, and where to go otherwise.
//!
//! Most programs call nothing of this library as often. On x86-64 both are written in
//! assembly: compiled, each jumps through a table of addresses to jemalloc, and `free` once
//! more, because its return address is needed now and then. A pair of calls then takes 2 ns
//! longer, of 7.

use std::ffi::c_void;

use tenure_heap as heap;

use crate::allocate::{SMALL_LIMIT, free_any, malloc_any};

/// `malloc(3)`
///
/// # Safety
///
/// The conditions are C's, here and below.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn malloc(size: usize) -> *mut c_void {
    std::arch::naked_asm!(
        ".cfi_startproc",
        "cmp rdi, [rip + {limit}]",
        "jae {any}",
        "mov eax, {align}",
        "cmp rdi, rax",
        "cmovb rdi, rax",
        // Keeps the size and aligns the stack.
        "push rdi",
        ".cfi_adjust_cfa_offset 8",
        "call {malloc}",
        "pop rsi",
        ".cfi_adjust_cfa_offset -8",
        // Null, or a unit begins there.
        "test eax, {unit} - 1",
        "je 2f",
        "ret",
        "2:",
        "mov rdi, rax",
        "jmp {rare}",
        ".cfi_endproc",
        limit = sym SMALL_LIMIT,
        any = sym malloc_any,
        align = const crate::allocate::ALIGN,
        malloc = sym heap::entry::malloc,
        unit = const heap::entry::UNIT_BYTES,
        rare = sym finish_malloc,
    );
}

/// Finishes `malloc` where jemalloc has no memory, or the block begins a unit.
extern "C" fn finish_malloc(block: *mut u8, size: usize) -> *mut c_void {
    if block.is_null() {
        return malloc_any(size);
    }
    heap::note_small(block, size).cast()
}

/// `malloc(3)`
///
/// # Safety
///
/// The conditions are C's, here and below.
#[cfg(target_arch = "aarch64")]
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn malloc(size: usize) -> *mut c_void {
    if size >= SMALL_LIMIT.load(std::sync::atomic::Ordering::Relaxed) {
        return malloc_any(size);
    }
    let block = heap::allocate_small(size);
    if block.is_null() {
        return finish_malloc(block, size);
    }
    block.cast()
}

/// `free(3)`. Passes the return address on, if it is needed.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn free(ptr: *mut c_void) {
    // As heap::deallocate_simple does. Loads are not reordered.
    std::arch::naked_asm!(
        "cmp rdi, [rip + {span} + {start}]",
        "jb 2f",
        "cmp rdi, [rip + {span} + {end}]",
        "jae 2f",
        "test edi, {unit} - 1",
        "je 2f",
        "cmp byte ptr [rip + {is_wanted}], 0",
        "jne 2f",
        "jmp {free}",
        "2:",
        "mov rsi, [rsp]",
        "jmp {any}",
        span = sym heap::entry::SPAN,
        start = const std::mem::offset_of!(heap::entry::Span, start),
        end = const std::mem::offset_of!(heap::entry::Span, end),
        unit = const heap::entry::UNIT_BYTES,
        is_wanted = sym heap::entry::IS_WANTED,
        free = sym heap::entry::free,
        any = sym free_any,
    );
}

/// `free(3)`. Passes the return address on.
#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn free(ptr: *mut c_void) {
    std::arch::naked_asm!("mov x1, x30", "b {}", sym free_for);
}

#[cfg(target_arch = "aarch64")]
unsafe extern "C" fn free_for(ptr: *mut c_void, caller: usize) {
    // SAFETY: null, or a block that the caller gives up. Nothing behind this changes `errno`.
    if !unsafe { heap::deallocate_simple(ptr.cast()) } {
        // SAFETY: as above.
        unsafe { free_any(ptr, caller) };
    }
}
