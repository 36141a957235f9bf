//! How much of everything there is.

use std::time::Duration;

use anyhow::Result;

use super::{
    super::{
        Settings,
        sizes::{Fitted, Sizes},
    },
    burst::JUDGED,
};

const MIB: usize = 1 << 20;
const GIB: usize = 1 << 30;

/// Which allocators free a large block.
#[derive(Clone, Copy, Debug, Default)]
pub enum Frees {
    /// All.
    #[default]
    All,
    /// The C library's and tenure's.
    TwoThatAreJudged,
}

/// The sizes, times and numbers of threads.
#[derive(Clone, Debug, Default)]
pub struct Scale {
    pub chunks: usize,
    pub before: Duration,
    pub counted: Duration,
    pub threads: Vec<usize>,
    pub random_threads: Vec<usize>,
    pub live_bytes: usize,
    pub burst_bytes: usize,
    /// When to look, after a burst.
    pub moments: Vec<Duration>,
    pub array_lens: Vec<usize>,
    pub sparse_len: usize,
    pub grown_len: usize,
    pub freed_len: usize,
    pub frees: Frees,
    pub kept_len: usize,
    pub limited_live_bytes: usize,
    pub limited_threads: usize,
    /// What is smaller than it was to be, and why.
    pub notes: Vec<String>,
}

impl Scale {
    /// The scale for the sizes asked for, in the room there is. Bursts of so many
    /// allocators may be in memory at once.
    pub fn of(settings: &Settings, allocators: usize) -> Result<Self> {
        let wanted = Self::wanted(settings.sizes);
        let mut notes = Vec::new();
        let mut note = |Fitted { len, note }: Fitted| {
            notes.extend(note);
            len
        };
        let Settings { room, .. } = settings;
        // With the chunks of a process there is little else.
        let chunks_len = wanted.chunks * super::search::CHUNK;
        let chunks_len = note(room.fit(chunks_len, 2, MIB)?);
        let burst = wanted.live_bytes + wanted.burst_bytes;
        let burst = note(room.fit_nearly_all(burst * allocators, 16 * MIB * allocators)?);
        let burst = burst / allocators;
        let live_bytes = burst * wanted.live_bytes / (wanted.live_bytes + wanted.burst_bytes);
        let longest = wanted.array_lens.iter().copied().max().unwrap_or(MIB);
        let array_len = note(room.fit(longest, 5, MIB)?);
        let grown_len = note(room.fit(wanted.grown_len, 4, MIB)?);
        let mut array_lens = wanted.array_lens.clone();
        array_lens.retain(|&len| len < array_len);
        array_lens.push(array_len);
        let freed_len = note(room.fit_nearly_all(wanted.freed_len, MIB)?);
        let kept_len = note(room.fit_nearly_all(wanted.kept_len, MIB)?);
        let limited = note(room.fit(wanted.limited_live_bytes, 2, MIB)?);
        Ok(Self {
            chunks: chunks_len / super::search::CHUNK,
            live_bytes,
            burst_bytes: burst - live_bytes,
            array_lens,
            // As a power of two times what it is at first.
            grown_len: (grown_len + 1).next_power_of_two() / 2,
            freed_len,
            kept_len,
            limited_live_bytes: limited,
            notes,
            ..wanted
        })
    }

    fn wanted(sizes: Sizes) -> Self {
        let ms = Duration::from_millis;
        match sizes {
            Sizes::Quick => Self {
                chunks: 64,
                before: ms(10),
                counted: ms(40),
                threads: vec![4],
                random_threads: vec![],
                live_bytes: 48 * MIB,
                burst_bytes: 144 * MIB,
                moments: vec![ms(100), JUDGED],
                array_lens: vec![32 * MIB],
                sparse_len: 64 * MIB,
                grown_len: 32 * MIB,
                freed_len: GIB / 4,
                frees: Frees::TwoThatAreJudged,
                kept_len: GIB / 4,
                limited_live_bytes: 64 * MIB,
                limited_threads: 4,
                notes: Vec::new(),
            },
            Sizes::Middle => Self {
                chunks: 512,
                before: ms(50),
                counted: ms(250),
                threads: vec![1, 2, 4, 8],
                random_threads: vec![4],
                live_bytes: 256 * MIB,
                burst_bytes: GIB,
                moments: vec![ms(100), ms(500), ms(1000), JUDGED, ms(5000)],
                array_lens: vec![64 * MIB],
                sparse_len: GIB / 4,
                grown_len: GIB / 4,
                freed_len: 4 * GIB,
                frees: Frees::TwoThatAreJudged,
                kept_len: 4 * GIB,
                limited_live_bytes: 128 * MIB,
                limited_threads: 4,
                notes: Vec::new(),
            },
            Sizes::Full => Self {
                before: ms(500),
                counted: ms(3000),
                random_threads: vec![1, 2, 4, 8],
                live_bytes: 512 * MIB,
                burst_bytes: 2 * GIB,
                array_lens: vec![64 * MIB, 256 * MIB, 512 * MIB],
                sparse_len: GIB,
                grown_len: GIB / 2,
                frees: Frees::All,
                kept_len: 8 * GIB,
                ..Self::wanted(Sizes::Middle)
            },
        }
    }

    /// The limit where so much is live: as much again and 3 tenths, and what a
    /// process has beside.
    pub fn limit_bytes(live_bytes: usize) -> usize {
        live_bytes / 10 * 13 + 4 * MIB
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::sizes::Room;

    fn scale(sizes: Sizes, room_bytes: usize) -> Result<Scale> {
        let settings = Settings {
            seed: 1,
            sizes,
            room: Room::of_bytes(room_bytes),
        };
        Scale::of(&settings, 6)
    }

    #[test]
    fn with_room_all_is_as_it_is_asked() {
        for sizes in [Sizes::Middle, Sizes::Full] {
            let scale = scale(sizes, 64 * GIB).unwrap();
            assert_eq!(scale.chunks, 512);
            assert_eq!(scale.threads, [1, 2, 4, 8]);
            assert_eq!(scale.freed_len, 4 * GIB);
            assert!(scale.moments.contains(&JUDGED));
            assert_eq!(scale.burst_bytes, 4 * scale.live_bytes);
            assert!(scale.notes.is_empty(), "{:?}", scale.notes);
        }
    }

    #[test]
    fn little_memory_makes_it_smaller_and_the_reader_is_told() {
        let scale = scale(Sizes::Middle, 600 * MIB).unwrap();
        assert_eq!(scale.freed_len, 450 * MIB);
        assert!(6 * (scale.live_bytes + scale.burst_bytes) <= 450 * MIB);
        assert_eq!(scale.grown_len, 128 * MIB, "a power of two");
        assert!(scale.notes.iter().all(|note| note.starts_with("Size: ")));
        assert_eq!(scale.notes.len(), 4, "{:?}", scale.notes);
    }

    #[test]
    fn a_limit_leaves_room_beside_what_is_live() {
        assert!(Scale::limit_bytes(128 * MIB) > 165 * MIB);
    }
}
