//! Files with contents that a populated mapping must show.

use std::{
    fs::File,
    os::{
        fd::AsFd,
        unix::fs::{FileExt, MetadataExt},
    },
};

use anyhow::{Context as _, Result};
use fastrand::Rng;
use rustix::fs::{FallocateFlags, MemfdFlags};
use tenure::page_size;

use super::super::files;

/// How a file's contents and holes take turns.
const STRIPE: usize = 1 << 20;

/// A file and what is in it.
pub struct Content {
    file: File,
    /// The sum of all bytes, as 64-bit words.
    pub sum: u64,
    /// The first byte of each page.
    first_bytes: Vec<u8>,
}

impl Content {
    /// Makes a memfd of random bytes.
    pub fn memfd(len: usize, rng: &mut Rng) -> Result<Self> {
        let memfd = rustix::fs::memfd_create("tenure-bench", MemfdFlags::CLOEXEC)
            .context("memfd_create")?;
        let file = File::from(memfd);
        files::write_random(&file, len, rng).context("filling a memfd")?;
        Self::read(file, len)
    }

    /// Makes a file of random bytes.
    pub fn file(len: usize, rng: &mut Rng) -> Result<Self> {
        Self::read(files::random_file(len, rng)?, len)
    }

    /// Makes a file of random bytes in which every other MiB is a hole.
    pub fn file_with_holes(len: usize, rng: &mut Rng) -> Result<Self> {
        let file = files::random_file(0, rng)?;
        let mut stripe = vec![0; STRIPE];
        for offset in (0..len).step_by(2 * STRIPE) {
            let stripe_len = STRIPE.min(len - offset);
            rng.fill(&mut stripe[..stripe_len]);
            file.write_all_at(&stripe[..stripe_len], offset as u64)
                .context("writing a file with holes")?;
        }
        file.set_len(len as u64)?;
        file.sync_all()?;
        Self::read(file, len)
    }

    fn read(file: File, len: usize) -> Result<Self> {
        // SAFETY: the file has no name and nobody else writes to it.
        let mapping = unsafe { files::map_for_reading(&file, len) }?;
        let first_bytes = mapping.bytes().iter().copied().step_by(page_size());
        let (first_bytes, sum) = (first_bytes.collect(), files::sum(mapping.bytes()));
        Ok(Self {
            file,
            sum,
            first_bytes,
        })
    }

    /// Returns the file.
    pub fn as_file(&self) -> &File {
        &self.file
    }

    /// Returns the first byte of a page.
    pub fn first_byte(&self, page: usize) -> u8 {
        self.first_bytes[page]
    }

    /// Makes the holes of a file holes again, wherever they have been filled.
    pub fn punch_holes(&self) -> Result<()> {
        let len = self.first_bytes.len() * page_size();
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        for offset in (STRIPE..len).step_by(2 * STRIPE) {
            let hole_len = STRIPE.min(len - offset);
            rustix::fs::fallocate(self.file.as_fd(), flags, offset as u64, hole_len as u64)
                .context("fallocate(PUNCH_HOLE)")?;
        }
        Ok(())
    }

    /// Returns how many blocks of 512 bytes the file has.
    pub fn blocks(&self) -> Result<u64> {
        Ok(self.file.metadata()?.blocks())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_other_stripe_is_a_hole_and_can_be_one_again() {
        let len = 3 * STRIPE + page_size();
        let content = Content::file_with_holes(len, &mut Rng::with_seed(1)).unwrap();
        let pages = STRIPE / page_size();
        let first_bytes = |stripe: usize| &content.first_bytes[stripe * pages..][..pages];
        assert!(first_bytes(0).iter().any(|&byte| byte != 0));
        assert!(first_bytes(1).iter().all(|&byte| byte == 0));
        assert!(first_bytes(2).iter().any(|&byte| byte != 0));
        let before = content.blocks().unwrap();
        content.file.write_all_at(&[1], STRIPE as u64).unwrap();
        content.file.sync_all().unwrap();
        assert!(content.blocks().unwrap() > before);
        content.punch_holes().unwrap();
        assert_eq!(content.blocks().unwrap(), before);
    }
}
