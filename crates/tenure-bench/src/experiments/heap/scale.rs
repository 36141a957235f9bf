//! How much of everything there is.

use std::time::Duration;

use crate::measure::prelude::*;
use crate::worker::job::{BlocksOf, Burst, Search};

pub const MIB: usize = 1 << 20;
pub const GIB: usize = 1 << 30;
const CHUNK: usize = 256 << 10;

/// The sizes, times and numbers of threads.
#[derive(Clone, Debug)]
pub struct Scale {
    /// The loop of ebizzy, in one thread.
    pub search: Search,
    pub threads: Vec<usize>,
    pub random_threads: Vec<usize>,
    pub burst: Burst,
    /// When to look, after a burst.
    pub moments: Vec<Duration>,
    pub array_lens: Vec<usize>,
    pub sparse_len: usize,
    pub grown_len: usize,
    pub freed_len: usize,
    pub kept_len: usize,
    pub limited_live_bytes: usize,
    /// The sizes that are smaller than wanted, and the reasons.
    pub notes: Vec<String>,
}

impl Scale {
    /// Returns the wanted scale as far as it fits into the headroom. Bursts of so many
    /// allocators may be in memory at once.
    pub fn of(settings: &Settings, allocators: usize) -> Result<Self> {
        let mut notes = Vec::new();
        let mut note = |Fitted { len, note }: Fitted| {
            notes.extend(note);
            len
        };
        let headroom = &settings.headroom;
        let mut scale = Self::wanted(settings.sizes, settings.seed);
        // With the chunks of a process there is little else.
        let chunks_len = headroom.fit(scale.search.chunks * CHUNK, 2, MIB)?;
        scale.search.chunks = note(chunks_len) / CHUNK;
        let burst = &mut scale.burst;
        let wanted = burst.live_bytes + burst.burst_bytes;
        let fitted = headroom.fit_nearly_all(wanted * allocators, 16 * MIB * allocators)?;
        let fitting = note(fitted) / allocators;
        burst.live_bytes = fitting * burst.live_bytes / wanted;
        burst.burst_bytes = fitting - burst.live_bytes;
        let longest = *scale.array_lens.last().expect("some array is wanted");
        let longest = note(headroom.fit(longest, 5, MIB)?);
        scale.array_lens.retain(|&len| len < longest);
        scale.array_lens.push(longest);
        let grown_len = note(headroom.fit(scale.grown_len, 4, MIB)?);
        // A power of two times its length at first.
        scale.grown_len = (grown_len + 1).next_power_of_two() / 2;
        scale.freed_len = note(headroom.fit_nearly_all(scale.freed_len, MIB)?);
        scale.kept_len = note(headroom.fit_nearly_all(scale.kept_len, MIB)?);
        scale.limited_live_bytes = note(headroom.fit(scale.limited_live_bytes, 2, MIB)?);
        Ok(Self { notes, ..scale })
    }

    fn wanted(sizes: Sizes, seed: u64) -> Self {
        let ms = Duration::from_millis;
        let (few, all) = (vec![100, 2000], vec![100, 500, 1000, 2000, 5000]);
        let moments = sizes.pick(&[few, all.clone(), all]);
        let array_lens = sizes.pick(&[vec![32], vec![64], vec![64, 256, 512]]);
        let counts = vec![1, 2, 4, 8];
        Self {
            search: Search {
                blocks: BlocksOf::Malloc,
                block_count: 0,
                chunks: sizes.pick(&[64, 512, 512]),
                chunk_bytes: CHUNK,
                min_bytes: CHUNK,
                threads: 1,
                before: ms(sizes.pick(&[10, 50, 500])),
                counted: ms(sizes.pick(&[40, 250, 3000])),
                seed,
            },
            threads: sizes.pick(&[vec![4], counts.clone(), counts.clone()]),
            random_threads: sizes.pick(&[vec![], vec![4], counts]),
            burst: Burst {
                live_bytes: sizes.pick(&[48, 256, 512]) * MIB,
                burst_bytes: sizes.pick(&[144, 1024, 2048]) * MIB,
                seed,
            },
            moments: moments.into_iter().map(ms).collect(),
            array_lens: array_lens.into_iter().map(|mib| mib * MIB).collect(),
            sparse_len: sizes.pick(&[64, 256, 1024]) * MIB,
            grown_len: sizes.pick(&[32, 256, 512]) * MIB,
            freed_len: sizes.pick(&[GIB / 4, 4 * GIB, 4 * GIB]),
            kept_len: sizes.pick(&[GIB / 4, 4 * GIB, 8 * GIB]),
            limited_live_bytes: sizes.pick(&[64, 128, 128]) * MIB,
            notes: Vec::new(),
        }
    }

    /// Returns the limit under which so much is live: 1.3 times that, and what a process
    /// has beside.
    pub fn limit_bytes(live_bytes: usize) -> usize {
        live_bytes / 10 * 13 + 4 * MIB
    }
}
