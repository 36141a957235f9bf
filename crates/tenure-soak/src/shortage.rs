//! Limits of the process that a thread lowers for a while: no descriptor is left, or no
//! memory may be mapped. Operations that overlap such a time may fail for it.

use std::alloc::{GlobalAlloc, Layout, System};
use std::fs::{self, File};
use std::os::fd::AsRawFd as _;
use std::sync::Mutex;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::thread;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tenure::{Error, page_size};

/// Why operations may fail: how often a shortage has begun and ended. The number is odd
/// during a shortage.
struct Shortage(AtomicU64);

static DESCRIPTORS: Shortage = Shortage(AtomicU64::new(0));
static DATA: Shortage = Shortage(AtomicU64::new(0));

/// One shortage of each kind exists at a time, so that each restores the original limit.
static DESCRIPTORS_LIMIT: Mutex<()> = Mutex::new(());
static DATA_LIMIT: Mutex<()> = Mutex::new(());

impl Shortage {
    fn step(&self) {
        self.0.fetch_add(1, Release);
    }

    fn is_active(&self) -> bool {
        self.0.load(Acquire) % 2 == 1
    }

    fn has_been_since(&self, seen: u64) -> bool {
        let now = self.0.load(Acquire);
        now != seen || now % 2 == 1
    }
}

/// The state of both shortages when an operation began.
#[derive(Clone, Copy)]
pub struct Begin {
    descriptors: u64,
    data: u64,
}

impl Begin {
    pub fn now() -> Self {
        Self {
            descriptors: DESCRIPTORS.0.load(Acquire),
            data: DATA.0.load(Acquire),
        }
    }

    /// Whether no descriptor was left at some time since.
    pub fn has_lacked_descriptors(self) -> bool {
        DESCRIPTORS.has_been_since(self.descriptors)
    }

    /// Whether a shortage of descriptors explains the error of an operation that began
    /// here.
    pub fn explains_no_descriptor(self, error: &Error) -> bool {
        error.errno() == libc::EMFILE && self.has_lacked_descriptors()
    }

    /// Whether RLIMIT_DATA explains the error of an operation that began here and takes
    /// memory. The C library says EAGAIN for a thread whose stack it cannot map.
    pub fn explains_no_memory(self, error: &Error) -> bool {
        use Error::{MappingLimit, System, SystemAt};
        let is_kind = match error {
            System { call: "clone", .. } => matches!(error.errno(), libc::EAGAIN | libc::ENOMEM),
            MappingLimit { .. } | System { .. } | SystemAt { .. } => error.errno() == libc::ENOMEM,
            _ => false,
        };
        is_kind && DATA.has_been_since(self.data)
    }
}

fn limit(resource: Resource, current: Option<u64>) {
    let limit = Rlimit {
        current,
        ..getrlimit(resource)
    };
    // A value up to the hard limit is never refused.
    let _ = setrlimit(resource, limit);
}

/// Leaves no free descriptor for a time: with `take` by opening files, else by lowering
/// RLIMIT_NOFILE to the lowest free number.
pub fn run_out_of_descriptors(take: bool, time: Duration) {
    const TAKEN: u64 = 256;
    let _one_at_a_time = DESCRIPTORS_LIMIT.lock();
    let open = || File::open("/dev/null");
    let Ok(first) = open() else {
        return;
    };
    let before = getrlimit(Resource::Nofile).current;
    let lowest = u64::from(first.as_raw_fd().cast_unsigned());
    DESCRIPTORS.step();
    let mut taken = Vec::new();
    if take {
        limit(Resource::Nofile, Some(TAKEN));
        taken.push(first);
        taken.extend(std::iter::from_fn(|| open().ok()));
    } else {
        drop(first);
        limit(Resource::Nofile, Some(lowest));
    }
    thread::sleep(time);
    limit(Resource::Nofile, before);
    drop(taken);
    DESCRIPTORS.step();
}

