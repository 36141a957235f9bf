//! prepare: it creates in advance what a process otherwise creates at its first calls.

mod common;

use common::*;

tests! {
    prepare_leaves_no_descriptor_or_thread;
    children: prepare_twice
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
