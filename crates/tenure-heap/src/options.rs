//! The heap's options.

use std::time::Duration;

/// Options of the heap, for [`start`](crate::start()).
///
/// ```
/// use std::time::Duration;
/// use tenure_heap::HeapOptions;
///
/// tenure_heap::start(HeapOptions {
///     dirty_decay: Duration::from_secs(1),
///     ..HeapOptions::default()
/// })?;
/// # Ok::<(), tenure::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeapOptions {
    /// The smallest block that the heap serves, in bytes, by default 0: all of them.
    /// Smaller ones are left to the inner allocator. Two allocators cannot use each
    /// other's free memory.
    pub threshold_bytes: usize,
    /// The most free memory that is kept dirty for reuse, in bytes, by default 4 GiB. The
    /// heap also never keeps more than an eighth of the headroom of the machine and the
    /// cgroup.
    pub max_dirty_bytes: usize,
    /// How long free pages stay dirty, by default 4 s. Afterwards they are muzzy: the
    /// kernel may reclaim them (MADV_FREE).
    pub dirty_decay: Duration,
    /// How long free pages stay muzzy at most, by default 1 s. Afterwards they are returned to the
    /// kernel (MADV_DONTNEED).
    pub muzzy_decay: Duration,
    /// Whether blocks from 16 MiB on get huge pages (MADV_HUGEPAGE); on by default. The heap's
    /// own tables have some in any case where an arena has more than 2 MiB of them.
    pub huge_pages: bool,
}

impl Default for HeapOptions {
    fn default() -> Self {
        Self {
            threshold_bytes: 0,
            max_dirty_bytes: 4 << 30,
            dirty_decay: Duration::from_secs(4),
            muzzy_decay: Duration::from_secs(1),
            huge_pages: true,
        }
    }
}
