//! The file that is read, what of it is in the page cache, and the reads of every way.

use std::{cell::Cell, fs::File, hint::black_box, mem, os::unix::fs::FileExt as _, rc::Rc};

use fastrand::Rng;

use super::mappings::peak;
use crate::measure::prelude::*;

/// The part of the file that is in the page cache when a sample begins. The kernel keeps a file in
/// pieces whose size depends on how it came in, and faults and locks cost more on small
/// ones.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Cache {
    /// Nothing: the file comes from the disk.
    Cold,
    /// All of it, brought in by faults at random.
    Faulted,
    /// All of it, read from start to end.
    Read,
}

impl Cache {
    /// Returns the name in tables.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Cold => "cold",
            Self::Faulted => "warm (brought in by faults at random)",
            Self::Read => "warm (read from start to end)",
        }
    }
}

/// A file of random data without a name.
pub struct Data {
    /// The file; nobody writes to it any more.
    pub file: File,
    /// Its length in bytes: whole pages.
    pub len: usize,
    /// Whether the file system lets the page cache be emptied.
    pub can_be_cold: bool,
    cache: Cell<Option<Cache>>,
}

impl Data {
    /// Makes a file of `len` bytes, whole pages.
    pub fn make(len: usize, seed: u64) -> Result<Self> {
        let file = files::random_file(len, &mut Rng::with_seed(seed))?;
        Ok(Self {
            // SAFETY: the file has no name and nobody writes to it any more.
            can_be_cold: unsafe { files::can_be_cold(&file, len) }?,
            file,
            len,
            cache: Cell::new(None),
        })
    }

    /// Maps the file for reading.
    pub fn map(&self) -> Result<RawMapping> {
        // SAFETY: the file has no name and nobody writes to it any more.
        unsafe { files::map_for_reading(&self.file, self.len) }
    }

    /// Brings the page cache to the state that a sample begins with. Nothing of the file is
    /// mapped.
    pub fn bring_cache_to(&self, cache: Cache) -> Result<()> {
        let before = self.cache.replace(Some(cache));
        if cache == Cache::Cold {
            // SAFETY: the file has no name and nobody writes to it any more.
            let is_cold = unsafe { files::can_be_cold(&self.file, self.len) }?;
            ensure!(is_cold, "the file cannot be dropped from the page cache");
            return Ok(());
        }
        if before == Some(cache) && self.is_cached()? {
            return Ok(());
        }
        files::drop_from_cache(&self.file)?;
        if cache == Cache::Read {
            let mut buffer = vec![0; 1 << 20];
            for offset in (0..self.len).step_by(buffer.len()) {
                let read = self.file.read_at(&mut buffer, offset as u64);
                read.context("reading the file into the page cache")?;
            }
        } else {
            let mapping = self.map()?;
            let mut offsets: Vec<usize> = (0..self.len).step_by(page_size()).collect();
            Rng::with_seed(0).shuffle(&mut offsets);
            for offset in offsets {
                black_box(mapping.bytes()[offset]);
            }
        }
        let is_cached = self.is_cached()?;
        ensure!(is_cached, "too little memory: the cache loses the file");
        Ok(())
    }

    pub fn is_cached(&self) -> Result<bool> {
        let cached = kernel::cached_pages(self.map()?.start(), self.len)?;
        Ok(cached * page_size() == self.len)
    }
}

/// Reads of single bytes at random offsets in a file.
pub struct Reads {
    pub data: Rc<Data>,
    pub count: u64,
    seed: u64,
    pub expected_sum: u64,
    bytes_of_pages_read: u64,
}

impl Reads {
    /// Chooses `count` offsets and finds out what is there: with pread, so that a mapping is
    /// compared with something else than a mapping.
    pub fn choose(data: &Rc<Data>, count: u64, seed: u64) -> Result<Self> {
        let mut reads = Self {
            data: data.clone(),
            count,
            seed,
            expected_sum: 0,
            bytes_of_pages_read: 0,
        };
        let mut is_page_read = vec![false; data.len / page_size()];
        for offset in reads.offsets() {
            let mut byte = [0];
            let read = data.file.read_exact_at(&mut byte, offset as u64);
            read.context("reading the file back")?;
            reads.expected_sum += u64::from(byte[0]);
            let is_read = mem::replace(&mut is_page_read[offset / page_size()], true);
            reads.bytes_of_pages_read += if is_read { 0 } else { page_size() as u64 };
        }
        Ok(reads)
    }

    /// Returns the offsets, the same for every way and sample.
    fn offsets(&self) -> impl Iterator<Item = usize> + use<> {
        let mut rng = Rng::with_seed(self.seed);
        let len = self.data.len;
        (0..self.count).map(move |_| rng.usize(..len))
    }

    /// Returns how many mappings the file is split into when the pages read are locked one
    /// after the other, `step` of them at a time.
    pub fn mappings(&self, step: usize) -> u64 {
        let pages = self.offsets().map(|offset| offset / page_size());
        peak(self.data.len / page_size(), step, pages)
    }

    /// Reads at all offsets and adds the bytes up.
    ///
    /// # Safety
    /// - The file's length from `start` can be read, at the latest when `before_read` has
    ///   been called with the address.
    pub unsafe fn read(
        &self,
        start: *const u8,
        mut before_read: impl FnMut(*const u8) -> Result<()>,
    ) -> Result<u64> {
        let mut sum = 0;
        for offset in self.offsets() {
            // SAFETY: `offsets` stays below the length.
            let address = unsafe { start.add(offset) };
            before_read(address)?;
            // SAFETY: the caller makes it readable. Volatile, because Rust knows nothing of
            // the bytes of a page that a handler opens.
            sum += u64::from(unsafe { address.read_volatile() });
        }
        Ok(sum)
    }

    /// Fails unless `sum` is what the bytes add up to, and every page read is locked, if so
    /// many bytes are locked in all.
    pub fn check(&self, sum: u64, locked: Option<u64>) -> Result<()> {
        let (expected, read) = (self.expected_sum, self.bytes_of_pages_read);
        ensure!(sum == expected, "the bytes add up to {sum}, not {expected}");
        let locked = locked.unwrap_or(read);
        ensure!(locked >= read, "{locked} bytes are locked, {read} read");
        Ok(())
    }
}
