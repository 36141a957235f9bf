//! Memory pressure, as one level.

mod judge;
mod look;
mod pause;
mod reading;
mod subscription;
mod watcher;

pub use look::{Look, Reason, StallSource};
pub use subscription::{Subscription, subscribe};

use std::time::Instant;

/// How short memory is for this process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// There is enough.
    #[default]
    None,
    /// Programs wait for memory now and then, or there is not much more: keep
    /// nothing that is of little use.
    Some,
    /// Programs wait for memory much of the time, or the kernel is about to
    /// kill: give up all that can be done without.
    Severe,
}

/// Tells the level.
///
/// While somebody has [subscribed](subscribe), it is that of the last look, and
/// costs a few nanoseconds. Otherwise it looks now, which reads a few small
/// files, and starts no thread; then there is nothing to compare with, and the
/// kernel's own average over ten seconds counts. [`Level::None`] where nothing
/// can be read.
///
/// ```
/// use tenure::pressure::{self, Level};
///
/// if pressure::level() == Level::Severe {
///     // Drop what can be had again.
/// }
/// ```
pub fn level() -> Level {
    watcher::last_level().unwrap_or_else(|| {
        reading::Reading::now().map_or(Level::None, |(reading, ..)| {
            judge::Judge::default().take(Instant::now(), reading).level
        })
    })
}
