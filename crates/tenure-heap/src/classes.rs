//! Size classes: eight for each doubling, so that a block wastes at most an eighth of
//! its size.

/// The smallest threshold that the options may set.
pub(crate) const SMALLEST_BYTES: usize = 64 << 10;

/// The block size from which huge pages are used.
pub(crate) const HUGE_BYTES: usize = 2 << 20;

/// The last class whose blocks have no huge pages.
pub(crate) const LAST_SMALL: usize = class_of(HUGE_BYTES) - 1;

/// More classes than the largest reservation holds.
pub(crate) const MAX_CLASSES: usize = 176;

/// 64 KiB is the last of the eight classes that end its doubling.
const BEFORE_FIRST: usize = 15 * 8 + 7;

/// Returns the class of the smallest blocks that hold so many bytes.
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

/// Returns the size of a class's blocks, in bytes.
#[inline]
pub(crate) const fn bytes_of(class: usize) -> usize {
    let at = class + BEFORE_FIRST;
    (at % 8 + 9) << (at / 8 - 3)
}

/// Returns the distance between two blocks of a class. From 2 MiB on each block begins
/// on a huge-page boundary; the addresses in between cost nothing.
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
    fn class_of_size_is_smallest_that_fits() {
        for class in 0..MAX_CLASSES {
            assert_eq!(class_of(bytes_of(class)), class);
            assert_eq!(class_of(bytes_of(class) + 1), class + 1);
        }
        assert_eq!(class_of(1), 0);
        assert_eq!(bytes_of(0), SMALLEST_BYTES);
        assert_eq!(bytes_of(class_of(256 << 10)), 256 << 10);
        assert_eq!(bytes_of(class_of((256 << 10) + 1)), 288 << 10);
    }

    #[test]
    fn class_wastes_at_most_an_eighth() {
        for class in 1..MAX_CLASSES {
            let least = bytes_of(class - 1) + 1;
            assert!(bytes_of(class) - least <= least / 8, "class {class}");
        }
    }

    #[test]
    fn pitch_is_multiple_of_page_or_huge_page() {
        for page_bytes in [4 << 10, 16 << 10, 64 << 10] {
            for class in 0..MAX_CLASSES {
                let pitch = pitch_of(class, page_bytes);
                assert!(pitch >= bytes_of(class) && pitch.is_multiple_of(page_bytes));
                assert!(bytes_of(class) < HUGE_BYTES || pitch.is_multiple_of(HUGE_BYTES));
            }
        }
    }
}
