//! release: conditions under which memory cannot be moved, and the limits on pending
//! memory.

#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "tests use memory that they have mapped themselves"
)]

mod common;

use std::time::{Duration, Instant};

use common::merging::{advise_mergeable, merge};
use common::neighbour::beside_neighbour;
use common::*;
use libtest_mimic::Completion;
use rustix::mm::MprotectFlags;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tenure::release::ReleaseLimits;
use tenure::{Error, HugePages, Mapping, PageRange, drain, page_size, stats};

tests!(
    release_without_address_space_frees_in_place,
    release_without_threads_is_freed_by_caller,
    release_without_mremap_frees_in_place,
    release_with_mremap_enomem_frees_in_place,
    release_at_map_count_limit_frees_or_reports_limit,
    failed_move_unmaps_no_neighbour,
    release_under_strict_overcommit_frees_in_place,
    release_past_pending_limit_is_freed_by_caller,
    [exclusive] release_of_merged_memory_unmerges_nothing,
    worker_count_stays_within_max_active,
    workers_leave_batch_policy_while_drain_waits;
    children:
    release_under_address_space_limit,
    release_without_threads,
    release_without_mremap,
    release_with_mremap_enomem,
    release_at_map_count_limit,
    discard_at_data_limit_beside_neighbour,
    release_under_strict_overcommit,
    release_merged_memory,
);

const MIB: usize = 1 << 20;

/// Discards and unmaps, and checks that the caller has freed everything.
fn release_in_place(mut memory: Mapping) {
    let range = memory.range();
    discard_in_place(&mut memory);
    fill(range);
    memory.munmap().unwrap();
    assert!(!is_still_mapped(range));
    drain(Some(Duration::ZERO)).expect("the memory is freed in place");
}

fn discard_in_place(memory: &mut Mapping) {
    fill(memory.range());
    memory.discard(..).unwrap();
    assert!(is_zero(memory.range()));
    drain(Some(Duration::ZERO)).expect("the memory is freed in place");
}

fn release_under_address_space_limit() {
    let memory = large();
    let now_bytes = status_kib("VmSize") * 1024;
    let limit = Rlimit {
        current: Some(now_bytes + (8 << 20)),
        ..getrlimit(Resource::As)
    };
    setrlimit(Resource::As, limit).unwrap();
    release_in_place(memory);
}

fn release_without_address_space_frees_in_place() {
    in_child_ok("release_under_address_space_limit");
}

fn release_without_threads() {
    let memory = large();
    let range = memory.range();
    drop_privileges();
    setrlimit(
        Resource::Nproc,
        Rlimit {
            current: Some(0),
            maximum: Some(0),
        },
    )
    .unwrap();
    assert!(
        std::thread::Builder::new().spawn(|| ()).is_err(),
        "threads can still be created"
    );
    memory.munmap().unwrap();
    assert!(!is_still_mapped(range));
    drain(Some(Duration::ZERO)).unwrap();
}

fn release_without_threads_is_freed_by_caller() {
    in_child_ok("release_without_threads");
}

fn release_without_mremap() {
    let memory = large();
    refuse(libc::SYS_mremap, libc::EPERM);
    release_in_place(memory);
}

fn release_without_mremap_frees_in_place() {
    in_child_ok("release_without_mremap");
}

fn release_with_mremap_enomem() {
    let memory = large();
    // The kernel's answer under strict overcommit.
    refuse(libc::SYS_mremap, libc::ENOMEM);
    release_in_place(memory);
}

fn release_with_mremap_enomem_frees_in_place() {
    in_child_ok("release_with_mremap_enomem");
}

/// Reaches `vm.max_map_count`: pages with different access do not merge.
fn fill_up_mappings() -> Vec<PageRange> {
    let mut held = Vec::new();
    loop {
        let memory = Mapping::anonymous(1024 * page_size()).map().unwrap();
        let range = memory.range();
        std::mem::forget(memory);
        held.push(range);
        for page in (1..1024).step_by(2) {
            let page = pages(range, page, 1);
            let flags = MprotectFlags::READ;
            if unsafe { rustix::mm::mprotect(page.as_ptr().cast(), page.len(), flags) }.is_err() {
                return held;
            }
        }
    }
}

