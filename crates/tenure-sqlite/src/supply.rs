//! How much memory there is for a cache.

use tenure::pressure::{self, Level};
use tenure::volatile::offer_if_short;

use crate::arenas;

/// A cache grows while as much may be taken until pages that are not in use are offered to
/// the kernel soon, and gives pages up with less than half as much.
const MIN_DEFERRABLE_BYTES: usize = 64 << 20;

/// Below a limit that is too small for that, a cache of less grows all the same while there
/// is no pressure: the kernel reclaims what it was offered.
const MAX_OFFERED_BYTES: usize = 64 << 20;

/// Whether a cache may take more memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Supply {
    /// Each page may be admitted.
    Ample,
    /// A new page takes the place of the oldest one.
    Scarce,
    /// With each new page one more is dropped, until the cache holds its `cache_size`: the
    /// kernel purges what it was offered before it is used again, and that costs more than
    /// the cache saves.
    Short,
}

impl Supply {
    /// Returns the supply of a cache that takes so many bytes.
    pub(crate) fn now(cache_bytes: usize) -> Self {
        // Without a reading the cache grows by what is admitted.
        let _ = offer_if_short();
        Self::of(pressure::level(), arenas::deferrable_bytes(), cache_bytes)
    }

    fn of(level: Level, deferrable_bytes: usize, cache_bytes: usize) -> Self {
        if deferrable_bytes >= MIN_DEFERRABLE_BYTES {
            Self::Ample
        } else if level > Level::None && deferrable_bytes < MIN_DEFERRABLE_BYTES / 2 {
            Self::Short
        } else if level == Level::None && cache_bytes < MAX_OFFERED_BYTES {
            Self::Ample
        } else {
            Self::Scarce
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    #[test]
    fn supply_follows_what_may_be_taken_before_pages_are_offered() {
        let of = |level, deferrable| Supply::of(level, deferrable * MIB, 1000 * MIB);
        for level in [Level::None, Level::Some] {
            assert_eq!(of(level, 64), Supply::Ample);
            assert_eq!(of(level, 63), Supply::Scarce);
            assert_eq!(of(level, 32), Supply::Scarce);
        }
        assert_eq!(of(Level::None, 0), Supply::Scarce);
        assert_eq!(of(Level::Some, 31), Supply::Short);
        // Nothing is deferred then.
        assert_eq!(of(Level::Severe, 0), Supply::Short);
    }

    #[test]
    fn small_cache_grows_below_a_small_limit_until_there_is_pressure() {
        let of = |level, cache| Supply::of(level, 0, cache * MIB);
        assert_eq!(of(Level::None, 63), Supply::Ample);
        assert_eq!(of(Level::None, 64), Supply::Scarce);
        assert_eq!(of(Level::Some, 1), Supply::Short);
    }
}
