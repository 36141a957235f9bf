//! The page cache of one file: `cachestat(2)`, `mincore(2)`, `posix_fadvise(2)`,
//! `sync_file_range(2)`, `pread(2)` and the holes that `lseek(2)` finds.
//!
//! Offsets and lengths are in bytes of the file.

use std::fs::File;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::ptr;

use rustix::fs::{Advice, SeekFrom};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

use super::{last_errno, page_size};

/// The number of `cachestat` on every architecture that was in Linux by 6.5.
const SYS_CACHESTAT: libc::c_long = 451;

/// The kernel's counts for a part of a file, in pages (`struct cachestat`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct CacheStat {
    pub(crate) cached: u64,
    pub(crate) dirty: u64,
    pub(crate) writeback: u64,
    pub(crate) evicted: u64,
    pub(crate) recently_evicted: u64,
}

#[repr(C)]
struct CacheStatRange {
    offset: u64,
    len: u64,
}

/// Counts the pages of a part of the file in the page cache: `cachestat(2)` (Linux 6.5).
/// EPERM for a file that the process neither owns nor may write (Linux 6.14).
pub(crate) fn cachestat(file: &File, part: Range<u64>) -> Result<CacheStat, Errno> {
    if part.is_empty() {
        // A length of zero means: to the end of the file.
        return Ok(CacheStat::default());
    }
    call_cachestat(file.as_raw_fd(), part)
}

fn call_cachestat(descriptor: i32, part: Range<u64>) -> Result<CacheStat, Errno> {
    let range = CacheStatRange {
        offset: part.start,
        len: part.end - part.start,
    };
    let mut counts = CacheStat::default();
    // SAFETY: the kernel reads `range` and writes `counts`, whose layouts are those of the
    // kernel's structures.
    let answer = unsafe {
        libc::syscall(
            SYS_CACHESTAT,
            descriptor,
            &raw const range,
            &raw mut counts,
            0,
        )
    };
    match answer {
        0 => Ok(counts),
        _ => Err(last_errno()),
    }
}

/// Checks whether the kernel has `cachestat`, without a descriptor.
pub(super) fn probe_cachestat() -> Result<(), Errno> {
    match call_cachestat(-1, 0..1) {
        Err(Errno::BADF) => Ok(()),
        Err(errno) => Err(errno),
        Ok(_) => Err(Errno::NOSYS),
    }
}

/// Tells for each page of a part of the file whether it is in the page cache: `mincore(2)`.
/// The start must be a multiple of the page size, and the part less than 1 GiB. The kernel
/// reports every page as resident to a process that neither owns the file nor may write it.
pub(crate) fn mincore(file: &File, part: Range<u64>) -> Result<Vec<u8>, Errno> {
    let len = usize::try_from(part.end - part.start).map_err(|_| Errno::OVERFLOW)?;
    if len == 0 {
        return Ok(Vec::new());
    }
    let mut pages = vec![0_u8; len.div_ceil(page_size())];
    // SAFETY: a new mapping at an address of the kernel's choice. Without access, nothing is
    // faulted in, also where the process locks future mappings.
    let start = unsafe {
        rustix::mm::mmap(
            ptr::null_mut(),
            len,
            ProtFlags::empty(),
            MapFlags::SHARED,
            file,
            part.start,
        )
    }?;
    // SAFETY: the range is mapped above, and `pages` has a byte for each of its pages.
    let answer = match unsafe { libc::mincore(start, len, pages.as_mut_ptr()) } {
        0 => Ok(()),
        _ => Err(last_errno()),
    };
    // SAFETY: mapped above, and nobody else knows the address.
    unsafe { rustix::mm::munmap(start, len) }?;
    answer.map(|()| pages)
}

/// Returns the next part with data from `at` on, before `end`: `lseek(SEEK_DATA)` and
/// `lseek(SEEK_HOLE)`. A file system that knows no holes has data everywhere. Moves the
/// offset of the file.
pub(crate) fn next_data(file: &File, at: u64, end: u64) -> Result<Option<Range<u64>>, Errno> {
    let start = match rustix::fs::seek(file, SeekFrom::Data(at)) {
        Ok(start) => start,
        Err(Errno::NXIO) => return Ok(None),
        Err(Errno::INVAL | Errno::OPNOTSUPP) => return Ok((at < end).then_some(at..end)),
        Err(errno) => return Err(errno),
    };
    if start >= end {
        return Ok(None);
    }
    let hole = match rustix::fs::seek(file, SeekFrom::Hole(start)) {
        Ok(hole) => hole,
        // The file was shortened in between.
        Err(Errno::NXIO) => return Ok(None),
        Err(errno) => return Err(errno),
    };
    Ok(Some(start..hole.min(end)))
}

