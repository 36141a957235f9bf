//! release: what refuses to let memory be moved, made to happen; and the limits
//! on what is pending.

#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "tests use memory that they have mapped themselves"
)]

mod common;

use std::time::{Duration, Instant};

use common::neighbour::beside_a_neighbour;
use common::*;
use libtest_mimic::Completion;
use rustix::mm::MprotectFlags;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tenure::{Error, Mapping, PageRange, ReleaseLimits, drain, page_size};

tests!(
    without_address_space_the_plain_way_serves,
    without_threads_the_caller_frees,
    without_mremap_the_plain_way_serves,
    where_nothing_more_is_promised_the_plain_way_serves,
    without_room_for_one_more_mapping,
    a_refusal_takes_nothing_from_others,
    under_strict_overcommit_the_plain_way_serves,
    past_the_bound_callers_free_themselves,
    no_more_workers_than_allowed,
    workers_hurry_while_somebody_waits;
    children:
    release_under_address_space_limit,
    release_without_threads,
    release_without_mremap,
    release_where_nothing_is_promised,
    release_without_mappings,
    discard_at_the_data_limit_beside_a_neighbour,
    release_under_strict_overcommit,
);

const MIB: usize = 1 << 20;

/// Discards and unmaps, and checks that the caller has done it all.
fn release_plainly(mut memory: Mapping) {
    let range = memory.range();
    discard_plainly(&mut memory);
    fill(range);
    memory.munmap().unwrap();
    assert!(!is_still_there(range));
    drain(Some(Duration::ZERO)).expect("moved all the same");
}

fn discard_plainly(memory: &mut Mapping) {
    fill(memory.range());
    memory.discard(..).unwrap();
    assert!(is_zero(memory.range()));
    drain(Some(Duration::ZERO)).expect("moved all the same");
}

fn release_under_address_space_limit() {
    let memory = large();
    let now_bytes = status_kib("VmSize") * 1024;
    let limit = Rlimit {
        current: Some(now_bytes + (8 << 20)),
        ..getrlimit(Resource::As)
    };
    setrlimit(Resource::As, limit).unwrap();
    release_plainly(memory);
}

fn without_address_space_the_plain_way_serves() {
    in_child_ok("release_under_address_space_limit");
}

fn release_without_threads() {
    let memory = large();
    let range = memory.range();
    give_up_privileges();
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
        "threads can be had"
    );
    memory.munmap().unwrap();
    assert!(!is_still_there(range));
    drain(Some(Duration::ZERO)).unwrap();
}

fn without_threads_the_caller_frees() {
    in_child_ok("release_without_threads");
}

fn release_without_mremap() {
    let memory = large();
    refuse(libc::SYS_mremap, libc::EPERM);
    release_plainly(memory);
}

fn without_mremap_the_plain_way_serves() {
    in_child_ok("release_without_mremap");
}

fn release_where_nothing_is_promised() {
    let memory = large();
    // What the kernel answers under strict overcommit.
    refuse(libc::SYS_mremap, libc::ENOMEM);
    release_plainly(memory);
}

fn where_nothing_more_is_promised_the_plain_way_serves() {
    in_child_ok("release_where_nothing_is_promised");
}

/// Uses up `vm.max_map_count`: pages whose access differs do not merge.
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

fn release_without_mappings() {
    let memory = large();
    let range = memory.range();
    // The worker's stack is a mapping, too.
    drop(large());
    settle();
    fill(range);
    // Held until the process ends.
    let held = fill_up_mappings();
    assert!(held.len() > 1);
    // A hole in the middle of a mapping takes one mapping more.
    let part = pages(range, 5, 16 * MIB / page_size());
    let error = unsafe { part.munmap() }.unwrap_err();
    assert!(matches!(error, Error::NoRoom { .. }), "{error}");
    assert!(error.to_string().contains("vm.max_map_count"), "{error}");
    assert!(is_filled(range), "refused, and nothing lost");
    // All of it, and a discard of its middle, take none.
    unsafe { part.discard() }.unwrap();
    assert!(is_zero(part));
    let before = tenure::stats().freed_by_caller_bytes;
    memory.munmap().unwrap();
    assert!(!is_still_there(range));
    let freed_bytes = tenure::stats().freed_by_caller_bytes - before;
    assert_eq!(freed_bytes, range.len() as u64);
}

fn without_room_for_one_more_mapping() -> Completion {
    let most = std::fs::read_to_string("/proc/sys/vm/max_map_count").unwrap();
    if most.trim().parse::<usize>().unwrap() > 1 << 20 {
        return skip("vm.max_map_count is too high to be reached");
    }
    in_child_ok("release_without_mappings");
    Completion::Completed
}

