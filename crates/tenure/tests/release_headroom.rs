//! release: memory that is pending makes no program fail that would run with munmap.

#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "tests use memory that they have mapped themselves"
)]

mod common;

use std::time::Instant;

use common::cgroup::{Group, enter_group};
use common::opens::Opens;
use common::*;
use libtest_mimic::Completion;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tenure::{Headroom, drain, page_size};

tests!(
    [exclusive] release_beside_busy_threads_in_cgroup_is_not_killed,
    release_in_cgroup_defers_half_of_headroom_at_most,
    release_under_data_limit_is_freed_by_caller,
    release_under_address_space_limit_is_freed_by_caller,
    release_beside_addresses_for_all_memory_is_deferred,
    releases_in_cgroup_with_lazily_free_memory_walk_no_pages,
    releases_of_many_ranges_look_limits_up_once;
    children:
    release_beside_busy_threads,
    release_most_of_cgroup,
    release_under_data_limit,
    release_under_address_space_limit,
    release_beside_addresses_for_all_memory,
    release_beside_lazily_free_memory,
    release_many_ranges,
);

const MIB: usize = 1 << 20;

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
        assert_eq!(tenure::stats().deferred_free.calls, 0);
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
    assert_eq!(tenure::stats().deferred_free.calls, 0);
}

fn release_under_address_space_limit_is_freed_by_caller() {
    in_child_ok("release_under_address_space_limit");
}

fn release_beside_addresses_for_all_memory() {
    const LEN: usize = 256 * MIB;
    let memory = anonymous(LEN / page_size());
    fill(memory.range());
    let machine = rustix::system::sysinfo();
    let memory_bytes = machine.totalram * u64::from(machine.mem_unit);
    // The reservation lies on a boundary of page tables.
    let table_bytes = page_size() * page_size() / size_of::<u64>();
    let more_bytes = (3 * LEN).max(2 * LEN + table_bytes + LEN / 2) as u64;
    let limit = Rlimit {
        current: Some(status_kib("VmSize") * 1024 + memory_bytes + more_bytes),
        ..getrlimit(Resource::As)
    };
    setrlimit(Resource::As, limit).unwrap();
    memory.munmap().unwrap();
    assert_eq!(tenure::stats().deferred_free.calls, 1);
}

fn release_beside_addresses_for_all_memory_is_deferred() {
    in_child_ok("release_beside_addresses_for_all_memory");
}

fn release_filled(len: usize) {
    let memory = anonymous(len / page_size());
    fill(memory.range());
    memory.munmap().unwrap();
}

/// Lazily free memory is headroom, and to find out how much there is the kernel walks every
/// page, which neither a release nor a worker asks for.
fn release_beside_lazily_free_memory() {
    enter_group();
    let freed = anonymous(128 * MIB / page_size());
    fill(freed.range());
    let _freed = freed.lazy_free().unwrap();
    flush_all_batches();
    let walks = Opens::of("smaps_rollup");
    // The exact headroom needs a walk here.
    Headroom::now().unwrap();
    assert_eq!(walks.take(), 1);
    for _ in 0..12 {
        release_filled(96 * MIB);
        assert_eq!(walks.take(), 0);
        drain(None).unwrap();
        assert_eq!(walks.take(), 0);
    }
}

fn releases_in_cgroup_with_lazily_free_memory_walk_no_pages() -> Completion {
    in_group(512 * MIB, "release_beside_lazily_free_memory")
}

fn release_many_ranges() {
    let begin = Instant::now();
    let lookups = Opens::of("mountinfo");
    let looked_up: usize = (0..300)
        .map(|_| {
            release_filled(8 * MIB);
            drain(None).unwrap();
            lookups.take()
        })
        .sum();
    // Workers look them up anew after a second.
    let seconds = begin.elapsed().as_secs() as usize;
    assert!(looked_up <= 2 + seconds, "{looked_up} in {seconds} s");
    assert!(tenure::stats().deferred_free.calls > 0);
}

fn releases_of_many_ranges_look_limits_up_once() {
    in_child_ok("release_many_ranges");
}
