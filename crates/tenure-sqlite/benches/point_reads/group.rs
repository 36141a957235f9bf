//! A memory cgroup (v1) with a limit, for one run.

use std::path::{Path, PathBuf};

const FOLDER: &str = "/sys/fs/cgroup/memory";

pub struct Group(PathBuf);

impl Group {
    pub fn new(bytes: usize) -> Self {
        let folder = Path::new(FOLDER).join(format!("tenure-point-reads-{}", std::process::id()));
        std::fs::create_dir(&folder).expect("a memory cgroup");
        let group = Self(folder);
        let limit = group.0.join("memory.limit_in_bytes");
        std::fs::write(limit, bytes.to_string()).unwrap();
        group
    }

    /// Returns the file that a process writes 0 to in order to enter.
    pub fn tasks(&self) -> PathBuf {
        self.0.join("tasks")
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Killed processes leave a moment later.
        while let Err(error) = std::fs::remove_dir(&self.0) {
            assert_eq!(error.raw_os_error(), Some(libc::EBUSY), "{error}");
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }
}
