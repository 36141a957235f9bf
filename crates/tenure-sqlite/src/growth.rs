//! Whether a cache may take more memory, or uses that of its oldest pages again.

use tenure::headroom::{self, Admission};

/// A cache has a part of what it holds admitted at a time, so that many pages share the cost
/// of a look at the limits.
const ADMITTED_DIVISOR: usize = 64;
const MIN_ADMITTED_BYTES: usize = 64 << 10;
const MAX_ADMITTED_BYTES: usize = 8 << 20;

/// After a refusal so many pages are used again before the limits are looked at once more.
const PAGES_PER_REFUSAL: u32 = 256;

/// The memory that a cache may take.
///
/// Pages that were unpinned less than the offer delay ago cannot be reclaimed, and past a
/// cgroup's limit the kernel kills: so each page is admitted. What the kernel has been
/// offered counts as free, so a cache grows as long as that makes place for its pages.
pub(crate) struct Growth {
    admission: Option<Admission>,
    until_retry: u32,
}

impl Growth {
    pub(crate) const fn new() -> Self {
        Self {
            admission: None,
            until_retry: 0,
        }
    }

    /// Returns whether a cache of `pages` pages may take another, of `bytes` bytes.
    pub(crate) fn admits(&mut self, bytes: usize, pages: usize) -> bool {
        if self.take(bytes) {
            return true;
        }
        if self.until_retry > 0 {
            self.until_retry -= 1;
            return false;
        }
        let part = pages.saturating_mul(bytes) / ADMITTED_DIVISOR;
        let wanted = part.clamp(MIN_ADMITTED_BYTES, MAX_ADMITTED_BYTES);
        self.admission = headroom::admit(wanted.max(bytes)).ok();
        if self.admission.is_none() {
            self.until_retry = PAGES_PER_REFUSAL;
        }
        self.take(bytes)
    }

    /// Takes the bytes out of what is admitted, as resident from now on.
    fn take(&self, bytes: usize) -> bool {
        let admission = self.admission.as_ref();
        let Some(admission) = admission.filter(|admission| admission.bytes() >= bytes) else {
            return false;
        };
        admission.mark_resident(bytes);
        true
    }
}
