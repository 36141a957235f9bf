//! How much memory there is, and how many processes and threads work on it.

use std::time::Duration;

use crate::measure::prelude::*;
use crate::worker::job::{BlocksOf, Search};

pub const CHUNK_BYTES: usize = 256 << 10;
/// The numbers of processes, and of threads in each.
const COUNTS: [usize; 3] = [1, 4, 8];
pub const HEAVIEST: (usize, usize) = (8, 8);
/// The memory of a process beside chunks and blocks: page tables, stacks.
const OVERHEAD_BYTES: usize = 4 << 20;

/// The sizes, in steps of the smallest that makes sense. 64 steps are what the reference
/// had, with more blocks than its allocator kept.
#[derive(Clone, Debug)]
pub struct Scale {
    pub steps: usize,
    pub before: Duration,
    pub counted: Duration,
    /// Processes, and threads in each.
    pub cells: Vec<(usize, usize)>,
    /// The reason why it is smaller.
    pub note: Option<String>,
}

impl Scale {
    /// Returns the wanted scale, or the largest that fits into the headroom: under the
    /// limit, or with all blocks in memory.
    pub fn of(settings: &Settings, is_limited: bool) -> Result<Self> {
        let sizes = settings.sizes;
        let need = |steps| match is_limited {
            true => limit_bytes(steps),
            false => max_bytes(steps, HEAVIEST),
        };
        let wanted = sizes.pick(&[4, 16, 64]);
        let fitted = settings.headroom.fit_nearly_all(need(wanted), need(1))?;
        let fits = |&steps: &usize| need(steps) <= fitted.len;
        let of_processes = |processes| COUNTS.map(|threads| (processes, threads));
        let mut cells: Vec<_> = COUNTS.into_iter().flat_map(of_processes).collect();
        if sizes == Sizes::Quick {
            cells.retain(|cell| [(1, 1), HEAVIEST].contains(cell));
        }
        Ok(Self {
            steps: (1..=wanted).rev().find(fits).unwrap_or(1),
            before: Duration::from_millis(sizes.pick(&[100, 1000, 1000])),
            counted: Duration::from_millis(sizes.pick(&[200, 2500, 3000])),
            cells,
            note: fitted.note,
        })
    }

    /// Returns the loop of one process.
    pub fn search(&self, blocks: BlocksOf, threads: usize, seed: u64) -> Search {
        Search {
            blocks,
            block_count: 4 * self.steps,
            chunks: 8 * self.steps,
            chunk_bytes: CHUNK_BYTES,
            min_bytes: CHUNK_BYTES,
            threads,
            before: self.before,
            counted: self.counted,
            seed,
        }
    }
}

/// Returns the limit of all processes: with 8 of them, chunks are half of it, and with 8
/// threads each, blocks are four times the other half.
pub fn limit_bytes(steps: usize) -> usize {
    steps * (32 << 20) + HEAVIEST.0 * OVERHEAD_BYTES
}

/// Returns what the processes take when all blocks are in memory.
pub fn max_bytes(steps: usize, (processes, threads): (usize, usize)) -> usize {
    let chunks = (8 + threads * 4) * steps;
    processes * (chunks * CHUNK_BYTES + OVERHEAD_BYTES)
}
