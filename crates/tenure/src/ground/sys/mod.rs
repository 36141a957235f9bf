//! The only module that talks to the kernel: every system call, ioctl and
//! `/proc` file that tenure uses is called here and nowhere else.
//!
//! Functions take a [`PageRange`](crate::PageRange) and return the kernel's own
//! error number ([`Errno`]); the verb decides what it means.

pub(crate) mod address_limits;
pub(crate) mod advise;
pub(crate) mod affinity;
pub(crate) mod cgroup;
pub(crate) mod copy;
pub(crate) mod counters;
pub(crate) mod empty_table;
pub(crate) mod exclusive;
pub(crate) mod features;
pub(crate) mod fork;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
pub(crate) mod guard;
pub(crate) mod helper;
pub(crate) mod hugetlb;
pub(crate) mod lock;
pub(crate) mod map;
mod maps;
pub(crate) mod merged;
mod mountinfo;
pub(crate) mod numa;
pub(crate) mod once_box;
pub(crate) mod page_cache;
pub(crate) mod page_mover;
pub(crate) mod page_runs;
pub(crate) mod pagemap;
pub(crate) mod pending;
pub(crate) mod prefault;
mod private_files;
mod proc_file;
pub(crate) mod process;
pub(crate) mod psi;
mod raw;
pub(crate) mod reader_slot;
pub(crate) mod registration;
pub(crate) mod reservation;
pub(crate) mod shard;
pub(crate) mod shared_file;
pub(crate) mod smaps;
pub(crate) mod split;
mod sync;
pub(crate) mod thread;
pub(crate) mod userfaultfd;
pub(crate) mod vma;
pub(crate) mod watch;
pub(crate) mod zero;

use std::sync::atomic::{AtomicUsize, Ordering};

pub use rustix::io::Errno;

/// Returns the page size of the running system, in bytes.
///
/// ```
/// assert!(tenure::page_size().is_power_of_two());
/// ```
#[inline]
pub fn page_size() -> usize {
    // `sysconf(3)` takes about 100 instructions; some calls ask several times.
    static PAGE_SIZE: AtomicUsize = AtomicUsize::new(0);
    match PAGE_SIZE.load(Ordering::Relaxed) {
        0 => {
            let page_size = rustix::param::page_size();
            PAGE_SIZE.store(page_size, Ordering::Relaxed);
            page_size
        }
        page_size => page_size,
    }
}

/// Returns the bytes that one page of page-table entries maps (2 MiB with 4 KiB
/// pages). `mremap` moves such a table whole when source and destination have
/// the same offset within it.
pub(crate) fn pmd_bytes() -> usize {
    page_size() * (page_size() / size_of::<u64>())
}

/// Returns the bytes that one page of the next level maps (1 GiB with 4 KiB
/// pages).
pub(crate) fn pud_bytes() -> usize {
    pmd_bytes() * (page_size() / size_of::<u64>())
}

/// Returns the boundary on which page tables of a range so long move whole: that of the larger
/// tables, if the range fills one (a GiB with 4 KiB pages, 4 TiB with 64 KiB).
pub(crate) fn table_bytes(len: usize) -> usize {
    match len >= pud_bytes() {
        true => pud_bytes(),
        false => pmd_bytes(),
    }
}

/// Returns the error number of the `libc` call that just failed.
fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL)
}
