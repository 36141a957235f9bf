//! The processes that have files open or mapped.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::fs::Metadata;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt as _;

use procfs::process::{MMapPath, Process, all_processes};
use procfs::{ProcError, ProcResult};

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
}

impl Holders {
    /// Examines all processes but this one. Says how many may not be examined.
    pub fn find(complaints: &Complaints) -> Self {
        let mut found = Self::default();
        let mut refused = 0;
        let own = std::process::id() as i32;
        for process in all_processes().into_iter().flatten().flatten() {
            if process.pid != own && found.add(&process).is_err_and(|error| is_refusal(&error)) {
                refused += 1;
            }
        }
        if refused > 0 {
            complaints.line(&format!(
                "tenure: {refused} processes may not be examined, and count as using nothing: \
                 run as root, or with CAP_SYS_PTRACE"
            ));
        }
        found
    }

    /// Whether a process has the file open or mapped.
    pub fn uses(&self, id: FileId) -> bool {
        self.open.contains(&id) || self.mapped.contains_key(&id)
    }

    pub fn mapped_by(&self, id: FileId) -> &[Holder] {
        self.mapped.get(&id).map_or(&[], Vec::as_slice)
    }

    fn add(&mut self, process: &Process) -> ProcResult<()> {
        let mut mapped = HashSet::new();
        for map in process.maps()? {
            if let MMapPath::Path(_) = map.pathname {
                let (major, minor) = map.dev;
                let device = rustix::fs::makedev(major as u32, minor as u32);
                let inode = map.inode;
                mapped.insert(FileId { device, inode });
            }
        }
        if !mapped.is_empty() {
            let holder = Holder {
                pid: process.pid,
                name: process.stat().map(|stat| stat.comm).unwrap_or_default(),
            };
            for id in mapped {
                self.mapped.entry(id).or_default().push(holder.clone());
            }
        }
        for descriptor in process.fd()?.flatten() {
            // The link leads to the file itself, whatever its name is by now.
            let link = format!("/proc/{}/fd/{}", process.pid, descriptor.fd);
            if let Ok(metadata) = std::fs::metadata(link) {
                self.open.insert(FileId::of(&metadata));
            }
        }
        Ok(())
    }
}

/// Whether the process may not be examined; it may also have ended meanwhile.
fn is_refusal(error: &ProcError) -> bool {
    match error {
        ProcError::PermissionDenied(_) => true,
        ProcError::Io(error, _) => error.kind() == ErrorKind::PermissionDenied,
        _ => false,
    }
}
