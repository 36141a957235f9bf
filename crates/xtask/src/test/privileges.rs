//! The user that the tests run as.

use std::{
    env,
    ffi::OsString,
    fs,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown},
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};

/// The user and group that own nothing (nobody).
const NOBODY: u32 = 65534;

/// The user that the tests run as.
pub struct User {
    /// Whether the tests run as nobody.
    is_other: bool,
    /// Where cargo builds, if the usual place is closed to nobody.
    target: Option<PathBuf>,
}

impl User {
    /// The caller, or user 65534 if the tests are to have no privileges.
    pub fn for_tests(is_unprivileged: bool, root: &Path, home: &Path) -> Result<Self> {
        let caller = fs::metadata("/proc/self")
            .context("reading /proc/self")?
            .uid();
        if !is_unprivileged || caller != 0 {
            if is_unprivileged {
                eprintln!("xtask: the tests run as user {caller}, who has no privileges anyway");
            }
            return Ok(Self {
                is_other: false,
                target: None,
            });
        }
        if let Some(closed) = closed_to_others(home.parent().unwrap_or(home))? {
            bail!(
                "user {NOBODY} cannot reach {}: {} is closed to others; name an open folder in TMPDIR",
                home.display(),
                closed.display()
            );
        }
        fs::set_permissions(home, fs::Permissions::from_mode(0o755)).context("chmod")?;
        // This program lies in cargo's target directory, as do the tests.
        let this = env::current_exe().context("looking for the target directory")?;
        let target = closed_to_others(this.parent().unwrap_or(root))?.map(|closed| {
            let elsewhere = home.join("target");
            eprintln!(
                "xtask: {} is closed to user {NOBODY}: building in {} instead",
                closed.display(),
                elsewhere.display()
            );
            elsewhere
        });
        Ok(Self {
            is_other: true,
            target,
        })
    }

    /// Whether the tests run as another user than this program.
    pub fn is_other(&self) -> bool {
        self.is_other
    }

    /// The variables with which cargo builds for this user.
    pub fn build_variables(&self) -> Vec<(OsString, OsString)> {
        let target = self.target.iter();
        target
            .map(|folder| ("CARGO_TARGET_DIR".into(), folder.into()))
            .collect()
    }

    /// A command that runs `program` as this user, and which the kernel kills when the
    /// thread that has started it ends.
    pub fn command(&self, program: &Path) -> Command {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL"]);
        if self.is_other {
            command.args([format!("--reuid={NOBODY}"), format!("--regid={NOBODY}")]);
            command.args(["--clear-groups", "--no-new-privs"]);
        }
        command.arg("--").arg(program);
        command
    }

    /// Gives a folder to this user.
    pub fn give(&self, folder: &Path) -> Result<()> {
        match self.is_other {
            true => chown(folder, Some(NOBODY), Some(NOBODY)).context("chown"),
            false => Ok(()),
        }
    }
}

/// Returns the folder on the way to `folder` that keeps others out, if any.
fn closed_to_others(folder: &Path) -> Result<Option<PathBuf>> {
    let path = folder
        .canonicalize()
        .with_context(|| format!("looking at {}", folder.display()))?;
    Ok(first_closed(path.ancestors())?.map(Path::to_path_buf))
}

/// Returns the first folder that others may not pass through.
fn first_closed<'a>(folders: impl IntoIterator<Item = &'a Path>) -> Result<Option<&'a Path>> {
    for folder in folders {
        let metadata = fs::metadata(folder);
        let metadata = metadata.with_context(|| format!("looking at {}", folder.display()))?;
        if metadata.permissions().mode() & 0o001 == 0 {
            return Ok(Some(folder));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closed_folder_above_an_open_one_is_found() {
        let outer = tempfile::tempdir().unwrap();
        let inner = outer.path().join("inner");
        fs::create_dir(&inner).unwrap();
        let open = |folder: &Path, mode| {
            fs::set_permissions(folder, fs::Permissions::from_mode(mode)).unwrap();
        };
        let folders = || [inner.as_path(), outer.path()];
        open(&inner, 0o755);
        open(outer.path(), 0o700);
        assert_eq!(first_closed(folders()).unwrap(), Some(outer.path()));
        open(outer.path(), 0o711);
        assert_eq!(first_closed(folders()).unwrap(), None);
    }
}
