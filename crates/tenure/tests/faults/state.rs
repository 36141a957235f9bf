//! The resources of a process: mappings, descriptors, threads and locked memory. Comparing
//! them shows whether a failed call has leaked any.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// The amount of each kind of resource.
pub type State = BTreeMap<String, u64>;

/// Threads that end when their work is done; others stay for a while.
const PASSING: &[&str] = &[
    "tenure-populate",
    "tenure-pool",
    "tenure-evictor",
    "tenure-limits",
];

/// Waits until pending memory is freed and every passing thread has ended.
pub fn wait_until_idle() {
    super::common::drain_pending();
    let start = Instant::now();
    while threads().any(|name| PASSING.contains(&name.as_str())) {
        assert!(
            start.elapsed() < Duration::from_secs(60),
            "threads do not end"
        );
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Has the C library unmap the stacks of threads that have ended, which it does when
/// another ends.
fn unmap_stacks() {
    std::thread::spawn(|| ()).join().unwrap();
}

/// Returns the minimum over several looks: threads in the background open files for a
/// moment.
pub fn lasting() -> State {
    unmap_stacks();
    let mut minimum = now();
    for _ in 0..5 {
        std::thread::sleep(Duration::from_millis(3));
        take_minimum(&mut minimum);
    }
    minimum
}

/// Waits until there is no more than usual. A thread in the background may have a file open for
/// as long as it gets no CPU; what is leaked stays for ever.
pub fn without_excess(usual: &State) -> State {
    const LIMIT: Duration = Duration::from_secs(20);
    let start = Instant::now();
    unmap_stacks();
    let mut minimum = now();
    while !excess(&minimum, usual).is_empty() && start.elapsed() < LIMIT {
        std::thread::sleep(Duration::from_millis(3));
        unmap_stacks();
        let state = take_minimum(&mut minimum);
        // Current threads replace the minimum, because each accounts for a stack: one may
        // have started between the look at the threads and the one at the mappings.
        minimum.extend(
            state
                .into_iter()
                .filter(|(kind, _)| kind.starts_with("threads ")),
        );
    }
    minimum
}

/// Looks once more and reduces `minimum` to the minimum of both. Returns the new look.
fn take_minimum(minimum: &mut State) -> State {
    let state = now();
    minimum.retain(|kind, amount| {
        *amount = state.get(kind).copied().unwrap_or(0).min(*amount);
        *amount > 0
    });
    state
}

fn now() -> State {
    let mut state = State::new();
    let mut add = |kind: String, amount| *state.entry(kind).or_default() += amount;
    // Threads are read before the mappings, so that each has its stack there.
    threads().for_each(|name| add(format!("threads {name}"), 1));
    for line in read("maps").lines() {
        let mut fields = line.split_whitespace();
        let bounds = super::common::smaps_bounds(line).unwrap();
        let (access, path) = (fields.nth(1).unwrap(), fields.nth(3).unwrap_or("anonymous"));
        // These grow by themselves.
        if !matches!(path, "[heap]" | "[stack]") {
            add(format!("bytes mapped {access} {path}"), bounds.len() as u64);
        }
    }
    for entry in std::fs::read_dir("/proc/self/fd").unwrap() {
        let path = std::fs::read_link(entry.unwrap().path()).unwrap_or_default();
        let path = super::table::without_numbers(path.to_str().unwrap());
        add(format!("descriptors of {path}"), 1);
    }
    add("KiB locked".to_owned(), super::common::status_kib("VmLck"));
    state
}

pub fn text(state: &State) -> String {
    let lines = state
        .iter()
        .map(|(kind, amount)| format!("{amount}\t{kind}\n"));
    lines.collect()
}

pub fn parse(text: &str) -> State {
    let parts = text.lines().filter_map(|line| line.split_once('\t'));
    parts
        .map(|(amount, kind)| (kind.to_owned(), amount.parse().unwrap()))
        .collect()
}

/// Returns what there is more of than in a process in which nothing failed.
///
/// It does not count threads that stay and start when they are first needed, with their
/// stacks and the pressure watcher's descriptor; nor addresses without access, because a
/// part of them that cannot be unmapped stays reserved, which takes no memory.
pub fn excess(state: &State, clean: &State) -> Vec<String> {
    let of = |state: &State, kind: &str| state.get(kind).copied().unwrap_or(0);
    let more = |kind: &str| of(state, kind).saturating_sub(of(clean, kind));
    let lingering =
        ["files", "free", "offer", "pressure"].map(|name| format!("threads tenure-{name}"));
    let stacks: u64 = lingering.iter().map(|name| more(name)).sum();
    let allowed = |kind: &str| match kind {
        kind if lingering.iter().any(|name| name == kind) => 2,
        "descriptors of /proc/pressure/memory" => 1,
        // The offer thread closes it when it exits.
        "descriptors of anon_inode:[userfaultfd]" => more("threads tenure-offer"),
        "bytes mapped rw-p anonymous" => stacks * (2 << 20),
        "bytes mapped ---p anonymous" => 2 << 30,
        _ => 0,
    };
    let is_excess = |kind: &&String| more(kind) > allowed(kind);
    let kinds = state.keys().filter(is_excess);
    kinds
        .map(|kind| format!("{} instead of {} {kind}", of(state, kind), of(clean, kind)))
        .collect()
}

fn threads() -> impl Iterator<Item = String> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    tasks.filter_map(|task| {
        let name = std::fs::read_to_string(task.unwrap().path().join("comm")).ok()?;
        Some(name.trim_end().to_owned())
    })
}

fn read(file: &str) -> String {
    std::fs::read_to_string(format!("/proc/self/{file}")).unwrap()
}
