//! prepare: it creates in advance what a process otherwise creates at its first calls.

mod common;

use common::*;
use tenure::{Errno, Features};

tests! {
    prepare_leaves_no_descriptor_or_thread,
    fork_before_first_call_creates_no_counters,
    features_probed_without_descriptors_are_probed_again;
    children: prepare_twice, fork_unused, probe_without_descriptors
}

fn prepare_leaves_no_descriptor_or_thread() {
    in_child_ok("prepare_twice");
}

fn fork_before_first_call_creates_no_counters() {
    in_child_ok("fork_unused");
}

fn features_probed_without_descriptors_are_probed_again() {
    let output = in_child_with("TENURE_WITHOUT", "", "probe_without_descriptors");
    assert_ended_well("probe_without_descriptors", &output);
}

fn probe_without_descriptors() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let before = getrlimit(Resource::Nofile);
    let none = Rlimit {
        current: Some(0),
        maximum: before.maximum,
    };
    setrlimit(Resource::Nofile, none).unwrap();
    let features = Features::get();
    let answers = |features: &Features| {
        [
            features.pagemap_scan.err(),
            features.procmap_query.err(),
            features.smaps_lock_mode.err(),
        ]
    };
    assert_eq!(answers(features), [Some(Errno::MFILE); 3]);
    assert_eq!(features.madv_free, Ok(()));
    setrlimit(Resource::Nofile, before).unwrap();
    let features = Features::get();
    assert!(!answers(features).contains(&Some(Errno::MFILE)));
    assert_ne!(features.userfaultfd, Err(Errno::MFILE));
    assert!(std::ptr::eq(features, Features::get()));
    assert_eq!(
        fork(|| i32::from(!std::ptr::eq(features, Features::get()))),
        0
    );
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
