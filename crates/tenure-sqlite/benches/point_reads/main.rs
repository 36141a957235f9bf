//! Point reads of a database with SQLite's own page cache of several sizes, with `mmap_size`,
//! and with tenure's page cache: in alternating runs, each in a process of its own.
//!
//! ```text
//! cargo bench -p tenure-sqlite --bench point_reads -- bytes=1073741824 rounds=5
//!     count=500000                           as many operations, after twice as many for a start
//!     library=libsqlcipher.so.0 key=secret   an encrypted database
//!     updates=5                              five of a hundred operations change a row
//!     operations=100                         as many in a transaction, 1 unless set
//!     database=/tmp/db                       a file that stays, and is made if it is absent
//!     settings=0,1,2,4                       some of the page caches, by their numbers from 0
//!     group=805306368 taken=268435456        in a memory cgroup (v1) with a process that
//!                                            takes and writes so much memory
//! ```

#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "SQLite's functions get what those have returned"
)]

mod arguments;
mod group;
mod sqlite;
mod workload;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use arguments::Arguments;
use group::Group;

/// Each setting, and the statements that make it.
const SETTINGS: [(&str, &str); 5] = [
    ("cache_size 2 MB (default)", ""),
    ("cache_size 64 MB", "pragma cache_size=-64000"),
    ("cache_size 1 GB", "pragma cache_size=-1000000"),
    ("mmap_size 4 GB", "pragma mmap_size=4294967296"),
    (TENURE, ""),
];
const TENURE: &str = "tenure";

fn main() {
    let arguments = Arguments::parse(std::env::args().skip(1));
    if let Some(setting) = arguments.child() {
        let (_, pragma) = SETTINGS[setting];
        return workload::run(&arguments, pragma, SETTINGS[setting].0 == TENURE);
    }
    let folder = tempfile::tempdir_in(arguments.folder()).unwrap();
    let own = folder.path().join("database");
    let file = arguments.get("database").map_or(own, PathBuf::from);
    if !file.exists() {
        workload::make(&arguments, &file);
    }
    let mut results = [const { Vec::new() }; SETTINGS.len()];
    for _ in 0..arguments.rounds() {
        for setting in arguments.settings(SETTINGS.len()) {
            results[setting].push(measure(&arguments, &file, setting));
        }
    }
    println!("| page cache | operations/s | CPU, µs each | own memory, MiB |");
    println!("| --- | --: | --: | --: |");
    let measured = SETTINGS.iter().zip(results);
    for ((name, _), results) in measured.filter(|(_, results)| !results.is_empty()) {
        let killed = results.iter().filter(|result| result.is_none()).count();
        let results: Vec<_> = results.into_iter().flatten().collect();
        let others = results.iter().filter(|row| row[3] == 0.0).count();
        let figures = [0, 1, 2].map(|column| median(results.iter().map(|row| row[column])));
        let [rate, micros, mib] = figures;
        let killed = match (killed, others) {
            (0, 0) => String::new(),
            (own, others) => format!(" (killed {own} times, the other process {others} times)"),
        };
        println!("| {name}{killed} | {rate:.0} | {micros:.2} | {mib:.0} |");
    }
}

/// Runs a child with a setting. `None` if it is killed.
fn measure(arguments: &Arguments, file: &Path, setting: usize) -> Option<[f64; 4]> {
    let group = arguments.group().map(Group::new);
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(arguments.all())
        .arg(format!("child={setting}"));
    command.arg(format!("file={}", file.display()));
    if let Some(group) = &group {
        command.arg(format!("tasks={}", group.tasks().display()));
    }
    let output = command.stderr(Stdio::inherit()).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let figures: Vec<f64> = text
        .split_whitespace()
        .map(|word| word.parse().unwrap())
        .collect();
    figures.try_into().ok()
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
