//! prepare: what a process makes at its first calls is made beforehand, and a fork amid
//! these calls finds it done.

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
    a_fork_amid_first_calls_finds_them_done,
    nothing_is_left_behind;
    children: forks_amid_first_calls, prepares
}

/// As often as it takes: without `prepare` about one in ten waits for ever.
fn a_fork_amid_first_calls_finds_them_done() {
    for _ in 0..60 {
        in_child_ok("forks_amid_first_calls");
    }
}

fn use_verbs() {
    let mut memory = anonymous((5 << 20) / page_size());
    memory.discard(..).unwrap();
    memory.lock(..page_size(), LockMode::OnFault).unwrap();
    mark(pages(memory.range(), 1, 1));
    memory.munmap().unwrap();
}

fn forks_amid_first_calls() {
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

fn nothing_is_left_behind() {
    in_child_ok("prepares");
}

fn prepares() {
    let count = |what| {
        std::fs::read_dir(format!("/proc/self/{what}"))
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
