//! malloc and free: the short way of most calls to jemalloc, and where to go otherwise; and the
//! functions that must know who calls.
//!
//! Most programs call nothing of this library as often. So both jump to jemalloc after the
//! fewest checks, and on x86-64 they are written in assembly: a call of jemalloc, a check
//! of its answer, and jumps through the table of addresses, as a compiler makes them, take 2 ns
//! of 7 for a pair of calls.

use std::ffi::{c_int, c_void};
#[cfg(target_arch = "aarch64")]
use std::sync::atomic::Ordering;

use tenure_heap as heap;

use crate::allocate::{
    aligned_alloc_for, calloc_for, free_any, malloc_any, memalign_for, posix_memalign_for,
    pvalloc_for, realloc_for, reallocarray_for, valloc_for,
};

/// `malloc(3)`. Passes the return address on, if it is needed.
///
/// # Safety
///
/// The conditions are C's, here and below.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn malloc(size: usize) -> *mut c_void {
    std::arch::naked_asm!(
        "cmp rdi, [rip + {words} + {limit}]",
        "jae 2f",
        "mov eax, {align}",
        "cmp rdi, rax",
        "cmovb rdi, rax",
        "jmp {malloc}",
        "2:",
        "mov rsi, [rsp]",
        "jmp {any}",
        // Has the function begin on a boundary as well.
        ".p2align 6",
        words = sym heap::entry::WORDS,
        limit = const std::mem::offset_of!(heap::entry::Words, limit),
        any = sym malloc_any,
        align = const crate::allocate::ALIGN,
        malloc = sym heap::entry::malloc,
    );
}

/// `malloc(3)`. Passes the return address on.
///
/// # Safety
///
/// The conditions are C's, here and below.
#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn malloc(size: usize) -> *mut c_void {
    std::arch::naked_asm!("mov x1, x30", "b {}", sym malloc_for);
}

#[cfg(target_arch = "aarch64")]
unsafe extern "C" fn malloc_for(size: usize, caller: usize) -> *mut c_void {
    if size >= heap::entry::WORDS.limit.load(Ordering::Acquire) {
        return malloc_any(size, caller);
    }
    // SAFETY: `malloc` has no preconditions.
    unsafe { heap::entry::malloc(size.max(crate::allocate::ALIGN)) }
}

/// `free(3)`. Passes the return address on, if it is needed.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn free(ptr: *mut c_void) {
    // As heap::deallocate_simple does. Loads are not reordered.
    std::arch::naked_asm!(
        "cmp rdi, [rip + {words} + {start}]",
        "jb 2f",
        "cmp rdi, [rip + {words} + {end}]",
        "jae 2f",
        "test edi, [rip + {words} + {mask}]",
        "je 2f",
        "jmp {free}",
        "2:",
        "mov rsi, [rsp]",
        "jmp {any}",
        ".p2align 6",
        words = sym heap::entry::WORDS,
        start = const std::mem::offset_of!(heap::entry::Words, span.start),
        end = const std::mem::offset_of!(heap::entry::Words, span.end),
        mask = const std::mem::offset_of!(heap::entry::Words, mask),
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

/// Defines a function of up to three arguments; the next register takes the return address.
macro_rules! passing_entry {
    ($name:ident($($argument:ident: $kind:ty),*) -> $answer:ty,
        $x86_64:literal, $aarch64:literal, $inner:ident) => {
        /// Passes the return address on.
        ///
        /// # Safety
        ///
        /// The conditions are C's.
        #[unsafe(naked)]
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub unsafe extern "C" fn $name($($argument: $kind),*) -> $answer {
            #[cfg(target_arch = "x86_64")]
            std::arch::naked_asm!(
                concat!("mov ", $x86_64, ", [rsp]"),
                "jmp {}",
                sym $inner
            );
            #[cfg(target_arch = "aarch64")]
            std::arch::naked_asm!(
                concat!("mov ", $aarch64, ", x30"),
                "b {}",
                sym $inner
            );
        }
    };
}

passing_entry!(
    posix_memalign(out: *mut *mut c_void, align: usize, size: usize) -> c_int,
    "rcx", "x3", posix_memalign_for
);
passing_entry!(
    aligned_alloc(align: usize, size: usize) -> *mut c_void, "rdx", "x2", aligned_alloc_for
);
passing_entry!(memalign(align: usize, size: usize) -> *mut c_void, "rdx", "x2", memalign_for);
passing_entry!(valloc(size: usize) -> *mut c_void, "rsi", "x1", valloc_for);
passing_entry!(pvalloc(size: usize) -> *mut c_void, "rsi", "x1", pvalloc_for);
passing_entry!(calloc(count: usize, size: usize) -> *mut c_void, "rdx", "x2", calloc_for);
passing_entry!(
    realloc(ptr: *mut c_void, size: usize) -> *mut c_void, "rdx", "x2", realloc_for
);
passing_entry!(
    reallocarray(ptr: *mut c_void, count: usize, size: usize) -> *mut c_void,
    "rcx", "x3", reallocarray_for
);