/// Limits for a time the writable private memory that the process may map to what it has
/// and `spare_bytes` (RLIMIT_DATA).
pub fn limit_data(spare_bytes: usize, time: Duration) {
    let _one_at_a_time = DATA_LIMIT.lock();
    // The file cannot be opened while no descriptor is left.
    let statm = fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm.split(' ').nth(5).and_then(|pages| pages.parse().ok());
    let Some(pages) = pages.map(|pages: usize| pages) else {
        return;
    };
    let before = getrlimit(Resource::Data).current;
    DATA.step();
    let bytes = pages * page_size() + spare_bytes;
    limit(Resource::Data, Some(bytes as u64));
    thread::sleep(time);
    limit(Resource::Data, before);
    DATA.step();
}

/// Ends in a forked child the shortages that it has inherited: no thread of it would. The
/// kernel copies descriptors and limits before memory, so that a child may have those of a
/// shortage whose end it has seen.
pub fn end_in_child() {
    for (shortage, resource) in [(&DESCRIPTORS, Resource::Nofile), (&DATA, Resource::Data)] {
        limit(resource, getrlimit(resource).maximum);
        if shortage.is_active() {
            shortage.step();
        }
    }
}

/// The soak's own allocations wait for the end of RLIMIT_DATA's shortage, because a program
/// without memory for them ends.
struct Patient;

#[global_allocator]
static ALLOCATOR: Patient = Patient;

/// Repeats an allocation that fails in a shortage. A child in its fork handlers has no
/// thread that ends the shortage, so that the allocation ends it in time, also where the
/// child has seen its end and not yet its limit.
fn patiently(allocate: impl Fn() -> *mut u8) -> *mut u8 {
    const MAX_WAITS: usize = 100;
    for _ in 0..MAX_WAITS {
        let at = allocate();
        if !at.is_null() {
            return at;
        }
        if !DATA.is_active() {
            break;
        }
        thread::sleep(Duration::from_millis(1));
    }
    limit(Resource::Data, getrlimit(Resource::Data).maximum);
    allocate()
}

// SAFETY: every call is one of the system's allocator with the same arguments; a repeated
// one follows a failure, which has changed nothing.
unsafe impl GlobalAlloc for Patient {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise.
        patiently(|| unsafe { System.alloc(layout) })
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise.
        patiently(|| unsafe { System.alloc_zeroed(layout) })
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // SAFETY: the caller's promise; a failed call leaves the block as it was.
        patiently(|| unsafe { System.realloc(at, layout, new_size) })
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(at, layout) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(errno: i32) -> Error {
        error_of("test", errno)
    }

    fn error_of(call: &'static str, errno: i32) -> Error {
        Error::System {
            call,
            errno: tenure::Errno::from_raw_os_error(errno),
        }
    }

    #[test]
    fn error_is_explained_by_an_overlapping_shortage_only() {
        let before = Begin::now();
        assert!(!before.explains_no_descriptor(&error(libc::EMFILE)));
        let limit_before = getrlimit(Resource::Nofile).current;
        run_out_of_descriptors(true, Duration::ZERO);
        run_out_of_descriptors(false, Duration::ZERO);
        assert_eq!(getrlimit(Resource::Nofile).current, limit_before);
        assert!(before.explains_no_descriptor(&error(libc::EMFILE)));
        assert!(!before.explains_no_descriptor(&error(libc::EBADF)));
        assert!(!Begin::now().explains_no_descriptor(&error(libc::EMFILE)));

        assert!(!before.explains_no_memory(&error(libc::ENOMEM)));
        limit_data(1 << 20, Duration::ZERO);
        assert!(before.explains_no_memory(&error(libc::ENOMEM)));
        assert!(before.explains_no_memory(&error_of("clone", libc::EAGAIN)));
        assert!(!before.explains_no_memory(&error(libc::EAGAIN)));
        assert!(!Begin::now().explains_no_memory(&error(libc::ENOMEM)));
    }
}
