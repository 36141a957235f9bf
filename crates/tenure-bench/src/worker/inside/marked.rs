//! Blocks from malloc with marks, which tell whether anything else has written to them:
//! one at each end, and one in each page between.

use std::{iter, ptr::NonNull};

use anyhow::Result;
use fastrand::Rng;

use super::block::{free, non_null};

const MARK_BYTES: usize = size_of::<u64>();
/// A block has a mark in each so many bytes.
const STEP: usize = 4096;
/// The shortest block with a mark at each end.
pub const MIN_LEN: usize = 2 * MARK_BYTES;

/// A block from malloc.
pub struct Marked {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the block is owned, and malloc's blocks belong to no thread.
unsafe impl Send for Marked {}

impl Marked {
    /// Calls malloc for `len` bytes, or for [`MIN_LEN`] if that is more.
    pub fn new(len: usize) -> Result<Self> {
        let len = len.max(MIN_LEN);
        // SAFETY: malloc takes any size.
        let start = non_null(unsafe { libc::malloc(len) }, "malloc", len)?;
        let mut block = Self { start, len };
        block.write_marks();
        Ok(block)
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// Counts the marks that changed.
    pub fn wrong(&self) -> u64 {
        self.wrong_since(self.start.addr().get(), self.len)
    }

    /// Calls realloc for `len` bytes, which are more. Returns how many marks it has not kept.
    pub fn grow(&mut self, len: usize) -> Result<u64> {
        let (old_start, old_len) = (self.start.addr().get(), self.len);
        // SAFETY: the block comes from malloc and is owned. If realloc fails, it is as it was.
        let start = unsafe { libc::realloc(self.start.as_ptr().cast(), len) };
        self.start = non_null(start, "realloc", len)?;
        self.len = len;
        let wrong = self.wrong_since(old_start, old_len);
        self.write_marks();
        Ok(wrong)
    }

    /// Counts the marks that changed since the block began at `start` and had `len` bytes,
    /// which it still has at least.
    fn wrong_since(&self, start: usize, len: usize) -> u64 {
        let is_wrong = |&offset: &usize| {
            // SAFETY: the offsets of `len` bytes lie in the block. Marks are not aligned.
            let found = unsafe { self.at(offset).read_unaligned() };
            found != mark(start, len, offset)
        };
        offsets(len).filter(is_wrong).count() as u64
    }

    fn write_marks(&mut self) {
        let (start, len) = (self.start.addr().get(), self.len);
        for offset in offsets(len) {
            // SAFETY: the offsets lie in the block, which is borrowed mutably.
            unsafe { self.at(offset).write_unaligned(mark(start, len, offset)) };
        }
    }

    /// Returns the address of a mark.
    ///
    /// # Safety
    /// - The block has a mark's bytes from `offset` on.
    unsafe fn at(&self, offset: usize) -> *mut u64 {
        // SAFETY: the caller keeps to the block.
        unsafe { self.start.as_ptr().add(offset) }.cast()
    }

    /// Overwrites a byte, as an allocator that hands memory out twice lets happen.
    #[cfg(test)]
    pub fn spoil(&mut self, offset: usize) {
        assert!(offset < self.len);
        // SAFETY: the byte lies in the block, which is borrowed mutably.
        unsafe { *self.start.as_ptr().add(offset) ^= 1 };
    }
}

impl Drop for Marked {
    fn drop(&mut self) {
        // SAFETY: the block comes from malloc and is owned.
        unsafe { free(self.start) };
    }
}

/// Returns where the marks of `len` bytes begin. They do not overlap.
fn offsets(len: usize) -> impl Iterator<Item = usize> {
    let last = len - MARK_BYTES;
    (0..=last - MARK_BYTES)
        .step_by(STEP)
        .chain(iter::once(last))
}

/// Makes the mark of a block. Blocks that overlap begin at other addresses or have other
/// lengths, so that the marks of one are wrong for the other.
fn mark(start: usize, len: usize, offset: usize) -> u64 {
    const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
    let block = (start as u64) ^ (len as u64).rotate_left(48);
    block.wrapping_mul(ODD).wrapping_add(offset as u64)
}

/// Draws a length from `min` on, in so many doublings of it: each doubling is as likely as
/// the next, so that most blocks are small, and most of the memory is in large ones.
pub fn skewed(rng: &mut Rng, min: usize, doublings: u32) -> usize {
    let from = min << rng.u32(..doublings);
    rng.usize(from..2 * from)
}
