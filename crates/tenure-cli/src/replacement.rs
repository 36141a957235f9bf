//! A file that takes the place of another once it is whole.

use std::{
    fs::{self, File, OpenOptions, Permissions},
    io::{self, Write},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use tempfile::NamedTempFile;

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
            Ok(present) => present.permissions(),
            Err(_) => Permissions::from_mode(0o644),
        };
        // The file behind a link is replaced, not the link.
        let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let folder = path.parent().filter(|it| !it.as_os_str().is_empty());
        // node_exporter reads files that end with .prom.
        let file = tempfile::Builder::new()
            .prefix(".tenure-")
            .suffix(".part")
            .permissions(permissions)
            .tempfile_in(folder.unwrap_or(Path::new(".")))?;
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
}
