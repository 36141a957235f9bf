//! Options of a cache.

use std::time::Duration;

/// Options of a [`VolatileCache`](super::VolatileCache).
///
/// ```
/// use std::time::Duration;
/// use tenure::{CacheOptions, VolatileCache};
///
/// let options = CacheOptions::new()
///     .max_bytes(64 << 20)
///     .time_to_live(Duration::from_secs(60));
/// let cache = VolatileCache::with_options(options);
/// cache.insert("answer", b"42")?;
/// # Ok::<(), tenure::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct CacheOptions {
    pub(crate) max_bytes: Option<usize>,
    pub(crate) time_to_live: Option<Duration>,
}

impl CacheOptions {
    /// Returns the options that [`VolatileCache::new`](super::VolatileCache::new) uses: as
    /// much as there is memory for, and values that do not expire.
    pub const fn new() -> Self {
        Self {
            max_bytes: None,
            time_to_live: None,
        }
    }

    /// Limits the memory of the values, in bytes of whole pages, pinned ones included. A
    /// value that does not fit is refused. While it evicts, each thread may take 16 KiB
    /// beyond that.
    pub const fn max_bytes(mut self, bytes: usize) -> Self {
        self.max_bytes = Some(bytes);
        self
    }

    /// Has look-ups miss a value so long after its insertion, within a tick of the kernel's
    /// clock (10 ms at most). Time during which the machine is suspended does not count.
    /// It takes 8 bytes for each value.
    pub const fn time_to_live(mut self, lifetime: Duration) -> Self {
        self.time_to_live = Some(lifetime);
        self
    }
}
