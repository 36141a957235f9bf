//! A burst of blocks, of which some stay, and waves of blocks beside live ones.

use anyhow::Result;
use fastrand::Rng;

use super::super::job::{Burst, Done, Waves};
use super::Parent;
use super::block::{Block, WORD_BYTES, word_at};
use crate::machine::clock::{Clock as _, MonotonicClock};

const KIB: usize = 1 << 10;
/// An allocator knows the sizes when the last burst comes.
const BURSTS: usize = 2;
const MIN_BLOCK: usize = 256 * KIB;
const MAX_BLOCK: usize = 4096 * KIB;
/// The block sizes of the waves: what an allocator keeps of one is of no use for the next.
const WAVES: [usize; 6] = [256, 640, 384, 1536, 1024, 3072];

/// Allocates blocks that stay among others that are freed at once, and waits while the
/// parent looks at the memory.
pub fn run(burst: Burst, parent: &mut Parent) -> Result<Done> {
    let mut rng = Rng::with_seed(burst.seed);
    let mut live = Vec::new();
    let mut live_left = burst.live_bytes;
    for left in (1..=BURSTS).rev() {
        // The blocks that stay come in equal parts among those that are freed.
        let stays = live_left / left;
        live_left -= stays;
        let freed = make(burst.burst_bytes, stays, &mut live, &mut rng)?;
        if left == 1 {
            parent.wait()?;
        }
        drop(freed);
    }
    parent.wait()?;
    Ok(Done {
        wrong: live.iter().map(wrong).sum(),
        ..Done::default()
    })
}

/// Returns blocks of `to_free` bytes, and adds blocks of `to_stay` bytes to `live`.
pub fn make(
    mut to_free: usize,
    mut to_stay: usize,
    live: &mut Vec<Block>,
    rng: &mut Rng,
) -> Result<Vec<Block>> {
    let mut freed = Vec::new();
    while to_stay + to_free > 0 {
        let drawn = rng.usize(MIN_BLOCK..=MAX_BLOCK);
        let (left, blocks) = match rng.usize(..to_stay + to_free) < to_stay {
            true => (&mut to_stay, &mut *live),
            false => (&mut to_free, &mut freed),
        };
        let len = drawn.min(*left).next_multiple_of(WORD_BYTES);
        *left = left.saturating_sub(len);
        blocks.push(numbered(len)?);
    }
    Ok(freed)
}

/// Fills the memory with blocks of one size, checks and frees them, then takes the next
/// size, until the time is over.
pub fn waves(waves: Waves, parent: &mut Parent) -> Result<Done> {
    let live = (0..waves.live_bytes / MIN_BLOCK).map(|_| numbered(MIN_BLOCK));
    let live: Vec<Block> = live.collect::<Result<_>>()?;
    parent.wait()?;
    let clock = MonotonicClock::start();
    let (mut blocks, mut wrong_pages) = (0, 0);
    let sizes = WAVES.iter().cycle();
    for kib in sizes.take_while(|_| clock.now() < waves.counted) {
        let wave = (0..waves.wave_bytes / (kib * KIB)).map(|_| numbered(kib * KIB));
        let wave: Vec<Block> = wave.collect::<Result<_>>()?;
        wrong_pages += wave.iter().map(wrong).sum::<u64>();
        blocks += wave.len() as u64;
    }
    Ok(Done {
        rate: blocks as f64 / clock.now().as_secs_f64(),
        wrong: wrong_pages + live.iter().map(wrong).sum::<u64>(),
        ..Done::default()
    })
}

/// Allocates a block whose words are their indices.
pub fn numbered(len: usize) -> Result<Block> {
    Block::of_words(len, 0..)
}

/// Counts the pages whose first word changed.
pub fn wrong(block: &Block) -> u64 {
    const STEP: usize = 4096 / WORD_BYTES;
    let words = block.bytes().len() / WORD_BYTES;
    let is_wrong = |index: &usize| word_at(block.bytes(), *index) != *index as u64;
    (0..words).step_by(STEP).filter(is_wrong).count() as u64
}
