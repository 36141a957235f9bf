//! Shared by the cases: a folder of files that are not in the page cache.

mod evict;
mod evict_if_cold;
mod fincore;
mod keep;
mod keep_bounds;
mod snapshot;
mod warm;

use std::fs::File;
use std::path::PathBuf;
use std::process::Output;

use assert_cmd::cargo::cargo_bin_cmd;
use libtest_mimic::{Completion, Trial};
use serde_json::Value;
use tempfile::TempDir;

pub use evict_if_cold::{HOLDER, hold_after_main_thread};

use super::cached::{despite_reclaim, drop_cache, pages_in_cache, read_exactly};

pub const MIB: usize = 1 << 20;

type Case = fn(&Folder) -> Completion;

/// Makes the trials of a list of functions, each of which gets a folder of its own; skipped
/// where the file system keeps pages in memory.
macro_rules! cases {
    ($($case:ident),* $(,)?) => {
        &[$((stringify!($case), $case as super::Case)),*]
    };
}
use cases;

pub fn trials() -> Vec<Trial> {
    let groups = [
        warm::ALL,
        fincore::ALL,
        evict::ALL,
        evict_if_cold::ALL,
        keep::ALL,
        keep_bounds::ALL,
        snapshot::ALL,
    ];
    let cases = groups.iter().flat_map(|group| group.iter());
    let trial = |&(name, case): &(&str, Case)| {
        Trial::ignorable_test(name, move || {
            let folder = Folder(tempfile::tempdir().unwrap());
            folder.write("probe", MIB);
            Ok(match drop_cache(&folder.open("probe")) {
                Ok(()) => {
                    std::fs::remove_file(folder.path("probe")).unwrap();
                    case(&folder)
                }
                Err(why) => Completion::ignored_with(why),
            })
        })
    };
    cases.map(trial).collect()
}

pub struct Folder(TempDir);

impl Folder {
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub fn text(&self) -> &str {
        self.0.path().to_str().unwrap()
    }

    pub fn open(&self, name: &str) -> File {
        File::open(self.path(name)).unwrap()
    }

    /// Writes a file whose pages are on the disk and not in memory.
    pub fn write(&self, name: &str, len: usize) {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, vec![7; len]).unwrap();
        let file = File::open(&path).unwrap();
        file.sync_all().unwrap();
        // The first call tells where that is impossible.
        let _ = drop_cache(&file);
    }

    pub fn cached_bytes(&self, name: &str) -> usize {
        super::cached::cached_bytes(&self.open(name))
    }
}

pub fn tenure(arguments: &[&str]) -> Output {
    let mut tenure = cargo_bin_cmd!("tenure");
    tenure.env_remove("TENURE_WITHOUT").args(arguments);
    tenure.output().unwrap()
}

pub fn told(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[track_caller]
pub fn json(output: &Output) -> Value {
    let text = String::from_utf8_lossy(&output.stdout);
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}{}", told(output)))
}

#[track_caller]
pub fn has_status(output: &Output, status: i32) {
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(status), "{text}{}", told(output));
}
