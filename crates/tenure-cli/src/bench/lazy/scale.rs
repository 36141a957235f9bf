//! How much of everything there is, and how many work on it.

use std::time::Duration;

use anyhow::Result;

use super::{
    super::{Settings, sizes::Sizes},
    work::{CHUNK_BYTES, Times},
};
use crate::text::bytes_text;

/// So many processes with so many threads each.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cell {
    pub processes: usize,
    pub threads: usize,
}

/// The reference's grid.
const GRID: [(usize, usize); 9] = [
    (1, 1),
    (1, 4),
    (1, 8),
    (4, 1),
    (4, 4),
    (4, 8),
    (8, 1),
    (8, 4),
    (8, 8),
];

const LIGHTEST: Cell = Cell::of(GRID[0]);
const HEAVIEST: Cell = Cell::of(GRID[8]);

impl Cell {
    const fn of((processes, threads): (usize, usize)) -> Self {
        Self { processes, threads }
    }

    /// Its name, as in the reference.
    pub fn name(self) -> String {
        format!("{}.{}", self.processes, self.threads)
    }
}

/// How much each has, in steps of the smallest that makes sense: at 64 of them it
/// is what the reference had, with more blocks than its allocator kept.
#[derive(Clone, Debug)]
pub struct Scale {
    steps: usize,
    pub times: Times,
    pub cells: Vec<Cell>,
    /// What made it smaller.
    pub note: Option<String>,
}

impl Scale {
    /// The scale for the sizes asked for, in the room there is.
    pub fn of(settings: &Settings, is_limited: bool) -> Result<Self> {
        let (steps, before_ms, counted_ms) = match settings.sizes {
            Sizes::Quick => (4, 100, 200),
            Sizes::Middle => (16, 1000, 2500),
            Sizes::Full => (64, 1000, 3000),
        };
        let at = |steps| Self {
            steps,
            times: Times {
                before: Duration::from_millis(before_ms),
                counted: Duration::from_millis(counted_ms),
            },
            cells: match settings.sizes {
                Sizes::Quick => vec![LIGHTEST, HEAVIEST],
                _ => GRID.map(Cell::of).into(),
            },
            note: None,
        };
        let need = |steps| match is_limited {
            true => at(steps).limit_bytes(),
            false => at(steps).most_bytes(HEAVIEST),
        };
        let fitted = settings.room.fit_nearly_all(need(steps), need(1))?;
        let fitting = (1..=steps).rev().find(|&steps| need(steps) <= fitted.len);
        Ok(Self {
            note: fitted.note,
            ..at(fitting.unwrap_or(1))
        })
    }

    /// The smallest, for tests of the answers.
    #[cfg(test)]
    pub fn tiny() -> Self {
        Self {
            steps: 1,
            times: Times {
                before: Duration::from_millis(10),
                counted: Duration::from_millis(500),
            },
            cells: vec![LIGHTEST, Cell::of((2, 3))],
            note: None,
        }
    }

    /// How many chunks each process has.
    pub fn chunks(&self) -> usize {
        8 * self.steps
    }

    /// How many blocks each thread has.
    pub fn blocks(&self) -> usize {
        4 * self.steps
    }

    /// The limit: with the heaviest, chunks are half of it.
    pub fn limit_bytes(&self) -> usize {
        self.steps * (32 << 20) + HEAVIEST.processes * Self::OVERHEAD_BYTES
    }

    /// What the processes take when all blocks are in memory.
    fn most_bytes(&self, cell: Cell) -> usize {
        let chunks = self.chunks() + cell.threads * self.blocks();
        cell.processes * (chunks * CHUNK_BYTES + Self::OVERHEAD_BYTES)
    }

    /// What a process takes beside chunks and blocks: page tables, stacks.
    const OVERHEAD_BYTES: usize = 4 << 20;

    /// Says how much there is, for people.
    pub fn text(&self) -> String {
        format!(
            "{} in each process, {} in each thread",
            bytes_text((self.chunks() * CHUNK_BYTES) as f64),
            bytes_text((self.blocks() * CHUNK_BYTES) as f64),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::sizes::Room;

    fn scale(sizes: Sizes, room_mib: usize, is_limited: bool) -> Result<Scale> {
        let settings = Settings {
            seed: 1,
            sizes,
            room: Room::of_bytes(room_mib << 20),
        };
        Scale::of(&settings, is_limited)
    }

    #[test]
    fn full_is_what_the_reference_had() {
        let full = scale(Sizes::Full, 20 << 10, true).unwrap();
        assert_eq!((full.chunks(), full.limit_bytes() >> 20), (512, 2048 + 32));
        assert_eq!(full.cells.len(), 9);
        assert_eq!((full.cells[0], full.cells[8]), (LIGHTEST, HEAVIEST));
        assert_eq!(full.note, None);
    }

    #[test]
    fn what_is_lazily_free_outgrows_the_limit_with_the_heaviest_alone() {
        for sizes in [Sizes::Quick, Sizes::Middle, Sizes::Full] {
            let scale = scale(sizes, 20 << 10, true).unwrap();
            let is_within = |cell| scale.most_bytes(cell) <= scale.limit_bytes();
            assert!(is_within(LIGHTEST) && is_within(Cell::of((1, 8))));
            assert!(scale.most_bytes(HEAVIEST) > 2 * scale.limit_bytes());
            // What is in use at any time fits.
            let in_use = HEAVIEST.processes * (scale.chunks() + HEAVIEST.threads) * CHUNK_BYTES;
            assert!(in_use < scale.limit_bytes() / 4 * 3, "{in_use}");
        }
    }

    #[test]
    fn it_shrinks_to_the_room_there_is() {
        let small = scale(Sizes::Full, 600, true).unwrap();
        assert!(small.limit_bytes() <= 450 << 20);
        assert!(small.note.unwrap().contains("MemAvailable leaves 600 MiB"));
        // Without a limit all blocks must fit.
        let unlimited = scale(Sizes::Full, 4 << 10, false).unwrap();
        assert!(unlimited.most_bytes(HEAVIEST) <= 3 << 30);
        assert!(scale(Sizes::Quick, 60, true).is_err());
    }
}
