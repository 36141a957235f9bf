//! lock on fault of memory without access, as kernels before Linux 5.18 answer it: they lock it,
//! and report ENOMEM.
//!
//! A seccomp filter sends `mlock2` to a signal handler, which makes the call and gives that
//! answer.

#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "tests answer system calls in a signal handler"
)]

mod common;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use common::*;
use libtest_mimic::Completion;
use rustix::mm::MprotectFlags;
use tenure::{Error, LockMode, Mapping, PageRange, lock::LockFlags, page_size};

tests!(
    inaccessible_memory_is_locked_on_fault_despite_enomem,
    lock_on_fault_that_the_kernel_refuses_is_an_error;
    children:
    lock_beside_inaccessible_memory,
    lock_that_is_refused,
);

/// The fourth argument of a call that the handler makes, which passes the filter.
const PASSED: usize = 0x7e_4a12;

/// The address of a page without access.
static CLOSED: AtomicUsize = AtomicUsize::new(0);
/// The kernel locks nothing, as where it cannot split a mapping.
static REFUSES: AtomicBool = AtomicBool::new(false);
/// How many calls the handler has answered.
static CALLS: AtomicUsize = AtomicUsize::new(0);

#[cfg(target_arch = "x86_64")]
fn registers(context: &mut libc::ucontext_t) -> ([usize; 3], &mut i64) {
    let registers = &mut context.uc_mcontext.gregs;
    let args = [libc::REG_RDI, libc::REG_RSI, libc::REG_RDX];
    let args = args.map(|register| registers[register as usize] as usize);
    (args, &mut registers[libc::REG_RAX as usize])
}

#[cfg(target_arch = "aarch64")]
fn registers(context: &mut libc::ucontext_t) -> ([usize; 3], &mut u64) {
    let registers = &mut context.uc_mcontext.regs;
    let args = [0, 1, 2].map(|register| registers[register] as usize);
    (args, &mut registers[0])
}

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
extern "C" fn answer(_: i32, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    CALLS.fetch_add(1, Ordering::Relaxed);
    let ([start, len, flags], result) = registers(unsafe { &mut *context.cast() });
    let mut answer = 0;
    if REFUSES.load(Ordering::Relaxed) {
        answer = -libc::ENOMEM;
    } else if unsafe { libc::syscall(libc::SYS_mlock2, start, len, flags, PASSED) } != 0 {
        answer = -std::io::Error::last_os_error().raw_os_error().unwrap();
    } else if (start..start + len).contains(&CLOSED.load(Ordering::Relaxed)) {
        answer = -libc::ENOMEM;
    }
    *result = i64::from(answer) as _;
}

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
fn answer_as_before_5_18() {
    let step = |code: u32, jt, jf, k| libc::sock_filter {
        code: code as u16,
        jt,
        jf,
        k,
    };
    let load = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    let equal = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    let give = libc::BPF_RET | libc::BPF_K;
    let fourth = (std::mem::offset_of!(libc::seccomp_data, args) + 3 * 8) as u32;
    let mut program = [
        step(load, 0, 0, 0),
        step(equal, 0, 3, libc::SYS_mlock2 as u32),
        step(
            load,
            0,
            0,
            fourth + u32::from(cfg!(target_endian = "big")) * 4,
        ),
        step(equal, 1, 0, PASSED as u32),
        step(give, 0, 0, libc::SECCOMP_RET_TRAP),
        step(give, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = answer as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO;
    assert_eq!(
        unsafe { libc::sigaction(libc::SIGSYS, &action, std::ptr::null_mut()) },
        0
    );
    install_filter(&mut program);
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn answer_as_before_5_18() {}

/// Returns memory of which one page has no access.
fn partly_closed(page_count: usize) -> (Mapping, PageRange) {
    let memory = anonymous(page_count);
    let closed = pages(memory.range(), page_count / 2, 1);
    raw_protect(closed, MprotectFlags::empty());
    CLOSED.store(closed.start(), Ordering::Relaxed);
    (memory, closed)
}

fn lock_beside_inaccessible_memory() {
    answer_as_before_5_18();
    for page_count in [1, 4] {
        let (memory, closed) = partly_closed(page_count);
        memory.lock(.., LockMode::OnFault).unwrap();
        assert!(is_locked_on_fault(memory.range()));
        let locked_bytes = status_kib("VmLck") as usize * 1024;
        assert_eq!(locked_bytes, page_count * page_size());
        // As on all kernels.
        let error = memory.lock(.., LockMode::Now).unwrap_err();
        assert!(
            matches!(error, Error::NoAccess { part, .. } if part == closed),
            "{error}"
        );
        assert!(is_locked_on_fault(memory.range()));
        memory.unlock(.., LockFlags::ON_FAULT).unwrap();
        assert_eq!(status_kib("VmLck"), 0);
    }
    assert!(CALLS.load(Ordering::Relaxed) >= 2);
}

fn lock_that_is_refused() {
    answer_as_before_5_18();
    let (memory, _) = partly_closed(4);
    REFUSES.store(true, Ordering::Relaxed);
    let error = memory.lock(.., LockMode::OnFault).unwrap_err();
    assert_eq!(error.errno(), libc::ENOMEM, "{error}");
    assert_eq!(status_kib("VmLck"), 0);
}

fn run_without_5_18(child: &str) -> Completion {
    if !cfg!(any(target_arch = "x86_64", target_arch = "aarch64")) {
        return skip("the registers of this processor are not known to the test");
    }
    in_child_without("madv_dontneed_locked", child);
    Completion::Completed
}

fn inaccessible_memory_is_locked_on_fault_despite_enomem() -> Completion {
    run_without_5_18("lock_beside_inaccessible_memory")
}

fn lock_on_fault_that_the_kernel_refuses_is_an_error() -> Completion {
    run_without_5_18("lock_that_is_refused")
}
