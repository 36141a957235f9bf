//! The sum over the mappings that lie in a range.

use super::Residency;
use super::part::Part;
use crate::ground::error::{Error, Result};
use crate::ground::range::PageRange;
use crate::ground::sys::smaps::{self, Mapped};
use crate::ground::sys::{Errno, pagemap, pmd_bytes, split};

pub(super) fn of_range(range: PageRange) -> Result<Residency> {
    let alone = split::Alone::wait();
    let sum = Sum::of(range)?;
    if sum.apart.is_empty() {
        return Ok(sum.residency);
    }
    match alone.and_then(|alone| alone.apart(&sum.apart, || Sum::of(range))) {
        Ok(exact) => exact.map(|sum| sum.residency),
        // What is known without it.
        Err(_) => Ok(sum.residency),
    }
}

struct Sum {
    residency: Residency,
    /// What must be set apart for more to be known.
    apart: Vec<PageRange>,
}

impl Sum {
    fn of(range: PageRange) -> Result<Self> {
        let mut sum = Self {
            residency: Residency::NOTHING,
            apart: Vec::new(),
        };
        if range.is_empty() {
            return Ok(sum);
        }
        let mut failed = None;
        let read = smaps::each_within(range, |part, mapped| {
            if let Err(errno) = sum.add(part, mapped) {
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

    fn add(&mut self, range: PageRange, mapped: &Mapped) -> Result<(), Errno> {
        let part = match mapped.range {
            Some(whole) if whole == range => Part::whole(range, mapped),
            _ => Part::of(range, mapped)?,
        };
        self.residency.add(&part.residency);
        if part.is_unsure {
            self.apart.extend(separable(part.range, mapped));
        }
        Ok(())
    }
}

/// The part of `range`, a part of the mapping, that can be set apart and joined
/// again without a trace.
fn separable(range: PageRange, mapped: &Mapped) -> Option<PageRange> {
    // Left out of dumps, or of a kind that cannot be put back into them; hugetlb
    // memory; the stack, which grows.
    const NOT: [&str; 7] = ["dd", "io", "de", "pf", "mm", "ht", "gd"];
    if NOT.iter().any(|flag| mapped.has(flag)) {
        return None;
    }
    let has_huge_pages = mapped.figures.huge_pages > 0;
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
    const NOTHING: Self = Self {
        mapped_bytes: 0,
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
        self.resident_bytes += other.resident_bytes;
        self.proportional_bytes = both(self.proportional_bytes, other.proportional_bytes);
        self.swapped_bytes = both(self.swapped_bytes, other.swapped_bytes);
        self.lazily_free_bytes = both(self.lazily_free_bytes, other.lazily_free_bytes);
        self.locked_bytes += other.locked_bytes;
        self.huge_page_bytes = both(self.huge_page_bytes, other.huge_page_bytes);
        self.hugetlb_bytes += other.hugetlb_bytes;
    }
}
