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
            Sizes::Quick => (4, 100, 100),
            Sizes::Middle => (16, 500, 500),
            Sizes::Full => (64, 2000, 2000),
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
