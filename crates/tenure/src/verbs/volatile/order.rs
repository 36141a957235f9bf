//! Who goes first.

use std::time::Duration;

use crate::ground::sys::process;

/// How soon a volatile range is purged under memory pressure: lower priorities
/// first, and of one priority what was marked least recently.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Priority {
    /// First to go (0).
    Lowest,
    /// Before most others (1).
    Low,
    /// As most ranges (2).
    #[default]
    Normal,
    /// Last to go (3).
    High,
}

impl Priority {
    /// All, the first to go first.
    pub const ALL: [Self; 4] = [Self::Lowest, Self::Low, Self::Normal, Self::High];

    /// The number that the C interface uses, 0 to 3.
    pub fn as_u8(self) -> u8 {
        self as u8
    }

    pub(super) fn from_low_bits(bits: u64) -> Self {
        Self::ALL[(bits & 3) as usize]
    }
}

/// When a range was marked: nanoseconds of the monotonic clock, which goes on
/// the same in a child.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Stamp(u64);

impl Stamp {
    pub(super) fn now() -> Self {
        Self(process::monotonic_nanos())
    }

    pub(super) const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    pub(super) fn as_nanos(self) -> u64 {
        self.0
    }

    /// How much later this is than another; nothing if it is not.
    pub(super) fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}
