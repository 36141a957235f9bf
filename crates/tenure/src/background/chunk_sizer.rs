//! Adaptive sizing of system calls that make other threads' `mmap` wait.

use std::time::Duration;

use crate::ground::sys::page_size;

/// The duration that a call should take, and bounds on its size.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChunkTarget {
    /// The duration that a call should take.
    pub(crate) duration: Duration,
    /// The initial size.
    pub(crate) initial_bytes: usize,
    pub(crate) min_bytes: usize,
    pub(crate) max_bytes: usize,
}

/// The size of one thread's calls.
#[derive(Debug)]
pub(crate) struct ChunkSizer {
    target: ChunkTarget,
    chunk_bytes: usize,
    is_fixed: bool,
}

impl ChunkSizer {
    /// Starts at the target's initial size and adapts it, or keeps
    /// `fixed_bytes`.
    pub(crate) fn new(target: ChunkTarget, fixed_bytes: Option<usize>) -> Self {
        /// Longer than any range, and still possible to round up to whole
        /// pages.
        const MAX_BYTES: usize = isize::MAX as usize;
        let chunk_bytes = fixed_bytes.unwrap_or(target.initial_bytes).min(MAX_BYTES);
        Self {
            target,
            chunk_bytes: chunk_bytes.next_multiple_of(page_size()),
            is_fixed: fixed_bytes.is_some(),
        }
    }

    pub(crate) fn chunk_bytes(&self) -> usize {
        self.chunk_bytes
    }

    /// Records how long a call took, and adapts the size.
    pub(crate) fn record(&mut self, bytes: usize, took: Duration) {
        // The last chunk of a part is shorter and says little.
        if self.is_fixed || bytes < self.chunk_bytes {
            return;
        }
        if took > self.target.duration * 2 {
            self.chunk_bytes /= 2;
        } else if took < self.target.duration / 2 {
            self.chunk_bytes *= 2;
        }
        let min_bytes = self.target.min_bytes.max(page_size());
        self.chunk_bytes = self.chunk_bytes.clamp(min_bytes, self.target.max_bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DURATION: Duration = Duration::from_millis(2);
    const TARGET: ChunkTarget = ChunkTarget {
        duration: DURATION,
        initial_bytes: 1 << 20,
        min_bytes: 256 << 10,
        max_bytes: 64 << 20,
    };

    #[test]
    fn chunk_size_adapts_to_target_duration() {
        let mut chunk_sizer = ChunkSizer::new(TARGET, None);
        let first = chunk_sizer.chunk_bytes();
        chunk_sizer.record(first, DURATION / 4);
        assert_eq!(chunk_sizer.chunk_bytes(), 2 * first);
        chunk_sizer.record(2 * first, DURATION);
        assert_eq!(chunk_sizer.chunk_bytes(), 2 * first);
        chunk_sizer.record(page_size(), DURATION * 100);
        assert_eq!(
            chunk_sizer.chunk_bytes(),
            2 * first,
            "a short chunk says nothing"
        );
        for _ in 0..20 {
            chunk_sizer.record(chunk_sizer.chunk_bytes(), DURATION * 3);
        }
        assert_eq!(chunk_sizer.chunk_bytes(), TARGET.min_bytes);
        for _ in 0..20 {
            chunk_sizer.record(chunk_sizer.chunk_bytes(), Duration::ZERO);
        }
        assert_eq!(chunk_sizer.chunk_bytes(), TARGET.max_bytes);
    }

    #[test]
    fn chunk_size_fixed_by_caller_stays() {
        let mut chunk_sizer = ChunkSizer::new(TARGET, Some(page_size() + 1));
        chunk_sizer.record(2 * page_size(), Duration::from_secs(1));
        assert_eq!(chunk_sizer.chunk_bytes(), 2 * page_size());
    }

    #[test]
    fn chunk_size_of_usize_max_exceeds_any_range() {
        let chunk_sizer = ChunkSizer::new(TARGET, Some(usize::MAX));
        assert!(chunk_sizer.chunk_bytes() > isize::MAX as usize);
    }
}
