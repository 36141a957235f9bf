//! The figures of a part of a mapping, as far as those of the whole determine
//! them.

use super::Residency;
use crate::ground::range::PageRange;
use crate::ground::sys::pagemap::{self, PageState};
use crate::ground::sys::smaps::{Figures, SmapsEntry};
use crate::ground::sys::{Errno, features::Features};

/// A part of a mapping, and its known figures.
pub(super) struct Part {
    pub(super) range: PageRange,
    pub(super) residency: Residency,
    /// Whether some figure is unknown, so that splitting the part off would
    /// help.
    pub(super) is_incomplete: bool,
}

impl Part {
    /// Returns the figures of a whole mapping.
    pub(super) fn whole(range: PageRange, entry: &SmapsEntry) -> Self {
        let (mapped, reserved) = mapped_and_reserved_bytes(range, entry);
        let locked = locked_bytes(range, entry);
        Self {
            range,
            residency: Residency {
                reserved_bytes: reserved,
                ..Residency::from_figures(mapped, locked, &entry.figures)
            },
            is_incomplete: false,
        }
    }

    /// Returns the figures of a part of a mapping, from its pages and the
    /// figures of the whole.
    pub(super) fn of(range: PageRange, entry: &SmapsEntry) -> Result<Self, Errno> {
        let mut present = 0;
        pagemap::for_each_populated(range, |run| {
            present += match run.state {
                PageState::Present => run.range.len(),
                _ => 0,
            };
        })?;
        let reports_zero_page = Features::get().pagemap_scan.is_ok();
        Ok(Self::from_figures(range, entry, present, reports_zero_page))
    }

    /// Returns the figures of a part of which `present_bytes` are in the page
    /// tables, including those of the zero page unless the kernel
    /// `reports_zero_page`.
    fn from_figures(
        range: PageRange,
        entry: &SmapsEntry,
        present_bytes: usize,
        reports_zero_page: bool,
    ) -> Self {
        let Figures {
            resident: of,
            proportional,
            swapped,
            lazily_free,
            huge_pages,
            hugetlb: _,
        } = entry.figures;
        let is_hugetlb = entry.has("ht");
        let resident = if is_hugetlb || of == 0 {
            0
        } else {
            present_bytes
        };
        let share = |figure| share(figure, of, resident);
        let (mapped, reserved) = mapped_and_reserved_bytes(range, entry);
        let residency = Residency {
            mapped_bytes: mapped,
            reserved_bytes: reserved,
            resident_bytes: resident,
            proportional_bytes: share(proportional),
            swapped_bytes: (swapped == 0).then_some(0),
            lazily_free_bytes: lazily_free.and_then(share),
            locked_bytes: locked_bytes(range, entry),
            huge_page_bytes: share(huge_pages),
            hugetlb_bytes: if is_hugetlb { present_bytes } else { 0 },
        };
        let is_complete = residency.proportional_bytes.is_some()
            && residency.swapped_bytes.is_some()
            && (residency.lazily_free_bytes.is_some() || lazily_free.is_none())
            && residency.huge_page_bytes.is_some()
            && (reports_zero_page || resident == 0);
        Self {
            range,
            residency,
            is_incomplete: !is_complete,
        }
    }
}

/// Returns how much of `figure`, which counts some of the `of` resident bytes
/// of the whole, is in a part with `resident` of them: known when it counts
/// none or all of them, or the part has none.
fn share(figure: usize, of: usize, resident: usize) -> Option<usize> {
    match figure {
        0 => Some(0),
        _ if resident == 0 => Some(0),
        _ if figure == of => Some(resident),
        _ => None,
    }
}

fn mapped_and_reserved_bytes(range: PageRange, entry: &SmapsEntry) -> (usize, usize) {
    match ["rd", "wr", "ex"].iter().any(|access| entry.has(access)) {
        true => (range.len(), 0),
        false => (0, range.len()),
    }
}

fn locked_bytes(range: PageRange, entry: &SmapsEntry) -> usize {
    if entry.has("lo") { range.len() } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ground::sys::page_size;

    fn entry(resident: usize, lazily_free: usize, proportional: usize) -> SmapsEntry {
        let mut entry = SmapsEntry::default();
        entry.figures = Figures {
            resident,
            proportional,
            lazily_free: Some(lazily_free),
            ..Figures::NONE
        };
        entry
    }

    fn part(entry: &SmapsEntry, present_bytes: usize, reports_zero_page: bool) -> Part {
        let range = PageRange::between(page_size(), 9 * page_size());
        Part::from_figures(range, entry, present_bytes, reports_zero_page)
    }

    #[test]
    fn part_of_uniform_mapping_is_complete() {
        let none = part(&entry(64, 0, 64), 8, true);
        assert!(!none.is_incomplete);
        assert_eq!(none.residency.resident_bytes, 8);
        assert_eq!(none.residency.lazily_free_bytes, Some(0));
        assert_eq!(none.residency.proportional_bytes, Some(8));
        let all = part(&entry(64, 64, 64), 8, true);
        assert!(!all.is_incomplete);
        assert_eq!(all.residency.lazily_free_bytes, Some(8));
    }

    #[test]
    fn part_of_mixed_mapping_is_incomplete() {
        let some = part(&entry(64, 16, 32), 8, true);
        assert!(some.is_incomplete);
        assert_eq!(some.residency.lazily_free_bytes, None);
        assert_eq!(some.residency.proportional_bytes, None);
        let nothing_there = part(&entry(64, 16, 32), 0, true);
        assert!(!nothing_there.is_incomplete);
        assert_eq!(nothing_there.residency.lazily_free_bytes, Some(0));
    }

    #[test]
    fn part_is_incomplete_if_zero_page_is_not_reported() {
        assert!(part(&entry(64, 0, 64), 8, false).is_incomplete);
        let only_zeros = part(&entry(0, 0, 0), 8, false);
        assert!(!only_zeros.is_incomplete);
        assert_eq!(only_zeros.residency.resident_bytes, 0);
    }
}
