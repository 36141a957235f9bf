//! prepare: it creates in advance what a process otherwise creates at its first calls.

mod common;

use common::*;

tests! {
    prepare_leaves_no_descriptor_or_thread,
    fork_before_first_call_creates_no_counters;
    children: prepare_twice, fork_unused
}

fn prepare_leaves_no_descriptor_or_thread() {
    in_child_ok("prepare_twice");
}

fn fork_before_first_call_creates_no_counters() {
    in_child_ok("fork_unused");
}

fn fork_unused() {
    let has_counters = || {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        maps.contains("tenure-stats")
    };
    assert_eq!(fork(|| i32::from(has_counters())), 0);
    tenure::prepare();
    assert!(has_counters());
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
