//! pressure: one level, polled or notified, under real pressure too.

#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "tests use memory that they have mapped themselves"
)]

mod common;

use std::collections::VecDeque;
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use common::cgroup::{Group, enter_group};
use common::*;
use libtest_mimic::Completion;
use tenure::page_size;
use tenure::pressure::{self, Level, Reason, Snapshot, StallSource, Subscription};

tests!(
    snapshot_starts_no_thread,
    snapshot_fields_are_consistent,
    watcher_ends_with_last_subscription,
    [exclusive] idle_watcher_uses_little_cpu,
    [exclusive] direct_reclaim_is_severe_then_subsides,
    [exclusive] own_cgroup_stalls_are_severe,
    [exclusive] file_streaming_at_limit_is_not_severe,
    [exclusive] low_headroom_is_severe_before_oom_kill,
    [exclusive] subscriber_under_pressure_is_notified,
    subscription_dropped_in_its_callback_ends_watcher,
    dropped_subscription_waits_for_running_callback,
    panicking_callback_ends_only_its_subscription,
    forked_child_has_no_watcher;
    children:
    take_snapshot_without_thread,
    free_lazily_beyond_limit,
    stall_in_own_cgroup,
    stream_files,
    use_nearly_all_headroom,
    subscribe_at_low_headroom,
    drop_inside_callback,
    drop_during_callback,
    panic_in_callback,
    fork_with_watcher,
);

const MIB: usize = 1 << 20;

/// The time within which an event must happen; no assertion depends on how long it takes.
const LONG: Duration = Duration::from_secs(60);

fn watchers() -> usize {
    let tasks = fs::read_dir("/proc/self/task").unwrap();
    tasks
        .filter_map(|task| fs::read_to_string(task.ok()?.path().join("comm")).ok())
        .filter(|name| name.trim() == "tenure-pressure")
        .count()
}

