//! Operations that only measure: residency, holes, headroom, pressure, stats; and
//! tear-down.

use tenure::{Headroom, Residency, pressure, teardown};

use super::super::case::Case;
use super::super::common::{fill, pages};
use super::Group;

pub const ALL: Group = &[
    ("residency", residency),
    ("residency_of_this_process", residency_of_this_process),
    ("residency_of_process", residency_of_process),
    ("holes", holes),
    ("headroom", headroom),
    ("headroom_lower_bound", headroom_lower_bound),
    ("pressure_snapshot", snapshot),
    ("pressure_level", level),
    ("pressure_subscribe", subscribe),
    ("stats_of_process", stats),
    ("teardown", tear_down),
];

fn residency(case: &Case) {
    let memory = super::super::common::anonymous(20);
    let part = pages(memory.range(), 3, 10);
    fill(part);
    let found = case.attempt_twice(|| part.residency());
    assert_eq!(found.resident_bytes, part.len());
}

fn residency_of_this_process(case: &Case) {
    let found = case.attempt_twice(Residency::of_this_process);
    assert!(found.resident_bytes > 0);
}

fn residency_of_process(case: &Case) {
    let found = case.attempt_twice(|| Residency::of_process(std::process::id()));
    assert!(found.resident_bytes > 0);
}

fn holes(case: &Case) {
    let memory = super::super::common::anonymous(20);
    fill(pages(memory.range(), 3, 10));
    let wanted = [pages(memory.range(), 0, 3), pages(memory.range(), 13, 7)];
    assert_eq!(case.attempt_twice(|| memory.range().holes()), wanted);
}

fn headroom(case: &Case) {
    assert!(case.attempt_twice(Headroom::now).bytes > 0);
}

fn headroom_lower_bound(case: &Case) {
    case.attempt_twice(Headroom::lower_bound);
}

fn snapshot(case: &Case) {
    case.attempt_twice(pressure::Snapshot::now);
}

fn level(case: &Case) {
    case.armed(pressure::level);
}

fn subscribe(case: &Case) {
    let subscription = case.attempt_twice(|| pressure::subscribe(|_| ()));
    case.armed(|| drop(subscription));
}

fn stats(case: &Case) {
    tenure::prepare();
    let found = case.attempt_twice(|| tenure::Stats::of_process(std::process::id()));
    assert!(found.is_some());
}

fn tear_down(case: &Case) {
    case.attempt_twice(teardown::enable);
    assert!(teardown::is_enabled());
    case.armed(teardown::disable);
    assert!(!teardown::is_enabled());
}
