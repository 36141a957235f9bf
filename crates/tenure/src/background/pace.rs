//! How much to do in one system call.

use std::time::Duration;

use crate::ground::sys::page_size;

/// What the size of a call is steered by.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wish {
    /// How long a call should take.
    pub(crate) takes: Duration,
    /// Where sizes begin, and their bounds.
    pub(crate) first_bytes: usize,
    pub(crate) least_bytes: usize,
    pub(crate) most_bytes: usize,
}

/// The size of one thread's calls.
#[derive(Debug)]
pub(crate) struct Pace {
    wish: Wish,
    chunk_bytes: usize,
    fixed: bool,
}

impl Pace {
    /// Begins as wished, or keeps to a size that was asked for.
    pub(crate) fn new(wish: Wish, fixed_bytes: Option<usize>) -> Self {
        /// More than any range has, and can be rounded up to pages of any size.
        const MOST_BYTES: usize = isize::MAX as usize;
        let chunk_bytes = fixed_bytes.unwrap_or(wish.first_bytes).min(MOST_BYTES);
        Self {
            wish,
            chunk_bytes: chunk_bytes.next_multiple_of(page_size()),
            fixed: fixed_bytes.is_some(),
        }
    }

    pub(crate) fn chunk_bytes(&self) -> usize {
        self.chunk_bytes
    }

    /// Learns how long a call took.
    pub(crate) fn learn(&mut self, bytes: usize, took: Duration) {
        // The last chunk of a part is short and says little.
        if self.fixed || bytes < self.chunk_bytes {
            return;
        }
        if took > self.wish.takes * 2 {
            self.chunk_bytes /= 2;
        } else if took < self.wish.takes / 2 {
            self.chunk_bytes *= 2;
        }
        let least = self.wish.least_bytes.max(page_size());
        self.chunk_bytes = self.chunk_bytes.clamp(least, self.wish.most_bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TAKES: Duration = Duration::from_millis(2);
    const WISH: Wish = Wish {
        takes: TAKES,
        first_bytes: 1 << 20,
        least_bytes: 256 << 10,
        most_bytes: 64 << 20,
    };

    #[test]
    fn chunks_grow_and_shrink_towards_the_wanted_time() {
        let mut pace = Pace::new(WISH, None);
        let first = pace.chunk_bytes();
        pace.learn(first, TAKES / 4);
        assert_eq!(pace.chunk_bytes(), 2 * first);
        pace.learn(2 * first, TAKES);
        assert_eq!(pace.chunk_bytes(), 2 * first);
        pace.learn(page_size(), TAKES * 100);
        assert_eq!(pace.chunk_bytes(), 2 * first, "a short chunk says nothing");
        for _ in 0..20 {
            pace.learn(pace.chunk_bytes(), TAKES * 3);
        }
        assert_eq!(pace.chunk_bytes(), WISH.least_bytes);
        for _ in 0..20 {
            pace.learn(pace.chunk_bytes(), Duration::ZERO);
        }
        assert_eq!(pace.chunk_bytes(), WISH.most_bytes);
    }

    #[test]
    fn a_size_that_was_asked_for_stays() {
        let mut pace = Pace::new(WISH, Some(page_size() + 1));
        pace.learn(2 * page_size(), Duration::from_secs(1));
        assert_eq!(pace.chunk_bytes(), 2 * page_size());
    }

    #[test]
    fn a_size_without_end_is_all_at_once() {
        let pace = Pace::new(WISH, Some(usize::MAX));
        assert!(pace.chunk_bytes() > isize::MAX as usize);
    }
}
