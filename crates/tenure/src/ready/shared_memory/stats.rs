//! The figures of a shared file.

use std::sync::atomic::Ordering;

use super::layout::Kind;
use super::table::{Table, pages_of};
use super::word::State;
use crate::ground::error::Result;

/// The contents of a [`SharedArena`](super::SharedArena), and what was purged. While processes
/// use it, two figures may be from different moments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SharedStats {
    /// The buffers, of whatever state.
    pub buffers: u64,
    /// Those whose contents are there.
    pub live: u64,
    /// The bytes of these, in whole pages.
    pub bytes: u64,
    /// Those that a process has pinned.
    pub pinned: u64,
    /// The live processes that are attached. (One that has opened it twice counts twice.)
    pub processes: u64,
    /// The buffers purged so far.
    pub purged: u64,
    /// The bytes of these, in whole pages.
    pub purged_bytes: u64,
}

impl SharedStats {
    pub(super) fn of(table: &Table) -> Result<Self> {
        let header = table.header();
        let mut stats = Self {
            processes: table.live_processes() as u64,
            purged: header.purged.load(Ordering::Relaxed),
            purged_bytes: header.purged_bytes.load(Ordering::Relaxed),
            ..Self::default()
        };
        for index in 0..table.geometry.count {
            let Some((entry, len, _)) = table.entry(index) else {
                continue;
            };
            let now = entry.word.read();
            stats.buffers += u64::from(now.state() != State::Free);
            if now.state() == State::Live {
                stats.live += 1;
                stats.bytes = stats.bytes.saturating_add(pages_of(len));
                let is_pinned = table.geometry.kind != Kind::Cache && now.processes() != 0;
                stats.pinned += u64::from(is_pinned);
            }
        }
        Ok(stats)
    }
}
