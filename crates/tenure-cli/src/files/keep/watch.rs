//! Notices that files were replaced: `inotify(7)`.

use std::collections::BTreeSet;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::inotify::{self, CreateFlags, Reader, WatchFlags};

use crate::files::complaints::Complaints;

/// Watches folders, as far as the kernel allows.
pub struct Watch {
    inotify: Option<OwnedFd>,
    /// Folders that cannot be watched.
    refused: BTreeSet<PathBuf>,
}

impl Watch {
    pub fn new(complaints: &Complaints) -> Self {
        let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK);
        if let Err(errno) = inotify {
            complaints.line(&format!(
                "tenure: inotify_init: {errno}: replaced files are noticed late"
            ));
        }
        Self {
            inotify: inotify.ok(),
            refused: BTreeSet::new(),
        }
    }

    /// Watches these folders from now on.
    pub fn folders(&mut self, folders: &[PathBuf], complaints: &Complaints) {
        let Some(inotify) = &self.inotify else { return };
        // A folder that was replaced by another of its name is watched anew.
        self.refused.retain(|folder| folders.contains(folder));
        for folder in folders {
            match watch(inotify, folder) {
                Ok(()) => {
                    self.refused.remove(folder);
                }
                Err(errno) => {
                    if self.refused.insert(folder.clone()) {
                        let what = format!("cannot be watched ({errno}): changes are noticed late");
                        complaints.note(folder, what);
                    }
                }
            }
        }
    }

    /// Whether each change is noticed at once.
    pub fn is_complete(&self) -> bool {
        self.inotify.is_some() && self.refused.is_empty()
    }

    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.inotify.as_ref().map(OwnedFd::as_fd)
    }

    /// Takes all events. Returns whether there were any.
    pub fn has_changed(&self) -> bool {
        let Some(inotify) = &self.inotify else {
            return false;
        };
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = Reader::new(inotify, &mut buffer);
        let mut has_changed = false;
        // The descriptor does not block: an error ends the events.
        while reader.next().is_ok() {
            has_changed = true;
        }
        has_changed
    }
}

fn watch(inotify: &OwnedFd, folder: &Path) -> rustix::io::Result<()> {
    let events = WatchFlags::CREATE
        | WatchFlags::CLOSE_WRITE
        | WatchFlags::DELETE
        | WatchFlags::MOVED_FROM
        | WatchFlags::MOVED_TO
        | WatchFlags::DELETE_SELF
        | WatchFlags::MOVE_SELF
        | WatchFlags::ONLYDIR;
    inotify::add_watch(inotify, folder, events).map(drop)
}
