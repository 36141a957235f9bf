//! Shared files: memfds, and names in `/dev/shm`.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use super::layout::Geometry;
use super::table::{Table, refused};
use crate::ground::error::{Error, Result};
use crate::ground::sys::{Errno, shared_file};

/// Where names are.
const FOLDER: &str = "/dev/shm";

/// The beginning of the files' names.
const PREFIX: &str = "tenure.";

/// The longest name, in bytes: with the prefix it is a file's name.
const MAX_NAME: usize = 200;

/// Returns the path of a name, or the reason why it is none.
pub(super) fn path(name: &str) -> Result<PathBuf> {
    let is_name = !name.is_empty() && name.len() <= MAX_NAME && !name.contains(['/', '\0']);
    match is_name {
        true => Ok(Path::new(FOLDER).join(format!("{PREFIX}{name}"))),
        false => Err(refused(
            name,
            "a name has 1 to 200 bytes, and neither a slash nor a NUL byte",
            Errno::INVAL,
        )),
    }
}

/// Creates a memfd, whose length stays.
pub(super) fn create_memfd(geometry: Geometry) -> Result<Table> {
    let name = "(memfd)";
    let len = checked_len(name, geometry)?;
    let fd = shared_file::memfd().map_err(system("memfd_create"))?;
    shared_file::make_private(&fd).map_err(system("fchmod"))?;
    shared_file::set_len(&fd, len).map_err(system("ftruncate"))?;
    Table::format(fd.as_fd(), &geometry)?;
    shared_file::seal(&fd).map_err(system("fcntl(F_ADD_SEALS)"))?;
    Table::open(fd, name.to_owned(), true)
}

/// Opens a memfd that was received from another process. EPERM unless its length is sealed.
pub(super) fn open_memfd(fd: OwnedFd) -> Result<Table> {
    open_sealed(fd, true)
}

/// As [`open_memfd`], to read it only.
pub(super) fn open_memfd_read_only(fd: OwnedFd) -> Result<Table> {
    open_sealed(fd, false)
}

fn open_sealed(fd: OwnedFd, is_writable: bool) -> Result<Table> {
    let name = "(memfd)";
    if !shared_file::is_sealed(&fd) {
        return Err(refused(name, "its length is not sealed", Errno::PERM));
    }
    Table::open(fd, name.to_owned(), is_writable)
}

/// Opens a name, or creates it with this geometry.
pub(super) fn open_or_create(name: &str, geometry: impl Fn() -> Geometry) -> Result<Table> {
    let path = path(name)?;
    // Another process may create or remove the name between the two calls.
    for _ in 0..100 {
        match open(name)? {
            Some(table) => return Ok(table),
            None => match create(name, &path, geometry()) {
                Err(error) if error.errno() == libc::EEXIST => {}
                result => return result,
            },
        }
    }
    Err(refused(
        name,
        "it is created and removed all the time",
        Errno::AGAIN,
    ))
}

/// The file gets its name when it is complete: no process ever sees a part of it.
fn create(name: &str, path: &Path, geometry: Geometry) -> Result<Table> {
    let len = checked_len(name, geometry)?;
    let fd = shared_file::create_unnamed(Path::new(FOLDER)).map_err(system("open(O_TMPFILE)"))?;
    shared_file::set_len(&fd, len).map_err(system("ftruncate"))?;
    Table::format(fd.as_fd(), &geometry)?;
    shared_file::link(fd.as_fd(), path).map_err(system("linkat"))?;
    Table::open(fd, name.to_owned(), true)
}

/// Opens a name; `None` if there is none.
pub(super) fn open(name: &str) -> Result<Option<Table>> {
    open_name(name, true)
}

/// As [`open`], to read it only.
pub(super) fn open_read_only(name: &str) -> Result<Option<Table>> {
    open_name(name, false)
}

fn open_name(name: &str, is_writable: bool) -> Result<Option<Table>> {
    let path = path(name)?;
    let fd = match shared_file::open(&path, is_writable) {
        Ok(fd) => fd,
        Err(Errno::NOENT) => return Ok(None),
        Err(Errno::LOOP) => return Err(refused(name, "it is a symbolic link", Errno::LOOP)),
        Err(Errno::ACCESS) => {
            return Err(refused(name, "it belongs to another user", Errno::ACCESS));
        }
        Err(errno) => return Err(system("open")(errno)),
    };
    let facts = shared_file::facts(&fd).map_err(system("fstat"))?;
    if !facts.is_regular {
        return Err(refused(name, "it is no regular file", Errno::INVAL));
    }
    if facts.uid != shared_file::user() {
        return Err(refused(name, "it belongs to another user", Errno::ACCESS));
    }
    if !facts.is_private {
        return Err(refused(name, "other users may open it", Errno::ACCESS));
    }
    Table::open(fd, name.to_owned(), is_writable).map(Some)
}

/// Returns the names of this user's files, sorted. Files that cannot be looked at are left out.
pub(super) fn names() -> Result<Vec<String>> {
    let folder = std::fs::read_dir(FOLDER).map_err(|error| Error::System {
        call: "opening /dev/shm",
        errno: Errno::from_io_error(&error).unwrap_or(Errno::IO),
    })?;
    let names = folder.filter_map(|entry| {
        use std::os::unix::fs::MetadataExt;
        let entry = entry.ok()?;
        let metadata = entry.metadata().ok()?;
        let is_own = metadata.is_file() && metadata.uid() == shared_file::user();
        let name = entry.file_name().into_string().ok()?;
        Some(name.strip_prefix(PREFIX)?.to_owned()).filter(|_| is_own)
    });
    let mut names: Vec<_> = names.collect();
    names.sort_unstable();
    Ok(names)
}

/// Removes a name of this user. Processes that use the file keep it.
pub(super) fn remove(name: &str) -> Result<()> {
    shared_file::unlink(&path(name)?).map_err(system("unlink"))
}

fn checked_len(name: &str, geometry: Geometry) -> Result<u64> {
    if !geometry.is_valid() {
        return Err(refused(name, "its sizes are out of range", Errno::INVAL));
    }
    let len = geometry.file_bytes();
    match shared_file::may_have_len(len) {
        true => Ok(len),
        false => Err(refused(name, "RLIMIT_FSIZE is too low for it", Errno::FBIG)),
    }
}

pub(super) fn system(call: &'static str) -> impl Fn(Errno) -> Error {
    move |errno| Error::System { call, errno }
}