/// Emptied, the memory would count twice for a moment: the kernel has unmapped what
/// is at the place when it refuses to move it there.
fn discard_at_the_data_limit_beside_a_neighbour() {
    let mut memory = large();
    let range = memory.range();
    let limit = Rlimit {
        current: Some(status_kib("VmData") * 1024 + (56 << 20)),
        ..getrlimit(Resource::Data)
    };
    setrlimit(Resource::Data, limit).unwrap();
    let before = tenure::stats().carried_off.calls;
    beside_a_neighbour(48 * MIB, || {
        fill(pages(range, 0, 1));
        memory.discard(..).unwrap();
        assert!(is_zero(pages(range, 0, 1)));
    });
    let moved = tenure::stats().carried_off.calls - before;
    assert_eq!(moved, 0, "the limit does not hold");
}

fn a_refusal_takes_nothing_from_others() {
    in_child_ok("discard_at_the_data_limit_beside_a_neighbour");
}

/// A sysctl that has its old value again when this is dropped.
struct Sysctl {
    path: &'static str,
    before: String,
}

impl Sysctl {
    fn set(path: &'static str, value: &str) -> Option<Self> {
        let before = std::fs::read_to_string(path).ok()?;
        std::fs::write(path, value).ok()?;
        Some(Self { path, before })
    }
}

impl Drop for Sysctl {
    fn drop(&mut self) {
        std::fs::write(self.path, self.before.trim()).expect("the sysctl can be set back");
    }
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
    // The rest of what may be promised, but for less than the memory has. Others
    // may give up some meanwhile, or take the little there is left.
    let left = meminfo_bytes("CommitLimit").saturating_sub(meminfo_bytes("Committed_AS"));
    let most = Mapping::anonymous(left.saturating_sub(32 * MIB).max(1)).map();
    let mut held: Vec<_> = most.into_iter().collect();
    held.extend(std::iter::from_fn(|| {
        Mapping::anonymous(range.len()).map().ok()
    }));
    discard_plainly(&mut memory);
    fill(range);
    // This may be moved: the kernel (6.1) does not count that as a promise more.
    memory.munmap().unwrap();
    assert!(!is_still_there(range));
    settle();
    drop(held);
}

fn under_strict_overcommit_the_plain_way_serves() -> Completion {
    // For a moment nobody is promised more than the machine has: other programs fail.
    if !machine_is_ours() {
        return skip(
            "changes vm.overcommit_memory for the whole machine: make test-kernels runs it",
        );
    }
    let mode = Sysctl::set("/proc/sys/vm/overcommit_memory", "2");
    if mode.is_none() {
        return skip("needs root, to set vm.overcommit_memory for a moment");
    }
    // A backtrace takes memory that may not be had; then a panic waits for ever.
    let ended = in_child_with("RUST_BACKTRACE", "0", "release_under_strict_overcommit");
    assert!(ended.status.success(), "{ended:?}");
    Completion::Completed
}

fn past_the_bound_callers_free_themselves() {
    settle();
    ReleaseLimits::default().max_pending_bytes(64 * MIB).set();
    let all: Vec<Mapping> = (0..24).map(|_| large()).collect();
    let len = all[0].range().len();
    let mut most_pending = 0;
    for memory in all {
        memory.munmap().unwrap();
        if let Err(Error::TimedOut { pending_bytes }) = drain(Some(Duration::ZERO)) {
            most_pending = most_pending.max(pending_bytes);
        }
    }
    ReleaseLimits::default().set();
    assert_eq!(most_pending, len, "one at a time is past the bound");
    settle();
}

/// The scheduling policies of the threads of ours.
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

fn workers_hurry_while_somebody_waits() {
    settle();
    drop(large());
    settle();
    let is_behind = |policies: &[i32]| policies.iter().all(|&policy| policy == libc::SCHED_BATCH);
    let seen = std::thread::scope(|scope| {
        let all: Vec<Mapping> = (0..16).map(|_| large()).collect();
        drop(all);
        let waiting = scope.spawn(settle);
        let mut seen = Vec::new();
        while !waiting.is_finished() {
            seen.extend(policies());
        }
        seen
    });
    assert!(seen.contains(&libc::SCHED_OTHER), "nobody hurried");
    // Without a hurry they step behind others again, with the next work.
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
    settle();
}

/// The most threads of ours that were there at a time while a GiB was freed.
fn workers_seen() -> usize {
    let all: Vec<Mapping> = (0..16).map(|_| large()).collect();
    drop(all);
    let (mut most, begun) = (0, Instant::now());
    while drain(Some(Duration::ZERO)).is_err() {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap();
        let is_worker = |task: &std::io::Result<std::fs::DirEntry>| {
            let path = task.as_ref().unwrap().path().join("comm");
            std::fs::read_to_string(path).is_ok_and(|name| name.trim() == "tenure-free")
        };
        most = most.max(tasks.filter(is_worker).count());
        assert!(begun.elapsed() < Duration::from_secs(60));
    }
    most
}

fn no_more_workers_than_allowed() {
    settle();
    let cpus = std::thread::available_parallelism().unwrap().get();
    assert!((1..=cpus.min(4)).contains(&workers_seen()));
    ReleaseLimits::default().max_active(1).set();
    // Those that are too many end with the next work.
    drop(large());
    settle();
    assert_eq!(workers_seen(), 1);
    ReleaseLimits::default().set();
}
