//! prepare: it creates in advance what a process otherwise creates at its first calls, so
//! that a fork during those calls finds them done.

#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "tests use processes that they have made themselves"
)]

mod common;

use std::sync::Barrier;
use std::thread;

use common::*;
use tenure::{LockMode, page_size};

tests! {
    fork_during_first_calls_does_not_hang,
    prepare_leaves_no_descriptor_or_thread;
    children: fork_during_first_calls, prepare_twice
}

/// Repeats often enough: without `prepare` about one child in ten hangs.
fn fork_during_first_calls_does_not_hang() {
    for _ in 0..60 {
        in_child_ok("fork_during_first_calls");
    }
}

fn use_verbs() {
    let mut memory = anonymous((5 << 20) / page_size());
    memory.discard(..).unwrap();
    memory.lock(..page_size(), LockMode::OnFault).unwrap();
    tag(pages(memory.range(), 1, 1));
    memory.munmap().unwrap();
}

fn fork_during_first_calls() {
    tenure::prepare();
    let start = Barrier::new(3);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                start.wait();
                use_verbs();
            });
        }
        start.wait();
        for _ in 0..8 {
            let status = fork(|| {
                unsafe { libc::alarm(20) };
                use_verbs();
                0
            });
            assert_eq!(status, 0);
        }
    });
}

fn prepare_leaves_no_descriptor_or_thread() {
    in_child_ok("prepare_twice");
}

fn prepare_twice() {
    let count = |folder| {
        std::fs::read_dir(format!("/proc/self/{folder}"))
            .unwrap()
            .count()
    };
    let before = (count("fd"), count("task"));
    tenure::prepare();
    assert_eq!((count("fd"), count("task")), before);
    let stats = tenure::stats();
    tenure::prepare();
    assert_eq!((count("fd"), count("task")), before);
    assert_eq!(tenure::stats(), stats);
}
