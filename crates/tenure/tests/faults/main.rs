//! Every system call that tenure makes fails once, in each operation, with each error
//! that the kernel can give there. Nothing may panic, hang or leak, no byte may be
//! lost, the error tells which call has failed, and the operation succeeds when it is
//! tried again.
//!
//! The library has no code for this: a seccomp filter shows each call of the process
//! under test to this one, which answers the chosen call with the chosen error. So
//! also the C library's calls fail, and those of tenure's own threads.
//!
//! `TENURE_FAULT` runs only the cases of which the description contains its value.

#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "tests use memory and processes that they have made themselves"
)]

#[path = "../common/mod.rs"]
mod common;

mod case;
mod control;
mod filter;
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

/// Has the C library give back the stack of each thread that ends, and take memory
/// from one heap, so that what is mapped can be compared.
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
    // In this thread, so that the processes under test are forked from a process that
    // has no other.
    arguments.test_threads = Some(1);
    let trials = operations::ALL.iter().map(|operation| {
        let body = move || {
            let (cases, completion) = run::all_cases(operation)?;
            CASES.fetch_add(cases, Relaxed);
            Ok::<_, Failed>(completion)
        };
        Trial::ignorable_test(format!("fault::{}", operation.name), body)
    });
    let missing = missing::ALL.iter().map(|missing| {
        let body = move || {
            let (cases, completion) = missing::all_operations(missing)?;
            CASES.fetch_add(cases, Relaxed);
            Ok::<_, Failed>(completion)
        };
        Trial::ignorable_test(format!("missing::{}", missing.name), body)
    });
    let trials = trials.chain(missing);
    let conclusion = libtest_mimic::run(&arguments, trials.collect());
    if !conclusion.has_failed() {
        println!("{} cases, all clean", CASES.load(Relaxed));
    }
    conclusion.exit_code()
}
