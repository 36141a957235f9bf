//! The loop of ebizzy: a block, a copy of a random chunk in it, a search in the
//! copy, and the block is freed.

use anyhow::Result;
use fastrand::Rng;

use super::{
    super::{
        super::{
            clock::{Clock, MonotonicClock},
            kernel,
            threads::in_threads,
            words::{self, WORD_BYTES},
        },
        job::{Done, Search},
    },
    Parent,
    block::Block,
};

/// Prepares the chunks, waits, and makes records.
pub fn run(search: &Search, parent: &mut Parent) -> Result<Done> {
    let mut rng = Rng::with_seed(search.seed);
    let chunk = |_| {
        let words = words::ascending(&mut rng);
        Block::of_words(search.chunk_bytes, words)
    };
    let chunks: Vec<Block> = (0..search.chunks).map(chunk).collect::<Result<_>>()?;
    parent.wait()?;
    let before = kernel::minor_faults_of_all();
    let clock = MonotonicClock::start();
    let rngs = (0..search.threads).map(|_| rng.fork()).collect();
    let done = in_threads(rngs, |rng| {
        let thread = Thread { search, rng };
        thread.run(&chunks, &clock)
    })?;
    Ok(Done {
        rate: done.iter().map(|done| done.rate).sum(),
        all_records: done.iter().map(|done| done.all_records).sum(),
        wrong: done.iter().map(|done| done.wrong).sum(),
        faults: kernel::minor_faults_of_all() - before,
        ..Done::default()
    })
}

struct Thread<'a> {
    search: &'a Search,
    rng: Rng,
}

impl Thread<'_> {
    /// Makes records until the time is over, and some have counted. The first one
    /// that ends when they count tells when that began.
    fn run(mut self, chunks: &[Block], clock: &dyn Clock) -> Result<Done> {
        let mut began = None;
        let mut counted = 0;
        let mut done = Done::default();
        loop {
            let chunk = &chunks[self.rng.usize(..chunks.len())];
            let is_right = self.make_record(chunk)?;
            done.wrong += u64::from(!is_right);
            done.all_records += 1;
            let now = clock.now();
            let Some(start) = began else {
                began = (now >= self.search.before).then_some(now);
                continue;
            };
            counted += 1;
            if now >= start + self.search.counted {
                done.rate = f64::from(counted) / (now - start).as_secs_f64();
                return Ok(done);
            }
        }
    }

    /// Draws how much is copied, the index of one of the words, and whether to look
    /// for that word or for a missing one behind it.
    fn make_record(&mut self, chunk: &Block) -> Result<bool> {
        let Search {
            chunk_bytes,
            least_bytes,
            ..
        } = *self.search;
        let count = self.rng.usize(least_bytes..=chunk_bytes) / WORD_BYTES;
        let bytes = &chunk.bytes()[..count * WORD_BYTES];
        let word = self.rng.usize(..count);
        let is_there = self.rng.bool();
        let wanted = words::at(bytes, word) + u64::from(!is_there);
        let copy = Block::copy_of(bytes)?;
        Ok(words::contain(copy.bytes(), wanted) == is_there)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::clock::mock::MockClock;
    use std::time::Duration;

    #[test]
    fn records_of_all_sizes_are_right_and_a_spoilt_chunk_is_seen() {
        let search = Search {
            chunks: 1,
            chunk_bytes: 64 << 10,
            least_bytes: 8 << 10,
            threads: 1,
            before: Duration::ZERO,
            counted: Duration::ZERO,
            seed: 3,
        };
        let mut rng = Rng::with_seed(3);
        let mut chunk = Block::of_words(search.chunk_bytes, words::ascending(&mut rng)).unwrap();
        let mut thread = Thread {
            search: &search,
            rng,
        };
        assert!((0..100).all(|_| thread.make_record(&chunk).unwrap()));
        // Not in order any more.
        chunk.bytes_mut()[..32 << 10].reverse();
        assert!(!(0..100).all(|_| thread.make_record(&chunk).unwrap()));
    }

    #[test]
    fn records_count_from_the_moment_on_at_which_one_ends() {
        /// Each look takes 10 ms.
        struct Steps(MockClock);
        impl Clock for Steps {
            fn now(&self) -> Duration {
                self.0.pass(10);
                self.0.now()
            }
        }
        let search = Search {
            chunks: 1,
            chunk_bytes: 8 << 10,
            least_bytes: 8 << 10,
            threads: 1,
            before: Duration::from_millis(15),
            counted: Duration::from_millis(25),
            seed: 3,
        };
        let rng = Rng::with_seed(3);
        let chunks = [Block::of_words(8 << 10, (0..).step_by(2)).unwrap()];
        let thread = Thread {
            search: &search,
            rng,
        };
        let done = thread.run(&chunks, &Steps(MockClock::default())).unwrap();
        // From 20 ms on: at 30, 40 and 50 ms.
        assert_eq!((done.rate, done.all_records, done.wrong), (100.0, 5, 0));
    }
}
