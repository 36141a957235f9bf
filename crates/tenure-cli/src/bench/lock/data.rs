//! The file that is read, and what of it is in the page cache.

use std::{cell::Cell, fs::File, os::unix::fs::FileExt};

use anyhow::{Context as _, Result, ensure};
use fastrand::Rng;
use tenure::page_size;

use super::super::{files, kernel, raw::RawMapping};

/// What of the file is in the page cache when a sample begins. How large the
/// pieces are in which the kernel keeps a file depends on how it came in, and
/// faults and locks cost more on small ones.
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
    /// Returns how tables and sentences call it.
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

    /// Brings the page cache to the state that a sample begins with. Nothing of
    /// the file is mapped.
    pub fn bring_cache_to(&self, cache: Cache) -> Result<()> {
        let before = self.cache.replace(Some(cache));
        match cache {
            Cache::Cold => {
                // SAFETY: the file has no name and nobody writes to it any more.
                let is_cold = unsafe { files::can_be_cold(&self.file, self.len) }?;
                ensure!(is_cold, "the file cannot be dropped from the page cache");
            }
            Cache::Faulted | Cache::Read => {
                if before == Some(cache) && self.is_cached()? {
                    return Ok(());
                }
                files::drop_from_cache(&self.file)?;
                if cache == Cache::Read {
                    self.read_from_start_to_end()?;
                } else {
                    self.fault_at_random()?;
                }
                let is_cached = self.is_cached()?;
                ensure!(
                    is_cached,
                    "too little memory: the page cache loses the file"
                );
            }
        }
        Ok(())
    }

    fn read_from_start_to_end(&self) -> Result<()> {
        let mut buffer = vec![0; 1 << 20];
        for offset in (0..self.len).step_by(buffer.len()) {
            let len = buffer.len().min(self.len - offset);
            let read = self.file.read_exact_at(&mut buffer[..len], offset as u64);
            read.context("reading the file into the page cache")?;
        }
        Ok(())
    }

    fn fault_at_random(&self) -> Result<()> {
        let mapping = self.map()?;
        let mut pages: Vec<usize> = (0..self.len / page_size()).collect();
        Rng::with_seed(0).shuffle(&mut pages);
        for page in pages {
            std::hint::black_box(mapping.bytes()[page * page_size()]);
        }
        Ok(())
    }

    fn is_cached(&self) -> Result<bool> {
        let cached = kernel::cached_pages(self.map()?.start(), self.len)?;
        Ok(cached * page_size() == self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_cache_is_filled_and_emptied() {
        let data = Data::make(4 << 20, 1).unwrap();
        for warm in [Cache::Faulted, Cache::Read] {
            if data.can_be_cold {
                data.bring_cache_to(Cache::Cold).unwrap();
                assert!(!data.is_cached().unwrap());
            }
            data.bring_cache_to(warm).unwrap();
            assert!(data.is_cached().unwrap());
        }
    }

    #[test]
    fn a_cache_that_lost_the_file_is_filled_again() {
        let data = Data::make(4 << 20, 1).unwrap();
        data.bring_cache_to(Cache::Read).unwrap();
        files::drop_from_cache(&data.file).unwrap();
        data.bring_cache_to(Cache::Read).unwrap();
        assert!(data.is_cached().unwrap());
    }
}
