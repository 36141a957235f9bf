//! A program that closes the descriptors which it did not open, as daemons do, and opens
//! files that get their numbers.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd as _, RawFd};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::thread;
use std::time::Duration;

use rustix::fs::{MemfdFlags, memfd_create};
use tenure::pool::{PoolOptions, configure};

use super::board::Board;
use super::model::{Checked, mismatch};
use super::step::Count;

/// Files of the program, with contents. tenure must neither close nor change them.
pub struct OwnFiles(Vec<(File, u64)>);

const CONTENTS: &[u8] = b"the program's own";

/// The descriptors of the process, with what they refer to.
fn open_descriptors() -> io::Result<Vec<(RawFd, String)>> {
    let links = fs::read_dir("/proc/self/fd")?.flatten();
    let named = links.filter_map(|link| {
        let number = link.file_name().to_str()?.parse().ok()?;
        let target = fs::read_link(link.path()).ok()?;
        Some((number, target.display().to_string()))
    });
    Ok(named.collect())
}

/// Whether tenure has opened it, and keeps it for itself alone. Standard descriptors, the
/// board, and files and memfds that are mapped belong to the program.
fn is_tenures(number: RawFd, target: &str) -> bool {
    let is_kernels = ["anon_inode:", "/proc/", "/sys/", "pipe:", "socket:"]
        .iter()
        .any(|prefix| target.starts_with(prefix));
    number > 2 && is_kernels
}

/// Closes every descriptor that tenure holds, and opens others. The program's own threads
/// wait meanwhile.
pub fn close_tenures(board: &Board) -> Checked<OwnFiles> {
    /// One that is open for so long is not part of a call under way in a thread of tenure:
    /// such a call would close the file that gets its number.
    const LASTING: Duration = Duration::from_millis(20);
    let describe = |error: io::Error| format!("closing descriptors: {error}");
    // Each of its moves opens a userfaultfd for as long as the move takes.
    let turned_off = configure(&PoolOptions::new());
    turned_off.or_else(|error| mismatch("pool::configure", "a pool that is off", error))?;
    let before = open_descriptors().map_err(describe)?;
    thread::sleep(LASTING);
    let now = open_descriptors().map_err(describe)?;
    let lasting = now.iter().filter(|open| before.contains(open));
    let mut closed = 0;
    for (number, _) in lasting.filter(|(number, target)| is_tenures(*number, target)) {
        let number = number.cast_unsigned();
        // SAFETY: only tenure uses the descriptor, and documents that it may be closed.
        unsafe { libc::syscall(libc::SYS_close_range, number, number, 0) };
        closed += 1;
    }
    board.add(Count::DescriptorsClosed, closed);
    let files = (0..closed + 2).map(|_| own_file());
    files
        .collect::<io::Result<_>>()
        .map(OwnFiles)
        .map_err(describe)
}

fn own_file() -> io::Result<(File, u64)> {
    let file = File::from(memfd_create("tenure-soak-own", MemfdFlags::CLOEXEC)?);
    file.write_all_at(CONTENTS, 0)?;
    let inode = file.metadata()?.ino();
    Ok((file, inode))
}

impl OwnFiles {
    pub fn check(&self) -> Checked {
        for (file, inode) in &self.0 {
            let mut bytes = vec![0; CONTENTS.len() + 1];
            let found = file.metadata().and_then(|metadata| {
                let len = file.read_at(&mut bytes, 0)?;
                Ok((metadata.ino(), len))
            });
            let is_same = matches!(found, Ok((found, len))
                if found == *inode && bytes[..len] == *CONTENTS);
            if !is_same {
                let expected = format!("inode {inode} with its contents");
                let found = format!("{found:?} {bytes:x?}");
                let what = format!("the program's own descriptor {}", file.as_raw_fd());
                return mismatch(&what, expected, found);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_file_with_other_contents_is_a_mismatch() {
        let files = OwnFiles(vec![own_file().unwrap()]);
        files.check().unwrap();
        files.0[0].0.write_all_at(b"x", 3).unwrap();
        assert!(files.check().is_err());
    }

    #[test]
    fn descriptors_of_tenure_are_told_from_the_programs() {
        assert!(is_tenures(5, "anon_inode:[userfaultfd]"));
        assert!(is_tenures(5, "/proc/pressure/memory"));
        assert!(!is_tenures(2, "pipe:[1]"));
        assert!(!is_tenures(5, "/memfd:tenure-soak (deleted)"));
        assert!(!is_tenures(5, "/tmp/#12 (deleted)"));
    }
}
