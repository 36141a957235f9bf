//! The helper's main function: prepare, wait, free.

use std::mem::MaybeUninit;
use std::sync::atomic::Ordering;

use super::super::raw::{self, syscall};
use super::confine::confine;
use super::shares::Line;
use super::{Control, READY};

/// The poll interval after the program has closed the lifeline without need:
/// nothing else would then tell that it executes another program.
const POLL_INTERVAL_SECONDS: i64 = 1;

/// The bytes of one read of `/proc/self/maps`.
const READ_BYTES: usize = 4 << 10;

/// The entry point of the helper's first task.
pub(super) extern "C" fn run(control: *const Control) -> ! {
    // SAFETY: `Helper::start` passes a control that stays mapped until this
    // task has ended.
    let control = unsafe { &*control };
    if let Err((step, errno)) = confine(control) {
        control.failed_errno.store(errno, Ordering::Relaxed);
        control.failed_step.store(step as u32, Ordering::Relaxed);
        exit();
    }
    control.state.store(READY, Ordering::Release);
    let word = control.state.as_ptr().addr();
    let wake = libc::FUTEX_WAKE as usize;
    // SAFETY: the call wakes the waiters on the word, and reads nothing.
    unsafe { syscall(libc::SYS_futex, [word, wake, 1, 0, 0, 0]) };

    if wait(control) == Verdict::SoleUser {
        free(control);
    }
    exit()
}

#[derive(PartialEq)]
enum Verdict {
    /// This task is the only user of the memory, and remains so.
    SoleUser,
    /// The program ended the helper, or another task uses the memory: the
    /// kernel frees it when its last user ends.
    Exit,
}

/// Waits until the process has ended or executes another program.
fn wait(control: &Control) -> Verdict {
    let mut death = libc::pollfd {
        fd: control.pidfd.load(Ordering::Relaxed),
        events: libc::POLLIN,
        revents: 0,
    };
    let mut lifeline = libc::pollfd {
        fd: control.pipe_reader.load(Ordering::Relaxed),
        events: 0,
        revents: 0,
    };
    loop {
        poll(&mut death, &mut lifeline);
        if control.quit.load(Ordering::Acquire) != 0 {
            return Verdict::Exit;
        }
        match is_sole_user() {
            Ok(true) => return Verdict::SoleUser,
            // The program closed a descriptor that it did not open; it goes on,
            // and must keep its memory. poll() ignores negative descriptors.
            Ok(false) if death.revents == 0 => {
                if lifeline.revents != 0 {
                    lifeline.fd = -1;
                }
            }
            // The other user is a child between vfork and exec, or another
            // helper; or the kernel does not tell.
            Ok(false) | Err(()) => return Verdict::Exit,
        }
    }
}

fn poll(death: &mut libc::pollfd, lifeline: &mut libc::pollfd) {
    let mut both = [*death, *lifeline];
    let mut period = [POLL_INTERVAL_SECONDS, 0];
    let timeout = match lifeline.fd {
        -1 => (&raw mut period).addr(),
        _ => 0,
    };
    // SAFETY: the call writes to `both` and `period` alone.
    unsafe {
        syscall(
            libc::SYS_ppoll,
            [(&raw mut both).addr(), 2, timeout, 0, 0, 0],
        )
    };
    [*death, *lifeline] = both;
}

/// Returns whether this task is the only one in the system that uses its
/// memory.
///
/// `unshare(CLONE_VM)` has nothing to unshare: it succeeds, and does nothing,
/// where the memory has no other user, and is EINVAL where it has one, of any
/// kind. Once no other task uses the memory, no other task can start to.
fn is_sole_user() -> Result<bool, ()> {
    // SAFETY: the call changes nothing.
    match unsafe { syscall(libc::SYS_unshare, [libc::CLONE_VM as usize, 0, 0, 0, 0, 0]) } {
        0 => Ok(true),
        answer if answer == -(libc::EINVAL as isize) => Ok(false),
        _ => Err(()),
    }
}

/// Frees large mappings with several tasks. The kernel frees the rest when the
/// last of them ends.
fn free(control: &Control) {
    let tasks = control.tasks.load(Ordering::Relaxed);
    if tasks < 2 {
        return;
    }
    read_maps(control);
    if control.shares.is_empty() {
        return;
    }
    // Threads of the helper need no waiting for.
    let flags = libc::CLONE_VM
        | libc::CLONE_FS
        | libc::CLONE_FILES
        | libc::CLONE_SIGHAND
        | libc::CLONE_THREAD
        | libc::CLONE_UNTRACED;
    let mut stack_end = control.second_stack_end.load(Ordering::Relaxed);
    for _ in 1..tasks {
        let stack = std::ptr::with_exposed_provenance_mut(stack_end);
        // SAFETY: the stack was mapped for this task alone, and `work` uses no
        // libc, no thread-local storage and nothing that panics. If the kernel
        // refuses, one task fewer frees.
        let _ = unsafe { raw::clone(flags, stack, std::ptr::null_mut(), work, control) };
        stack_end = stack_end.wrapping_add(control.stack_stride.load(Ordering::Relaxed));
    }
    free_shares(control);
}

/// The entry point of the helper's further tasks.
extern "C" fn work(control: *const Control) -> ! {
    // SAFETY: the control is part of the memory that this task keeps alive.
    free_shares(unsafe { &*control });
    exit()
}

fn read_maps(control: &Control) {
    let maps = control.maps.load(Ordering::Relaxed) as usize;
    let mut text = MaybeUninit::<[u8; READ_BYTES]>::uninit();
    let mut line = Line::default();
    loop {
        let buffer = text.as_mut_ptr().cast::<u8>();
        // SAFETY: the call writes to the buffer alone.
        let answer = unsafe {
            syscall(
                libc::SYS_read,
                [maps, buffer.expose_provenance(), READ_BYTES, 0, 0, 0],
            )
        };
        if answer <= 0 {
            return;
        }
        // SAFETY: the kernel has written `answer` bytes.
        let text = unsafe { std::slice::from_raw_parts(buffer, answer as usize) };
        control.shares.add(&mut line, text);
    }
}

fn free_shares(control: &Control) {
    let own_start = control.own_start.load(Ordering::Relaxed);
    let own_end = control.own_end.load(Ordering::Relaxed);
    control.shares.claim_each(|start, end| {
        if start < own_end && own_start < end {
            return;
        }
        let advise = |advice: i32| {
            let len = end.wrapping_sub(start);
            // SAFETY: no other task uses the memory (`is_sole_user`), and the
            // memory that this task itself uses is left out: its code is not
            // private anonymous memory, and its stack and all that it reads
            // lies in `own_start..own_end`.
            unsafe { syscall(libc::SYS_madvise, [start, len, advice as usize, 0, 0, 0]) }
        };
        // Locked memory needs the second advice (Linux 5.18). Memory that
        // refuses both is left to the kernel.
        if advise(libc::MADV_DONTNEED) != 0 {
            advise(libc::MADV_DONTNEED_LOCKED);
        }
    });
}

fn exit() -> ! {
    loop {
        // SAFETY: the call ends this task.
        unsafe { syscall(libc::SYS_exit, [0; 6]) };
    }
}
