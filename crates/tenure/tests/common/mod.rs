//! Shared by every test file: a runner with a third result (skipped, with the reason), and
//! modules with what tests do to processes and memory.

#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "tests probe memory that they have mapped themselves"
)]
// Each test file uses its own part of this module.
#![allow(dead_code)]

pub mod cached;
pub mod cgroup;
mod children;
mod contents;
mod cpus;
mod huge_pool;
pub mod mappings;
mod memory;
pub mod merging;
pub mod missing;
pub mod names;
pub mod neighbour;
pub mod opens;
pub mod pool;
mod presence;
mod process;
mod seccomp;
mod smaps;
pub mod stall;
mod swap;
mod undo;
mod userfaultfd;
pub mod values;
pub mod volatile;
mod watchdog;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Completion, Failed, Trial};

#[allow(unused_imports, reason = "each test file uses its own part of this")]
pub use {
    children::*, contents::*, cpus::*, huge_pool::*, memory::*, presence::*, process::*,
    seccomp::*, smaps::*, swap::*, undo::*, userfaultfd::*, watchdog::*,
};
/// The result of a test that may find that it cannot run here.
pub trait Verdict {
    fn completion(self) -> Completion;
}

impl Verdict for () {
    fn completion(self) -> Completion {
        Completion::Completed
    }
}

impl Verdict for Completion {
    fn completion(self) -> Completion {
        self
    }
}

pub struct Test {
    pub name: &'static str,
    /// The words in brackets before the test, separated by spaces.
    pub kinds: &'static str,
    pub run: fn() -> Completion,
    /// Runs also where the other tests of the file cannot.
    pub everywhere: bool,
}

/// Defines `main` of a test file from its tests, the functions that tests run in a process
/// of their own with [`in_child`], and the reason why all tests may be skipped. Tests under
/// `everywhere:` run regardless of that reason. `cargo xtask test` reads what stands in
/// brackets before a test: `[exclusive]` has the machine to itself, `[thorough]` is left to
/// `make test-thorough`.
#[macro_export]
macro_rules! tests {
    ($($([$($kind:ident)*])? $test:ident),* $(,)?) => {
        $crate::tests!($($([$($kind)*])? $test),*; children:);
    };
    (
        $($([$($kind:ident)*])? $test:ident),* $(,)?;
        children: $($child:ident),* $(,)?
    ) => {
        $crate::tests!(unless: || None; $($([$($kind)*])? $test),*; children: $($child),*);
    };
    (
        unless: $reason:expr; $($([$($kind:ident)*])? $test:ident),* $(,)?;
        children: $($child:ident),* $(,)?
    ) => {
        $crate::tests!(
            unless: $reason; $($([$($kind)*])? $test),*; everywhere: ; children: $($child),*
        );
    };
    (
        unless: $reason:expr; $($([$($kind:ident)*])? $test:ident),* $(,)?;
        everywhere: $($([$($also_kind:ident)*])? $also:ident),* $(,)?;
        children: $($child:ident),* $(,)?
    ) => {
        fn main() -> std::process::ExitCode {
            use $crate::common::{Test, Verdict, run};
            macro_rules! test {
                ($name:ident, $everywhere:expr, $kinds:expr) => {
                    Test {
                        name: stringify!($name),
                        kinds: $kinds,
                        run: || $name().completion(),
                        everywhere: $everywhere,
                    }
                };
            }
            run(
                $reason,
                &[
                    $(test!($test, false, stringify!($($($kind)*)?)),)*
                    $(test!($also, true, stringify!($($($also_kind)*)?))),*
                ],
                &[$((stringify!($child), $child as fn())),*],
            )
        }
    };
}

/// Runs the tests of a file. `unless` gives the reason why none of the tests can run here,
/// except those that run everywhere.
pub fn run(
    unless: fn() -> Option<&'static str>,
    tests: &[Test],
    children: &[(&str, fn())],
) -> ExitCode {
    let args: Vec<String> = std::env::args().collect();
    if let [_, flag, name] = args.as_slice()
        && flag == "--child"
    {
        let (_, child) = children
            .iter()
            .find(|(known, _)| known == name)
            .expect("a child of this file");
        child();
        return ExitCode::SUCCESS;
    }
    let mut arguments = Arguments::from_args();
    // One test at a time: tests measure the whole process (limits, threads, RSS).
    arguments.test_threads.get_or_insert(1);
    let trials = tests
        .iter()
        .map(|test| {
            let (run, everywhere) = (test.run, test.everywhere);
            let body = move || {
                let reason = unless().filter(|_| !everywhere);
                Ok::<_, Failed>(reason.map_or_else(run, skip))
            };
            Trial::ignorable_test(test.name, body).with_kind(test.kinds)
        })
        .collect();
    libtest_mimic::run(&arguments, trials).exit_code()
}

pub fn skip(reason: &str) -> Completion {
    Completion::ignored_with(reason)
}

/// Skips a test that populates `need_bytes`, which tenure rejects past the headroom of the
/// machine or its cgroup.
pub fn skip_without_headroom(need_bytes: usize) -> Option<Completion> {
    let headroom = tenure::Headroom::now().unwrap();
    let is_too_little = headroom.bytes < need_bytes;
    is_too_little.then(|| skip(&format!("needs {} MiB of headroom", need_bytes >> 20)))
}