fn release_at_map_count_limit() {
    let memory = large();
    let range = memory.range();
    // The worker's stack is a mapping, too.
    drop(large());
    drain_pending();
    fill(range);
    // Held until the process ends.
    let held = fill_up_mappings();
    assert!(held.len() > 1);
    // A hole in the middle of a mapping takes one mapping more.
    let part = pages(range, 5, 16 * MIB / page_size());
    let error = unsafe { part.munmap() }.unwrap_err();
    assert!(matches!(error, Error::MappingLimit { .. }), "{error}");
    assert!(error.to_string().contains("vm.max_map_count"), "{error}");
    assert!(is_filled(range), "a rejected munmap has lost contents");
    // Unmapping the whole mapping, and discarding its middle, need no mapping more.
    unsafe { part.discard() }.unwrap();
    assert!(is_zero(part));
    let before = tenure::stats().freed_by_caller_bytes;
    memory.munmap().unwrap();
    assert!(!is_still_mapped(range));
    let freed_bytes = tenure::stats().freed_by_caller_bytes - before;
    assert_eq!(freed_bytes, range.len() as u64);
}

fn release_at_map_count_limit_frees_or_reports_limit() -> Completion {
    let max_map_count = std::fs::read_to_string("/proc/sys/vm/max_map_count").unwrap();
    if max_map_count.trim().parse::<usize>().unwrap() > 1 << 20 {
        return skip("vm.max_map_count is too high to reach");
    }
    in_child_ok("release_at_map_count_limit");
    Completion::Completed
}

/// Checks that a refused discard unmaps nothing of a neighbour. An emptied mapping would be
/// charged twice for a moment, and the kernel has unmapped the target before it refuses to
/// move memory there.
fn discard_at_data_limit_beside_neighbour() {
    let mut memory = large();
    let range = memory.range();
    let limit = Rlimit {
        current: Some(status_kib("VmData") * 1024 + (56 << 20)),
        ..getrlimit(Resource::Data)
    };
    setrlimit(Resource::Data, limit).unwrap();
    let before = tenure::stats().deferred_free.calls;
    beside_neighbour(48 * MIB, || {
        fill(pages(range, 0, 1));
        memory.discard(..).unwrap();
        assert!(is_zero(pages(range, 0, 1)));
    });
    let moved = tenure::stats().deferred_free.calls - before;
    assert_eq!(moved, 0, "the limit has no effect");
}

fn failed_move_unmaps_no_neighbour() {
    in_child_ok("discard_at_data_limit_beside_neighbour");
}

fn meminfo_bytes(name: &str) -> usize {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap();
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    let kib = line.unwrap().trim().trim_end_matches(" kB");
    kib.parse::<usize>().unwrap() * 1024
}

fn release_under_strict_overcommit() {
    let mut memory = large();
    let range = memory.range();
    // Maps the remaining commit limit, except for 32 MiB, less than the memory's size. Other
    // programs may release some meanwhile, or take the rest.
    let left = meminfo_bytes("CommitLimit").saturating_sub(meminfo_bytes("Committed_AS"));
    let rest = Mapping::anonymous(left.saturating_sub(32 * MIB).max(1)).map();
    let mut held: Vec<_> = rest.into_iter().collect();
    held.extend(std::iter::from_fn(|| {
        Mapping::anonymous(range.len()).map().ok()
    }));
    discard_in_place(&mut memory);
    fill(range);
    // munmap may move it: the kernel (6.1) does not charge that again.
    memory.munmap().unwrap();
    assert!(!is_still_mapped(range));
    drain_pending();
    drop(held);
}

fn release_under_strict_overcommit_frees_in_place() -> Completion {
    // For a moment the commit limit applies to the whole machine: other programs fail.
    if !machine_is_ours() {
        return skip(
            "changes vm.overcommit_memory for the whole machine: make test-kernels runs it",
        );
    }
    const MODE: &str = "/proc/sys/vm/overcommit_memory";
    let mode = lock_setting(MODE).and_then(|lock| change_setting(MODE, lock, "2"));
    if mode.is_none() {
        return skip("needs root, to set vm.overcommit_memory for a moment");
    }
    // A backtrace needs memory that may be unavailable; the panic would then hang.
    let ended = in_child_with("RUST_BACKTRACE", "0", "release_under_strict_overcommit");
    assert!(ended.status.success(), "{ended:?}");
    Completion::Completed
}

