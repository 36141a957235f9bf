//! room: how much more memory may be taken, in cgroups with real limits.

#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "tests use memory that they have mapped themselves"
)]

mod common;

use std::fs;

use common::cgroup::{Group, enter_group};
use common::*;
use libtest_mimic::Completion;
use tenure::{Access, Error, Mapping, Room, RoomBound, page_size};

tests!(
    the_machine_bounds_at_most,
    the_limit_of_the_cgroup_bounds,
    the_limit_of_a_cgroup_around_it_bounds,
    populating_past_the_limit_is_refused_not_killed,
    populating_waits_for_what_is_being_freed;
    children:
    use_the_room_of_a_cgroup,
    see_the_limit_around,
    populate_past_the_limit,
    populate_behind_a_release,
);

const MIB: usize = 1 << 20;

fn the_machine_bounds_at_most() {
    let room = Room::now().unwrap();
    let text = fs::read_to_string("/proc/meminfo").unwrap();
    let total = text.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let total_kib = total.unwrap().trim().trim_end_matches(" kB");
    assert!(room.bytes > 0, "{room:?}");
    assert!(room.bytes < total_kib.parse::<usize>().unwrap() * 1024);
}

fn the_limit_of_the_cgroup_bounds() -> Completion {
    let group = match Group::with_limit(256 * MIB) {
        Ok(group) => group,
        Err(why) => return skip(&why),
    };
    group.run("use_the_room_of_a_cgroup");
    Completion::Completed
}

fn use_the_room_of_a_cgroup() {
    let group = enter_group();
    let room = || {
        let Room { bytes, bound } = Room::now().unwrap();
        let RoomBound::Cgroup {
            path,
            limit_bytes,
            used_bytes,
        } = bound
        else {
            panic!("{bytes} by {bound}");
        };
        assert_eq!(path, group);
        assert_eq!(limit_bytes, 256 * MIB);
        assert_eq!(bytes, limit_bytes - used_bytes);
        bytes
    };
    // The kernel charges each CPU ahead of its use, and a program that starts
    // has pages of its own.
    const SLACK: usize = 8 * MIB;
    let near = |bytes: usize, expected: usize| bytes.abs_diff(expected) < SLACK;

    let before = room();
    assert!(near(before, 256 * MIB), "{before}");
    let memory = anonymous(64 * MIB / page_size());
    assert!(near(room(), before));
    fill(memory.range());
    let used = room();
    assert!(near(used, before - 64 * MIB), "{before} {used}");
    // What is lazily free may be taken, though it is still charged.
    let idle = memory.lazy_free().unwrap();
    let free = room();
    assert!(near(free, before), "{before} {free}");
    // Who does not look at pages does not know whether it is still free.
    let at_least = Room::at_least().unwrap().bytes;
    assert!(near(at_least, used), "{used} {at_least}");
    // The kernel's inactive_file goes on counting what was taken back.
    let memory = idle.take_back().unwrap();
    let taken_back = room();
    assert!(near(taken_back, used), "{used} {taken_back}");
    memory.munmap().unwrap();
    tenure::drain(None).unwrap();
    let after = room();
    assert!(near(after, before), "{before} {after}");
}

fn the_limit_of_a_cgroup_around_it_bounds() -> Completion {
    let inner = Group::with_limit(128 * MIB).and_then(|outer| outer.inner(256 * MIB));
    match inner {
        Ok(inner) => inner.run("see_the_limit_around"),
        Err(why) => return skip(&why),
    }
    Completion::Completed
}

fn see_the_limit_around() {
    let group = enter_group();
    // The outer group is charged for what is used in the inner.
    let memory = Mapping::anonymous(64 * MIB).map().unwrap();
    fill(memory.range());
    let room = Room::now().unwrap();
    assert!(room.bytes < 64 * MIB, "{room:?}");
    assert!(
        matches!(&room.bound, RoomBound::Cgroup { path, limit_bytes, .. }
            if Some(path.as_path()) == group.parent() && *limit_bytes == 128 * MIB),
        "{room:?}"
    );
}

fn populating_past_the_limit_is_refused_not_killed() -> Completion {
    let group = match Group::with_limit(128 * MIB) {
        Ok(group) => group,
        Err(why) => return skip(&why),
    };
    group.run("populate_past_the_limit");
    Completion::Completed
}

fn populate_past_the_limit() {
    enter_group();
    let memory = anonymous(192 * MIB / page_size());
    let error = memory.populate(.., Access::Write).unwrap_err();
    let Error::NoMemory {
        need_bytes,
        room_bytes,
        ..
    } = error
    else {
        panic!("{error}")
    };
    assert_eq!(need_bytes, memory.len());
    assert!(room_bytes <= 128 * MIB, "{room_bytes}");
    assert_eq!(count_present(memory.range()), 0);
    // What fits is not refused, nor what is there already.
    memory.populate(..96 * MIB, Access::Write).unwrap();
    memory.populate(..96 * MIB, Access::Write).unwrap();
    assert_eq!(count_present(memory.range()), 96 * MIB / page_size());
    // Small pieces are not let through one by one.
    let pieces = (96 * MIB..192 * MIB).step_by(MIB);
    let refused = pieces
        .map(|at| memory.populate(at..at + MIB, Access::Write))
        .find_map(Result::err);
    assert!(
        matches!(refused, Some(Error::NoMemory { .. })),
        "{refused:?}"
    );
}
fn populating_waits_for_what_is_being_freed() -> Completion {
    let group = match Group::with_limit(512 * MIB) {
        Ok(group) => group,
        Err(why) => return skip(&why),
    };
    group.run("populate_behind_a_release");
    Completion::Completed
}

fn populate_behind_a_release() {
    enter_group();
    for _ in 0..5 {
        // Twice this is more than the limit.
        let memory = anonymous(384 * MIB / page_size());
        memory.populate(.., Access::Write).unwrap();
        memory.munmap().unwrap();
    }
}
