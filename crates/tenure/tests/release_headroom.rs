//! release: memory that is pending makes no program fail that would run with munmap.

#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "tests use memory that they have mapped themselves"
)]

mod common;

use std::time::Duration;

use common::cgroup::{Group, enter_group};
use common::*;
use libtest_mimic::Completion;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tenure::{Access, Error, Mapping, drain, page_size};

tests!(
    [exclusive] release_beside_busy_threads_in_cgroup_is_not_killed,
    release_in_cgroup_defers_half_of_headroom_at_most,
    release_under_data_limit_is_freed_by_caller,
    release_under_address_space_limit_is_freed_by_caller,
    mapping_refused_while_memory_is_pending_is_tried_again;
    children:
    release_beside_busy_threads,
    release_most_of_cgroup,
    release_under_data_limit,
    release_under_address_space_limit,
    map_while_memory_is_pending,
);

const MIB: usize = 1 << 20;

fn pending_bytes() -> usize {
    match drain(Some(Duration::ZERO)) {
        Ok(()) => 0,
        Err(Error::TimedOut { pending_bytes }) => pending_bytes,
        Err(error) => panic!("{error}"),
    }
}

fn in_group(limit_bytes: usize, child: &str) -> Completion {
    match Group::with_limit(limit_bytes).and_then(Group::without_swap) {
        Ok(group) => group.run(child),
        Err(why) => return skip(&why),
    }
    Completion::Completed
}

/// Faults in more than half of the cgroup's limit again and again, with many threads.
fn release_beside_busy_threads() {
    const THREADS: usize = 64;
    enter_group();
    for _ in 0..12 {
        let memory = anonymous(600 * MIB / page_size());
        let part_pages = memory.range().pages() / THREADS;
        std::thread::scope(|scope| {
            for index in 0..THREADS {
                let part = pages(memory.range(), index * part_pages, part_pages);
                scope.spawn(move || {
                    for page in 0..part.pages() {
                        unsafe { pages(part, page, 1).as_ptr().write_volatile(1) };
                    }
                });
            }
        });
        memory.munmap().unwrap();
    }
}

fn release_beside_busy_threads_in_cgroup_is_not_killed() -> Completion {
    // The threads leave the workers little of a CPU.
    let mut outcome = None;
    on_one_cpu(|| outcome = Some(in_group(1024 * MIB, "release_beside_busy_threads")));
    outcome.expect("run above")
}

fn release_most_of_cgroup() {
    const LIMIT: usize = 512 * MIB;
    enter_group();
    let deferred_bytes = || tenure::stats().deferred_free.bytes;
    let before = deferred_bytes();
    let memory = anonymous(300 * MIB / page_size());
    fill(memory.range());
    memory.munmap().unwrap();
    let deferred = deferred_bytes() - before;
    assert!(deferred > 0, "a part fits");
    // The memory that the caller frees is headroom, too.
    assert!(deferred <= LIMIT as u64 / 3, "{deferred}");
    drain(None).unwrap();
    // A release that fits is deferred whole.
    let before = deferred_bytes();
    let memory = anonymous(32 * MIB / page_size());
    fill(memory.range());
    memory.munmap().unwrap();
    assert_eq!(deferred_bytes() - before, 32 * MIB as u64);
}

fn release_in_cgroup_defers_half_of_headroom_at_most() -> Completion {
    in_group(512 * MIB, "release_most_of_cgroup")
}

fn release_under_data_limit() {
    const LEN: usize = 256 * MIB;
    let limit = Rlimit {
        current: Some(status_kib("VmData") * 1024 + (LEN + LEN / 2) as u64),
        ..getrlimit(Resource::Data)
    };
    setrlimit(Resource::Data, limit).unwrap();
    for _ in 0..3 {
        let memory = anonymous(LEN / page_size());
        fill(memory.range());
        memory.munmap().unwrap();
        assert_eq!(pending_bytes(), 0);
    }
}

fn release_under_data_limit_is_freed_by_caller() {
    in_child_ok("release_under_data_limit");
}

fn release_under_address_space_limit() {
    // Leaves addresses for the reservation as well.
    let memory = anonymous(256 * MIB / page_size());
    fill(memory.range());
    let limit = Rlimit {
        current: Some(status_kib("VmSize") * 1024 + (2048 * MIB) as u64),
        ..getrlimit(Resource::As)
    };
    setrlimit(Resource::As, limit).unwrap();
    memory.munmap().unwrap();
    assert_eq!(pending_bytes(), 0);
}

fn release_under_address_space_limit_is_freed_by_caller() {
    in_child_ok("release_under_address_space_limit");
}

/// The limit is lowered while memory is pending, so that only a second attempt fits.
fn map_while_memory_is_pending() {
    const LEN: usize = 512 * MIB;
    let memory = anonymous(LEN / page_size());
    memory.populate(.., Access::Write).unwrap();
    memory.munmap().unwrap();
    let limit = Rlimit {
        current: Some(status_kib("VmSize") * 1024),
        ..getrlimit(Resource::As)
    };
    setrlimit(Resource::As, limit).unwrap();
    let memory = Mapping::anonymous(LEN / 2).map();
    assert!(
        memory.is_ok(),
        "{memory:?} with {} pending",
        pending_bytes()
    );
}

fn mapping_refused_while_memory_is_pending_is_tried_again() -> Completion {
    if let Some(skipped) = skip_without_headroom(4096 * MIB) {
        return skipped;
    }
    in_child_ok("map_while_memory_is_pending");
    Completion::Completed
}