fn release_past_pending_limit_is_freed_by_caller() {
    drain_pending();
    ReleaseLimits::default().max_pending_bytes(64 * MIB).set();
    let all: Vec<Mapping> = (0..24).map(|_| large()).collect();
    let len = all[0].range().len();
    let mut max_pending = 0;
    for memory in all {
        memory.munmap().unwrap();
        if let Err(Error::TimedOut { pending_bytes }) = drain(Some(Duration::ZERO)) {
            max_pending = max_pending.max(pending_bytes);
        }
    }
    ReleaseLimits::default().set();
    assert_eq!(max_pending, len, "more than one mapping was pending");
    drain_pending();
}

/// Returns the scheduling policies of the worker threads.
fn policies() -> Vec<i32> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let policy = |task: std::io::Result<std::fs::DirEntry>| {
        let stat = std::fs::read_to_string(task.ok()?.path().join("stat")).ok()?;
        let (name, fields) = stat.rsplit_once(") ")?;
        // The policy is the 41st field, the name the second.
        name.ends_with("(tenure-free")
            .then(|| fields.split(' ').nth(38)?.parse().ok())?
    };
    tasks.filter_map(policy).collect()
}

fn workers_leave_batch_policy_while_drain_waits() {
    drain_pending();
    drop(large());
    drain_pending();
    let is_behind = |policies: &[i32]| policies.iter().all(|&policy| policy == libc::SCHED_BATCH);
    let seen = std::thread::scope(|scope| {
        let all: Vec<Mapping> = (0..16).map(|_| large()).collect();
        drop(all);
        let waiting = scope.spawn(drain_pending);
        let mut seen = Vec::new();
        while !waiting.is_finished() {
            seen.extend(policies());
        }
        seen
    });
    assert!(
        seen.contains(&libc::SCHED_OTHER),
        "no worker left SCHED_BATCH"
    );
    // Once nobody waits, workers return to SCHED_BATCH with the next job.
    drop(large());
    let begun = Instant::now();
    while !is_behind(&policies()) {
        assert!(
            begun.elapsed() < Duration::from_secs(20),
            "{:?}",
            policies()
        );
        std::thread::sleep(Duration::from_millis(10));
        drop(large());
    }
    drain_pending();
}

/// Returns the maximum number of workers at a time while a GiB was freed; 0 where that took
/// less time than the first look.
fn max_workers_seen() -> usize {
    let all: Vec<Mapping> = (0..16).map(|_| large()).collect();
    drop(all);
    let (mut max, begun) = (0, Instant::now());
    while drain(Some(Duration::ZERO)).is_err() {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap();
        let is_worker = |task: &std::io::Result<std::fs::DirEntry>| {
            let path = task.as_ref().unwrap().path().join("comm");
            std::fs::read_to_string(path).is_ok_and(|name| name.trim() == "tenure-free")
        };
        max = max.max(tasks.filter(is_worker).count());
        assert!(begun.elapsed() < Duration::from_secs(60));
    }
    max
}

fn worker_count_stays_within_max_active() {
    drain_pending();
    // More than there are CPUs while memory is short, as a GiB is on a small machine.
    let seen = max_workers_seen();
    assert!(seen <= 4, "{seen} workers");
    ReleaseLimits::default().max_active(1).set();
    // Surplus workers end with the next job.
    drop(large());
    drain_pending();
    let seen = max_workers_seen();
    assert!(seen <= 1, "{seen} workers");
    ReleaseLimits::default().set();
}

/// To move merged pages, the kernel takes memory for each.
fn release_of_merged_memory_unmerges_nothing() -> Completion {
    let output = in_child("release_merged_memory");
    assert_ended_well("release_merged_memory", &output);
    match String::from_utf8_lossy(&output.stdout).contains(NOT_MERGED) {
        true => skip(NOT_MERGED),
        false => Completion::Completed,
    }
}

const NOT_MERGED: &str = "the kernel merges no pages here (/sys/kernel/mm/ksm)";

fn release_merged_memory() {
    let memory = || {
        let memory = Mapping::anonymous(16 * MIB).huge_pages(HugePages::Never);
        let mut memory = memory.map().unwrap();
        memory.as_mut_slice().unwrap().fill(7);
        memory
    };
    let (kept, mut released) = (memory(), memory());
    advise_mergeable(kept.range());
    if !merge(released.range()) {
        println!("{NOT_MERGED}");
        return;
    }
    let before = stats().deferred_free.bytes;
    released.discard(..).unwrap();
    assert!(is_zero(released.range()));
    released.as_mut_slice().unwrap().fill(7);
    released.munmap().unwrap();
    assert_eq!(stats().deferred_free.bytes, before);
    assert!(kept.as_slice().iter().all(|&byte| byte == 7));
}
