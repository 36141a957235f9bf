//! Machines with several NUMA nodes: each verb leaves memory on the nodes that `mbind(2)` named
//! for it, whichever thread it makes the kernel allocate pages in.

#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "tests use memory that they have mapped themselves"
)]

mod common;

use common::pool::{self, Pool};
use common::*;
use libtest_mimic::Completion;
use tenure::lazy_free::FreePolicy;
use tenure::populate::{PopulateOptions, Strategy};
use tenure::{Access, LockMode, Mapping, Outcome, PageRange, VolatileBuffer, page_size};

tests!(
    unless: without_nodes;
    populate_allocates_on_the_bound_node,
    populate_of_shared_memory_allocates_on_the_bound_node,
    pool_gives_no_pages_to_bound_memory,
    lock_allocates_on_the_bound_node,
    reuse_of_reclaimed_memory_allocates_on_the_bound_node,
    discarded_memory_keeps_its_node,
    pending_memory_is_freed_on_its_node,
    purged_buffer_keeps_its_node;
    children:
);

/// Returns the nodes that have memory.
fn nodes() -> Vec<usize> {
    let text = std::fs::read_to_string("/sys/devices/system/node/has_memory").unwrap_or_default();
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        first.parse().unwrap()..=last.parse().unwrap()
    };
    let parts = text.trim().split(',').filter(|part| !part.is_empty());
    parts.flat_map(range).collect()
}

fn without_nodes() -> Option<&'static str> {
    if nodes().len() < 2 {
        return Some("needs two NUMA nodes");
    }
    let page = anonymous(1);
    (!bind(page.range(), nodes()[1])).then_some("mbind is refused here")
}

/// Has pages of the range come from one node alone: `mbind(2)`.
fn bind(range: PageRange, node: usize) -> bool {
    let mask = 1_u64 << node;
    let answer = unsafe {
        libc::syscall(
            libc::SYS_mbind,
            range.as_ptr(),
            range.len(),
            libc::MPOL_BIND,
            &raw const mask,
            u64::BITS,
            0,
        )
    };
    answer == 0
}

/// Returns the node of each page, or the negative error of an absent one: `move_pages(2)`.
fn nodes_of(range: PageRange) -> Vec<i32> {
    let starts: Vec<_> = (0..range.pages())
        .map(|page| pages(range, page, 1).start())
        .collect();
    let mut found = vec![0_i32; starts.len()];
    let answer = unsafe {
        libc::syscall(
            libc::SYS_move_pages,
            0,
            starts.len(),
            starts.as_ptr(),
            std::ptr::null::<i32>(),
            found.as_mut_ptr(),
            0,
        )
    };
    assert_eq!(answer, 0, "{}", std::io::Error::last_os_error());
    found
}

fn assert_on_node(range: PageRange, node: usize) {
    let found = nodes_of(range);
    let elsewhere = found.iter().position(|&found| found != node as i32);
    assert_eq!(elsewhere.map(|page| (page, found[page])), None, "on {node}");
}

/// Maps memory that is bound to each node in turn.
fn on_each_node(page_count: usize, check: impl Fn(Mapping, usize)) {
    for node in nodes() {
        let memory = anonymous(page_count);
        assert!(bind(memory.range(), node));
        check(memory, node);
    }
}

fn populate_allocates_on_the_bound_node() {
    let page_count = (8 << 20) / page_size();
    for strategy in [Strategy::Auto, Strategy::Populate, Strategy::Touch] {
        for threads in [1, 2] {
            let options = PopulateOptions::new(Access::Write)
                .strategy(strategy)
                .threads(threads);
            on_each_node(page_count, |memory, node| {
                memory.populate_with(.., &options).unwrap();
                assert_on_node(memory.range(), node);
            });
        }
    }
}

