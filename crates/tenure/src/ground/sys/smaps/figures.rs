//! The figures of one mapping, or the sum over a process.

use std::ops::AddAssign;

/// Figures from smaps, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Figures {
    /// `Rss`: without the zero page and without hugetlb memory.
    pub(crate) resident: usize,
    /// `Pss`.
    pub(crate) proportional: usize,
    /// `Swap`, including that of shared memory.
    pub(crate) swapped: usize,
    /// `LazyFree` (Linux 4.12).
    pub(crate) lazily_free: Option<usize>,
    /// Transparent huge pages that are mapped as such: `AnonHugePages`,
    /// `ShmemPmdMapped` and `FilePmdMapped`.
    pub(crate) huge_pages: usize,
    /// `Shared_Hugetlb` and `Private_Hugetlb`.
    pub(crate) hugetlb: usize,
}

impl Default for Figures {
    /// The figures before the first line: no `LazyFree` line was read yet.
    fn default() -> Self {
        Self {
            lazily_free: None,
            ..Self::NONE
        }
    }
}

impl Figures {
    /// The sum over no mappings.
    pub(crate) const NONE: Self = Self {
        resident: 0,
        proportional: 0,
        swapped: 0,
        lazily_free: Some(0),
        huge_pages: 0,
        hugetlb: 0,
    };

    /// Adds a line such as `Rss:      16 kB`; ignores other lines.
    pub(super) fn add_line(&mut self, line: &str) {
        let Some((name, figure)) = line.split_once(':') else {
            return;
        };
        let place = match name {
            "Rss" => &mut self.resident,
            "Pss" => &mut self.proportional,
            "Swap" => &mut self.swapped,
            "LazyFree" => self.lazily_free.insert(0),
            "AnonHugePages" | "ShmemPmdMapped" | "FilePmdMapped" => &mut self.huge_pages,
            "Shared_Hugetlb" | "Private_Hugetlb" => &mut self.hugetlb,
            _ => return,
        };
        let kib = figure.trim().strip_suffix(" kB");
        if let Some(kib) = kib.and_then(|kib| kib.parse::<usize>().ok()) {
            *place = place.saturating_add(kib.saturating_mul(1024));
        }
    }
}

impl AddAssign for Figures {
    fn add_assign(&mut self, other: Self) {
        let add = |sum: &mut usize, other| *sum = sum.saturating_add(other);
        add(&mut self.resident, other.resident);
        add(&mut self.proportional, other.proportional);
        add(&mut self.swapped, other.swapped);
        let both = self.lazily_free.zip(other.lazily_free);
        self.lazily_free = both.map(|(sum, other)| sum.saturating_add(other));
        add(&mut self.huge_pages, other.huge_pages);
        add(&mut self.hugetlb, other.hugetlb);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_saturate_on_overflow() {
        let mut figures = Figures::default();
        figures.add_line("Rss: 18014398509481984 kB");
        figures.add_line("Rss: 1 kB");
        assert_eq!(figures.resident, usize::MAX);
        figures += figures;
        assert_eq!(figures.resident, usize::MAX);
    }
}
