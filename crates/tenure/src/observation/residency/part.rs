//! The figures of a part of a mapping, as far as those of the whole tell.

use super::Residency;
use crate::ground::range::PageRange;
use crate::ground::sys::pagemap::{self, PageState};
use crate::ground::sys::smaps::{Figures, Mapped};
use crate::ground::sys::{Errno, features::Features};

/// A part of a mapping, and what is known about it.
pub(super) struct Part {
    pub(super) range: PageRange,
    pub(super) residency: Residency,
    /// Whether it would be worth setting the part apart: something about it is
    /// not known.
    pub(super) is_unsure: bool,
}

impl Part {
    /// All of a mapping: what smaps says.
    pub(super) fn whole(range: PageRange, mapped: &Mapped) -> Self {
        let locked = locked_bytes(range, mapped);
        Self {
            range,
            residency: Residency::told(range.len(), locked, &mapped.figures),
            is_unsure: false,
        }
    }

    /// A part of a mapping: its pages, and what the figures of the whole say
    /// about any part.
    pub(super) fn of(range: PageRange, mapped: &Mapped) -> Result<Self, Errno> {
        let mut present = 0;
        pagemap::each_there(range, |run| {
            present += match run.state {
                PageState::Present => run.range.len(),
                _ => 0,
            };
        })?;
        let tells_zeros = Features::get().pagemap_scan.is_ok();
        Ok(Self::told(range, mapped, present, tells_zeros))
    }

    /// `present_bytes` are in the page tables, those of the page of zeros among
    /// them unless the kernel `tells_zeros`.
    fn told(range: PageRange, mapped: &Mapped, present_bytes: usize, tells_zeros: bool) -> Self {
        let Figures {
            resident: of,
            proportional,
            swapped,
            lazily_free,
            huge_pages,
            hugetlb: _,
        } = mapped.figures;
        let is_hugetlb = mapped.has("ht");
        let resident = if is_hugetlb || of == 0 {
            0
        } else {
            present_bytes
        };
        let share = |figure| share(figure, of, resident);
        let residency = Residency {
            mapped_bytes: range.len(),
            resident_bytes: resident,
            proportional_bytes: share(proportional),
            swapped_bytes: (swapped == 0).then_some(0),
            lazily_free_bytes: lazily_free.and_then(share),
            locked_bytes: locked_bytes(range, mapped),
            huge_page_bytes: share(huge_pages),
            hugetlb_bytes: if is_hugetlb { present_bytes } else { 0 },
        };
        let is_sure = residency.proportional_bytes.is_some()
            && residency.swapped_bytes.is_some()
            && (residency.lazily_free_bytes.is_some() || lazily_free.is_none())
            && residency.huge_page_bytes.is_some()
            && (tells_zeros || resident == 0);
        Self {
            range,
            residency,
            is_unsure: !is_sure,
        }
    }
}

/// How much of `figure`, which counts some of the `of` bytes that are resident
/// in the whole, is in a part that has `resident` of them: certain when it
/// counts none or all, or there is nothing in the part.
fn share(figure: usize, of: usize, resident: usize) -> Option<usize> {
    match figure {
        0 => Some(0),
        _ if resident == 0 => Some(0),
        _ if figure == of => Some(resident),
        _ => None,
    }
}

fn locked_bytes(range: PageRange, mapped: &Mapped) -> usize {
    if mapped.has("lo") { range.len() } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ground::sys::page_size;

    fn mapped(resident: usize, lazily_free: usize, proportional: usize) -> Mapped {
        let mut mapped = Mapped::default();
        mapped.figures = Figures {
            resident,
            proportional,
            lazily_free: Some(lazily_free),
            ..Figures::NONE
        };
        mapped
    }

    fn part(mapped: &Mapped, present_bytes: usize, tells_zeros: bool) -> Part {
        let range = PageRange::between(page_size(), 9 * page_size());
        Part::told(range, mapped, present_bytes, tells_zeros)
    }

    #[test]
    fn none_of_the_whole_is_none_of_a_part_and_all_is_all() {
        let none = part(&mapped(64, 0, 64), 8, true);
        assert!(!none.is_unsure);
        assert_eq!(none.residency.resident_bytes, 8);
        assert_eq!(none.residency.lazily_free_bytes, Some(0));
        assert_eq!(none.residency.proportional_bytes, Some(8));
        let all = part(&mapped(64, 64, 64), 8, true);
        assert!(!all.is_unsure);
        assert_eq!(all.residency.lazily_free_bytes, Some(8));
    }

    #[test]
    fn some_of_the_whole_may_be_anywhere_in_it() {
        let some = part(&mapped(64, 16, 32), 8, true);
        assert!(some.is_unsure);
        assert_eq!(some.residency.lazily_free_bytes, None);
        assert_eq!(some.residency.proportional_bytes, None);
        let nothing_there = part(&mapped(64, 16, 32), 0, true);
        assert!(!nothing_there.is_unsure);
        assert_eq!(nothing_there.residency.lazily_free_bytes, Some(0));
    }

    #[test]
    fn the_page_of_zeros_is_looked_for_where_pagemap_does_not_tell_it() {
        assert!(part(&mapped(64, 0, 64), 8, false).is_unsure);
        let only_zeros = part(&mapped(0, 0, 0), 8, false);
        assert!(!only_zeros.is_unsure);
        assert_eq!(only_zeros.residency.resident_bytes, 0);
    }
}
