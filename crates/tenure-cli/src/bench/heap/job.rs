//! What a worker is asked to do and what it says: a line of JSON each.

use std::{path::PathBuf, time::Duration};

use serde::{Deserialize, Serialize};

/// What a worker does.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub enum Job {
    /// Tell what serves malloc.
    Tell {
        /// A part of the name of the library that is to.
        library: Option<String>,
    },
    /// Copy, search, free.
    Search(Search),
    /// Make blocks, of which some stay, and free the others.
    Burst(Burst),
    /// Fill the room beside what is live with blocks of one size after the other.
    Waves(Waves),
    /// Work with arrays.
    Arrays(Arrays),
    /// Fill one block of so many bytes and free it.
    Free(usize),
    /// Fill one block and keep it.
    Keep {
        /// Its length.
        len: usize,
        /// Where there is what shows that the memory is gone.
        trace: PathBuf,
    },
}

/// The loop of ebizzy.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Search {
    pub chunks: usize,
    pub chunk_bytes: usize,
    /// How much of a chunk is copied at least; at most it is all.
    pub least_bytes: usize,
    pub threads: usize,
    /// How long the loop runs before records count, ...
    pub before: Duration,
    /// ... and while they do.
    pub counted: Duration,
    pub seed: u64,
}

/// A burst, after which memory is idle.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Burst {
    pub live_bytes: usize,
    pub burst_bytes: usize,
    pub least_block: usize,
    pub most_block: usize,
    pub seed: u64,
}

/// Waves of blocks of other sizes.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Waves {
    pub live_bytes: usize,
    pub wave_bytes: usize,
    /// The sizes, in turn.
    pub blocks: Vec<usize>,
    pub counted: Duration,
}

/// What is done with arrays.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub enum Arrays {
    /// Add two of that length into a new one, sum it up, free it; that often.
    Sum { len: usize, times: usize },
    /// Make one of zeros, write a word in each so many bytes, read others, free it;
    /// that often.
    Sparse {
        len: usize,
        every: usize,
        times: usize,
    },
    /// Let one grow, twice as long at each step.
    Grow { from: usize, to: usize },
}

/// What a worker says.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub enum Said {
    /// What serves malloc.
    Served(Served),
    /// It is prepared, or has done its part, and waits to be told to go on.
    Waits,
    /// It has done its work.
    Done(Done),
    /// It could not.
    Failed(String),
}

/// What serves malloc in a worker.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Served {
    /// The library asked for, when it is mapped.
    pub library: Option<PathBuf>,
    /// What the allocator says of itself.
    pub version: Option<String>,
    /// Whether a large block begins where a page does. Tenure's heap puts nothing
    /// before it, as the C library does.
    pub begins_with_page: bool,
}

/// What a worker has done.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
pub struct Done {
    /// Records or blocks in a second, while they counted.
    pub rate: f64,
    /// All of them, counted or not.
    pub all_records: u64,
    /// Answers that were wrong.
    pub wrong: u64,
    /// How long it took.
    pub seconds: f64,
    /// Minor faults meanwhile.
    pub faults: u64,
    /// The most that was ever in memory.
    pub peak_bytes: u64,
    /// What was in memory and not lazily free when all was done.
    pub left_bytes: u64,
}
