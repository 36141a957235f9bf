//! The report of unmarking.

use crate::ground::range::PageRange;

/// Says whether the contents of a volatile range are intact.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "purged pages read as zeros"]
pub enum Outcome {
    /// Every byte is as it was.
    Intact,
    /// These pages were purged and read as zeros, in order of address; all others
    /// are as they were.
    Purged(Vec<PageRange>),
}
