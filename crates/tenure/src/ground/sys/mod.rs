//! Everything that talks to the kernel: each system call, ioctl and `/proc`
//! file that tenure uses is called here and nowhere else.
//!
//! Functions are typed by [`PageRange`](crate::PageRange) and answer with the
//! kernel's own error number ([`Errno`]); what it means for the verb is
//! decided by the verb.

pub(crate) mod advise;
pub(crate) mod bars;
pub(crate) mod cgroup;
pub(crate) mod copy;
pub(crate) mod counters;
pub(crate) mod features;
pub(crate) mod fork;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
pub(crate) mod helper;
pub(crate) mod hugetlb;
pub(crate) mod lock;
pub(crate) mod map;
mod maps;
pub(crate) mod numa;
pub(crate) mod pagemap;
pub(crate) mod process;
pub(crate) mod psi;
mod raw;
pub(crate) mod reservation;
pub(crate) mod smaps;
pub(crate) mod split;
pub(crate) mod thread;
pub(crate) mod touch;
pub(crate) mod userfaultfd;
pub(crate) mod vma;
pub(crate) mod watch;

pub use rustix::io::Errno;

/// The size of a page, in bytes, on the running system.
///
/// ```
/// assert!(tenure::page_size().is_power_of_two());
/// ```
pub fn page_size() -> usize {
    rustix::param::page_size()
}

/// What one page of page-table entries maps (2 MiB where pages have 4 KiB):
/// `mremap` moves whole such pages when both places have the same offset in it.
pub(crate) fn pmd_bytes() -> usize {
    page_size() * (page_size() / size_of::<u64>())
}

/// What one page of the next level maps (1 GiB where pages have 4 KiB).
pub(crate) fn pud_bytes() -> usize {
    pmd_bytes() * (page_size() / size_of::<u64>())
}

/// Why the call through `libc` that was just made has failed.
fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL)
}
