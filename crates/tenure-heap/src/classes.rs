//! Sizes of blocks: eight classes for each doubling, so that a block wastes an
//! eighth of itself at most.

/// The smallest block that any options ask for.
pub(crate) const SMALLEST_BYTES: usize = 64 << 10;

/// What a block must fill to be worth a huge page.
pub(crate) const HUGE_BYTES: usize = 2 << 20;

/// The last class whose blocks have no huge pages.
pub(crate) const LAST_SMALL: usize = class_of(HUGE_BYTES) - 1;

/// More than the largest reservation has.
pub(crate) const MOST_CLASSES: usize = 176;

/// 64 KiB is the last of the eight classes that end its doubling.
const BEFORE_FIRST: usize = 15 * 8 + 7;

/// The class of the smallest blocks that hold so many bytes.
#[inline]
pub(crate) const fn class_of(bytes: usize) -> usize {
    let last = if bytes < SMALLEST_BYTES {
        SMALLEST_BYTES - 1
    } else {
        bytes - 1
    };
    let log = last.ilog2() as usize;
    let eighth = (last >> (log - 3)) & 7;
    log * 8 + eighth - BEFORE_FIRST
}

/// The largest block of a class, in bytes.
#[inline]
pub(crate) const fn bytes_of(class: usize) -> usize {
    let at = class + BEFORE_FIRST;
    (at % 8 + 9) << (at / 8 - 3)
}

/// The distance between two blocks of a class. From 2 MiB on each begins a huge
/// page; addresses that no block fills cost nothing.
pub(crate) const fn pitch_of(class: usize, page_bytes: usize) -> usize {
    let bytes = bytes_of(class);
    bytes.next_multiple_of(if bytes >= HUGE_BYTES {
        HUGE_BYTES
    } else {
        page_bytes
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_in_the_smallest_class_that_holds_it() {
        for class in 0..MOST_CLASSES {
            assert_eq!(class_of(bytes_of(class)), class);
            assert_eq!(class_of(bytes_of(class) + 1), class + 1);
        }
        assert_eq!(class_of(1), 0);
        assert_eq!(bytes_of(0), SMALLEST_BYTES);
        assert_eq!(bytes_of(class_of(256 << 10)), 256 << 10);
        assert_eq!(bytes_of(class_of((256 << 10) + 1)), 288 << 10);
    }

    #[test]
    fn an_eighth_is_wasted_at_most() {
        for class in 1..MOST_CLASSES {
            let least = bytes_of(class - 1) + 1;
            assert!(bytes_of(class) - least <= least / 8, "class {class}");
        }
    }

    #[test]
    fn blocks_begin_on_pages_and_large_ones_on_huge_pages() {
        for page_bytes in [4 << 10, 16 << 10, 64 << 10] {
            for class in 0..MOST_CLASSES {
                let pitch = pitch_of(class, page_bytes);
                assert!(pitch >= bytes_of(class) && pitch.is_multiple_of(page_bytes));
                assert!(bytes_of(class) < HUGE_BYTES || pitch.is_multiple_of(HUGE_BYTES));
            }
        }
    }
}
