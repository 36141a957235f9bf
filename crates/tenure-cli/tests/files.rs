//! The commands for files in the page cache, as people and scripts see them. `mincore` of the
//! tests' own is the judge.

#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "tests map files that they have made themselves"
)]

#[path = "../../tenure/tests/common/cached.rs"]
#[allow(dead_code, reason = "shared with the tests of the library")]
mod cached;
mod files_cases;

use std::process::ExitCode;

use libtest_mimic::Arguments;

fn main() -> ExitCode {
    if let Some(path) = std::env::var_os(files_cases::HOLDER) {
        files_cases::hold_after_main_thread(path);
    }
    let mut arguments = Arguments::from_args();
    // A child of another test, between its fork and its exec, has files of this one open.
    arguments.test_threads.get_or_insert(1);
    libtest_mimic::run(&arguments, files_cases::trials()).exit_code()
}
