//! Large arrays, as programs for numbers use them: a new one for each result,
//! sparse ones, and one that grows.

use anyhow::Result;

use super::{
    super::{
        super::{
            clock::{Clock, MonotonicClock},
            kernel,
            words::{self, WORD_BYTES},
        },
        job::{Arrays, Done},
    },
    Parent,
    block::Block,
};

/// Does it, and tells how long it took.
pub fn run(arrays: Arrays, parent: &mut Parent) -> Result<Done> {
    match arrays {
        Arrays::Sum { len, times } => sum(len, times, parent),
        Arrays::Sparse { len, every, times } => timed(parent, || sparse(len, every, times)),
        Arrays::Grow { from, to } => timed(parent, || grow(from, to)),
    }
}

fn timed(parent: &mut Parent, work: impl FnOnce() -> Result<u64>) -> Result<Done> {
    parent.wait()?;
    let before = kernel::minor_faults_of_all();
    let clock = MonotonicClock::start();
    let wrong = work()?;
    Ok(Done {
        wrong,
        seconds: clock.now().as_secs_f64(),
        faults: kernel::minor_faults_of_all() - before,
        ..Done::default()
    })
}

/// c = a + b, and the sum of c, which is freed before the next.
fn sum(len: usize, times: usize, parent: &mut Parent) -> Result<Done> {
    let count = (len / WORD_BYTES) as u64;
    let a = Block::of_words(len, 0..)?;
    let b = Block::of_words(len, (0..count).rev())?;
    timed(parent, || {
        let mut wrong = 0;
        for _ in 0..times {
            let sums = words_of(&a).zip(words_of(&b)).map(|(a, b)| a + b);
            let c = Block::of_words(len, sums)?;
            let total: u64 = words_of(&c).sum();
            wrong += u64::from(total != count * (count - 1));
        }
        Ok(wrong)
    })
}

fn words_of(block: &Block) -> impl Iterator<Item = u64> {
    let (words, _) = block.bytes().as_chunks::<WORD_BYTES>();
    words.iter().map(|&word| u64::from_ne_bytes(word))
}

/// Writes a byte in each `every` of zeros, and reads one between, in a page of its own
/// wherever in a page the array begins.
fn sparse(len: usize, every: usize, times: usize) -> Result<u64> {
    let mut wrong = 0;
    for _ in 0..times {
        let mut array = Block::zeroed(len)?;
        for part in array.bytes_mut().chunks_exact_mut(every) {
            wrong += u64::from(part[0] != 0) + u64::from(part[every / 2] != 0);
            part[0] = 1;
        }
    }
    Ok(wrong)
}

/// Doubles an array until it is as long as it is to be.
fn grow(from: usize, to: usize) -> Result<u64> {
    let mut array = Block::of_words(from, 0..)?;
    let mut len = from;
    while len < to {
        let next = (len / WORD_BYTES) as u64;
        len *= 2;
        array = array.grow(len, next..)?;
    }
    let is_wrong = |&index: &usize| words::at(array.bytes(), index) != index as u64;
    Ok((0..to / WORD_BYTES).step_by(511).filter(is_wrong).count() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeros_are_zeros_and_what_has_grown_is_what_it_was() {
        assert_eq!(sparse(4 << 20, 64 << 10, 3).unwrap(), 0);
        assert_eq!(grow(64 << 10, 4 << 20).unwrap(), 0);
    }
}
