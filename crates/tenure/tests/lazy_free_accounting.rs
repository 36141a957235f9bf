//! lazy free under a real cgroup limit: lazily freed memory is reclaimed, no process is
//! killed, and all figures agree.

#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "tests use memory that they have mapped themselves"
)]

mod common;

use std::fs;
use std::path::Path;

use common::cgroup::{Group, enter_group};
use common::*;
use libtest_mimic::Completion;
use tenure::{PageRange, Residency, page_size};

tests!(
    [exclusive] lazy_free_at_cgroup_limit_is_reclaimed_without_oom_kill;
    children:
    allocate_beyond_limit,
);

const MIB: usize = 1 << 20;
const LIMIT: usize = 256 * MIB;
const FREED: usize = 160 * MIB;
const NEW: usize = 200 * MIB;

fn lazy_free_at_cgroup_limit_is_reclaimed_without_oom_kill() -> Completion {
    let group = match Group::with_limit(LIMIT) {
        Ok(group) => group,
        Err(why) => return skip(&why),
    };
    group.run("allocate_beyond_limit");
    Completion::Completed
}

fn allocate_beyond_limit() {
    let group = enter_group();
    let cpus = std::thread::available_parallelism().unwrap().get();
    // The kernel marks lazily free pages 31 at a time on each CPU, and counts the charges
    // of a cgroup 64 pages at a time on each.
    let batches = 31 * page_size() * cpus;
    let charges = 64 * page_size() * cpus;
    let near = |a: usize, b: usize, within: usize, what: &str| {
        assert!(a.abs_diff(b) <= within, "{what}: {a} and {b}");
    };

    warm_up(&group);
    let freed = anonymous(FREED / page_size());
    let new = anonymous(NEW / page_size());
    let process_before = Residency::of_this_process().unwrap();
    let group_before = Charged::to(&group);
    fill(freed.range());
    let freed = freed.lazy_free().unwrap();
    let residency = freed.range().residency().unwrap();
    assert_eq!(residency.resident_bytes, FREED);
    let lazily_free = residency.lazily_free_bytes.unwrap();
    near(lazily_free, FREED, batches, "lazily free");

    // Together they exceed the limit: the kernel must reclaim or kill.
    fill(new.range());
    let rest = freed.range().residency().unwrap();
    let used = new.residency().unwrap();
    let process = Residency::of_this_process().unwrap();
    let charged = Charged::to(&group);

    // The new memory is present whole, and not lazily free.
    assert_eq!(used.resident_bytes, NEW);
    assert_eq!(used.lazily_free_bytes, Some(0));
    // The remaining freed memory is lazily free, and the reclaimed part is a hole.
    let rest_free = rest.lazily_free_bytes.unwrap();
    near(rest_free, rest.resident_bytes, batches, "the rest");
    let reclaimed = FREED - rest.resident_bytes;
    assert!(
        reclaimed >= FREED + NEW - LIMIT,
        "{reclaimed} bytes were reclaimed"
    );
    let holes = freed.range().holes().unwrap();
    let hole_bytes = holes.iter().map(|hole| hole.len()).sum::<usize>();
    // Reading the figures takes memory at the limit too, so that more may be reclaimed.
    let later = FREED - freed.range().residency().unwrap().resident_bytes;
    assert!(
        (reclaimed..=later).contains(&hole_bytes),
        "{reclaimed} {hole_bytes} {later}"
    );

    // The process has grown by the sum of its parts.
    let grown = process.resident_bytes - process_before.resident_bytes;
    let parts = rest.resident_bytes + used.resident_bytes;
    near(grown, parts, batches, "grown by its parts");
    let process_free = process.lazily_free_bytes.unwrap();
    near(
        process_free,
        rest_free,
        batches,
        "lazily free in the process",
    );
    let honest = |residency: &Residency| residency.resident_without_lazily_free_bytes().unwrap();
    let grown = honest(&process) - honest(&process_before);
    near(grown, NEW, batches, "RSS without lazily free");

    // The cgroup is charged for the same pages, and for page tables.
    let anonymous = charged.anonymous - group_before.anonymous;
    near(anonymous, parts, charges, "anonymous memory of the cgroup");
    assert!(charged.usage <= LIMIT, "{} used", charged.usage);
    let beside = charged.beside_anonymous() - group_before.beside_anonymous();
    let tables = (FREED + NEW) / 512;
    near(
        beside,
        tables,
        tables / 2 + charges,
        "the cgroup's other usage",
    );

    // Reading each page shows which ones were reclaimed. (At the limit,
    // each page that the reads allocate would have others reclaimed.)
    new.munmap().unwrap();
    tenure::drain(None).unwrap();
    let before = holes;
    let holes = freed.range().holes().unwrap();
    for hole in before {
        assert!(holes.iter().any(|now| now.contains(hole)), "{hole}");
    }
    let freed = freed.reuse().unwrap();
    let is_hole = |page: PageRange| holes.iter().any(|hole| hole.contains(page));
    for page in (0..freed.range().pages()).map(|at| pages(freed.range(), at, 1)) {
        let is_kept = is_filled(page);
        assert!(is_kept || is_zero(page), "{page}");
        assert_eq!(is_kept, !is_hole(page), "{page}");
    }
}

/// Does all of it once with little memory, so that the program's own pages are resident.
fn warm_up(group: &Path) {
    let memory = anonymous(64);
    fill(memory.range());
    let idle = memory.lazy_free().unwrap();
    pages(idle.range(), 1, 62).residency().unwrap();
    idle.range().holes().unwrap();
    Residency::of_this_process().unwrap();
    Charged::to(group);
    assert!(is_filled(idle.reuse().unwrap().range()));
}

/// The charges of the cgroup, in bytes.
struct Charged {
    usage: usize,
    /// Anonymous memory that is mapped.
    anonymous: usize,
}

impl Charged {
    fn to(group: &Path) -> Self {
        let read = |file| fs::read_to_string(group.join(file));
        let usage = read("memory.usage_in_bytes").or_else(|_| read("memory.current"));
        let stat = read("memory.stat").unwrap();
        let mut lines = stat.lines().filter_map(|line| line.split_once(' '));
        let anonymous = lines.find(|(name, _)| ["total_rss", "anon"].contains(name));
        Self {
            usage: usage.unwrap().trim().parse().unwrap(),
            anonymous: anonymous.expect("rss or anon").1.parse().unwrap(),
        }
    }

    fn beside_anonymous(&self) -> usize {
        self.usage.saturating_sub(self.anonymous)
    }
}
