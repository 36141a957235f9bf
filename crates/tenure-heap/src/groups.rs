//! The heap's memory by groups of sizes: jemalloc's figures of each size class, added up.
//!
//! jemalloc's small blocks share ranges of pages; each larger block has a range of its own.
//! Of those it counts the blocks in each class, and the bytes of all together, since their
//! sizes are whole pages. How many bytes are in medium and in large blocks follows from both,
//! nearly.

use std::ops::Range;

use tenure::HeapGroup;
use tenure::heap_stats::group;

use crate::jemalloc::{self, ALL, Indexed};

/// The size of the largest medium block.
const MAX_MEDIUM_BYTES: usize = 4 << 20;

/// The class of ranges of four pages, the smallest medium ones.
const FIRST_MEDIUM: usize = 3;

/// Returns the small, the medium and the large group, given how many bytes all ranges have
/// that are dirty, muzzy and retained. All figures are those of jemalloc's last refresh.
pub(crate) fn read(free_bytes: [usize; 3]) -> [HeapGroup; 3] {
    let page_bytes = jemalloc::page_bytes();
    let last_medium = class_of_pages(MAX_MEDIUM_BYTES / page_bytes);
    let [medium_bytes, large_bytes] = divide(last_medium, page_bytes);
    let mut bytes = [
        [jemalloc::figure(ALL, "small.allocated"), 0, 0, 0],
        [medium_bytes, 0, 0, 0],
        [large_bytes, 0, 0, 0],
    ];
    let names = [c"dirty_bytes", c"muzzy_bytes", c"retained_bytes"];
    for (kind, (name, all)) in names.into_iter().zip(free_bytes).enumerate() {
        let mut ranges = Indexed::of_all_arenas("extents", name);
        let mut sum = |classes: Range<usize>| classes.map(|class| ranges.get(class)).sum();
        let small: usize = sum(0..FIRST_MEDIUM);
        // A range is counted in the largest class that it contains.
        let medium: usize = sum(FIRST_MEDIUM..last_medium);
        let of_groups = [small, medium, all.saturating_sub(small + medium)];
        for (group, bytes) in bytes.iter_mut().zip(of_groups) {
            group[kind + 1] = bytes;
        }
    }
    bytes.map(group)
}

/// Returns the bytes in medium and in large blocks.
fn divide(last_medium: usize, page_bytes: usize) -> [usize; 2] {
    let total = jemalloc::figure(ALL, "large.allocated");
    let mut blocks = Indexed::of_all_arenas("lextents", c"curlextents");
    let [mut medium, mut large] = [(0, 0); 2];
    for class in FIRST_MEDIUM.. {
        let least = (pages_of_class(class - 1) + 1) * page_bytes;
        if least > total {
            break;
        }
        let count = blocks.get(class - FIRST_MEDIUM);
        let bounds = match class <= last_medium {
            true => &mut medium,
            false => &mut large,
        };
        bounds.0 += count * least;
        bounds.1 += count * pages_of_class(class) * page_bytes;
    }
    let medium = portion(total, medium, large);
    [medium, total - medium]
}

/// Returns how much of a total belongs to the first of two parts, of which a lower and an
/// upper bound are known: the middle of what is possible.
fn portion(total: usize, first: (usize, usize), second: (usize, usize)) -> usize {
    let min = first.0.max(total.saturating_sub(second.1));
    let max = first.1.min(total.saturating_sub(second.0));
    // The figures may belong to different moments.
    usize::midpoint(min, max).min(total)
}

/// Returns the pages of the largest range in a class: up to four pages one class for each
/// number of pages, and then four classes for each doubling.
fn pages_of_class(class: usize) -> usize {
    match class / 4 {
        0 => class + 1,
        doubling => (4 << (doubling - 1)) + (class % 4 + 1) * (1 << (doubling - 1)),
    }
}

/// Returns the class that ends with this many pages, a power of two and four at least.
fn class_of_pages(pages: usize) -> usize {
    4 * pages.ilog2() as usize - 5
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_those_of_jemalloc() {
        let page_bytes = jemalloc::page_bytes();
        let mut sizes = Indexed::of_classes();
        for class in FIRST_MEDIUM..FIRST_MEDIUM + 100 {
            let size = sizes.get(class - FIRST_MEDIUM);
            assert_eq!(pages_of_class(class) * page_bytes, size, "{class}");
        }
        for pages in [4, 8, 16, 1 << 10, 1 << 20] {
            assert_eq!(pages_of_class(class_of_pages(pages)), pages);
        }
    }

    #[test]
    fn portion_lies_within_all_bounds() {
        assert_eq!(portion(0, (0, 0), (0, 0)), 0);
        // One of the parts is empty: the other has all.
        assert_eq!(portion(90, (80, 100), (0, 0)), 90);
        assert_eq!(portion(90, (0, 0), (80, 100)), 0);
        // The smaller part determines both.
        assert_eq!(portion(1000, (8, 10), (900, 1100)), 9);
        assert_eq!(portion(1000, (900, 1100), (8, 10)), 991);
        // Blocks were allocated or freed meanwhile.
        assert_eq!(portion(10, (80, 100), (0, 0)), 10);
        assert_eq!(portion(100, (8, 10), (0, 0)), 55);
    }
}
