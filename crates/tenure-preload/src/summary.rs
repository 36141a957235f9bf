//! What was done, told when the process ends.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use tenure::Count;

use crate::line::{Bytes, Line};
use crate::quiet::inside;
use crate::sys;

/// The process that tells, if any: what it forks does not.
static TELLER: AtomicI32 = AtomicI32::new(0);

/// A copy of standard error, for many programs close that before they end; it is
/// where nobody looks for a descriptor.
static COPY: AtomicI32 = AtomicI32::new(-1);
const HIGH_FDS: [c_int; 2] = [1000, 100];

// Which file it was. A program can close what it did not open, and open another.
static DEVICE: AtomicU64 = AtomicU64::new(0);
static INODE: AtomicU64 = AtomicU64::new(0);

/// Has the summary told at the end of this process.
pub(crate) fn turn_on() {
    let Some((device, inode)) = sys::identity(libc::STDERR_FILENO) else {
        return;
    };
    DEVICE.store(device, Ordering::Relaxed);
    INODE.store(inode, Ordering::Relaxed);
    let copies = HIGH_FDS.into_iter();
    let copy = copies.filter_map(|least| sys::copy_descriptor(libc::STDERR_FILENO, least));
    COPY.store(copy.take(1).next().unwrap_or(-1), Ordering::Relaxed);

    /// Whoever reads standard error to its end must not wait for a child that has
    /// closed it.
    unsafe extern "C" fn in_child() {
        let copy = COPY.swap(-1, Ordering::Relaxed);
        if is_standard_error(copy) {
            sys::close(copy);
        }
    }
    unsafe extern "C" fn at_quick_exit(_: *mut c_void) {
        tell();
    }
    // SAFETY: this library is never unloaded. Without memory for it children keep
    // the copy, and `quick_exit` tells nothing.
    unsafe {
        libc::pthread_atfork(None, None, Some(in_child));
        __cxa_at_quick_exit(at_quick_exit, std::ptr::null_mut());
    }
    // The page of counters is made now, not in the middle of `_exit`.
    tenure::stats();
    TELLER.store(sys::pid(), Ordering::Release);
}

unsafe extern "C" {
    fn __cxa_at_quick_exit(
        function: unsafe extern "C" fn(*mut c_void),
        object: *mut c_void,
    ) -> c_int;
}

fn is_standard_error(fd: c_int) -> bool {
    let known = (
        DEVICE.load(Ordering::Relaxed),
        INODE.load(Ordering::Relaxed),
    );
    fd >= 0 && sys::identity(fd) == Some(known)
}

/// After `exit` has run the program's own functions.
#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".fini_array")]
static AT_EXIT: extern "C" fn() = {
    extern "C" fn at_exit() {
        tell();
    }
    at_exit
};

/// `_exit(2)`: with a summary before it.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn _exit(status: c_int) -> ! {
    tell();
    sys::exit_group(status)
}

/// `_Exit(3)`
#[allow(non_snake_case, reason = "it is C's name")]
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn _Exit(status: c_int) -> ! {
    _exit(status)
}

/// Tells it once, in the process that has been asked to. May run in a signal handler:
/// it takes no lock that this thread may have.
fn tell() {
    let me = sys::pid();
    // Also not in a child that shares our memory until it runs another program.
    if TELLER
        .compare_exchange(me, 0, Ordering::AcqRel, Ordering::Relaxed)
        .is_err()
    {
        return;
    }
    let fds = [COPY.load(Ordering::Relaxed), libc::STDERR_FILENO];
    let Some(fd) = fds.into_iter().find(|fd| is_standard_error(*fd)) else {
        return;
    };
    inside(|| {
        if let Some(text) = text(me) {
            text.write_to(fd);
        }
    });
}

/// `None` where there was nothing to do.
fn text(pid: i32) -> Option<Line> {
    let mut text = Line::new();
    let name = sys::program_name().to_string_lossy();
    text.add(format_args!("tenure: {name} (process {pid}):"));
    let heap = tenure_heap::stats();
    let served = heap.from_warm + heap.from_lazy + heap.from_given + heap.from_new;
    let mut any = served > 0;
    if any {
        let (warm, moved) = (heap.from_warm, heap.moved);
        let (live, given_back) = (heap.live_bytes as u64, heap.given_back_bytes as u64);
        text.add(format_args!(
            " heap: {served} blocks served, {warm} of them without a system call; {moved} \
             grown by moving pages; {} in use at the end, {} given back to the kernel",
            Bytes(live),
            Bytes(given_back)
        ));
    }
    let stats = tenure::stats();
    let mut add = |what: &str, count: Count| {
        if count.calls > 0 {
            let separator = if any { ";" } else { "" };
            any = true;
            let (bytes, calls) = (Bytes(count.bytes), count.calls);
            text.add(format_args!("{separator} {what} {bytes} in {calls} calls"));
        }
    };
    add("unmapped", stats.munmap);
    add("discarded", stats.discard);
    add("freed in the background", stats.carried_off);
    add("populated", stats.populate);
    text.end();
    any.then_some(text)
}
