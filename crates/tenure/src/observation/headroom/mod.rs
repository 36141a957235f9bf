//! Headroom: how much more memory this process may take, by the machine and by each memory
//! cgroup around it, and the ledger of what it is about to take.
//!
//! Past a cgroup's limit the kernel kills the process instead of failing a call. So code
//! that is about to take much memory has it admitted first. [`admit`] compares the bytes
//! with the headroom less everything that is admitted and not resident yet, whoever
//! admitted it: tenure's own verbs use the same ledger. [`populate`](crate::populate),
//! [`lock`](crate::lock) with [`LockMode::Now`](crate::LockMode::Now) and
//! [`VolatileCache`](crate::VolatileCache) admit what they take, and
//! [`release`](crate::release) defers frees within what is left.
//!
//! ```
//! use tenure::headroom::{self, Headroom};
//!
//! println!("{} bytes may be taken", Headroom::now()?.bytes);
//! let admission = headroom::admit(1 << 20)?;
//! let table = vec![7_u8; 1 << 20];
//! admission.mark_resident(table.len()); // It is resident.
//! # Ok::<(), tenure::Error>(())
//! ```
//!
//! # How the limits are read
//!
//! A reading takes 0.1 to 0.2 ms, and serves for 100 ms, or until a quarter of what it found is
//! admitted. Where the limits cannot be read any more (no descriptor is left and no thread
//! can be started; `/proc` is unavailable after `chroot`), the last reading holds, less what was
//! admitted since; [`prepare`](crate::prepare()) takes one. If `/proc` was never there, the
//! machine's unused memory is the limit ([`sysinfo(2)`]).
//!
//! A child of `fork` begins with an empty ledger.
//!
//! [`sysinfo(2)`]: https://man7.org/linux/man-pages/man2/sysinfo.2.html

mod admission;
mod bounds;
mod ledger;
mod reader;

pub use admission::{Admission, admit};
pub use bounds::Headroom;

pub use crate::ground::headroom_limit::HeadroomLimit;

pub(crate) use admission::{admit_exactly, take};
pub(crate) use bounds::{Bounds, lazily_free_bytes};
pub(crate) use ledger::Watermark;
pub(crate) use reader::{LEDGER, prepare, refresh, refresh_if_older, register_fork_handlers};

#[doc(hidden)]
pub use admission::read;
#[doc(hidden)]
pub use reader::{outstanding_bytes, swappable_bytes};

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::ground::sys::hugetlb;

/// The bytes that the page pool can return at once.
static POOLED_BYTES: AtomicUsize = AtomicUsize::new(0);

/// Sets how much the page pool holds and returns before a call fails for it: it counts as
/// headroom.
pub(crate) fn set_pooled_bytes(bytes: usize) {
    POOLED_BYTES.store(bytes, Ordering::Relaxed);
}

/// Returns how much the page pool can return at once.
pub(crate) fn pooled_bytes() -> usize {
    POOLED_BYTES.load(Ordering::Relaxed)
}

/// Returns the headroom in the hugetlb pool of `page_bytes`, in bytes; `None`
/// where there is no such pool or it cannot be read.
pub(crate) fn huge_page_headroom(page_bytes: usize) -> Option<usize> {
    Some(hugetlb::free_pages(page_bytes)?.saturating_mul(page_bytes))
}
