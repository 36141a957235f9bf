//! The helper's life: it makes itself ready, waits, and frees.

use std::mem::MaybeUninit;
use std::sync::atomic::Ordering;

use super::super::raw::{self, syscall};
use super::confine::confine;
use super::shares::Line;
use super::{Control, READY};

/// How often the helper looks, once the program has closed the lifeline without
/// need: nothing else would tell that it runs another program now.
const LOOK_AGAIN_SECONDS: i64 = 1;

/// What one read of the maps asks for.
const READ_BYTES: usize = 4 << 10;

/// The helper's first task, and all of its life.
pub(super) extern "C" fn run(control: *const Control) -> ! {
    // SAFETY: `Helper::start` hands over a control that it keeps mapped.
    let control = unsafe { &*control };
    if let Err((step, errno)) = confine(control) {
        control.failed_errno.store(errno, Ordering::Relaxed);
        control.failed_step.store(step as u32, Ordering::Relaxed);
        exit();
    }
    control.state.store(READY, Ordering::Release);
    let word = control.state.as_ptr().addr();
    let wake = libc::FUTEX_WAKE as usize;
    // SAFETY: wakes whoever waits on the word, and reads nothing.
    unsafe { syscall(libc::SYS_futex, [word, wake, 1, 0, 0, 0]) };

    if wait(control) == Verdict::Alone {
        free(control);
    }
    exit()
}

#[derive(PartialEq)]
enum Verdict {
    /// Nobody else uses the memory, nor ever will.
    Alone,
    /// Not wanted any more, or somebody else does use it: the kernel frees it
    /// when the last one is gone.
    Leave,
}

/// Waits until the process has ended or runs another program.
fn wait(control: &Control) -> Verdict {
    let mut death = libc::pollfd {
        fd: control.pidfd.load(Ordering::Relaxed),
        events: libc::POLLIN,
        revents: 0,
    };
    let mut lifeline = libc::pollfd {
        fd: control.ear.load(Ordering::Relaxed),
        events: 0,
        revents: 0,
    };
    loop {
        poll(&mut death, &mut lifeline);
        if control.quit.load(Ordering::Acquire) != 0 {
            return Verdict::Leave;
        }
        match am_alone() {
            Ok(true) => return Verdict::Alone,
            // Some program closes what it did not open; it goes on, and must
            // find its memory. poll() passes over negative descriptors.
            Ok(false) if death.revents == 0 => {
                if lifeline.revents != 0 {
                    lifeline.fd = -1;
                }
            }
            // A child between vfork and exec, or another helper; or the kernel
            // does not say who uses the memory.
            Ok(false) | Err(()) => return Verdict::Leave,
        }
    }
}

fn poll(death: &mut libc::pollfd, lifeline: &mut libc::pollfd) {
    let mut both = [*death, *lifeline];
    let mut period = [LOOK_AGAIN_SECONDS, 0];
    let timeout = match lifeline.fd {
        -1 => (&raw mut period).addr(),
        _ => 0,
    };
    // SAFETY: writes to `both` and `period` alone.
    unsafe {
        syscall(
            libc::SYS_ppoll,
            [(&raw mut both).addr(), 2, timeout, 0, 0, 0],
        )
    };
    [*death, *lifeline] = both;
}

/// Whether this task is the only one in the system that uses its memory.
///
/// There is nothing to unshare for `unshare(CLONE_VM)`: it succeeds, and does
/// nothing, where the memory has no other user, and is EINVAL where it has one,
/// whoever that is. Where nobody else uses it, nobody else can come to.
fn am_alone() -> Result<bool, ()> {
    // SAFETY: changes nothing.
    match unsafe { syscall(libc::SYS_unshare, [libc::CLONE_VM as usize, 0, 0, 0, 0, 0]) } {
        0 => Ok(true),
        answer if answer == -(libc::EINVAL as isize) => Ok(false),
        _ => Err(()),
    }
}

/// Frees large mappings with several tasks. What remains is freed by the kernel
/// when the last of them ends.
fn free(control: &Control) {
    let tasks = control.tasks.load(Ordering::Relaxed);
    if tasks < 2 {
        return;
    }
    read_maps(control);
    if control.shares.is_empty() {
        return;
    }
    // Threads of the helper: nobody has to wait for them.
    let flags = libc::CLONE_VM
        | libc::CLONE_FS
        | libc::CLONE_FILES
        | libc::CLONE_SIGHAND
        | libc::CLONE_THREAD
        | libc::CLONE_UNTRACED;
    let mut stack_end = control.second_stack_end.load(Ordering::Relaxed);
    for _ in 1..tasks {
        let stack = std::ptr::with_exposed_provenance_mut(stack_end);
        // SAFETY: the stack was mapped for this task, which keeps to the rules
        // for such tasks. Where none can be had, there is one less.
        let _ = unsafe { raw::clone(flags, stack, std::ptr::null_mut(), work, control) };
        stack_end = stack_end.wrapping_add(control.stack_stride.load(Ordering::Relaxed));
    }
    free_shares(control);
}

/// A further task of the helper's.
extern "C" fn work(control: *const Control) -> ! {
    // SAFETY: the control is part of the memory that this task uses.
    free_shares(unsafe { &*control });
    exit()
}

fn read_maps(control: &Control) {
    let maps = control.maps.load(Ordering::Relaxed) as usize;
    let mut text = MaybeUninit::<[u8; READ_BYTES]>::uninit();
    let mut line = Line::default();
    loop {
        let buffer = text.as_mut_ptr().cast::<u8>();
        // SAFETY: writes to the buffer alone.
        let answer = unsafe {
            syscall(
                libc::SYS_read,
                [maps, buffer.expose_provenance(), READ_BYTES, 0, 0, 0],
            )
        };
        if answer <= 0 {
            return;
        }
        // SAFETY: the kernel has written as many bytes.
        let text = unsafe { std::slice::from_raw_parts(buffer, answer as usize) };
        control.shares.add(&mut line, text);
    }
}

fn free_shares(control: &Control) {
    let own_start = control.own_start.load(Ordering::Relaxed);
    let own_end = control.own_end.load(Ordering::Relaxed);
    control.shares.take_each(|start, end| {
        if start < own_end && own_start < end {
            return;
        }
        let advise = |advice: i32| {
            let len = end.wrapping_sub(start);
            // SAFETY: nobody else uses the memory (`am_alone`), and what this
            // task itself uses is left out: its code is no private anonymous
            // memory, and its stack and all that it reads is `own`.
            unsafe { syscall(libc::SYS_madvise, [start, len, advice as usize, 0, 0, 0]) }
        };
        // Locked memory takes the other advice (Linux 5.18). Whatever refuses
        // both is left to the kernel.
        if advise(libc::MADV_DONTNEED) != 0 {
            advise(libc::MADV_DONTNEED_LOCKED);
        }
    });
}

fn exit() -> ! {
    loop {
        // SAFETY: ends this task.
        unsafe { syscall(libc::SYS_exit, [0; 6]) };
    }
}