/// Returns the offset of the file, and sets it.
pub(crate) fn offset(file: &File) -> Result<u64, Errno> {
    rustix::fs::seek(file, SeekFrom::Current(0))
}

/// Sets the offset of the file.
pub(crate) fn set_offset(file: &File, offset: u64) -> Result<(), Errno> {
    rustix::fs::seek(file, SeekFrom::Start(offset)).map(drop)
}

/// Returns the length of the file and whether it has fewer blocks than that takes.
pub(crate) fn len_and_sparseness(file: &File) -> Result<(u64, bool), Errno> {
    let metadata = file
        .metadata()
        .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    Ok((metadata.len(), metadata.blocks() * 512 < metadata.len()))
}

/// Has reads of the file read what they ask for and nothing ahead of it, or as usual.
pub(crate) fn read_ahead(file: &File, is_wanted: bool) -> Result<(), Errno> {
    let advice = match is_wanted {
        true => Advice::Normal,
        false => Advice::Random,
    };
    rustix::fs::fadvise(file, 0, None, advice)
}

/// Reads into the page cache, and into `buffer`: `pread(2)`. Returns 0 at the end of the file.
pub(crate) fn read(file: &File, buffer: &mut [u8], at: u64) -> Result<usize, Errno> {
    loop {
        match rustix::io::pread(file, &mut *buffer, at) {
            Err(Errno::INTR) => {}
            answer => return answer,
        }
    }
}

/// Drops the clean pages of a part of the file that nobody maps: POSIX_FADV_DONTNEED.
pub(crate) fn drop_pages(file: &File, part: Range<u64>) -> Result<(), Errno> {
    let len = std::num::NonZeroU64::new(part.end - part.start);
    match len {
        None => Ok(()),
        some => rustix::fs::fadvise(file, part.start, some, Advice::DontNeed),
    }
}

/// Writes the dirty pages of a part of the file, and waits: `sync_file_range(2)`.
pub(crate) fn write_back(file: &File, part: Range<u64>) -> Result<(), Errno> {
    let flags = libc::SYNC_FILE_RANGE_WAIT_BEFORE
        | libc::SYNC_FILE_RANGE_WRITE
        | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    let (start, len) = (part.start as i64, (part.end - part.start) as i64);
    // SAFETY: the call touches no memory of this process.
    match unsafe { libc::sync_file_range(file.as_raw_fd(), start, len, flags) } {
        0 => Ok(()),
        _ => Err(last_errno()),
    }
}

/// Writes all dirty pages of the file, and waits: `fdatasync(2)`.
pub(crate) fn write_back_all(file: &File) -> Result<(), Errno> {
    rustix::fs::fdatasync(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ground::sys::features::Features;
    use std::os::unix::fs::FileExt;

    #[test]
    fn pages_just_written_are_cached_by_both_calls() {
        let file = tempfile::tempfile().unwrap();
        let page = page_size() as u64;
        file.write_all_at(&vec![1; 3 * page_size()], page).unwrap();
        let pages = mincore(&file, 0..4 * page).unwrap();
        assert_eq!(pages.len(), 4);
        assert!(pages[1..].iter().all(|&page| page & 1 == 1), "{pages:?}");
        if Features::get().cachestat.is_ok() {
            assert_eq!(cachestat(&file, page..4 * page).unwrap().cached, 3);
            assert_eq!(cachestat(&file, 0..0), Ok(CacheStat::default()));
        }
    }

    #[test]
    fn data_behind_a_hole_is_found() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(8 << 20).unwrap();
        file.write_all_at(b"x", 4 << 20).unwrap();
        let found = next_data(&file, 0, 8 << 20).unwrap().unwrap();
        assert!(
            found.contains(&(4 << 20)) && found.end <= 8 << 20,
            "{found:?}"
        );
        assert_eq!(next_data(&file, 8 << 20, 9 << 20), Ok(None));
    }
}
