//! A burst of blocks, of which some stay, and waves of blocks in little room.

use anyhow::Result;
use fastrand::Rng;

use super::{
    super::{
        super::{
            clock::{Clock, MonotonicClock},
            words::{self, WORD_BYTES},
        },
        job::{Burst, Done, Waves},
    },
    Parent,
    block::Block,
};

/// How often a burst comes. The allocator knows the sizes when the last one does.
const BURSTS: usize = 2;

/// Makes blocks that stay among others that are freed at once, and waits while its
/// parent looks at the memory.
pub fn run(burst: &Burst, parent: &mut Parent) -> Result<Done> {
    let mut rng = Rng::with_seed(burst.seed);
    let mut live = Vec::new();
    let mut live_left = burst.live_bytes;
    for left in (1..=BURSTS).rev() {
        // What stays comes in equal parts among what goes.
        let stays = live_left / left;
        live_left -= stays;
        let gone = make(burst, stays, &mut live, &mut rng)?;
        if left == 1 {
            parent.wait()?;
        }
        drop(gone);
    }
    parent.wait()?;
    Ok(Done {
        wrong: live.iter().map(wrong).sum(),
        ..Done::default()
    })
}

/// Makes blocks that go, and returns them, and among them so many bytes that stay.
fn make(burst: &Burst, stays: usize, live: &mut Vec<Block>, rng: &mut Rng) -> Result<Vec<Block>> {
    let mut gone = Vec::new();
    let (mut to_stay, mut to_go) = (stays, burst.burst_bytes);
    while to_stay + to_go > 0 {
        let drawn = rng.usize(burst.least_block..=burst.most_block);
        let is_to_stay = rng.usize(..to_stay + to_go) < to_stay;
        let left = if is_to_stay { &mut to_stay } else { &mut to_go };
        let len = drawn.min(*left).next_multiple_of(WORD_BYTES);
        *left = left.saturating_sub(len);
        let blocks = if is_to_stay { &mut *live } else { &mut gone };
        blocks.push(numbered(len)?);
    }
    Ok(gone)
}

/// Fills the room with blocks of one size, looks at them and frees them; then with
/// those of another size, until the time is over.
pub fn waves(waves: &Waves, parent: &mut Parent) -> Result<Done> {
    const LIVE_BLOCK: usize = 256 << 10;
    let live = (0..waves.live_bytes / LIVE_BLOCK).map(|_| numbered(LIVE_BLOCK));
    let live: Vec<Block> = live.collect::<Result<_>>()?;
    parent.wait()?;
    let clock = MonotonicClock::start();
    let (mut blocks, mut wrong_pages) = (0, 0);
    let sizes = waves.blocks.iter().cycle();
    for &len in sizes.take_while(|_| clock.now() < waves.counted) {
        let wave = (0..waves.wave_bytes / len).map(|_| numbered(len));
        let wave: Vec<Block> = wave.collect::<Result<_>>()?;
        wrong_pages += wave.iter().map(wrong).sum::<u64>();
        blocks += wave.len() as u64;
    }
    Ok(Done {
        rate: blocks as f64 / clock.now().as_secs_f64(),
        all_records: blocks,
        wrong: wrong_pages + live.iter().map(wrong).sum::<u64>(),
        ..Done::default()
    })
}

/// Makes a block whose words are their indices.
fn numbered(len: usize) -> Result<Block> {
    Block::of_words(len, 0..)
}

/// Counts the pages with a word that is not what it was, of those looked at.
fn wrong(block: &Block) -> u64 {
    const STEP: usize = 4096 / WORD_BYTES;
    let words = block.bytes().len() / WORD_BYTES;
    let wrong = |index: &usize| words::at(block.bytes(), *index) != *index as u64;
    (0..words).step_by(STEP).filter(wrong).count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_much_stays_and_as_much_goes_as_is_asked() {
        let burst = Burst {
            live_bytes: 3 << 20,
            burst_bytes: 12 << 20,
            least_block: 128 << 10,
            most_block: 1 << 20,
            seed: 5,
        };
        let mut live = Vec::new();
        let mut rng = Rng::with_seed(5);
        let gone = make(&burst, burst.live_bytes, &mut live, &mut rng).unwrap();
        let bytes = |blocks: &[Block]| blocks.iter().map(|block| block.bytes().len()).sum();
        let (live_bytes, gone_bytes): (usize, usize) = (bytes(&live), bytes(&gone));
        assert_eq!((live_bytes, gone_bytes), (3 << 20, 12 << 20));
        assert!(gone.iter().all(|block| wrong(block) == 0));
    }

    #[test]
    fn a_word_that_changed_is_seen() {
        let mut block = numbered(64 << 10).unwrap();
        assert_eq!(wrong(&block), 0);
        block.bytes_mut()[8192] ^= 1;
        assert_eq!(wrong(&block), 1);
    }
}
