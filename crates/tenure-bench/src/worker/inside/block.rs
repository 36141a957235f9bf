//! Blocks of the C library's malloc, or of what was preloaded in its place, filled with
//! words.

use std::{ffi::c_void, hint::black_box, iter, ptr::NonNull, slice};

use anyhow::{Context as _, Result};
use fastrand::Rng;

pub const WORD_BYTES: usize = size_of::<u64>();

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
        let len = bytes.len();
        // SAFETY: malloc takes any size.
        let start = non_null(unsafe { libc::malloc(len) }, "malloc", len)?;
        // SAFETY: malloc returned as many bytes, which nobody else has.
        unsafe { start.as_ptr().copy_from_nonoverlapping(bytes.as_ptr(), len) };
        Ok(Self { start, len })
    }

    /// Calls malloc for `len` bytes, whole words, and writes `words` as far as they fit.
    /// The block ends with the last of them.
    pub fn of_words(len: usize, words: impl Iterator<Item = u64>) -> Result<Self> {
        // SAFETY: malloc takes any size.
        let start = non_null(unsafe { libc::malloc(len) }, "malloc", len)?;
        let mut block = Self { start, len: 0 };
        // SAFETY: malloc returned as many bytes.
        unsafe { block.append(len, words) };
        Ok(block)
    }

    /// Calls calloc.
    pub fn zeroed(len: usize) -> Result<Self> {
        // SAFETY: calloc takes any size.
        let start = non_null(unsafe { libc::calloc(1, len) }, "calloc", len)?;
        Ok(Self { start, len })
    }

    /// Calls realloc for `len` bytes, which are more, and appends `words`.
    pub fn grow(mut self, len: usize, words: impl Iterator<Item = u64>) -> Result<Self> {
        // SAFETY: the block comes from malloc and is owned. If realloc fails, it is as it was.
        let start = unsafe { libc::realloc(self.start.as_ptr().cast(), len) };
        self.start = non_null(start, "realloc", len)?;
        // SAFETY: realloc returned as many bytes, the first of which are written.
        unsafe { self.append(len, words) };
        Ok(self)
    }

    /// Writes words behind those that are there, up to `end` bytes.
    ///
    /// # Safety
    /// - The block's memory has `end` bytes, which is a multiple of a word's.
    unsafe fn append(&mut self, end: usize, words: impl Iterator<Item = u64>) {
        for word in words.take((end - self.len) / WORD_BYTES) {
            // SAFETY: `take` stops before `end`; malloc aligns blocks to words.
            unsafe { self.start.as_ptr().add(self.len).cast::<u64>().write(word) };
            self.len += WORD_BYTES;
        }
    }

    pub fn bytes(&self) -> &[u8] {
        // SAFETY: owned, and all bytes have been written.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: owned, and all bytes have been written.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }

    pub fn words(&self) -> impl Iterator<Item = u64> {
        let words = self.bytes().as_chunks::<WORD_BYTES>().0.iter();
        words.map(|&word| u64::from_ne_bytes(word))
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: the block comes from malloc and is owned.
        unsafe { free(self.start) };
    }
}

/// Calls free, also where the compiler could tell that nothing reads the block.
///
/// # Safety
/// - The block comes from malloc, and nothing uses it afterwards.
pub unsafe fn free(start: NonNull<u8>) {
    // SAFETY: the caller owns the block.
    unsafe { libc::free(black_box(start.as_ptr()).cast()) }
}

/// Returns a block's start, or an error where malloc or realloc returned NULL.
pub fn non_null(start: *mut c_void, function: &str, len: usize) -> Result<NonNull<u8>> {
    // The compiler leaves out a malloc whose block it can do without, unless it cannot
    // know what becomes of it.
    NonNull::new(black_box(start).cast()).with_context(|| format!("{function} of {len} bytes"))
}

/// Draws words in ascending order, at least 2 apart.
pub fn ascending(rng: &mut Rng) -> impl Iterator<Item = u64> {
    let mut word = 0;
    iter::repeat_with(move || {
        word += 2 + u64::from(rng.u32(..));
        word
    })
}

pub fn word_at(bytes: &[u8], index: usize) -> u64 {
    u64::from_ne_bytes(bytes.as_chunks::<WORD_BYTES>().0[index])
}

/// Looks for `wanted` among ascending words.
pub fn contain(bytes: &[u8], wanted: u64) -> bool {
    let (words, _) = bytes.as_chunks::<WORD_BYTES>();
    let found = words.binary_search_by_key(&wanted, |&word| u64::from_ne_bytes(word));
    found.is_ok()
}
