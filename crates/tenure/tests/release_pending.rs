//! release: what may be pending while no worker frees anything, by memory, addresses and
//! mappings.

#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "tests use memory that they have mapped themselves"
)]

mod common;

use std::time::Duration;

use common::cgroup::{Group, enter_group};
use common::mappings::{AllMappings, mapping_limit, too_many_mappings};
use common::stall::Stall;
use common::*;
use libtest_mimic::Completion;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tenure::release::THRESHOLD_BYTES;
use tenure::{Features, Mapping, PageRange, page_size};

/// Returns the reason why nothing can be kept pending here.
fn missing() -> Option<&'static str> {
    if Features::get().userfaultfd.is_err() {
        return Some("needs userfaultfd, to keep workers from freeing");
    }
    let mode = std::fs::read_to_string("/proc/sys/vm/overcommit_memory").unwrap();
    (mode.trim() == "2").then_some("nothing is deferred under strict overcommit")
}

tests!(
    unless: missing;
    releases_in_cgroup_beside_stalled_worker_leave_memory,
    releases_under_data_limit_beside_stalled_worker_leave_addresses,
    releases_under_address_space_limit_beside_stalled_worker_leave_addresses,
    thousands_of_releases_beside_stalled_worker_leave_mappings,
    mapping_refused_beside_stalled_worker_waits_for_it,
    nearly_empty_range_larger_than_memory_is_left_to_workers;
    everywhere:
    release_without_mappings_left_is_freed_by_caller;
    children:
    release_in_cgroup,
    release_under_data_limit,
    release_under_address_space_limit,
    release_thousands,
    release_without_mappings,
    map_beside_stalled_worker,
);

const MIB: usize = 1 << 20;

fn pending_bytes() -> usize {
    tenure::stats().pending_release_bytes as usize
}

fn deferred_calls() -> usize {
    tenure::stats().deferred_free.calls as usize
}

fn deferred_bytes() -> usize {
    tenure::stats().deferred_free.bytes as usize
}

fn freed_by_caller_bytes() -> usize {
    tenure::stats().freed_by_caller_bytes as usize
}

/// A range of addresses that are many times the machine's memory, with a page in each GiB.
fn nearly_empty_range_larger_than_memory_is_left_to_workers() {
    const GIB: usize = 1 << 30;
    const LEN: usize = 1024 * GIB;
    let access = ProtFlags::READ | ProtFlags::WRITE;
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    let at = unsafe { mmap_anonymous(std::ptr::null_mut(), LEN, access, flags) }.unwrap();
    let range = PageRange::new(at.addr(), LEN).unwrap();
    use_base_pages(range);
    let touch = || {
        for offset in (0..LEN).step_by(GIB) {
            let byte = at.cast::<u8>().wrapping_add(offset);
            unsafe {
                assert_eq!(byte.read(), 0);
                byte.write(7);
            }
        }
    };
    let is_deferred = |release: &dyn Fn()| {
        drain_pending();
        let (before_bytes, by_caller_bytes) = (deferred_bytes(), freed_by_caller_bytes());
        release();
        assert_eq!(deferred_bytes() - before_bytes, LEN);
        assert_eq!(freed_by_caller_bytes(), by_caller_bytes);
    };
    touch();
    if Features::get().mremap_dontunmap.is_ok() {
        is_deferred(&|| unsafe { range.discard() }.unwrap());
        touch();
    }
    is_deferred(&|| unsafe { range.munmap() }.unwrap());
    drain_pending();
    assert!(!is_still_mapped(range));
}

/// Takes most of the cgroup again and again, of which a worker frees nothing.
fn release_in_cgroup() {
    const LIMIT: usize = 512 * MIB;
    enter_group();
    let stall = Stall::begin();
    let mut pending = pending_bytes();
    for _ in 0..20 {
        let memory = anonymous(40 * MIB / page_size());
        fill(memory.range());
        memory.munmap().unwrap();
        assert!(pending <= pending_bytes());
        pending = pending_bytes();
        // As much as is pending is free twice.
        assert!(pending <= LIMIT / 3, "{} MiB are pending", pending / MIB);
    }
    assert!(pending > Stall::BYTES, "a part fits");
    stall.end();
}

fn releases_in_cgroup_beside_stalled_worker_leave_memory() -> Completion {
    match Group::with_limit(512 * MIB).and_then(Group::without_swap) {
        Ok(group) => group.run("release_in_cgroup"),
        Err(why) => return skip(&why),
    }
    Completion::Completed
}

