//! The jobs of a worker and its answers: a line of JSON each.

use std::{path::PathBuf, time::Duration};

use serde::{Deserialize, Serialize};

/// How often [`Job::Sum`] and [`Job::Sparse`] do their work.
pub const TIMES: usize = 3;
/// The length of the array of [`Job::Grow`] at first.
pub const GROWN_FROM: usize = 1 << 20;

/// A worker's job.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub enum Job {
    /// Tell what serves malloc.
    Tell,
    /// Run the loop of ebizzy.
    Search(Search),
    /// Allocate blocks of which some stay, free the others, and be idle.
    Burst(Burst),
    /// Fill the memory beside live blocks with blocks of one size after the other.
    Waves(Waves),
    /// Work on live blocks, and allocate and free many more from time to time.
    Neighbour(Neighbour),
    /// Add two arrays of so many bytes into a new one, sum it up and free it.
    Sum(usize),
    /// Write to few pages of a zeroed array of so many bytes and free it.
    Sparse(usize),
    /// Double an array until it has so many bytes.
    Grow(usize),
    /// Fill one block of so many bytes and free it.
    Free(usize),
    /// Keep memory, with the [`Trace`](crate::machine::trace::Trace) of that path.
    Keep(Keep, PathBuf),
    /// Allocate blocks of some sizes, and free nearly all, in each of [`PHASES`].
    Phases(Phases),
    /// Insert, overwrite and delete entries of keys and values.
    Entries(Entries),
    /// Make short-lived objects beside growing lists and arenas.
    Objects(Objects),
    /// Make and free small blocks for a time.
    Load(Load),
    /// Look values up in a cache without a size.
    Cached(Cached),
    /// Take so many bytes, and read them [`Job::PASSES`] times.
    TakeAndRead(usize),
}

impl Job {
    /// How often [`Job::TakeAndRead`] reads its memory.
    pub const PASSES: usize = 4;
}

/// Look-ups by Zipf's law, each of which inserts what it misses.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub struct Cached {
    pub keys: usize,
    /// The length of each value, in bytes.
    pub len: usize,
    /// The look-ups before they count, and in each of the phases.
    pub lookups: usize,
    pub seed: u64,
}

impl Cached {
    /// The exponent of Zipf's law.
    pub const EXPONENT: f64 = 0.8;
}

/// The loop of ebizzy.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub struct Search {
    pub blocks: BlocksOf,
    /// Blocks of each thread, all of them used once beforehand; 0 where each block is new.
    pub block_count: usize,
    pub chunks: usize,
    pub chunk_bytes: usize,
    /// Each record copies a random part of a chunk, at least this much.
    pub min_bytes: usize,
    pub threads: usize,
    /// How long the loop runs before records count, and while they do.
    pub before: Duration,
    pub counted: Duration,
    pub seed: u64,
}

/// How the loop of ebizzy takes and frees its blocks.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub enum BlocksOf {
    Malloc,
    /// mmap and munmap.
    MapEachTime,
    /// One mapping; MADV_DONTNEED frees a block.
    DontNeed,
    /// One mapping; MADV_FREE frees a block.
    Free,
    /// One mapping; tenure's `FreePolicy::Adaptive` frees a block.
    Adaptive,
}

#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub struct Burst {
    pub live_bytes: usize,
    pub burst_bytes: usize,
    pub seed: u64,
}

#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub struct Waves {
    pub live_bytes: usize,
    pub wave_bytes: usize,
    pub counted: Duration,
}

#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub struct Neighbour {
    pub live_bytes: usize,
    /// 0 where there are no bursts.
    pub burst_bytes: usize,
    pub counted: Duration,
    pub seed: u64,
}

/// Memory of a process that is going to be killed.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub struct Keep {
    pub len: usize,
    /// Whether one block of malloc's holds it, or else a mapping of base pages.
    pub is_block: bool,
    /// Whether the process enables tenure's tear-down.
    pub tear_down: bool,
}

/// The sizes of a phase's blocks.
#[derive(Clone, Copy, Debug)]
pub struct Phase {
    pub name: &'static str,
    pub min_bytes: usize,
    /// The longest block has about so many times the bytes of the shortest, as a power of
    /// two. A phase without doublings has one size.
    pub doublings: u32,
}

/// The phases of [`Job::Phases`], in their order.
pub const PHASES: [Phase; 3] = [
    Phase {
        name: "16 B–1 KiB",
        min_bytes: 16,
        doublings: 6,
    },
    Phase {
        name: "128 B–4 MiB",
        min_bytes: 128,
        doublings: 15,
    },
    Phase {
        name: "2 MiB",
        min_bytes: 2 << 20,
        doublings: 0,
    },
];

#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub struct Phases {
    pub threads: usize,
    /// The bytes of a phase's blocks, of all threads.
    pub bytes: usize,
    pub seed: u64,
}

/// A table of keys and values, as a key-value store has it.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub struct Entries {
    /// The entries that are inserted at first.
    pub count: usize,
    /// Insertions, overwrites and deletions afterwards, before half is deleted.
    pub operations: usize,
    pub seed: u64,
}

/// The objects of an interpreter.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub struct Objects {
    /// Objects that live at once.
    pub live: usize,
    /// Objects that are made.
    pub count: usize,
    pub seed: u64,
}

/// A load of small blocks.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub struct Load {
    pub manner: Manner,
    pub threads: usize,
    /// How long the load runs before blocks count, and while they do.
    pub before: Duration,
    pub counted: Duration,
    pub seed: u64,
}

/// How the threads of a load make and free their blocks.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub enum Manner {
    /// One half of the threads allocates blocks of 16 B to 64 KiB, the other frees them.
    Queue,
    /// As in larson: each thread replaces blocks at random and passes all of them to
    /// another thread from time to time.
    Larson,
    /// As in cfrac: tiny blocks that live for a moment.
    Cfrac,
    /// As in sh6bench: batches that are freed in the order of allocation or in reverse.
    Sh6bench,
    /// As in xmalloc-test: one half of the threads allocates batches of blocks, the other
    /// frees them.
    Xmalloc,
}

/// A worker's answer.
#[derive(Debug, Deserialize, Serialize)]
pub enum Said {
    Served(Served),
    /// The worker is prepared, or has done a part, and waits to be told to go on.
    Ready,
    Done(Done),
    /// Why it could not be done.
    Failed(String),
}

/// The allocator that serves malloc in a worker.
#[derive(Debug, Deserialize, Serialize)]
pub struct Served {
    /// Whether the library that was to be preloaded, if any, is mapped.
    pub is_loaded: bool,
    /// The allocator's own version.
    pub version: Option<String>,
    /// Whether a large block begins where a page does: tenure's heap has no headers.
    pub begins_with_page: bool,
}

/// The work that a worker has done.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
pub struct Done {
    /// Records or blocks in a second, while they counted.
    pub rate: f64,
    /// All of them, counted or not.
    pub all_records: u64,
    /// Answers that were wrong.
    pub wrong: u64,
    /// Whether the worker was killed before the end.
    pub is_killed: bool,
    pub seconds: f64,
    /// Minor faults meanwhile.
    pub faults: u64,
    /// The most that was ever in memory.
    pub peak_bytes: u64,
    /// The memory at the end that was not lazily free.
    pub end_bytes: u64,
    /// The part of the look-ups that were hits, in each phase.
    pub hit_rates: [f64; 3],
}
