//! Jobs with few large blocks. Arrays, as programs for numbers use them: a new one for each
//! result, sparse ones, and one that grows. Memory that is freed at once, or kept until the
//! process is killed.

use std::{any::Any, path::Path, thread, time::Duration};

use tenure::{Residency, teardown};

use super::super::job::{Done, GROWN_FROM, Keep, TIMES};
use super::Parent;
use super::block::{Block, WORD_BYTES, word_at};
use crate::machine::clock::{Clock as _, MonotonicClock};
use crate::machine::trace::Trace;
use crate::measure::prelude::*;

/// A sparse array is written to once in so many bytes.
const EVERY: usize = 1 << 20;
/// An allocator that returns memory in the background has done so by then.
const LOOK_AFTER: Duration = Duration::from_millis(200);

/// Times work that returns how many of its answers are wrong.
pub fn timed(parent: &mut Parent, work: impl FnOnce() -> Result<u64>) -> Result<Done> {
    parent.wait()?;
    let faults_before = kernel::minor_faults_of_all();
    let clock = MonotonicClock::start();
    let wrong = work()?;
    Ok(Done {
        wrong,
        seconds: clock.now().as_secs_f64(),
        faults: kernel::minor_faults_of_all() - faults_before,
        ..Done::default()
    })
}

/// Times c = a + b and the sum of c, which is freed before the next.
pub fn sum(len: usize, parent: &mut Parent) -> Result<Done> {
    let count = (len / WORD_BYTES) as u64;
    let a = Block::of_words(len, 0..)?;
    let b = Block::of_words(len, (0..count).rev())?;
    timed(parent, || sum_of(&a, &b))
}

/// Counts the wrong sums. If a ascends and b descends, each word of c is `count - 1`.
pub fn sum_of(a: &Block, b: &Block) -> Result<u64> {
    let count = (a.bytes().len() / WORD_BYTES) as u64;
    let mut wrong = 0;
    for _ in 0..TIMES {
        let sums = a.words().zip(b.words()).map(|(a, b)| a + b);
        let c = Block::of_words(a.bytes().len(), sums)?;
        wrong += u64::from(c.words().sum::<u64>() != count * (count - 1));
    }
    Ok(wrong)
}

/// Writes a byte in each [`EVERY`] of zeros, and reads one in another page between.
pub fn sparse(len: usize) -> Result<u64> {
    let mut wrong = 0;
    for _ in 0..TIMES {
        let mut array = Block::zeroed(len)?;
        for part in array.bytes_mut().chunks_exact_mut(EVERY) {
            wrong += u64::from(part[0] != 0) + u64::from(part[EVERY / 2] != 0);
            part[0] = 1;
        }
    }
    Ok(wrong)
}

/// Doubles an array until it has `to` bytes.
pub fn grow(to: usize) -> Result<u64> {
    let mut array = Block::of_words(GROWN_FROM, 0..)?;
    while array.bytes().len() < to {
        let len = array.bytes().len();
        array = array.grow(2 * len, (len / WORD_BYTES) as u64..)?;
    }
    let is_wrong = |&index: &usize| word_at(array.bytes(), index) != index as u64;
    Ok((0..to / WORD_BYTES).step_by(511).filter(is_wrong).count() as u64)
}

/// Fills a block and times free().
pub fn free(len: usize, parent: &mut Parent) -> Result<Done> {
    let block = filled(len)?;
    let done = timed(parent, || {
        drop(block);
        Ok(0)
    })?;
    thread::sleep(LOOK_AFTER);
    let residency = Residency::of_process(std::process::id())?;
    let left = residency.resident_without_lazily_free_bytes();
    let end_bytes = left.unwrap_or(residency.resident_bytes) as u64;
    Ok(Done { end_bytes, ..done })
}

/// Fills memory and keeps it until the parent says otherwise.
pub fn keep(keep: Keep, trace: &Path, parent: &mut Parent) -> Result<Done> {
    let _traced = Trace::map(trace)?;
    if keep.tear_down {
        teardown::enable()?;
    }
    let _memory: Box<dyn Any> = if keep.is_block {
        Box::new(filled(keep.len)?)
    } else {
        let mut mapping = RawMapping::base_pages(keep.len)?;
        touch::bring_in(mapping.bytes_mut())?;
        Box::new(mapping)
    };
    parent.wait()?;
    Ok(Done::default())
}

/// Writes to each page of a zeroed block.
fn filled(len: usize) -> Result<Block> {
    let mut block = Block::zeroed(len)?;
    touch::write_each_page(block.bytes_mut(), |_| 1);
    Ok(block)
}
