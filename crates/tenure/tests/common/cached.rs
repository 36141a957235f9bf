//! Files whose pages a test reads, drops and counts without tenure.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::ops::Range;
use std::os::unix::fs::FileExt;

use rustix::fs::Advice;
use rustix::mm::{MapFlags, ProtFlags};
use tenure::page_size;

/// Creates a file of such a length without a name, whose contents are on the disk and not in
/// the page cache; or says why a test of the page cache cannot run here.
pub fn uncached_file(len: usize) -> Result<File, String> {
    let file = tempfile::tempfile().unwrap();
    let mut writer = BufWriter::with_capacity(1 << 20, &file);
    let piece: Vec<u8> = (0..64 << 10).map(|index| (index % 251) as u8).collect();
    let mut left = len;
    while left > 0 {
        let count = left.min(piece.len());
        writer.write_all(&piece[..count]).unwrap();
        left -= count;
    }
    writer.flush().unwrap();
    drop(writer);
    file.sync_all().unwrap();
    drop_cache(&file)?;
    Ok(file)
}

/// Drops all pages of a file; or says why the file system keeps them.
pub fn drop_cache(file: &File) -> Result<(), String> {
    const TRIES: usize = 100;
    for _ in 0..TRIES {
        rustix::fs::fadvise(file, 0, None, Advice::DontNeed).unwrap();
        if !pages_in_cache(file).contains(&true) {
            return Ok(());
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    Err("TMPDIR is on a file system that keeps pages in memory".to_owned())
}

/// Reads a part of the file, and nothing ahead of it.
pub fn read_exactly(file: &File, part: Range<usize>) {
    rustix::fs::fadvise(file, 0, None, Advice::Random).unwrap();
    let mut bytes = vec![0; part.len()];
    file.read_exact_at(&mut bytes, part.start as u64).unwrap();
}

/// Which pages of the file are in the page cache: `mincore`.
pub fn pages_in_cache(file: &File) -> Vec<bool> {
    let len = file.metadata().unwrap().len() as usize;
    let mut pages = vec![0_u8; len.div_ceil(page_size())];
    if len == 0 {
        return Vec::new();
    }
    let flags = (ProtFlags::empty(), MapFlags::SHARED);
    unsafe {
        let at = rustix::mm::mmap(std::ptr::null_mut(), len, flags.0, flags.1, file, 0).unwrap();
        assert_eq!(libc::mincore(at, len, pages.as_mut_ptr()), 0);
        rustix::mm::munmap(at, len).unwrap();
    }
    pages.into_iter().map(|page| page & 1 == 1).collect()
}

/// Returns the bytes in whole pages that are in the page cache.
pub fn cached_bytes(file: &File) -> usize {
    let pages = pages_in_cache(file).into_iter();
    pages.filter(|&is_cached| is_cached).count() * page_size()
}

/// Tries again where the kernel may have reclaimed pages in between: `attempt` returns what
/// was wrong.
pub fn despite_reclaim(mut attempt: impl FnMut() -> Result<(), String>) {
    const TRIES: usize = 10;
    let mut wrong = Vec::new();
    for _ in 0..TRIES {
        match attempt() {
            Ok(()) => return,
            Err(why) => wrong.push(why),
        }
    }
    panic!("{wrong:#?}");
}
