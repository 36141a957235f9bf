//! What a process holds: mappings, descriptors, threads and locked memory, to see
//! whether a failed call has left something behind.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// How much there is of each kind.
pub type State = BTreeMap<String, u64>;

/// Threads that end when their work is done; others linger.
const PASSING: &[&str] = &["tenure-populate", "tenure-budget"];

/// Waits until everything that ends by itself has ended.
pub fn settle() {
    super::common::settle();
    let start = Instant::now();
    while threads().any(|name| PASSING.contains(&name.as_str())) {
        assert!(start.elapsed() < Duration::from_secs(10), "threads go on");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The C library unmaps the stacks of threads that have ended when another ends.
fn unmap_stacks() {
    std::thread::spawn(|| ()).join().unwrap();
}

/// What is there at several looks: threads in the background open files for a moment.
pub fn lasting() -> State {
    unmap_stacks();
    let mut least = now();
    for _ in 0..5 {
        std::thread::sleep(Duration::from_millis(3));
        lessen(&mut least);
    }
    least
}

/// Waits until there is no more than usual, for a second at most.
pub fn without_excess(usual: &State) -> State {
    let start = Instant::now();
    unmap_stacks();
    let mut least = now();
    while !excess(&least, usual).is_empty() && start.elapsed() < Duration::from_secs(1) {
        std::thread::sleep(Duration::from_millis(3));
        unmap_stacks();
        let state = lessen(&mut least);
        // As they are now, for each explains a stack: one may have started between the
        // look at the threads and the one at the mappings.
        least.extend(
            state
                .into_iter()
                .filter(|(kind, _)| kind.starts_with("threads ")),
        );
    }
    least
}

/// Looks once more, and keeps what is there at both looks. Answers what it has seen.
fn lessen(least: &mut State) -> State {
    let state = now();
    least.retain(|kind, amount| {
        *amount = state.get(kind).copied().unwrap_or(0).min(*amount);
        *amount > 0
    });
    state
}

fn now() -> State {
    let mut state = State::new();
    let mut add = |kind: String, amount| *state.entry(kind).or_default() += amount;
    // Before the mappings, so that there is a stack for each.
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

/// What there is more of than in a process in which nothing failed.
///
/// Not counted: threads that linger for ten seconds and come when they are first
/// needed, with their stacks and what the watcher of pressure waits for; and addresses without access, for where a part of
/// them cannot be unmapped they stay reserved, which takes no memory.
pub fn excess(state: &State, clean: &State) -> Vec<String> {
    let of = |state: &State, kind: &str| state.get(kind).copied().unwrap_or(0);
    let more = |kind: &str| of(state, kind).saturating_sub(of(clean, kind));
    let lingering = ["free", "keeper", "pressure"].map(|name| format!("threads tenure-{name}"));
    let stacks: u64 = lingering.iter().map(|name| more(name)).sum();
    let allowed = |kind: &str| match kind {
        kind if lingering.iter().any(|name| name == kind) => 2,
        "descriptors of /proc/pressure/memory" => 1,
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
