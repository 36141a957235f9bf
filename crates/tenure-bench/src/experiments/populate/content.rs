//! Files with contents that a populated mapping must show.

use std::fs::File;
use std::os::fd::AsFd as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};

use fastrand::Rng;
use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, memfd_create};

use crate::measure::prelude::*;

/// Every other stripe of a file with holes is a hole.
pub const STRIPE: usize = 1 << 20;

/// A file and what is in it.
pub struct Content {
    pub file: File,
    /// The sum of all bytes, as 64-bit words.
    pub sum: u64,
    /// The first byte of each page.
    pub first_bytes: Vec<u8>,
}

impl Content {
    /// Makes a memfd of random bytes.
    pub fn memfd(len: usize, rng: &mut Rng) -> Result<Self> {
        let memfd = memfd_create("tenure-bench", MemfdFlags::CLOEXEC).context("memfd_create")?;
        let file = File::from(memfd);
        files::write_random(&file, len, rng).context("filling a memfd")?;
        Self::read(file, len)
    }

    /// Makes a file of random bytes.
    pub fn file(len: usize, rng: &mut Rng) -> Result<Self> {
        Self::read(files::random_file(len, rng)?, len)
    }

    /// Makes a file of random bytes with holes.
    pub fn file_with_holes(len: usize, rng: &mut Rng) -> Result<Self> {
        let file = files::random_file(0, rng)?;
        let mut bytes = vec![0; STRIPE];
        for offset in (0..len).step_by(2 * STRIPE) {
            let stripe = &mut bytes[..STRIPE.min(len - offset)];
            rng.fill(stripe);
            let written = file.write_all_at(stripe, offset as u64);
            written.context("writing a file with holes")?;
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

    /// Makes the holes of a file holes again, wherever they have been filled.
    pub fn punch_holes(&self) -> Result<()> {
        let len = self.first_bytes.len() * page_size();
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        for offset in (STRIPE..len).step_by(2 * STRIPE) {
            let hole_len = STRIPE.min(len - offset) as u64;
            let punched = fallocate(self.file.as_fd(), flags, offset as u64, hole_len);
            punched.context("fallocate(PUNCH_HOLE)")?;
        }
        Ok(())
    }

    /// Returns how many blocks of 512 bytes the file has.
    pub fn blocks(&self) -> Result<u64> {
        Ok(self.file.metadata()?.blocks())
    }
}