fn populate_of_shared_memory_allocates_on_the_bound_node() {
    for node in nodes() {
        let memory = Mapping::shared_anonymous(4 << 20).map().unwrap();
        assert!(bind(memory.range(), node));
        let options = PopulateOptions::new(Access::Write).threads(2);
        memory.populate_with(.., &options).unwrap();
        assert_on_node(memory.range(), node);
    }
}

fn pool_gives_no_pages_to_bound_memory() -> Completion {
    if let Some(reason) = pool::missing() {
        return skip(reason);
    }
    for node in nodes() {
        let _pool = Pool::of(pool::LEN);
        if let Err(completion) = pool::fill_pool(pool::LEN) {
            return completion;
        }
        let memory = Mapping::anonymous(pool::LEN).map().unwrap();
        assert!(bind(memory.range(), node));
        memory.populate(.., Access::Write).unwrap();
        assert_on_node(memory.range(), node);
    }
    Completion::Completed
}

fn lock_allocates_on_the_bound_node() {
    on_each_node(8, |memory, node| {
        memory.lock(.., LockMode::Now).unwrap();
        assert_on_node(memory.range(), node);
    });
}

fn reuse_of_reclaimed_memory_allocates_on_the_bound_node() {
    for policy in [FreePolicy::Lazy, FreePolicy::Eager, FreePolicy::Adaptive] {
        on_each_node(512, |memory, node| {
            fill(memory.range());
            let idle = memory.free(policy).unwrap();
            page_out(idle.range());
            let memory = idle.reuse().unwrap();
            assert_on_node(memory.range(), node);
        });
    }
}

fn discarded_memory_keeps_its_node() {
    // In place, and by moving the pages away.
    for page_count in [16, (64 << 20) / page_size()] {
        on_each_node(page_count, |mut memory, node| {
            memory.populate(.., Access::Write).unwrap();
            memory.discard(..).unwrap();
            drain_pending();
            fill(memory.range());
            assert_on_node(memory.range(), node);
        });
    }
}

fn purged_buffer_keeps_its_node() {
    on_each_node(64, |memory, node| {
        let range = memory.range();
        fill(range);
        let mut buffer = VolatileBuffer::from_mapping(memory).unwrap();
        buffer.mark_volatile();
        buffer.purge().unwrap();
        let outcome = buffer.mark_nonvolatile().unwrap();
        assert_eq!(outcome, Outcome::Purged(vec![range]));
        fill(range);
        assert_on_node(range, node);
    });
}

/// Returns the CPUs that the threads of this process with a name may use.
fn cpus_of_threads(name: &str) -> Vec<String> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let read = |path: std::path::PathBuf| std::fs::read_to_string(path).unwrap_or_default();
    let cpus = tasks.filter_map(|task| {
        let path = task.ok()?.path();
        let status = read(path.join("status"));
        let line = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
        let is_named = line("Name:\t") == Some(name);
        is_named.then_some(line("Cpus_allowed_list:\t")?.to_owned())
    });
    cpus.collect()
}

fn pending_memory_is_freed_on_its_node() -> Completion {
    let read = |path: &str| std::fs::read_to_string(path).unwrap().trim().to_owned();
    let all = read("/sys/devices/system/cpu/online");
    if !cpus_of_threads("numa").contains(&all) && !cpus_of_threads("main").contains(&all) {
        return skip("the process may not use all CPUs");
    }
    for node in nodes() {
        let cpus = read(&format!("/sys/devices/system/node/node{node}/cpulist"));
        let memory = anonymous((256 << 20) / page_size());
        assert!(bind(memory.range(), node));
        memory.populate(.., Access::Write).unwrap();
        memory.munmap().unwrap();
        let mut seen = Vec::new();
        while tenure::stats().pending_release_bytes > 0 {
            seen.extend(cpus_of_threads("tenure-free"));
        }
        assert!(seen.contains(&cpus), "{seen:?} instead of {cpus}");
    }
    let are_back = || {
        cpus_of_threads("tenure-free")
            .iter()
            .all(|cpus| *cpus == all)
    };
    assert!(pool::wait_until(are_back));
    Completion::Completed
}
