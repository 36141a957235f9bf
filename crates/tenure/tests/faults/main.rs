//! Every system call that tenure makes fails once, in each operation, with one error that
//! the kernel can give there (`fault::`), or with each (`every_errno::`). Nothing may panic, hang or leak, no byte may be lost, the
//! error names the call that failed, and the operation succeeds when it is repeated.
//!
//! The library has no code for this: a seccomp filter reports each call of the process
//! under test to this one, which answers the chosen call with the chosen error. So the C
//! library's calls fail, too, and those of tenure's own threads.
//!
//! `TENURE_FAULT` restricts the run to cases whose description contains its value.

#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "tests use memory and processes that they have made themselves"
)]

#[path = "../common/mod.rs"]
mod common;

mod case;
mod control;
mod filter;
mod ledger;
mod missing;
mod operations;
mod run;
mod state;
mod supervisor;
mod table;

use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use libtest_mimic::{Arguments, Failed, Trial};

use run::Errnos;

/// Makes the C library unmap the stack of each thread that ends and use one heap, so that
/// mappings can be compared.
const TUNABLES: &str = "glibc.pthread.stack_cache_size=0:glibc.malloc.arena_max=1:\
                        glibc.malloc.mmap_threshold=33554432";

static CASES: AtomicUsize = AtomicUsize::new(0);

fn main() -> ExitCode {
    if std::env::var_os("GLIBC_TUNABLES").is_none_or(|set| set != TUNABLES) {
        let mut again = Command::new(std::env::current_exe().unwrap());
        again.args(std::env::args_os().skip(1));
        again
            .env("GLIBC_TUNABLES", TUNABLES)
            .env("RUST_BACKTRACE", "0");
        panic!("exec: {}", again.exec());
    }
    let mut arguments = Arguments::from_args();
    // Trials run in this thread, so that the processes under test are forked from a
    // single-threaded process.
    arguments.test_threads = Some(1);
    let faults = operations::ALL.iter().flat_map(|operation| {
        let trial = |way: &str, errnos, kind| {
            let body = move || {
                let (cases, completion) = run::cases(operation, errnos)?;
                CASES.fetch_add(cases, Relaxed);
                Ok::<_, Failed>(completion)
            };
            Trial::ignorable_test(format!("{way}::{}", operation.name), body).with_kind(kind)
        };
        [
            trial("fault", Errnos::One, ""),
            trial("every_errno", Errnos::Every, "thorough"),
        ]
    });
    let missing = missing::ALL.iter().map(|missing| {
        let body = move || {
            let (cases, completion) = missing::all_operations(missing)?;
            CASES.fetch_add(cases, Relaxed);
            Ok::<_, Failed>(completion)
        };
        Trial::ignorable_test(format!("missing::{}", missing.name), body).with_kind("thorough")
    });
    let trials = faults.chain(missing);
    let conclusion = libtest_mimic::run(&arguments, trials.collect());
    if !conclusion.has_failed() {
        println!("{} cases, all clean", CASES.load(Relaxed));
    }
    conclusion.exit_code()
}
