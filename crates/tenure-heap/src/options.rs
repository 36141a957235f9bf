//! The heap's options.

use std::time::Duration;

use crate::classes::SMALLEST_BYTES;

/// Options of the heap, for [`start`](crate::start()).
///
/// ```
/// use tenure_heap::HeapOptions;
///
/// tenure_heap::start(HeapOptions {
///     threshold_bytes: 128 << 10,
///     ..HeapOptions::default()
/// })?;
/// # Ok::<(), tenure::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeapOptions {
    /// The smallest block that the heap serves, in bytes: at least 64 KiB, by default
    /// 256 KiB. Lower it for programs that allocate and free many blocks just below it;
    /// raise it to leave them to the inner allocator.
    pub threshold_bytes: usize,
    /// The most memory of freed blocks that is kept dirty for reuse, in bytes, by
    /// default 4 GiB. The heap also never keeps more than an eighth of the headroom of
    /// the machine and the cgroup.
    pub max_dirty_bytes: usize,
    /// How long a freed block stays dirty, by default 500 ms. Afterwards it is muzzy:
    /// the kernel may reclaim its memory (MADV_FREE).
    pub dirty_decay: Duration,
    /// How long a block stays muzzy, by default 5 s. Afterwards its memory is returned
    /// to the kernel (MADV_DONTNEED).
    pub muzzy_decay: Duration,
    /// Whether blocks from 2 MiB on get huge pages (MADV_HUGEPAGE); on by default.
    pub huge_pages: bool,
}

impl Default for HeapOptions {
    fn default() -> Self {
        Self {
            threshold_bytes: 256 << 10,
            max_dirty_bytes: 4 << 30,
            dirty_decay: Duration::from_millis(500),
            muzzy_decay: Duration::from_secs(5),
            huge_pages: true,
        }
    }
}

impl HeapOptions {
    /// Returns the threshold, raised to its minimum.
    pub(crate) fn min_bytes(&self) -> usize {
        self.threshold_bytes.max(SMALLEST_BYTES)
    }
}
