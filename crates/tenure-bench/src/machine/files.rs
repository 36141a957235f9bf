//! Files of random data for the experiments, and sums over bytes.

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;

use anyhow::{Context as _, Result};
use fastrand::Rng;
use rustix::fs::Advice;
use rustix::mm::{MapFlags, ProtFlags};

use super::{kernel, memory::RawMapping};

/// Writes `len` bytes of random data to a file without a name: it is gone when
/// it is closed, however the process ends.
pub fn random_file(len: usize, rng: &mut Rng) -> Result<File> {
    let directory = std::env::temp_dir();
    let file = tempfile::tempfile_in(&directory)
        .with_context(|| format!("making a file in {} (see TMPDIR)", directory.display()))?;
    let written = write_random(&file, len, rng);
    written.with_context(|| {
        format!(
            "writing {len} bytes in {} (see TMPDIR)",
            directory.display()
        )
    })?;
    Ok(file)
}

/// Writes `len` random bytes from the start of `file`, and to the disk.
pub fn write_random(file: &File, len: usize, rng: &mut Rng) -> Result<()> {
    let mut buffer = vec![0; 1 << 20];
    for offset in (0..len).step_by(buffer.len()) {
        let part_len = buffer.len().min(len - offset);
        let part = &mut buffer[..part_len];
        rng.fill(part);
        file.write_all_at(part, offset as u64)?;
    }
    file.sync_all()?;
    Ok(())
}

/// Maps a file of the experiment for reading.
///
/// # Safety
/// - The file has `len` bytes.
/// - Nobody writes to it or shortens it while the mapping lives.
pub unsafe fn map_for_reading(file: &File, len: usize) -> Result<RawMapping> {
    // SAFETY: handed on to the caller
    unsafe { RawMapping::of_file(file.as_fd(), len, ProtFlags::READ, MapFlags::SHARED) }
}

/// Asks the kernel to drop the file from the page cache; it keeps what is mapped.
pub fn drop_from_cache(file: &File) -> Result<()> {
    file.sync_all().context("fsync")?;
    rustix::fs::fadvise(file, 0, None, Advice::DontNeed).context("posix_fadvise(DONTNEED)")
}

/// Says whether [`drop_from_cache`] really makes the file cold. On a tmpfs, for
/// one, it does not.
///
/// # Safety
/// - The file has `len` bytes.
/// - Nobody writes to it or shortens it meanwhile.
pub unsafe fn can_be_cold(file: &File, len: usize) -> Result<bool> {
    drop_from_cache(file)?;
    // SAFETY: handed on to the caller
    let mapping = unsafe { map_for_reading(file, len) }?;
    let cached = kernel::cached_pages(mapping.start(), len)?;
    Ok(cached * tenure::page_size() <= len / 100)
}

/// Adds up all bytes as 64-bit words. `bytes` is whole pages.
pub fn sum(bytes: &[u8]) -> u64 {
    let (words, _) = bytes.as_chunks::<8>();
    let add = |sum: u64, word: &[u8; 8]| sum.wrapping_add(u64::from_ne_bytes(*word));
    words.iter().fold(0, add)
}
