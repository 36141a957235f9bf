//! The exported functions. Each passes its return address, by which calls of allocators
//! are recognised, to the function of its name in the parent module.

use std::arch::naked_asm;
use std::ffi::{c_int, c_void};

/// Defines a function of up to five arguments; the next register takes the return
/// address.
macro_rules! entry {
    ($name:ident($($argument:ident: $kind:ty),*) -> $answer:ty, $x86_64:literal, $aarch64:literal) => {
        /// Passes the return address on.
        ///
        /// # Safety
        ///
        /// The conditions are those of the system call.
        #[unsafe(naked)]
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub unsafe extern "C" fn $name($($argument: $kind),*) -> $answer {
            #[cfg(target_arch = "x86_64")]
            naked_asm!(
                concat!("mov ", $x86_64, ", [rsp]"),
                "jmp {}",
                sym super::$name
            );
            #[cfg(target_arch = "aarch64")]
            naked_asm!(concat!("mov ", $aarch64, ", x30"), "b {}", sym super::$name);
        }
    };
}

entry!(munmap(addr: *mut c_void, len: usize) -> c_int, "rdx", "x2");
entry!(madvise(addr: *mut c_void, len: usize, advice: c_int) -> c_int, "rcx", "x3");
// The last argument may be missing; it is then not read.
entry!(
    mremap(old: *mut c_void, old_len: usize, new_len: usize, flags: c_int, new: *mut c_void)
        -> *mut c_void, "r9", "x5"
);

/// Defines a function of the six arguments of mmap; the stack takes the return address.
macro_rules! mmap_entry {
    ($name:ident) => {
        /// Passes the return address on.
        ///
        /// # Safety
        ///
        /// The conditions are those of `mmap(2)`.
        #[unsafe(naked)]
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub unsafe extern "C" fn $name(
            addr: *mut c_void,
            len: usize,
            prot: c_int,
            flags: c_int,
            fd: c_int,
            offset: i64,
        ) -> *mut c_void {
            // The push aligns the stack as a call demands.
            #[cfg(target_arch = "x86_64")]
            naked_asm!(
                ".cfi_startproc",
                "push qword ptr [rsp]",
                ".cfi_adjust_cfa_offset 8",
                "call {}",
                "add rsp, 8",
                ".cfi_adjust_cfa_offset -8",
                "ret",
                ".cfi_endproc",
                sym super::$name
            );
            #[cfg(target_arch = "aarch64")]
            naked_asm!("mov x6, x30", "b {}", sym super::$name);
        }
    };
}

mmap_entry!(mmap);
mmap_entry!(mmap64);
