//! The mechanism: experiments of cases and ways, and the runner that measures them.

mod experiment;
mod headroom;
mod runner;

pub use self::experiment::{Case, Experiment, Pace, Recorder, Settings, Way};
pub use self::headroom::{Fitted, Headroom, Sizes, fit_to_lock};
#[cfg(test)]
pub use self::runner::once;
pub use self::runner::{Repeats, measure, sample_count};
pub use crate::record::Unit;

/// The names that every experiment uses.
pub mod prelude {
    pub use anyhow::{Context as _, Result, bail, ensure};
    pub use tenure::page_size;

    pub use super::*;
    pub use crate::machine::memory::{Memory, Owner, Pages, RawMapping};
    pub use crate::machine::{files, kernel, probe, touch};
    pub use crate::text::{bytes_text, count_text, seconds_text, threads_text};
}
