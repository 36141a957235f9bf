//! The sum over the mappings that lie in a range.

use super::Residency;
use super::part::Part;
use crate::ground::error::{Error, Result};
use crate::ground::range::PageRange;
use crate::ground::sys::smaps::{self, SmapsEntry};
use crate::ground::sys::{Errno, pagemap, pmd_bytes, split};

pub(super) fn of_range(range: PageRange) -> Result<Residency> {
    let lock = split::SplitLock::acquire();
    let sum = Sum::of(range)?;
    if sum.to_split.is_empty() {
        return Ok(sum.residency);
    }
    match lock.and_then(|lock| lock.with_split(&sum.to_split, || Sum::of(range))) {
        Ok(exact) => exact.map(|sum| sum.residency),
        // The figures that are known without splitting.
        Err(_) => Ok(sum.residency),
    }
}

struct Sum {
    residency: Residency,
    /// The parts to split off to learn more.
    to_split: Vec<PageRange>,
}

impl Sum {
    fn of(range: PageRange) -> Result<Self> {
        let mut sum = Self {
            residency: Residency::ZERO,
            to_split: Vec::new(),
        };
        if range.is_empty() {
            return Ok(sum);
        }
        let mut failed = None;
        let read = smaps::each_within(range, |part, entry| {
            if let Err(errno) = sum.add(part, entry) {
                failed = Some(errno);
            }
        });
        let explain = |call| move |errno| Error::System { call, errno };
        read.map_err(explain("reading /proc/self/smaps"))?;
        match failed {
            Some(errno) => Err(explain("PAGEMAP_SCAN")(errno)),
            None => Ok(sum),
        }
    }

    fn add(&mut self, range: PageRange, entry: &SmapsEntry) -> Result<(), Errno> {
        let part = match entry.range {
            Some(whole) if whole == range => Part::whole(range, entry),
            _ => Part::of(range, entry)?,
        };
        self.residency.add(&part.residency);
        if part.is_incomplete {
            self.to_split.extend(separable(part.range, entry));
        }
        Ok(())
    }
}

/// Returns the part of `range`, a part of the mapping, that can be split off
/// and merged again without a trace.
fn separable(range: PageRange, entry: &SmapsEntry) -> Option<PageRange> {
    // Excluded from dumps, or of a kind that cannot be included again; hugetlb
    // memory; the stack, which grows.
    const INSEPARABLE: [&str; 7] = ["dd", "io", "de", "pf", "mm", "ht", "gd"];
    if INSEPARABLE.iter().any(|flag| entry.has(flag)) {
        return None;
    }
    let has_huge_pages = entry.figures.huge_pages > 0;
    let cuts = |at| has_huge_pages && pagemap::is_inside_huge_page(at) != Some(false);
    let (mut start, mut end) = (range.start(), range.end());
    if cuts(start) {
        start = start.next_multiple_of(pmd_bytes());
    }
    if cuts(end) {
        end -= end % pmd_bytes();
    }
    (start < end).then(|| PageRange::between(start, end))
}

impl Residency {
    const ZERO: Self = Self {
        mapped_bytes: 0,
        reserved_bytes: 0,
        resident_bytes: 0,
        proportional_bytes: Some(0),
        swapped_bytes: Some(0),
        lazily_free_bytes: Some(0),
        locked_bytes: 0,
        huge_page_bytes: Some(0),
        hugetlb_bytes: 0,
    };

    fn add(&mut self, other: &Self) {
        let both = |a: Option<usize>, b| a.zip(b).map(|(a, b)| a + b);
        self.mapped_bytes += other.mapped_bytes;
        self.reserved_bytes += other.reserved_bytes;
        self.resident_bytes += other.resident_bytes;
        self.proportional_bytes = both(self.proportional_bytes, other.proportional_bytes);
        self.swapped_bytes = both(self.swapped_bytes, other.swapped_bytes);
        self.lazily_free_bytes = both(self.lazily_free_bytes, other.lazily_free_bytes);
        self.locked_bytes += other.locked_bytes;
        self.huge_page_bytes = both(self.huge_page_bytes, other.huge_page_bytes);
        self.hugetlb_bytes += other.hugetlb_bytes;
    }
}
