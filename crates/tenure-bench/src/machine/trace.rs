//! When is the memory of a process free that has been waited for already?

use std::fs::File;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{process, thread};

use anyhow::{Context as _, Result, bail};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use tenure::page_size;

use super::memory::RawMapping;

/// How long the memory of a killed process may take to be back.
const DEADLINE: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_micros(200);

/// Shows, also when a process has been waited for, whether its memory is there.
pub struct Trace(File);

impl Trace {
    pub fn new() -> Result<Self> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = File::from(memfd_create("tenure-bench", flags).context("memfd_create")?);
        file.set_len(page_size() as u64).context("ftruncate")?;
        Ok(Self(file))
    }

    /// Returns where another process of the same user finds it, for as long as
    /// this one has it.
    pub fn path(&self) -> PathBuf {
        format!("/proc/{}/fd/{}", process::id(), self.0.as_raw_fd()).into()
    }

    /// Maps the one that another process has made into this process's memory.
    pub fn map(path: &Path) -> Result<RawMapping> {
        let file = File::options().read(true).write(true).open(path);
        let file = file.with_context(|| format!("opening {}", path.display()))?;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the file has a page, and nobody writes to it.
        unsafe { RawMapping::of_file(file.as_fd(), page_size(), protection, MapFlags::SHARED) }
    }

    /// Waits until no memory has it any more. The kernel unmaps files at the very
    /// end, when the pages of all memory are free, and refuses to seal a file
    /// against writing for as long as it is mapped for that. MemAvailable would
    /// tell of all other processes, too.
    pub fn wait_until_gone(&self) -> Result<()> {
        let start = Instant::now();
        loop {
            match fcntl_add_seals(&self.0, SealFlags::WRITE) {
                Err(Errno::BUSY) if start.elapsed() < DEADLINE => thread::sleep(LOOK_EVERY),
                Err(Errno::BUSY) => bail!("the child's memory is not freed after {DEADLINE:?}"),
                answer => return answer.context("F_SEAL_WRITE"),
            }
        }
    }
}

#[cfg(test)]
#[path = "../../tests/unit/machine/trace.rs"]
mod tests;
