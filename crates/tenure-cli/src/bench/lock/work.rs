//! What every way has to do, and what must come out.

use std::{os::unix::fs::FileExt, rc::Rc};

use anyhow::{Context as _, Result, ensure};
use fastrand::Rng;
use tenure::page_size;

use super::{data::Data, map_count};

/// Reads of single bytes at random offsets in a file.
pub struct Work {
    /// The file.
    pub data: Rc<Data>,
    /// How many bytes are read.
    pub reads: u64,
    seed: u64,
    expected_sum: u64,
    bytes_of_pages_read: u64,
}

impl Work {
    /// Chooses `reads` offsets and finds out what is there.
    pub fn choose(data: &Rc<Data>, reads: u64, seed: u64) -> Result<Self> {
        let mut work = Self {
            data: data.clone(),
            reads,
            seed,
            expected_sum: 0,
            bytes_of_pages_read: 0,
        };
        let mut is_page_read = vec![false; data.len / page_size()];
        let mut byte = [0];
        for offset in work.offsets() {
            // With pread, so that what a mapping shows is compared with
            // something else than a mapping.
            let read = data.file.read_exact_at(&mut byte, offset as u64);
            read.context("reading the file back")?;
            work.expected_sum += u64::from(byte[0]);
            is_page_read[offset / page_size()] = true;
        }
        let pages_read = is_page_read.into_iter().filter(|&is_read| is_read).count();
        work.bytes_of_pages_read = (pages_read * page_size()) as u64;
        Ok(work)
    }

    /// Returns where to read, the same for every way and sample.
    fn offsets(&self) -> impl Iterator<Item = usize> + use<> {
        let mut rng = Rng::with_seed(self.seed);
        let len = self.data.len;
        (0..self.reads).map(move |_| rng.usize(..len))
    }

    /// Returns how many mappings the file is split into when the pages read are
    /// locked one after the other, `step` of them at a time.
    pub fn mappings(&self, step: usize) -> u64 {
        let pages = self.offsets().map(|offset| offset / page_size());
        map_count::peak(self.data.len / page_size(), step, pages)
    }

    /// Reads at all offsets and adds up what is there.
    ///
    /// # Safety
    /// - The file's length from `start` can be read, at the latest when
    ///   `before_read` has been called with the address.
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
            // SAFETY: readable, says the caller. Volatile, because the bytes of
            // a page that a handler admits are none that Rust knows of.
            sum += u64::from(unsafe { address.read_volatile() });
        }
        Ok(sum)
    }

    /// Fails unless `sum` is what the bytes read add up to.
    pub fn check_sum(&self, sum: u64) -> Result<()> {
        let expected = self.expected_sum;
        ensure!(
            sum == expected,
            "the bytes read add up to {sum}, not {expected}"
        );
        Ok(())
    }

    /// Fails unless every page read is locked, if `bytes` are locked in all.
    pub fn check_locked(&self, bytes: u64) -> Result<()> {
        let read = self.bytes_of_pages_read;
        ensure!(
            bytes >= read,
            "{bytes} bytes are locked, and the pages read have {read}"
        );
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn work(reads: u64) -> Work {
        let data = Data::make(4 << 20, 1).unwrap();
        Work::choose(&Rc::new(data), reads, 1).unwrap()
    }

    #[test]
    fn a_wrong_sum_is_an_error() {
        let work = work(1_000);
        let mapping = work.data.map().unwrap();
        // SAFETY: the whole file is mapped for reading.
        let sum = unsafe { work.read(mapping.bytes().as_ptr(), |_| Ok(())) }.unwrap();
        work.check_sum(sum).unwrap();
        work.check_sum(sum + 1).unwrap_err();
    }

    #[test]
    fn each_page_read_must_be_locked() {
        let page = page_size() as u64;
        work(1).check_locked(page).unwrap();
        work(1).check_locked(page - 1).unwrap_err();
        work(10).check_locked(page).unwrap_err();
    }

    #[test]
    fn pages_that_lie_apart_need_mappings_of_their_own() {
        assert_eq!(work(0).mappings(1), 1);
        assert!(work(100).mappings(1) > 150);
        assert!(work(100).mappings(16) < 150);
    }
}
