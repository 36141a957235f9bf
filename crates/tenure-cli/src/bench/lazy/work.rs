//! The loop: take a block, copy a chunk into it, search in the copy, free it.

use std::time::Duration;

use anyhow::Result;
use fastrand::Rng;

use super::{
    super::{
        clock::Clock,
        words::{self, WORD_BYTES},
    },
    blocks::Blocks,
};

/// The length of a chunk and of a block.
pub const CHUNK_BYTES: usize = 256 << 10;

/// How long the loop runs before its records count, and while they do.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    pub before: Duration,
    pub counted: Duration,
}

/// What was done.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Done {
    /// Records that were finished while they counted.
    pub records: u64,
    /// Searches with a wrong answer, counted or not.
    pub wrong: u64,
}

impl std::iter::Sum for Done {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, one| Self {
            records: sum.records + one.records,
            wrong: sum.wrong + one.wrong,
        })
    }
}

/// Makes the chunks of a process, of ascending words.
pub fn chunks(count: usize, rng: &mut Rng) -> Vec<Vec<u8>> {
    (0..count).map(|_| chunk(rng)).collect()
}

fn chunk(rng: &mut Rng) -> Vec<u8> {
    let words = words::ascending(rng).take(CHUNK_BYTES / WORD_BYTES);
    words.flat_map(u64::to_ne_bytes).collect()
}

/// What one thread works with.
pub struct Loop<'a, B> {
    chunks: &'a [Vec<u8>],
    rng: Rng,
    blocks: B,
    block_count: usize,
    done: Done,
}

impl<'a, B: Blocks> Loop<'a, B> {
    /// Makes `block_count` blocks and uses each of them once.
    pub fn prepare(chunks: &'a [Vec<u8>], block_count: usize, rng: Rng) -> Result<Self> {
        let mut prepared = Self {
            chunks,
            rng,
            blocks: B::new(block_count)?,
            block_count,
            done: Done::default(),
        };
        for block in 0..block_count {
            prepared.make_record(block)?;
        }
        Ok(prepared)
    }

    /// Makes records until the time that began at `begin` is over.
    pub fn run(mut self, clock: &dyn Clock, begin: Duration, times: Times) -> Result<Done> {
        let start = begin + times.before;
        let end = start + times.counted;
        loop {
            let block = self.rng.usize(..self.block_count);
            self.make_record(block)?;
            let now = clock.now();
            if now > end {
                return Ok(self.done);
            }
            self.done.records += u64::from(now >= start);
        }
    }

    /// Draws a chunk, the index of one of its words, and whether to look for that
    /// word or for a missing one behind it.
    fn make_record(&mut self, block: usize) -> Result<()> {
        let chunk = &self.chunks[self.rng.usize(..self.chunks.len())];
        let word = self.rng.usize(..CHUNK_BYTES / WORD_BYTES);
        let is_there = self.rng.bool();
        let wanted = words::at(chunk, word) + u64::from(!is_there);
        let copy = self.blocks.take(block)?;
        copy.copy_from_slice(chunk);
        self.done.wrong += u64::from(words::contain(copy, wanted) != is_there);
        self.blocks.free(block)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::clock::mock::MockClock;

    thread_local! {
        static CLOCK: MockClock = MockClock::default();
    }

    /// Blocks whose freeing takes 10 ms; with `SPOILT`, one word of each gets lost.
    struct Mock<const SPOILT: bool>(Vec<u8>);

    impl<const SPOILT: bool> Blocks for Mock<SPOILT> {
        fn new(_: usize) -> Result<Self> {
            Ok(Self(vec![0; CHUNK_BYTES]))
        }

        fn take(&mut self, _: usize) -> Result<&mut [u8]> {
            Ok(&mut self.0)
        }

        fn free(&mut self, _: usize) -> Result<()> {
            CLOCK.with(|clock| clock.pass(10));
            Ok(())
        }
    }

    struct ThisThreads;

    impl Clock for ThisThreads {
        fn now(&self) -> Duration {
            CLOCK.with(Clock::now)
        }
    }

    fn done<B: Blocks>(block_count: usize) -> Done {
        let mut rng = Rng::with_seed(3);
        let chunks = chunks(2, &mut rng);
        let times = Times {
            before: Duration::from_millis(50),
            counted: Duration::from_millis(200),
        };
        let work = Loop::<B>::prepare(&chunks, block_count, rng).unwrap();
        work.run(&ThisThreads, ThisThreads.now(), times).unwrap()
    }

    #[test]
    fn records_count_when_they_are_finished_within_the_time() {
        // At 50 ms, at 250 ms, and all 10 ms between.
        let (records, wrong) = (21, 0);
        assert_eq!(done::<Mock<false>>(3), Done { records, wrong });
    }
}
