//! System calls by instruction, for code that cannot use a libc.
//!
//! A task that shares memory with the program but is not one of its threads has
//! no `errno`, no thread pointer and no lock of its own: whatever a libc keeps
//! for the calling thread would belong to another thread. (rustix can be built
//! on libc by a feature that any crate of the program may turn on.)

use std::ffi::c_long;

use rustix::io::Errno;

/// Makes a system call and returns the kernel's raw result: an error is
/// `-errno`, and ENOSYS on a processor that this module does not support.
/// Touches no memory but what the call itself does.
///
/// # Safety
///
/// The arguments must satisfy the contract of the system call.
pub(super) unsafe fn syscall(number: c_long, arguments: [usize; 6]) -> isize {
    let [a, b, c, d, e, f] = arguments;
    let answer: isize;
    // SAFETY: this is Linux's system call convention on this processor; the
    // caller answers for the effects of the call.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") number as isize => answer,
            in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d, in("r8") e, in("r9") f,
            lateout("rcx") _, lateout("r11") _,
            options(nostack),
        );
    }
    // SAFETY: this is Linux's system call convention on this processor; the
    // caller answers for the effects of the call.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        std::arch::asm!(
            "svc 0",
            in("x8") number,
            inlateout("x0") a => answer,
            in("x1") b, in("x2") c, in("x3") d, in("x4") e, in("x5") f,
            options(nostack),
        );
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    {
        let _ = (number, a, b, c, d, e, f);
        answer = -(libc::ENOSYS as isize);
    }
    answer
}

/// Creates a task with `clone(2)` that runs `entry` on a stack of its own and
/// with the caller's thread pointer. Returns its id; ENOSYS on a processor that
/// this module does not support.
///
/// # Safety
///
/// - `flags` must have `CLONE_VM`, and neither `CLONE_VFORK` nor
///   `CLONE_SETTLS`; with `CLONE_CHILD_CLEARTID`, `cleared` must stay writable
///   as long as the task lives.
/// - `stack` must be the end of memory, aligned to 16 bytes, that nothing else
///   uses as long as the task lives.
/// - `entry` must be sound to run with `argument`, and make no use of a libc,
///   of thread-local storage, or of anything that can panic.
pub(super) unsafe fn clone<T>(
    flags: i32,
    stack: *mut u8,
    cleared: *mut u32,
    entry: extern "C" fn(*const T) -> !,
    argument: *const T,
) -> Result<i32, Errno> {
    let answer: isize;
    // SAFETY: in the calling task the instruction changes only the registers
    // named. The new task continues after it with the same registers, on its
    // own stack, and never returns from `entry`.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        std::arch::asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp",
            "mov rdi, {argument}",
            "call {entry}",
            "ud2",
            "2:",
            argument = in(reg) argument,
            entry = in(reg) entry,
            inlateout("rax") libc::SYS_clone as isize => answer,
            in("rdi") flags as usize,
            in("rsi") stack,
            in("rdx") 0_usize,
            in("r10") cleared,
            in("r8") 0_usize,
            out("rcx") _,
            out("r11") _,
            options(nostack),
        );
    }
    // SAFETY: as for x86-64: only the registers named change in the calling
    // task, and the new one never returns from `entry`.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        std::arch::asm!(
            "svc 0",
            "cbnz x0, 2f",
            "mov x29, xzr",
            "mov x0, {argument}",
            "blr {entry}",
            "brk #1",
            "2:",
            argument = in(reg) argument,
            entry = in(reg) entry,
            in("x8") libc::SYS_clone,
            inlateout("x0") flags as usize => answer,
            in("x1") stack,
            in("x2") 0_usize,
            in("x3") 0_usize,
            in("x4") cleared,
            out("x30") _,
            options(nostack),
        );
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    {
        let _ = (flags, stack, cleared, entry, argument);
        answer = -(libc::ENOSYS as isize);
    }
    match i32::try_from(answer) {
        Ok(id) if id >= 0 => Ok(id),
        _ => Err(Errno::from_raw_os_error(-answer as i32)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn syscall_returns_raw_result_of_kernel() {
        // SAFETY: neither call touches memory.
        let (pid, closed) = unsafe {
            (
                syscall(libc::SYS_getpid, [0; 6]),
                syscall(libc::SYS_close, [usize::MAX, 0, 0, 0, 0, 0]),
            )
        };
        assert_eq!(pid, std::process::id() as isize);
        assert_eq!(closed, -(libc::EBADF as isize));
    }
}
