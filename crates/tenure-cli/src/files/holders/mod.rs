//! The processes that have files open or mapped.

mod process;

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt as _;

use self::process::{Failure, Files, numbers};
use super::complaints::Complaints;

/// A file, whatever its names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileId {
    device: u64,
    inode: u64,
}

impl FileId {
    pub fn of(metadata: &Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
        }
    }
}

/// A process that has mapped a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    pub pid: i32,
    name: String,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {} ({})", self.pid, self.name)
    }
}

/// Which processes have which files open or mapped, at the time of one look.
#[derive(Debug, Default)]
pub struct Holders {
    mapped: HashMap<FileId, Vec<Holder>>,
    open: HashSet<FileId>,
    /// Whether some process, or all of them, could not be examined, although the user may.
    is_incomplete: bool,
}

impl Holders {
    /// Examines all processes but this one. Says which could not be examined, and how many may
    /// not be.
    pub fn find(complaints: &Complaints) -> Self {
        let mut found = Self::default();
        if let Err(failure) = found.examine_all(complaints) {
            found.is_incomplete = true;
            complaints.line(&format!(
                "tenure: the processes cannot be examined ({}: {}): no file counts as cold",
                failure.path, failure.error
            ));
        }
        found
    }

    /// Whether a process has the file open or mapped; `None` where that cannot be told.
    pub fn uses(&self, id: FileId) -> Option<bool> {
        match self.open.contains(&id) || self.mapped.contains_key(&id) {
            true => Some(true),
            false => (!self.is_incomplete).then_some(false),
        }
    }

    pub fn mapped_by(&self, id: FileId) -> &[Holder] {
        self.mapped.get(&id).map_or(&[], Vec::as_slice)
    }

    fn examine_all(&mut self, complaints: &Complaints) -> Result<(), Failure> {
        let own = own_pid()?;
        // The numbers of another PID namespace mean other threads to kcmp.
        let can_compare = own == std::process::id() as i32;
        let (mut refused, mut failed) = (0, Vec::new());
        for pid in numbers("/proc")? {
            if pid == own {
                continue;
            }
            match Files::of(pid, can_compare) {
                Ok(files) => self.add(pid, files),
                Err(failure) if failure.is_refusal() => refused += 1,
                Err(failure) => failed.push(failure),
            }
        }
        if let Some(first) = failed.first() {
            self.is_incomplete = true;
            complaints.line(&format!(
                "tenure: {} processes cannot be examined ({}: {}): no file counts as cold",
                failed.len(),
                first.path,
                first.error
            ));
        }
        let remedy = "run as root, or with CAP_SYS_PTRACE";
        if refused > 0 {
            complaints.line(&format!(
                "tenure: {refused} processes may not be examined, and count as using nothing: \
                 {remedy}"
            ));
        }
        if let Some(option) = hides_processes()? {
            complaints.line(&format!(
                "tenure: /proc is mounted with {option}: processes that it hides count as using \
                 nothing: {remedy}"
            ));
        }
        Ok(())
    }

    fn add(&mut self, pid: i32, files: Files) {
        self.open.extend(files.open);
        if files.mapped.is_empty() {
            return;
        }
        let name = fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
        let name = String::from_utf8_lossy(name.trim_ascii_end()).into_owned();
        for id in files.mapped {
            let name = name.clone();
            self.mapped
                .entry(id)
                .or_default()
                .push(Holder { pid, name });
        }
    }
}

/// The number of this process in the PID namespace that `/proc` shows.
fn own_pid() -> Result<i32, Failure> {
    let path = "/proc/self";
    let fail = |error| Failure {
        path: path.to_owned(),
        error,
    };
    let link = fs::read_link(path).map_err(fail)?;
    let pid = link.to_str().and_then(|pid| pid.parse().ok());
    pid.ok_or_else(|| fail(std::io::ErrorKind::InvalidData.into()))
}

/// Returns the option of `/proc` that hides processes from this one: `hidepid=invisible` and
/// `ptraceable`, 2 and 4 before Linux 5.8. (With `noaccess` they may not be examined.)
fn hides_processes() -> Result<Option<String>, Failure> {
    use rustix::thread::{CapabilitySet, capabilities};
    if capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_PTRACE)) {
        return Ok(None);
    }
    let path = "/proc/self/mountinfo";
    let text = fs::read(path).map_err(|error| Failure {
        path: path.to_owned(),
        error,
    })?;
    Ok(hiding_option(&String::from_utf8_lossy(&text)))
}

/// The mount point is the fifth field, and the options of the file system are the last.
fn hiding_option(mountinfo: &str) -> Option<String> {
    // The last mount on a folder is the one that is seen.
    let mount = mountinfo
        .lines()
        .rfind(|line| line.split(' ').nth(4) == Some("/proc"))?;
    let options = mount.rsplit(' ').next()?;
    let hides = |option: &&str| {
        let value = option.strip_prefix("hidepid=");
        value.is_some_and(|value| !["0", "off", "1", "noaccess"].contains(&value))
    };
    options.split(',').find(hides).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn option_of_the_last_mount_on_proc_that_hides_is_found() {
        let line = |at: &str, options: &str| {
            format!("22 1 0:21 / {at} rw,relatime shared:5 - proc proc {options}\n")
        };
        let check = |lines: &[String], expected: Option<&str>| {
            assert_eq!(
                hiding_option(&lines.concat()).as_deref(),
                expected,
                "{lines:?}"
            );
        };
        let hidden = "rw,gid=4,hidepid=invisible";
        check(&[line("/proc", hidden)], Some("hidepid=invisible"));
        check(&[line("/proc", "rw,hidepid=4")], Some("hidepid=4"));
        check(&[line("/proc", "rw,hidepid=noaccess")], None);
        check(&[line("/other/proc", hidden)], None);
        check(&[line("/proc", hidden), line("/proc", "rw")], None);
        check(&[], None);
    }
}
