//! How much of everything there is in the loads with blocks of all sizes.

use std::time::Duration;

use super::scale::{GIB, MIB};
use crate::measure::prelude::*;
use crate::worker::job::{Entries, Load, Manner, Objects, Phases};

/// An entry with an average value and its three blocks takes about so much.
const ENTRY_BYTES: usize = 1024;
/// An object takes about so much.
const OBJECT_BYTES: usize = 256;

/// The sizes, times and numbers of threads.
#[derive(Clone, Debug)]
pub struct LoadScale {
    pub phases: Phases,
    /// How much memory is touched before the phases, so that a host backs it.
    pub touched_len: usize,
    pub entries: Entries,
    pub objects: Objects,
    /// When to look, after the last free().
    pub moments: Vec<Duration>,
    /// A load, in one thread.
    pub load: Load,
    pub threads: Vec<usize>,
    /// The sizes that are smaller than wanted, and the reasons.
    pub notes: Vec<String>,
}

impl LoadScale {
    /// Returns the wanted scale as far as it fits into the headroom. An allocator may keep
    /// what it had in memory while the others have theirs.
    pub fn of(settings: &Settings, allocators: usize) -> Result<Self> {
        let mut notes = Vec::new();
        let mut note = |Fitted { len, note }: Fitted| {
            notes.extend(note);
            len
        };
        let headroom = &settings.headroom;
        let mut scale = Self::wanted(settings);
        let mut fit = |len: usize| -> Result<usize> {
            let fitted = headroom.fit(len * allocators, 2, MIB * allocators)?;
            Ok(note(fitted) / allocators)
        };
        scale.phases.bytes = fit(scale.phases.bytes)?;
        scale.entries.count = fit(scale.entries.count * ENTRY_BYTES)? / ENTRY_BYTES;
        scale.objects.live = fit(scale.objects.live * OBJECT_BYTES)? / OBJECT_BYTES;
        scale.touched_len = note(headroom.fit(scale.touched_len, 4, MIB)?);
        Ok(Self { notes, ..scale })
    }

    fn wanted(settings: &Settings) -> Self {
        let &Settings { seed, sizes, .. } = settings;
        let ms = Duration::from_millis;
        let million = 1_000_000;
        Self {
            phases: Phases {
                threads: 2,
                bytes: sizes.pick(&[64 * MIB, GIB / 5 * 7, GIB / 5 * 7]),
                seed,
            },
            touched_len: sizes.pick(&[GIB / 4, 4 * GIB, 4 * GIB]),
            entries: Entries {
                count: sizes.pick(&[20_000, 400_000, 800_000]),
                operations: sizes.pick(&[50_000, 2 * million, 4 * million]),
                seed,
            },
            objects: Objects {
                live: sizes.pick(&[20_000, 400_000, 800_000]),
                count: sizes.pick(&[500_000, 20 * million, 40 * million]),
                seed,
            },
            moments: sizes
                .pick(&[vec![200], vec![1000, 3000, 6000], vec![1000, 3000, 6000]])
                .into_iter()
                .map(ms)
                .collect(),
            load: Load {
                manner: Manner::Queue,
                threads: 1,
                before: ms(sizes.pick(&[5, 50, 150])),
                counted: ms(sizes.pick(&[20, 250, 750])),
                seed,
            },
            threads: sizes.pick(&[vec![1, 2], vec![1, 2, 4, 8], vec![1, 2, 4, 8]]),
            notes: Vec::new(),
        }
    }
}
