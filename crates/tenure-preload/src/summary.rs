//! The summary that is printed when the process ends.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use tenure::{Count, HeapGroup, Stats};

use crate::line::{Bytes, Line};
use crate::reentrancy::run_inside;
use crate::sys;

/// The process that prints the summary; 0 for none. Forked children do not.
static REPORTING_PID: AtomicI32 = AtomicI32::new(0);

/// A copy of standard error, because many programs close that before they end. Its
/// number is high, where programs do not expect a descriptor.
static STDERR_COPY: AtomicI32 = AtomicI32::new(-1);
const HIGH_FDS: [c_int; 2] = [1000, 100];

// The file behind standard error: a program can close the copy, and open another file.
static DEVICE: AtomicU64 = AtomicU64::new(0);
static INODE: AtomicU64 = AtomicU64::new(0);

/// Has this process print the summary when it ends.
pub(crate) fn turn_on() {
    let Some((device, inode)) = sys::identity(libc::STDERR_FILENO) else {
        return;
    };
    DEVICE.store(device, Ordering::Relaxed);
    INODE.store(inode, Ordering::Relaxed);
    let copies = HIGH_FDS.into_iter();
    let copy = copies.filter_map(|min_fd| sys::copy_descriptor(libc::STDERR_FILENO, min_fd));
    STDERR_COPY.store(copy.take(1).next().unwrap_or(-1), Ordering::Relaxed);

    /// Closes the copy in the child: a reader of standard error must not wait for a
    /// child that has closed it.
    unsafe extern "C" fn in_child() {
        let copy = STDERR_COPY.swap(-1, Ordering::Relaxed);
        if is_standard_error(copy) {
            sys::close(copy);
        }
    }
    unsafe extern "C" fn at_quick_exit(_: *mut c_void) {
        print_once(Caller::MayBeSignalHandler);
    }
    // SAFETY: this library is never unloaded. If memory for the registrations is
    // unavailable, children keep the copy, and `quick_exit` prints nothing.
    unsafe {
        libc::pthread_atfork(None, None, Some(in_child));
        __cxa_at_quick_exit(at_quick_exit, std::ptr::null_mut());
    }
    // Maps the page of counters now, not in the middle of `_exit`.
    tenure::stats();
    REPORTING_PID.store(sys::pid(), Ordering::Release);
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

/// Runs after `exit` has run the program's own functions.
#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".fini_array")]
static AT_EXIT: extern "C" fn() = {
    extern "C" fn at_exit() {
        print_once(Caller::Exits);
    }
    at_exit
};

/// `_exit(2)`, after printing the summary.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn _exit(status: c_int) -> ! {
    print_once(Caller::MayBeSignalHandler);
    sys::exit_group(status)
}

/// `_Exit(3)`
#[allow(non_snake_case, reason = "it is C's name")]
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn _Exit(status: c_int) -> ! {
    _exit(status)
}

/// The state in which the process ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Caller {
    Exits,
    /// This thread may have been interrupted with a lock of the heap held.
    MayBeSignalHandler,
}

/// Prints the summary once, in the process that was chosen. May run in a signal
/// handler: it takes no lock that this thread may hold.
fn print_once(caller: Caller) {
    let me = sys::pid();
    // A vfork child, which shares the memory until it calls exec, prints nothing
    // either.
    if REPORTING_PID
        .compare_exchange(me, 0, Ordering::AcqRel, Ordering::Relaxed)
        .is_err()
    {
        return;
    }
    let fds = [STDERR_COPY.load(Ordering::Relaxed), libc::STDERR_FILENO];
    let Some(fd) = fds.into_iter().find(|fd| is_standard_error(*fd)) else {
        return;
    };
    run_inside(|| {
        if let Some(text) = summary_line(me, caller) {
            text.write_to(fd);
        }
    });
}

/// With less memory than this, the heap did nothing worth a line.
const MIN_REPORTED_BYTES: u64 = 1 << 20;

/// Returns the counters, and when those of the heap were read: at present if the decay thread
/// does that in time, or the caller may. A small heap has no such thread.
fn read(caller: Caller) -> (Stats, &'static str) {
    const AT_END: &str = "at the end";
    if tenure_heap::publish_by_decay_thread() {
        (tenure::stats_as_published(), AT_END)
    } else if caller == Caller::Exits {
        (tenure::stats(), AT_END)
    } else {
        (tenure::stats_as_published(), "when last counted")
    }
}

/// Adds the heap's figures, if it did anything. Returns whether it did.
fn add_heap(text: &mut Line, stats: &Stats, when: &str) -> bool {
    let groups = [
        ("small", stats.heap_small),
        ("medium", stats.heap_medium),
        ("large", stats.heap_large),
    ];
    let sum =
        |figure: fn(&HeapGroup) -> u64| groups.iter().map(|(_, group)| figure(group)).sum::<u64>();
    let cached_bytes = stats.heap_cached_bytes;
    let in_use_bytes = sum(|group| group.in_use_bytes).saturating_sub(cached_bytes);
    let dirty_bytes = sum(|group| group.dirty_bytes);
    let muzzy_bytes = sum(|group| group.muzzy_bytes);
    let served_bytes = in_use_bytes + dirty_bytes + muzzy_bytes + stats.heap_returned_bytes;
    if served_bytes < MIN_REPORTED_BYTES {
        return false;
    }
    let under_pressure = stats.heap_returned_under_pressure;
    text.add(format_args!(
        " heap: {} in use {when}, {} cached by threads, {} dirty, {} muzzy, {} retained; {} \
         given back to the kernel, {} of it under memory pressure, which purged {} times; {} blocks grown by \
         moving pages; by size, with what is cached:",
        Bytes(in_use_bytes),
        Bytes(cached_bytes),
        Bytes(dirty_bytes),
        Bytes(muzzy_bytes),
        Bytes(sum(|group| group.retained_bytes)),
        Bytes(stats.heap_returned_bytes),
        Bytes(under_pressure.bytes),
        under_pressure.calls,
        tenure_heap::moved_blocks(),
    ));
    for (index, (name, group)) in groups.into_iter().enumerate() {
        let separator = if index == 0 { "" } else { "," };
        text.add(format_args!(
            "{separator} {name} {} in use, {} dirty, {} muzzy, {} retained",
            Bytes(group.in_use_bytes),
            Bytes(group.dirty_bytes),
            Bytes(group.muzzy_bytes),
            Bytes(group.retained_bytes),
        ));
    }
    true
}

/// Returns the summary; `None` if tenure did nothing.
fn summary_line(pid: i32, caller: Caller) -> Option<Line> {
    let mut text = Line::new();
    let name = sys::program_name().to_string_lossy();
    text.add(format_args!("tenure: {name} (process {pid}):"));
    let (stats, when) = read(caller);
    let mut any = add_heap(&mut text, &stats, when);
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
    add("freed in the background", stats.deferred_free);
    add("populated", stats.populate);
    add("taken from the page pool", stats.pool_given);
    if stats.pool_recycled_bytes > 0 {
        let separator = if any { ";" } else { "" };
        any = true;
        let kept = Bytes(stats.pool_recycled_bytes);
        text.add(format_args!("{separator} kept by the page pool {kept}"));
    }
    text.end();
    any.then_some(text)
}
