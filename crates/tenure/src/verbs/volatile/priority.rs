//! Purge order: priority, then age.

use std::time::Duration;

use crate::ground::sys::process;

/// How soon a volatile range is purged under memory pressure: lower priorities
/// first, and within one priority the range that was marked least recently.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Priority {
    /// Purged first (0).
    Lowest,
    /// Purged before most ranges (1).
    Low,
    /// The default (2).
    #[default]
    Normal,
    /// Purged last (3).
    High,
}

impl Priority {
    /// All priorities, in the order in which they are purged.
    pub const ALL: [Self; 4] = [Self::Lowest, Self::Low, Self::Normal, Self::High];

    /// Returns the number that the C interface uses, 0 to 3.
    pub fn as_u8(self) -> u8 {
        self as u8
    }

    pub(super) fn from_low_bits(bits: u64) -> Self {
        Self::ALL[(bits & 3) as usize]
    }
}

/// When a range was marked: nanoseconds of CLOCK_MONOTONIC, which a forked child
/// shares with its parent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Timestamp(u64);

impl Timestamp {
    pub(super) fn now() -> Self {
        Self(process::monotonic_nanos())
    }

    /// Returns the time of the last tick of the clock, a few milliseconds ago: cheap.
    pub(super) fn coarse() -> Self {
        Self(process::monotonic_coarse_nanos())
    }

    pub(super) const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    pub(super) fn as_nanos(self) -> u64 {
        self.0
    }

    /// Returns how much later this is than `earlier`; zero if it is not later.
    pub(super) fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}
