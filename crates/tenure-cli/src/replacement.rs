//! A file that takes the place of another once it is whole.

use std::{
    ffi::OsString,
    fs::{self, File, OpenOptions, Permissions},
    io::{self, Write},
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

use rustix::{
    fs::{FlockOperation, flock},
    process::geteuid,
};
use tempfile::{NamedTempFile, TempPath};

/// The new contents of a file. A regular file is replaced as a whole, behind symbolic links
/// and with the permissions that it had; a device, a pipe or a socket is written to.
pub enum Replacement {
    Beside(NamedTempFile, PathBuf),
    Into(File),
}

impl Replacement {
    /// Begins to write the file at `path`, which others may read if it is new.
    pub fn of(path: &Path) -> io::Result<Self> {
        let present = fs::metadata(path);
        let permissions = match present {
            Ok(present) if !present.is_file() => {
                return Ok(Self::Into(OpenOptions::new().write(true).open(path)?));
            }
            Ok(present) => Some(present.permissions()),
            Err(_) => None,
        };
        // The file behind a link is replaced, not the link.
        let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let file = match take_over(&part_of(&path), permissions.as_ref()) {
            Ok(file) => file,
            // Another command is writing the same file, or the name is too long, or not ours.
            Err(_) => {
                let folder = path.parent().filter(|it| !it.as_os_str().is_empty());
                tempfile::Builder::new()
                    .prefix(PREFIX)
                    .suffix(SUFFIX)
                    .permissions(permissions.unwrap_or(Permissions::from_mode(NEW_MODE)))
                    .tempfile_in(folder.unwrap_or(Path::new(".")))?
            }
        };
        Ok(Self::Beside(file, path))
    }

    /// Gives the file its new contents.
    pub fn put_in_place(self) -> io::Result<()> {
        match self {
            Self::Beside(file, path) => {
                file.as_file().sync_all()?;
                file.persist(path).map_err(|error| error.error)?;
                Ok(())
            }
            Self::Into(_) => Ok(()),
        }
    }
}

impl Write for Replacement {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Beside(file, _) => file.write(bytes),
            Self::Into(file) => file.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The permissions of a file that is new; the umask may take some away.
const NEW_MODE: u32 = 0o644;

/// The names of files that are not whole yet. node_exporter reads files that end with .prom.
const PREFIX: &str = ".tenure-";
const SUFFIX: &str = ".part";

/// Returns the name beside a file under which its new contents are written.
fn part_of(path: &Path) -> PathBuf {
    let mut name = OsString::from(PREFIX);
    name.push(path.file_name().unwrap_or_default());
    name.push(SUFFIX);
    path.with_file_name(name)
}

/// Opens the part, also one that a command has left that was killed: each target has one, so
/// that they do not pile up. A lock keeps commands that run from each other's part.
fn take_over(part: &Path, permissions: Option<&Permissions>) -> io::Result<NamedTempFile> {
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(permissions.map_or(NEW_MODE, Permissions::mode) & 0o777)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(part)?;
    flock(&file, FlockOperation::NonBlockingLockExclusive)?;
    let (opened, named) = (file.metadata()?, fs::symlink_metadata(part)?);
    // In a folder that others may write to, another user may have put something there; and
    // the command that had the lock may have given the part its final name meanwhile.
    let is_ours = opened.is_file() && opened.uid() == geteuid().as_raw() && opened.nlink() == 1;
    let is_there = (opened.dev(), opened.ino()) == (named.dev(), named.ino());
    if !is_ours || !is_there {
        return Err(io::ErrorKind::AlreadyExists.into());
    }
    let file = NamedTempFile::from_parts(file, TempPath::try_from_path(part)?);
    file.as_file().set_len(0)?;
    if let Some(permissions) = permissions {
        file.as_file().set_permissions(permissions.clone())?;
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{FileTypeExt as _, symlink};

    fn replace(path: &Path, contents: &str) -> io::Result<()> {
        let mut file = Replacement::of(path)?;
        file.write_all(contents.as_bytes())?;
        file.put_in_place()
    }

    #[test]
    fn file_behind_a_link_is_replaced_with_its_permissions() {
        let folder = tempfile::tempdir().unwrap();
        let [file, link] = ["file", "link"].map(|name| folder.path().join(name));
        fs::write(&file, "first").unwrap();
        fs::set_permissions(&file, Permissions::from_mode(0o640)).unwrap();
        symlink("file", &link).unwrap();
        replace(&link, "second").unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read_to_string(&file).unwrap(), "second");
        let mode = fs::metadata(&file).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o640);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
    }

    #[test]
    fn pipe_is_written_to_and_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&path).status();
        assert!(made.unwrap().success());
        let reader = std::thread::spawn({
            let path = path.clone();
            move || fs::read_to_string(path).unwrap()
        });
        replace(&path, "through").unwrap();
        assert_eq!(reader.join().unwrap(), "through");
        assert!(fs::metadata(&path).unwrap().file_type().is_fifo());
    }

    #[test]
    fn folder_cannot_be_replaced() {
        let folder = tempfile::tempdir().unwrap();
        assert!(replace(folder.path(), "").is_err());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap();
        let name = |entry: io::Result<fs::DirEntry>| entry.unwrap().file_name();
        let mut names: Vec<_> = entries
            .map(|entry| name(entry).into_string().unwrap())
            .collect();
        names.sort_unstable();
        names
    }

    #[test]
    fn commands_that_write_the_same_file_have_parts_of_their_own() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        let mut first = Replacement::of(&file).unwrap();
        let mut second = Replacement::of(&file).unwrap();
        first.write_all(b"first").unwrap();
        second.write_all(b"second").unwrap();
        first.put_in_place().unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "first");
        second.put_in_place().unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "second");
        assert_eq!(names(folder.path()), ["file"]);
    }

    #[test]
    fn part_that_is_a_link_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let [file, other] = ["file", "other"].map(|name| folder.path().join(name));
        let part = folder.path().join(".tenure-file.part");
        for link in [
            |from: &Path, to: &Path| fs::hard_link(from, to),
            |from: &Path, to: &Path| symlink(from, to),
        ] {
            fs::write(&other, "other").unwrap();
            link(&other, &part).unwrap();
            replace(&file, "whole").unwrap();
            assert_eq!(fs::read_to_string(&file).unwrap(), "whole");
            assert_eq!(fs::read_to_string(&other).unwrap(), "other");
            fs::remove_file(&part).unwrap();
        }
    }

    #[test]
    fn file_with_the_longest_name_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let name = "a".repeat(255);
        replace(&folder.path().join(&name), "whole").unwrap();
        assert_eq!(names(folder.path()), [name]);
    }
}
