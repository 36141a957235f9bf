//! The folder of a run's files, removed however the run ends.
//!
//! The runner and each supervisor lock it. A process of its own, the guard, waits until
//! the last of them has ended, however it did, and removes the folder.

use std::{
    fs::File,
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{self, Child, Command, Stdio},
};

use anyhow::{Context as _, Result};
use rustix::fs::{FlockOperation, flock};
use tempfile::{Builder, TempDir};

use super::clean;

/// The beginning of the names of folders and cgroups; the number of the process that has
/// made them follows.
pub const PREFIX: &str = "tenure-test-";

/// This program, also when cargo has replaced its file meanwhile.
pub const THIS_PROGRAM: &str = "/proc/self/exe";

pub struct RunFolder {
    path: PathBuf,
    lock: Option<File>,
    guard: Child,
}

impl RunFolder {
    pub fn make() -> Result<Self> {
        let prefix = format!("{PREFIX}{}-", process::id());
        let folder = Builder::new().prefix(&prefix).tempdir();
        let folder = folder.context("making a folder for the tests")?;
        let lock = Some(lock(folder.path())?);
        let guard = Command::new(THIS_PROGRAM)
            .arg("guard")
            .arg(folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // An interrupt from the terminal is for the runner.
            .process_group(0)
            .spawn()
            .context("starting the guard of the tests' folder")?;
        Ok(Self {
            path: folder.keep(),
            lock,
            guard,
        })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes a folder for the files of one test.
    pub fn for_test(&self) -> Result<TempDir> {
        TempDir::new_in(&self.path).context("making a folder for a test")
    }
}

impl Drop for RunFolder {
    fn drop(&mut self) {
        drop(self.lock.take());
        if !self.guard.wait().is_ok_and(|status| status.success()) {
            // Something has killed the guard.
            clean::remove(&self.path);
        }
    }
}

/// Locks a run's folder for as long as the returned value, or this process, lives.
pub fn lock(folder: &Path) -> Result<File> {
    let file = File::open(folder).with_context(|| format!("opening {}", folder.display()))?;
    flock(&file, FlockOperation::LockShared).context("locking the folder of the tests")?;
    Ok(file)
}

/// Waits for the end of a run, and removes its folder and its cgroups.
pub fn guard(folder: &Path) -> Result<bool> {
    let file = File::open(folder).context("opening the folder of the tests")?;
    flock(&file, FlockOperation::LockExclusive).context("waiting for the tests")?;
    clean::remove(folder);
    clean::remove_cgroups();
    Ok(true)
}
