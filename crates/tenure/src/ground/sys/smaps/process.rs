//! The figures of a whole process.

use std::fs::File;
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use super::{Figures, parse};
use crate::ground::error::{Error, Result};

/// What the kernel tells about the memory of a process, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OfProcess {
    /// `VmSize`.
    pub(crate) mapped: usize,
    /// `VmLck`: what `RLIMIT_MEMLOCK` is charged with. (`Locked` in smaps is
    /// the share of what is resident.)
    pub(crate) locked: usize,
    pub(crate) figures: Figures,
}

/// Looks at the process of this number, or at our own.
///
/// # Errors
///
/// [`Error::NoProcess`], and [`Error::MayNotLook`] where the kernel lets
/// us not look at it.
pub(crate) fn of_process(pid: Option<u32>) -> Result<OfProcess> {
    let folder = pid.map_or_else(|| "self".to_owned(), |pid| pid.to_string());
    let folder = PathBuf::from("/proc").join(folder);
    // While a process calls exec, what was opened for it is about the memory
    // that it has just left.
    const TRIES: usize = 5;
    let answer = (0..TRIES).find_map(|_| look(&folder).transpose());
    answer
        .unwrap_or(Err(Errno::SRCH))
        .map_err(|errno| explain(pid, errno))
}

fn explain(pid: Option<u32>, errno: Errno) -> Error {
    match (pid, errno) {
        (Some(pid), Errno::NOENT | Errno::SRCH) => Error::NoProcess { pid },
        (Some(pid), Errno::ACCESS | Errno::PERM) => Error::MayNotLook { pid, answer: errno },
        (_, errno) => Error::System {
            call: "reading smaps_rollup and status in /proc",
            errno,
        },
    }
}

/// `None`: to be tried again.
fn look(folder: &Path) -> Result<Option<OfProcess>, Errno> {
    // A zombie, or a thread of the kernel's, has no memory of its own.
    let (mapped, locked) = sizes(folder)?.unwrap_or_default();
    let figures = match figures(folder) {
        Err(Errno::SRCH) if mapped > 0 => return Ok(None),
        Err(Errno::SRCH) => Figures::NONE,
        figures => figures?,
    };
    Ok(Some(OfProcess {
        mapped,
        locked,
        figures,
    }))
}

/// `VmSize` and `VmLck`, if there are such lines.
fn sizes(folder: &Path) -> Result<Option<(usize, usize)>, Errno> {
    let process = procfs::process::Process::new_with_root(folder.to_owned());
    let status = process.and_then(|process| process.status());
    let status = status.map_err(|error| match error {
        procfs::ProcError::NotFound(_) => Errno::NOENT,
        procfs::ProcError::PermissionDenied(_) => Errno::ACCESS,
        procfs::ProcError::Io(error, _) => errno_of(&error),
        _ => Errno::IO,
    })?;
    Ok(sizes_in(&status))
}

pub(super) fn sizes_in(status: &procfs::process::Status) -> Option<(usize, usize)> {
    let bytes = |kib: u64| usize::try_from(kib.saturating_mul(1024)).unwrap_or(usize::MAX);
    let size = status.vmsize?;
    Some((bytes(size), bytes(status.vmlck.unwrap_or(0))))
}

fn figures(folder: &Path) -> Result<Figures, Errno> {
    let rollup = sum(&folder.join("smaps_rollup"));
    match rollup {
        // Before Linux 4.14 (or the process has gone: then smaps has, too).
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
    fn the_rollup_is_the_sum_of_the_mappings() {
        let whole = of_process(None).unwrap();
        let own = Path::new("/proc/self");
        let summed = sum(&own.join("smaps")).unwrap();
        // Other tests run meanwhile.
        const SLACK: usize = 64 << 20;
        assert!(summed.resident.abs_diff(whole.figures.resident) < SLACK);
        assert!(whole.figures.resident > 0 && whole.mapped > whole.figures.resident);
        assert!(whole.figures.lazily_free.is_some());
    }

    #[test]
    fn kernels_without_a_rollup_have_the_mappings_summed_up() {
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
