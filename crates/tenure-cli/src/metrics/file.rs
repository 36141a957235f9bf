//! A file that others read at any time.

use std::{io::Write as _, path::Path};

use anyhow::{Context as _, Result};

use crate::replacement::Replacement;

/// Replaces the contents of a file, so that a reader sees the old contents or the new ones.
pub fn replace(file: &Path, contents: &str) -> Result<()> {
    let context = || format!("writing {}", file.display());
    let mut replacement = Replacement::of(file).with_context(context)?;
    let written = replacement.write_all(contents.as_bytes());
    written.with_context(context)?;
    replacement.put_in_place().with_context(context)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, os::unix::fs::PermissionsExt as _};

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
