//! A file that others read at any time.

use std::{
    fs::Permissions,
    io::Write as _,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};

/// Replaces the contents of a file: writes another beside it and renames that, so that a
/// reader sees the old contents or the new ones. Other users may read it.
pub fn replace(file: &Path, contents: &str) -> Result<()> {
    let context = || format!("writing {}", file.display());
    let folder = match file.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder.to_owned(),
        _ => PathBuf::from("."),
    };
    // node_exporter reads files that end with .prom.
    let mut beside = tempfile::Builder::new()
        .prefix(".tenure-")
        .suffix(".part")
        .permissions(Permissions::from_mode(0o644))
        .tempfile_in(folder)
        .with_context(context)?;
    beside
        .write_all(contents.as_bytes())
        .with_context(context)?;
    beside
        .persist(file)
        .map_err(|error| error.error)
        .with_context(context)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn replaced_file_is_another_that_all_may_read() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("tenure.prom");
        replace(&file, "first\n").unwrap();
        // A reader that has opened the file keeps its contents.
        let kept = fs::File::open(&file).unwrap();
        replace(&file, "second\n").unwrap();
        assert_eq!(std::io::read_to_string(kept).unwrap(), "first\n");
        assert_eq!(fs::read_to_string(&file).unwrap(), "second\n");
        let mode = fs::metadata(&file).unwrap().permissions().mode();
        // The umask may take more away.
        assert_eq!(mode & 0o600, 0o600, "{mode:o}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn file_that_cannot_be_written_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("none/tenure.prom");
        let error = format!("{:#}", replace(&file, "").unwrap_err());
        assert!(
            error.starts_with(&format!("writing {}: ", file.display())),
            "{error}"
        );
        // A folder is in the way: nothing is left beside it.
        fs::create_dir(folder.path().join("folder")).unwrap();
        replace(&folder.path().join("folder"), "").unwrap_err();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
