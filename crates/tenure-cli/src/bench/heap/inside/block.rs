//! Blocks of the C library's malloc, or of what was preloaded in its place.

use std::{hint::black_box, ptr::NonNull, slice};

use anyhow::{Context as _, Result};

use super::super::super::words::WORD_BYTES;

/// A block from malloc, all of whose bytes have been written.
pub struct Block {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the block is owned, and malloc's blocks belong to no thread.
unsafe impl Send for Block {}
// SAFETY: only `&mut self` writes to it.
unsafe impl Sync for Block {}

impl Block {
    /// Calls malloc and copies `bytes`.
    pub fn copy_of(bytes: &[u8]) -> Result<Self> {
        let start = malloc(bytes.len())?;
        // SAFETY: malloc gave as many bytes, which nobody else has.
        unsafe {
            start
                .as_ptr()
                .copy_from_nonoverlapping(bytes.as_ptr(), bytes.len())
        };
        let len = bytes.len();
        Ok(Self { start, len })
    }

    /// Calls malloc for `len` bytes, whole words, and writes `words`, over and over
    /// or as far as they fit.
    pub fn of_words(len: usize, words: impl Iterator<Item = u64>) -> Result<Self> {
        let start = malloc(len)?;
        // SAFETY: malloc gave as many bytes, which nobody else has.
        let written = unsafe { write_words(start, 0, len, words) };
        Ok(Self {
            start,
            len: written,
        })
    }

    /// Calls calloc.
    pub fn zeroed(len: usize) -> Result<Self> {
        // SAFETY: any size may be asked for.
        let start = unsafe { libc::calloc(1, len) };
        let start = NonNull::new(black_box(start).cast());
        let start = start.with_context(|| format!("calloc of {len} bytes"))?;
        Ok(Self { start, len })
    }

    /// Calls realloc for `len` bytes, which are more, and writes `words` behind
    /// those that are there.
    pub fn grow(self, len: usize, words: impl Iterator<Item = u64>) -> Result<Self> {
        // SAFETY: it comes from malloc, is owned and is given up.
        let start = unsafe { libc::realloc(self.start.as_ptr().cast(), len) };
        let start = NonNull::new(black_box(start).cast());
        let start = start.with_context(|| format!("realloc to {len} bytes"))?;
        let old_len = self.len;
        std::mem::forget(self);
        // SAFETY: realloc gave as many bytes, which nobody else has.
        let len = unsafe { write_words(start, old_len, len, words) };
        Ok(Self { start, len })
    }

    /// Returns the bytes.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: owned, and all bytes have been written.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    /// Returns the bytes for writing.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: owned, and all bytes have been written.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: it comes from malloc and is owned.
        unsafe { libc::free(black_box(self.start.as_ptr()).cast()) }
    }
}

fn malloc(len: usize) -> Result<NonNull<u8>> {
    // SAFETY: any size may be asked for. The compiler may not know what becomes of
    // it: it leaves out a malloc whose block it can do without.
    let start = black_box(unsafe { libc::malloc(len) });
    NonNull::new(start.cast()).with_context(|| format!("malloc of {len} bytes"))
}

/// Writes words from the offset `from` up to `to` and returns where they end.
///
/// # Safety
/// - From `start` there are `to` bytes of ours, aligned to words as is `from`.
unsafe fn write_words(
    start: NonNull<u8>,
    from: usize,
    to: usize,
    words: impl Iterator<Item = u64>,
) -> usize {
    let mut offset = from;
    for word in words.take((to - from) / WORD_BYTES) {
        // SAFETY: there are so many bytes, says the caller, and `take` stops in time.
        unsafe { start.as_ptr().add(offset).cast::<u64>().write(word) };
        offset += WORD_BYTES;
    }
    offset
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::words;

    #[test]
    fn what_is_written_stays_when_a_block_grows() {
        let block = Block::of_words(4096, 0..).unwrap();
        let mut block = block.grow(1 << 20, 512..).unwrap();
        assert_eq!(block.bytes().len(), 1 << 20);
        let found = [0, 511, 512, 131_071].map(|index| words::at(block.bytes(), index));
        assert_eq!(found, [0, 511, 512, 131_071]);
        block.bytes_mut()[0] = 9;
        let copy = Block::copy_of(block.bytes()).unwrap();
        assert!(copy.bytes() == block.bytes());
    }

    #[test]
    fn a_block_ends_with_its_last_word() {
        let block = Block::of_words(4096, 0..3).unwrap();
        assert_eq!(block.bytes().len(), 24);
        assert!(
            Block::zeroed(1 << 20)
                .unwrap()
                .bytes()
                .iter()
                .all(|&byte| byte == 0)
        );
        assert!(Block::zeroed(usize::MAX / 2).is_err());
    }
}
