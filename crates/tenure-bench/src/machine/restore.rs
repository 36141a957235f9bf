//! A setting of the machine that is put back, and a cgroup that is removed,
//! however the command ends.

use std::fs::{self, File};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result, bail};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

/// A shell that waits for our end and then writes a number back into a file, or
/// removes a cgroup. It does so also when we are killed, by the OOM killer for
/// one.
pub struct PutBack {
    shell: Child,
    what: &'static str,
}

impl PutBack {
    /// Writes `number` into `file`, a setting called `what`, when this is dropped or
    /// the process has ended. `lock` is held until then.
    pub fn at_the_end(file: &Path, number: u64, what: &'static str, lock: File) -> Result<Self> {
        let (script, lock) = (r#"echo "$2" >"$1""#, lock.into());
        Self::start(script, file, &number.to_string(), what, lock)
    }

    /// Removes the folder of a cgroup when its processes have ended.
    pub fn removed_at_the_end(group: &Path) -> Result<Self> {
        // A process that has just ended is counted a moment longer.
        const SCRIPT: &str =
            r#"for try in $(seq 200); do rmdir "$1" && exit; sleep 0.02; done; exit 1"#;
        Self::start(SCRIPT, group, "", "the cgroup", Stdio::null())
    }

    fn start(
        script: &str,
        file: &Path,
        text: &str,
        what: &'static str,
        held: Stdio,
    ) -> Result<Self> {
        // It waits by itself: where no process can be started, it would otherwise end at
        // once, and the number stay raised.
        let script = format!(r#"trap "" HUP INT TERM; read -r end; {script}"#);
        let shell = Command::new("sh")
            .args(["-c", &script, "sh"])
            .args([file.as_os_str(), text.as_ref()])
            // Its end is the end of what it reads, and we never write.
            .stdin(Stdio::piped())
            // Open as long as the shell runs; it prints nothing.
            .stdout(held)
            .stderr(Stdio::null())
            // An interrupt from the terminal is for us.
            .process_group(0)
            .spawn()
            .with_context(|| format!("starting sh, which is to put {what} back"))?;
        Ok(Self { shell, what })
    }
}

impl Drop for PutBack {
    fn drop(&mut self) {
        // This closes what the shell reads from.
        let ended = self.shell.wait();
        if !ended.is_ok_and(|status| status.success()) {
            eprintln!("tenure: {} could not be put back", self.what);
        }
    }
}

/// A number in a file below /proc or /sys, raised for as long as this lives.
pub struct Setting {
    pub now: u64,
    put_back: Option<PutBack>,
    /// Keeps others from raising the number, if it suffices.
    _lock: Option<File>,
}

impl Setting {
    /// Raises the number in `file`, a setting called `what`, to what `wanted` makes of it
    /// where that is more. Without the permission to write the number stays as it is.
    ///
    /// # Errors
    ///
    /// Fails when the file holds no number; when another process has raised it, and will
    /// put it back; or when the kernel refuses the new one, and the number is put back.
    pub fn raise(
        file: &Path,
        what: &'static str,
        wanted: impl Fn(u64) -> Result<u64>,
    ) -> Result<Self> {
        // The number is read under a lock. Only the original is put back.
        let (before, lock) = read_locked(file, what, FlockOperation::NonBlockingLockShared)?;
        // Opening for writing tells without a trace whether it is allowed.
        let is_allowed = || fs::OpenOptions::new().write(true).open(file).is_ok();
        if wanted(before)? <= before || !is_allowed() {
            return Ok(Self {
                now: before,
                put_back: None,
                _lock: Some(lock),
            });
        }
        drop(lock);
        let (before, lock) = read_locked(file, what, FlockOperation::NonBlockingLockExclusive)?;
        let number = wanted(before)?;
        // From here on an error drops this and so puts the number back.
        let put_back = Some(PutBack::at_the_end(file, before, what, lock)?);
        fs::write(file, number.to_string()).with_context(|| format!("raising {what}"))?;
        Ok(Self {
            now: read_number(file)?,
            put_back,
            _lock: None,
        })
    }

    pub fn is_raised(&self) -> bool {
        self.put_back.is_some()
    }
}

/// Locks the file of a setting called `what`, and reads its number.
fn read_locked(file: &Path, what: &str, how: FlockOperation) -> Result<(u64, File)> {
    let lock = File::open(file).with_context(|| format!("opening {}", file.display()))?;
    match flock(&lock, how) {
        Ok(()) => Ok((read_number(file)?, lock)),
        Err(Errno::WOULDBLOCK) => bail!(
            "another process has raised {what}, or relies on it, until it ends; try again then"
        ),
        Err(error) => Err(error).with_context(|| format!("locking {}", file.display())),
    }
}

pub fn read_number(file: &Path) -> Result<u64> {
    let text = fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))?;
    let number = text.trim().parse();
    number.with_context(|| format!("{} is no number", file.display()))
}

#[cfg(test)]
#[path = "../../tests/unit/machine/restore.rs"]
mod tests;
