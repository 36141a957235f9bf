//! What a program may choose.

use std::time::Duration;

use crate::classes::SMALLEST_BYTES;

/// How the heap behaves, for [`start`](crate::start()).
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
    /// The smallest block that the heap serves, in bytes: 64 KiB at least, 256 KiB by
    /// default. Lower where many blocks are just smaller and come and go; higher
    /// where the inner allocator should have them.
    pub threshold_bytes: usize,
    /// How much memory of freed blocks is kept for reuse, in bytes, at most. It is
    /// never more than an eighth of the memory that there is room for. 4 GiB by
    /// default.
    pub warm_bytes: usize,
    /// How long a freed block is kept as it is: half a second by default. After that
    /// the kernel may take its memory when it needs some.
    pub warm_for: Duration,
    /// How long the kernel is left to take it, before the memory is given back in any
    /// case: five seconds by default.
    pub lazy_for: Duration,
    /// Whether blocks from 2 MiB on get huge pages, where the system has them for who
    /// asks. They do by default.
    pub huge_pages: bool,
}

impl Default for HeapOptions {
    fn default() -> Self {
        Self {
            threshold_bytes: 256 << 10,
            warm_bytes: 4 << 30,
            warm_for: Duration::from_millis(500),
            lazy_for: Duration::from_secs(5),
            huge_pages: true,
        }
    }
}

impl HeapOptions {
    /// The threshold that holds.
    pub(crate) fn least_bytes(&self) -> usize {
        self.threshold_bytes.max(SMALLEST_BYTES)
    }
}