fn eventually(what: &str, is_so: impl Fn() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < LONG, "{what}: not after {LONG:?}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// Subscribes with a callback that sends each level into a channel.
fn subscribe() -> (Subscription, Receiver<Level>) {
    let (send, receive) = channel();
    let notify = move |level| {
        let _ = send.send(level);
    };
    (pressure::subscribe(notify).unwrap(), receive)
}

/// Waits until this level is notified.
fn wait_for(level: Level, levels: &Receiver<Level>) {
    let begin = Instant::now();
    while levels
        .recv_timeout(LONG.saturating_sub(begin.elapsed()))
        .expect("a notification")
        != level
    {}
}

fn run_in_group(limit_bytes: usize, child: &str) -> Completion {
    match Group::with_limit(limit_bytes) {
        Ok(group) => group.run(child),
        Err(why) => return skip(&why),
    }
    Completion::Completed
}

fn snapshot_starts_no_thread() {
    in_child_ok("take_snapshot_without_thread");
}

fn take_snapshot_without_thread() {
    pressure::level();
    Snapshot::now().unwrap();
    let threads = fs::read_dir("/proc/self/task").unwrap().count();
    assert_eq!(threads, 1);
}

fn snapshot_fields_are_consistent() {
    let snapshot = Snapshot::now().unwrap();
    let has_psi = tenure::Features::get().psi.is_ok();
    assert_eq!(
        snapshot.stall_source == StallSource::Nothing,
        !has_psi,
        "{snapshot:?}"
    );
    assert_eq!(snapshot.some_stalled.is_some(), has_psi, "{snapshot:?}");
    assert!(snapshot.headroom.bytes > 0, "{snapshot:?}");
    assert_eq!(
        snapshot.level == Level::None,
        snapshot.reason == Reason::None,
        "{snapshot:?}"
    );
}

fn watcher_ends_with_last_subscription() {
    let (first, _) = subscribe();
    let (second, _) = subscribe();
    eventually("a watcher", || watchers() == 1);
    drop(first);
    drop(second);
    eventually("no watcher", || watchers() == 0);
    // Again, also while the old watcher may still be running.
    for _ in 0..20 {
        let (subscription, _) = subscribe();
        // A watcher that ends is visible a moment longer.
        eventually("one watcher", || watchers() <= 1);
        drop(subscription);
    }
    eventually("no watcher again", || watchers() == 0);
}

fn idle_watcher_uses_little_cpu() {
    let (_subscription, _) = subscribe();
    eventually("a watcher", || watchers() == 1);
    let ticks = || {
        let tasks = fs::read_dir("/proc/self/task").unwrap();
        let stats =
            tasks.map(|task| fs::read_to_string(task.unwrap().path().join("stat")).unwrap());
        let stat = stats
            .into_iter()
            .find(|stat| stat.contains("(tenure-pressur"))
            .unwrap();
        let fields: Vec<&str> = stat.rsplit(") ").next().unwrap().split(' ').collect();
        fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
    };
    let begin = Instant::now();
    for _ in 0..10 {
        Snapshot::now().unwrap();
    }
    // Ticks of 10 ms: a tenth of a CPU would be 30. Where a snapshot takes very long, under
    // emulation, the watcher is allowed as much as ten snapshots take: it takes one a
    // second.
    let max_ticks = (begin.elapsed().as_millis() as u64 / 10).max(10);
    let before = ticks();
    thread::sleep(Duration::from_secs(3));
    let took = ticks() - before;
    assert!(took < max_ticks, "{took} ticks in 3 s, {max_ticks} at most");
}

fn direct_reclaim_is_severe_then_subsides() -> Completion {
    // Without PSI, tenure estimates stalls from the time that one takes, and an emulated
    // machine is ten times as slow.
    if tenure::Features::get().psi.is_err() {
        return skip("the kernel reports no stalls (PSI)");
    }
    run_in_group(192 * MIB, "free_lazily_beyond_limit")
}

fn free_lazily_beyond_limit() {
    enter_group();
    let (_subscription, levels) = subscribe();
    let load = LazyFreeLoad::start();
    wait_for(Level::Severe, &levels);
    assert_eq!(pressure::level(), Level::Severe);
    drop(load);
    // The level falls one step at a time.
    assert_eq!(levels.recv_timeout(LONG), Ok(Level::Some));
    assert_eq!(levels.recv_timeout(LONG), Ok(Level::None));
}

/// Threads that write and lazily free 256 MiB.
struct LazyFreeLoad {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl LazyFreeLoad {
    fn start() -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let threads = (0..4).map(|_| {
            let stop = Arc::clone(&stop);
            let chunk = || anonymous(4 * MIB / page_size()).lazy_free().unwrap();
            thread::spawn(move || {
                let mut chunks: VecDeque<_> = (0..16).map(|_| chunk()).collect();
                while !stop.load(SeqCst) {
                    // At the limit a reuse may be refused, and is tried again later.
                    let chunk = match chunks.pop_front().unwrap().reuse() {
                        Ok(memory) => {
                            fill(memory.range());
                            memory.lazy_free().unwrap()
                        }
                        Err(refused) => refused.value,
                    };
                    chunks.push_back(chunk);
                }
            })
        });
        Self {
            threads: threads.collect(),
            stop,
        }
    }
}

impl Drop for LazyFreeLoad {
    fn drop(&mut self) {
        self.stop.store(true, SeqCst);
        for thread in self.threads.drain(..) {
            thread.join().unwrap();
        }
    }
}

/// Runs `child` in a group whose stalls are its own, so that a neighbour's do not count.
fn with_own_stalls(limit_bytes: usize, child: &str) -> Completion {
    if tenure::Features::get().psi.is_err() {
        return skip("the kernel reports no stalls (PSI)");
    }
    match Group::with_limit(limit_bytes).and_then(Group::with_unified) {
        Ok(group) => group.run(child),
        Err(why) => return skip(&why),
    }
    Completion::Completed
}

fn own_cgroup_stalls_are_severe() -> Completion {
    with_own_stalls(192 * MIB, "stall_in_own_cgroup")
}

fn stall_in_own_cgroup() {
    enter_group();
    let (_subscription, levels) = subscribe();
    let _load = LazyFreeLoad::start();
    wait_for(Level::Severe, &levels);
    let snapshot = Snapshot::now().unwrap();
    assert!(
        matches!(snapshot.stall_source, StallSource::OwnCgroup(_)),
        "{snapshot:?}"
    );
    assert!(snapshot.trigger.is_ok(), "{snapshot:?}");
}

/// While other programs use all CPUs, a task that reclaims waits for a CPU in the middle of
/// it, and the kernel counts that as a stall, too: stalls are longer than memory is short.
fn file_streaming_at_limit_is_not_severe() -> Completion {
    let (begin, waited_before) = (Instant::now(), cpu_waits());
    let outcome = std::panic::catch_unwind(|| with_own_stalls(64 * MIB, "stream_files"));
    outcome.unwrap_or_else(|panic| {
        let waited = cpu_waits().saturating_sub(waited_before);
        if waited < begin.elapsed() / 2 {
            std::panic::resume_unwind(panic);
        }
        skip("other programs use all CPUs, which makes stalls longer")
    })
}

/// How long some task of the machine has waited for a CPU.
fn cpu_waits() -> Duration {
    let text = std::fs::read_to_string("/proc/pressure/cpu").unwrap_or_default();
    let total = text.split_once("total=").map_or("", |(_, rest)| rest);
    let micros = total.lines().next().and_then(|total| total.parse().ok());
    Duration::from_micros(micros.unwrap_or(0))
}

fn stream_files() {
    use std::os::unix::fs::FileExt;
    enter_group();
    let file = tempfile::tempfile().unwrap();
    file.set_len(512 * MIB as u64).unwrap();
    let (subscription, levels) = subscribe();
    let mut buffer = vec![0; MIB];
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(4) {
        for at in 0..512 {
            file.read_exact_at(&mut buffer, (at * MIB) as u64).unwrap();
        }
    }
    drop(subscription);
    let seen: Vec<Level> = levels.iter().collect();
    assert!(!seen.contains(&Level::Severe), "{seen:?}");
}

fn low_headroom_is_severe_before_oom_kill() -> Completion {
    run_in_group(192 * MIB, "use_nearly_all_headroom")
}

fn use_nearly_all_headroom() {
    enter_group();
    let (_subscription, levels) = subscribe();
    assert_eq!(pressure::level(), Level::None);
    let memory = fill_up(4 * MIB);
    wait_for(Level::Severe, &levels);
    assert_eq!(Snapshot::now().unwrap().reason, Reason::LowHeadroom);
    drop(memory);
}

/// Allocates memory until only `left_bytes` of the group's limit are left.
fn fill_up(left_bytes: usize) -> Vec<tenure::Mapping> {
    let mut memory = Vec::new();
    while tenure::Headroom::now().unwrap().bytes > left_bytes {
        let piece = anonymous(MIB / page_size());
        fill(piece.range());
        memory.push(piece);
    }
    memory
}

fn subscriber_under_pressure_is_notified() -> Completion {
    run_in_group(192 * MIB, "subscribe_at_low_headroom")
}

fn subscribe_at_low_headroom() {
    enter_group();
    let memory = fill_up(4 * MIB);
    assert_eq!(pressure::level(), Level::Severe);
    let (_first, first_levels) = subscribe();
    assert_eq!(first_levels.recv_timeout(LONG), Ok(Level::Severe));
    let (_second, second_levels) = subscribe();
    assert_eq!(second_levels.recv_timeout(LONG), Ok(Level::Severe));
    drop(memory);
}

fn subscription_dropped_in_its_callback_ends_watcher() -> Completion {
    run_in_group(192 * MIB, "drop_inside_callback")
}

fn drop_inside_callback() {
    enter_group();
    let memory = fill_up(4 * MIB);
    let slot = Arc::new(Mutex::new(None::<Subscription>));
    let calls = Arc::new(AtomicUsize::new(0));
    let (of_call, counted) = (Arc::clone(&slot), Arc::clone(&calls));
    let mut held = slot.lock().unwrap();
    *held = Some(
        pressure::subscribe(move |_| {
            of_call.lock().unwrap().take();
            counted.fetch_add(1, SeqCst);
        })
        .unwrap(),
    );
    drop(held);
    eventually("a call", || calls.load(SeqCst) == 1);
    eventually("no watcher", || watchers() == 0);
    // The closure is dropped as well.
    assert_eq!(Arc::strong_count(&slot), 1);
    drop(memory);
}

fn dropped_subscription_waits_for_running_callback() -> Completion {
    run_in_group(192 * MIB, "drop_during_callback")
}

fn drop_during_callback() {
    enter_group();
    let memory = fill_up(4 * MIB);
    let (begun, begins) = channel();
    let ended = Arc::new(AtomicBool::new(false));
    let ends = Arc::clone(&ended);
    let subscription = pressure::subscribe(move |_| {
        begun.send(()).unwrap();
        thread::sleep(Duration::from_millis(300));
        ends.store(true, SeqCst);
    })
    .unwrap();
    begins.recv_timeout(LONG).unwrap();
    drop(subscription);
    assert!(ended.load(SeqCst));
    drop(memory);
}

fn panicking_callback_ends_only_its_subscription() -> Completion {
    run_in_group(192 * MIB, "panic_in_callback")
}

fn panic_in_callback() {
    enter_group();
    // A backtrace takes more memory than there is.
    std::panic::set_hook(Box::new(|_| ()));
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    let panicking = pressure::subscribe(move |_| {
        counted.fetch_add(1, SeqCst);
        panic!("the panic that the test needs");
    });
    let (_other, levels) = subscribe();
    let some = fill_up(16 * MIB);
    assert_eq!(levels.recv_timeout(LONG), Ok(Level::Some));
    let severe = fill_up(4 * MIB);
    assert_eq!(levels.recv_timeout(LONG), Ok(Level::Severe));
    assert_eq!(calls.load(SeqCst), 1);
    drop((panicking, some, severe));
}

fn forked_child_has_no_watcher() -> Completion {
    run_in_group(192 * MIB, "fork_with_watcher")
}

fn fork_with_watcher() {
    enter_group();
    let calls = Arc::new(AtomicU8::new(0));
    let counted = Arc::clone(&calls);
    let inherited = pressure::subscribe(move |_| {
        counted.fetch_add(1, SeqCst);
    })
    .unwrap();
    eventually("a watcher", || watchers() == 1);
    let triggers = || {
        let files = fs::read_dir("/proc/self/fd").unwrap();
        let targets = files.filter_map(|file| fs::read_link(file.ok()?.path()).ok());
        // `/proc/pressure/memory`, or `memory.pressure` of a cgroup.
        let is_trigger = |target: &PathBuf| target.to_string_lossy().contains("pressure");
        targets.filter(is_trigger).count()
    };
    if Snapshot::now().unwrap().trigger.is_ok() {
        eventually("a trigger", || triggers() == 1);
    }
    let status = fork(|| {
        assert_eq!(watchers(), 0);
        assert_eq!(triggers(), 0);
        assert_eq!(pressure::level(), Level::None);
        drop(inherited);
        let memory = fill_up(4 * MIB);
        assert_eq!(pressure::level(), Level::Severe);
        assert_eq!(watchers(), 0);
        let (subscription, levels) = subscribe();
        assert_eq!(levels.recv_timeout(LONG), Ok(Level::Severe));
        assert_eq!(watchers(), 1);
        assert_eq!(calls.load(SeqCst), 0);
        drop((subscription, memory));
        0
    });
    assert_eq!(status, 0);
    assert_eq!(watchers(), 1);
}
