//! The processes that use tenure.

use std::{fs, os::unix::fs::MetadataExt as _};

use rustix::process::{geteuid, getpid};
use tenure::{Error, Stats};

use super::{
    preload::Preload,
    process::{ProcessReport, folder_with_memory},
    report::Report,
};

/// Reads this user's processes that use tenure; those of all users as root. A process that
/// ends meanwhile is left out.
pub fn read() -> Report {
    let (mut processes, mut unreadable) = (Vec::new(), 0);
    for pid in pids_of_user() {
        let read = uses_tenure(pid).and_then(|uses| match uses {
            true => ProcessReport::of(pid).map(Some),
            false => Ok(None),
        });
        match read {
            Ok(process) => processes.extend(process),
            Err(Error::NoProcess { .. }) => {}
            Err(_) => unreadable += 1,
        }
    }
    Report {
        unreadable,
        ..Report::of_processes(processes)
    }
}

/// Returns this user's processes but for this one; those of all users as root.
pub fn pids_of_user() -> Vec<u32> {
    let (user, own) = (geteuid(), getpid().as_raw_nonzero().get());
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| {
        let pid = entry.file_name().to_str()?.parse::<i32>().ok()?;
        let folder = || folder_with_memory(pid.unsigned_abs());
        let is_ours = user.is_root() || fs::metadata(folder()).ok()?.uid() == user.as_raw();
        (is_ours && pid != own).then(|| pid.unsigned_abs())
    });
    pids.collect()
}

/// Whether a process has the page of counters, of whatever version, or the preloaded library.
fn uses_tenure(pid: u32) -> Result<bool, Error> {
    match Stats::of_process(pid) {
        Ok(Some(_)) | Err(Error::IncompatibleLayout { .. }) => Ok(true),
        Ok(None) => Ok(Preload::of_process(pid).mapped.is_some()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_of_user_exclude_this_one() {
        let mut child = std::process::Command::new("sleep")
            .arg("1000")
            .spawn()
            .unwrap();
        let pids = pids_of_user();
        let uses = uses_tenure(child.id()).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(pids.contains(&child.id()) && !pids.contains(&std::process::id()));
        assert!(!uses);
        tenure::stats();
        assert!(uses_tenure(std::process::id()).unwrap());
    }
}
