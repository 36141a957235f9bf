//! The open and mapped files of one process: `/proc/PID/task/TID/maps` and `fd`.
//!
//! Each call has at most one descriptor open.

use std::collections::HashSet;
use std::fs;
use std::io::{self, ErrorKind};

use super::FileId;

/// The files of one process.
#[derive(Default)]
pub(super) struct Files {
    pub(super) mapped: HashSet<FileId>,
    pub(super) open: HashSet<FileId>,
}

/// The reason why the files of a process cannot be told.
pub(super) struct Failure {
    pub(super) path: String,
    pub(super) error: io::Error,
}

impl Failure {
    /// Whether the user may not examine the process.
    pub(super) fn is_refusal(&self) -> bool {
        self.error.kind() == ErrorKind::PermissionDenied
    }

    fn of(path: &str) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        |error| Self { path, error }
    }
}

impl Files {
    /// Examines all threads: each may have descriptors of its own, and the main thread may
    /// have ended before the others. A process that has ended has no files.
    pub(super) fn of(pid: i32, can_compare: bool) -> Result<Self, Failure> {
        let mut files = Self::default();
        let mut has_maps = false;
        let mut examined: Vec<i32> = Vec::new();
        for thread in numbers(&format!("/proc/{pid}/task"))? {
            let folder = format!("/proc/{pid}/task/{thread}");
            // The files of a main thread that has ended belong to root.
            if has_ended(&folder)? {
                continue;
            }
            // Threads share their memory.
            has_maps = has_maps || files.add_maps(&format!("{folder}/maps"))?;
            if can_compare && examined.iter().any(|&other| share_table(other, thread)) {
                continue;
            }
            files.add_descriptors(&format!("{folder}/fd"))?;
            examined.push(thread);
        }
        Ok(files)
    }

    /// Returns whether there are any mappings: a thread that has ended has none.
    fn add_maps(&mut self, path: &str) -> Result<bool, Failure> {
        let text = match fs::read(path) {
            Err(error) if is_gone(&error) => return Ok(false),
            read => read.map_err(Failure::of(path))?,
        };
        for line in text.split(|&byte| byte == b'\n') {
            if line.is_empty() {
                continue;
            }
            let unknown = || io::Error::new(ErrorKind::InvalidData, "is in an unknown format");
            let id = mapped_file(line)
                .ok_or_else(unknown)
                .map_err(Failure::of(path))?;
            self.mapped.extend(id);
        }
        Ok(!text.is_empty())
    }

    fn add_descriptors(&mut self, folder: &str) -> Result<(), Failure> {
        for descriptor in numbers(folder)? {
            // The link leads to the file itself, whatever its name is by now.
            let link = format!("{folder}/{descriptor}");
            match fs::metadata(&link) {
                Ok(metadata) => {
                    self.open.insert(FileId::of(&metadata));
                }
                Err(error) if is_gone(&error) => {}
                // The file system itself refuses, as FUSE does for files of another user;
                // the command cannot open such a file either.
                Err(error) if error.kind() == ErrorKind::PermissionDenied => {}
                Err(error) => return Err(Failure::of(&link)(error)),
            }
        }
        Ok(())
    }
}

/// Returns the names in a folder that are numbers; none where it has gone.
pub(super) fn numbers(folder: &str) -> Result<Vec<i32>, Failure> {
    let names = match fs::read_dir(folder) {
        Err(error) if is_gone(&error) => return Ok(Vec::new()),
        names => names.map_err(Failure::of(folder))?,
    };
    let mut numbers = Vec::new();
    for name in names {
        match name {
            Ok(name) => numbers.extend(
                name.file_name()
                    .to_str()
                    .and_then(|name| name.parse::<i32>().ok()),
            ),
            Err(error) if is_gone(&error) => break,
            Err(error) => return Err(Failure::of(folder)(error)),
        }
    }
    Ok(numbers)
}

/// Parses a line of maps, whose name may be of any bytes: `START-END PERMS OFFSET
/// MAJOR:MINOR INODE NAME`. `None` if it is no such line, `Some(None)` for memory of no file.
fn mapped_file(line: &[u8]) -> Option<Option<FileId>> {
    let mut fields = line.split(|&byte| byte == b' ').skip(3);
    let mut field = || std::str::from_utf8(fields.next()?).ok();
    let (major, minor) = field()?.split_once(':')?;
    let inode = field()?.parse().ok()?;
    let device = rustix::fs::makedev(
        u32::from_str_radix(major, 16).ok()?,
        u32::from_str_radix(minor, 16).ok()?,
    );
    Some((inode != 0).then_some(FileId { device, inode }))
}

/// Whether the process or thread has ended meanwhile.
fn is_gone(error: &io::Error) -> bool {
    error.kind() == ErrorKind::NotFound || error.raw_os_error() == Some(libc::ESRCH)
}

/// Whether a thread has ended, with its memory and descriptors; anyone may read its state.
fn has_ended(folder: &str) -> Result<bool, Failure> {
    let path = format!("{folder}/stat");
    match fs::read(&path) {
        Ok(stat) => Ok(state(&stat).is_some_and(|state| b"ZXx".contains(&state))),
        Err(error) if is_gone(&error) => Ok(true),
        Err(error) => Err(Failure::of(&path)(error)),
    }
}

/// Parses `TID (NAME) STATE …`, whose name may hold anything.
fn state(stat: &[u8]) -> Option<u8> {
    let end = stat.iter().rposition(|&byte| byte == b')')?;
    stat.get(end + 2).copied()
}

/// Whether two threads have the same descriptors: `kcmp(2)`. `false` if that cannot be told.
fn share_table(first: i32, second: i32) -> bool {
    const KCMP_FILES: libc::c_int = 2;
    // SAFETY: KCMP_FILES reads and writes no memory of this process.
    unsafe { libc::syscall(libc::SYS_kcmp, first, second, KCMP_FILES, 0, 0) == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_follows_a_name_with_parentheses() {
        assert_eq!(state(b"7 (a) Z) R 1 7"), Some(b'R'));
        assert_eq!(state(b"7 (\xff) Z 1 7"), Some(b'Z'));
        assert_eq!(state(b"7 (a)"), None);
        assert_eq!(state(b""), None);
    }

    #[test]
    fn line_of_maps_with_any_name_has_its_file() {
        let file = |inode| {
            let device = rustix::fs::makedev(0xfd, 0x1a);
            Some(Some(FileId { device, inode }))
        };
        let check = |line: &[u8], expected| assert_eq!(mapped_file(line), expected, "{line:?}");
        check(b"1000-2000 r--p 00000000 fd:1a 42    /a", file(42));
        check(
            b"1000-2000 r--p 00000000 fd:1a 42    /bad\xffname",
            file(42),
        );
        check(
            b"1000-2000 r--p 00000000 fd:1a 42    /a (deleted)",
            file(42),
        );
        check(b"1000-2000 rw-p 00000000 00:00 0", Some(None));
        check(b"1000-2000 rw-p 00000000 00:00 0    [heap]", Some(None));
        for unknown in [&b"1000-2000"[..], b"\xff", b"1000-2000 r--p 0 fd:zz 42 /a"] {
            check(unknown, None);
        }
    }
}
