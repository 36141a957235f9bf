//! The memory figures of a whole process.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::ops::ControlFlow;
use std::path::Path;

use rustix::io::Errno;

use super::{Figures, parse};
use crate::PageRange;
use crate::ground::error::{Error, Result};
use crate::ground::sys::{maps, page_size, process};

/// The memory figures of a process, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProcessFigures {
    /// `VmSize`.
    pub(crate) mapped: usize,
    /// The part of `mapped` without any access (PROT_NONE).
    pub(crate) reserved: usize,
    /// `VmLck`: the bytes charged to `RLIMIT_MEMLOCK`. (`Locked` in smaps is
    /// the share of the resident pages.)
    pub(crate) locked: usize,
    pub(crate) figures: Figures,
}

/// Reads the figures of a process, or of this one without a `pid`.
///
/// # Errors
///
/// [`Error::NoProcess`], and [`Error::PermissionDenied`] where the kernel
/// denies access.
pub(crate) fn of_process(pid: Option<u32>) -> Result<ProcessFigures> {
    let own = pid.map_or("self".to_owned(), |pid| pid.to_string());
    let answer =
        read(&Path::new("/proc").join(own)).and_then(|figures| match (figures.mapped, pid) {
            // The first thread has no memory any more once it has called pthread_exit(3).
            (0, Some(pid)) => read(&process::folder_with_memory(pid)),
            (0, None) => read(Path::new("/proc/thread-self")),
            _ => Ok(figures),
        });
    answer.map_err(|errno| explain(pid, errno))
}

fn read(folder: &Path) -> Result<ProcessFigures, Errno> {
    // While a process calls exec, the open files still describe the memory that
    // it just dropped.
    const TRIES: usize = 5;
    let answer = (0..TRIES).find_map(|_| try_read(folder).transpose());
    answer.unwrap_or(Err(Errno::SRCH))
}

fn explain(pid: Option<u32>, errno: Errno) -> Error {
    match (pid, errno) {
        (Some(pid), Errno::NOENT | Errno::SRCH) => Error::NoProcess { pid },
        (Some(pid), Errno::ACCESS | Errno::PERM) => Error::PermissionDenied { pid, answer: errno },
        (_, errno) => Error::System {
            call: "reading smaps_rollup and status in /proc",
            errno,
        },
    }
}

/// Reads the figures; `None` if the caller has to retry.
fn try_read(folder: &Path) -> Result<Option<ProcessFigures>, Errno> {
    // A zombie or a kernel thread has no memory of its own.
    let (mapped, locked) = sizes(folder)?.unwrap_or_default();
    let reserved = match mapped {
        0 => 0,
        _ => reserved(folder)?,
    };
    let figures = match figures(folder) {
        Err(Errno::SRCH) if mapped > 0 => return Ok(None),
        Err(Errno::SRCH) => Figures::NONE,
        figures => figures?,
    };
    Ok(Some(ProcessFigures {
        mapped,
        reserved,
        locked,
        figures,
    }))
}

/// Returns `VmSize` and `VmLck`, if `status` has such lines.
fn sizes(folder: &Path) -> Result<Option<(usize, usize)>, Errno> {
    let status = process::status(folder).map_err(|error| errno_of(&error))?;
    Ok(sizes_in(&status))
}

pub(super) fn sizes_in(status: &procfs::process::Status) -> Option<(usize, usize)> {
    let bytes = |kib: u64| usize::try_from(kib.saturating_mul(1024)).unwrap_or(usize::MAX);
    let size = status.vmsize?;
    Some((bytes(size), bytes(status.vmlck.unwrap_or(0))))
}

fn reserved(folder: &Path) -> Result<usize, Errno> {
    let maps = File::open(folder.join("maps"));
    let bytes = maps.and_then(|maps| reserved_in(BufReader::new(maps)));
    bytes.map_err(|error| errno_of(&error))
}

/// Sums the mappings without any access.
fn reserved_in(maps: impl BufRead) -> io::Result<usize> {
    let everywhere = PageRange::between(0, usize::MAX - (page_size() - 1));
    let mut bytes = 0_usize;
    maps::read(maps, everywhere, |line| {
        if !(line.readable || line.writable || line.executable) {
            bytes = bytes.saturating_add(line.range.len());
        }
        ControlFlow::Continue(())
    })?;
    Ok(bytes)
}

fn figures(folder: &Path) -> Result<Figures, Errno> {
    let rollup = sum(&folder.join("smaps_rollup"));
    match rollup {
        // Before Linux 4.14 there is no rollup. (If the process has ended,
        // smaps is missing too.)
        Err(Errno::NOENT) => sum(&folder.join("smaps")),
        answer => answer,
    }
}

fn sum(file: &Path) -> Result<Figures, Errno> {
    let mut sum = Figures::NONE;
    let answer = File::open(file)
        .and_then(|file| parse::read(BufReader::new(file), None, |mapped| sum += mapped.figures));
    answer.map_err(|error| errno_of(&error)).map(|()| sum)
}

fn errno_of(error: &io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rollup_equals_sum_of_mappings() {
        let whole = of_process(None).unwrap();
        let own = Path::new("/proc/self");
        let summed = sum(&own.join("smaps")).unwrap();
        // Other tests run concurrently.
        const SLACK: usize = 64 << 20;
        assert!(summed.resident.abs_diff(whole.figures.resident) < SLACK);
        assert!(whole.figures.resident > 0 && whole.mapped > whole.figures.resident);
        assert!(whole.figures.lazily_free.is_some());
    }

    #[test]
    fn reserved_in_sums_mappings_without_access() {
        let maps = b"\
10000-20000 ---p 00000000 00:00 0 
20000-30000 rw-p 00000000 00:00 0 
30000-50000 ---s 00000000 00:01 7   /memfd:a (deleted)
ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0  [vsyscall]
";
        assert_eq!(reserved_in(&maps[..]).unwrap(), 0x30000);
    }

    #[test]
    fn figures_without_rollup_sum_mappings() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
        write(
            "smaps",
            "1000-2000 rw-p 0 00:00 0 \nRss: 4 kB\nLazyFree: 4 kB\n\
             3000-5000 rw-p 0 00:00 0 \nRss: 8 kB\nLazyFree: 0 kB\n",
        );
        let found = figures(folder.path()).unwrap();
        assert_eq!((found.resident, found.lazily_free), (12 << 10, Some(4096)));
        write(
            "smaps_rollup",
            "1000-5000 ---p 0 00:00 0 [rollup]\nRss: 16 kB\n",
        );
        assert_eq!(figures(folder.path()).unwrap().resident, 16 << 10);
    }
}