/// Sets a limit that leaves a little more than the machine has memory, and releases more
/// than that little.
fn release_under(resource: Resource, used: &str, access: ProtFlags) {
    const LEN: usize = 64 * MIB;
    const RELEASES: usize = 40;
    let total_bytes = machine_bytes();
    let stall = Stall::begin();
    // A reservation may be longer by a GiB.
    let left_bytes = total_bytes + 1536 * MIB;
    let limit = Rlimit {
        current: Some(status_kib(used) * 1024 + left_bytes as u64),
        ..getrlimit(resource)
    };
    setrlimit(resource, limit).unwrap();
    let before = deferred_calls();
    for _ in 0..RELEASES {
        anonymous(LEN / page_size()).munmap().unwrap();
    }
    let deferred = deferred_calls() - before;
    assert!((1..RELEASES).contains(&deferred), "{deferred} are deferred");
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    let all = unsafe { mmap_anonymous(std::ptr::null_mut(), total_bytes, access, flags) };
    assert!(all.is_ok(), "{all:?} beside {deferred} pending releases");
    stall.end();
}

fn machine_bytes() -> usize {
    let info = rustix::system::sysinfo();
    info.totalram as usize * info.mem_unit as usize
}

fn release_under_data_limit() {
    let access = ProtFlags::READ | ProtFlags::WRITE;
    release_under(Resource::Data, "VmData", access);
}

fn release_under_address_space_limit() {
    release_under(Resource::As, "VmSize", ProtFlags::empty());
}

fn in_child_with_headroom(bytes: usize, child: &str) -> Completion {
    if let Some(skipped) = skip_without_headroom(bytes) {
        return skipped;
    }
    in_child_ok(child);
    Completion::Completed
}

fn releases_under_data_limit_beside_stalled_worker_leave_addresses() -> Completion {
    in_child_with_headroom(6144 * MIB, "release_under_data_limit")
}

fn releases_under_address_space_limit_beside_stalled_worker_leave_addresses() -> Completion {
    in_child_with_headroom(6144 * MIB, "release_under_address_space_limit")
}

/// How many releases may be pending: a sixteenth of all mappings, with three for each.
fn max_releases() -> usize {
    mapping_limit() / 48
}

fn mapping_count() -> usize {
    std::fs::read_to_string("/proc/self/maps")
        .unwrap()
        .lines()
        .count()
}

fn release_thousands() {
    let stall = Stall::begin();
    let before = (mapping_count(), deferred_calls(), freed_by_caller_bytes());
    let count = max_releases() + 2000;
    for _ in 0..count {
        let memory = Mapping::anonymous(THRESHOLD_BYTES).map().unwrap();
        memory.munmap().unwrap();
    }
    // The first is that of the stalled worker.
    let deferred = max_releases() - 1;
    assert_eq!(deferred_calls() - before.1, deferred);
    let freed = (count - deferred) * THRESHOLD_BYTES;
    assert_eq!(freed_by_caller_bytes() - before.2, freed);
    let mappings = mapping_count() - before.0;
    assert!(mappings <= mapping_limit() / 16, "{mappings} mappings");
    stall.end();
    assert!(mapping_count() <= before.0 + 10);
}

fn thousands_of_releases_beside_stalled_worker_leave_mappings() -> Completion {
    if let Some(reason) = too_many_mappings() {
        return skip(reason);
    }
    // Of which half may be pending.
    let bytes = 2 * max_releases() * THRESHOLD_BYTES;
    in_child_with_headroom(bytes + 1024 * MIB, "release_thousands")
}

/// Few mappings are enough to reserve a place, and not to move memory there.
fn release_without_mappings() {
    for left in 0..8 {
        let memory = large();
        let range = memory.range();
        let released = || {
            let stats = tenure::stats();
            let by_caller = stats.freed_by_caller_bytes as usize;
            (by_caller, by_caller + stats.deferred_free.bytes as usize)
        };
        let before = released();
        let all_mappings = AllMappings::but_for(left);
        let answer = memory.munmap();
        drop(all_mappings);
        assert!(answer.is_ok(), "with {left} mappings left: {answer:?}");
        assert!(!is_still_mapped(range));
        let after = released();
        assert_eq!(after.1 - before.1, range.len());
        if left <= 2 {
            assert_eq!(after.0 - before.0, range.len());
        }
        drain_pending();
    }
}

fn release_without_mappings_left_is_freed_by_caller() -> Completion {
    if let Some(reason) = too_many_mappings() {
        return skip(reason);
    }
    in_child_ok("release_without_mappings");
    Completion::Completed
}

fn map_beside_stalled_worker() {
    let memory = anonymous(512 * MIB / page_size());
    let stall = Stall::begin();
    memory.munmap().unwrap();
    // The thread takes some for itself.
    let limit = Rlimit {
        current: Some(status_kib("VmSize") * 1024 + 192 * MIB as u64),
        ..getrlimit(Resource::As)
    };
    let thread = std::thread::spawn(|| {
        std::thread::sleep(Duration::from_millis(100));
        stall.end();
    });
    setrlimit(Resource::As, limit).unwrap();
    let memory = Mapping::anonymous(384 * MIB).map();
    assert!(
        memory.is_ok(),
        "{memory:?} with {} pending",
        pending_bytes()
    );
    thread.join().unwrap();
}

fn mapping_refused_beside_stalled_worker_waits_for_it() -> Completion {
    in_child_with_headroom(4096 * MIB, "map_beside_stalled_worker")
}
