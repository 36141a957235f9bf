//! The report of unmarking.

use crate::ground::range::PageRange;

/// Says whether the contents of a volatile range are intact.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "the contents of purged pages are gone"]
pub enum Outcome {
    /// Every byte is as it was.
    Intact,
    /// These pages were purged, in order of address; all others are as they were. They
    /// read as zeros, except where the protection of a range had ended: all of such a range
    /// is reported, and its contents are left as they are, some perhaps zeros.
    Purged(Vec<PageRange>),
}
