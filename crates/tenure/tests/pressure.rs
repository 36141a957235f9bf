//! pressure: one level, looked at or told, under real pressure too.

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
use tenure::pressure::{self, Level, Look, Reason, StallSource, Subscription};

tests!(
    a_look_starts_no_thread,
    the_figures_are_told,
    the_watcher_ends_with_the_last_subscription,
    an_idle_watcher_takes_next_to_no_time,
    reclaim_that_programs_wait_for_is_severe_and_ends,
    the_stalls_of_the_own_cgroup_count,
    streaming_files_at_the_limit_is_not_severe,
    little_room_is_severe_before_the_kernel_kills,
    who_subscribes_under_pressure_is_told,
    a_subscription_may_be_dropped_by_its_own_call,
    dropping_waits_for_a_running_call,
    a_panic_ends_that_subscription_only,
    a_child_begins_without_a_watcher;
    children:
    look_without_a_thread,
    free_lazily_beyond_the_limit,
    stall_in_the_own_cgroup,
    stream_files,
    use_nearly_all,
    subscribe_in_little_room,
    drop_inside_the_call,
    drop_during_the_call,
    panic_in_the_call,
    fork_with_a_watcher,
);

const MIB: usize = 1 << 20;

/// For what must happen; nothing depends on how long it takes.
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
        assert!(begin.elapsed() < LONG, "not after {LONG:?}: {what}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// Tells what it is told.
fn told() -> (Subscription, Receiver<Level>) {
    let (send, receive) = channel();
    let notify = move |level| {
        let _ = send.send(level);
    };
    (pressure::subscribe(notify).unwrap(), receive)
}

/// Waits until this level has been told.
fn wait_for(level: Level, told: &Receiver<Level>) {
    let begin = Instant::now();
    while told
        .recv_timeout(LONG.saturating_sub(begin.elapsed()))
        .expect("to be told")
        != level
    {}
}

fn in_a_group(limit_bytes: usize, child: &str) -> Completion {
    match Group::with_limit(limit_bytes) {
        Ok(group) => group.run(child),
        Err(why) => return skip(&why),
    }
    Completion::Completed
}

fn a_look_starts_no_thread() {
    in_child_ok("look_without_a_thread");
}

fn look_without_a_thread() {
    pressure::level();
    Look::now().unwrap();
    let threads = fs::read_dir("/proc/self/task").unwrap().count();
    assert_eq!(threads, 1);
}

fn the_figures_are_told() {
    let look = Look::now().unwrap();
    let has_psi = tenure::Features::get().psi.is_ok();
    assert_eq!(
        look.stall_source == StallSource::Nothing,
        !has_psi,
        "{look:?}"
    );
    assert_eq!(look.some_stalled.is_some(), has_psi, "{look:?}");
    assert!(look.room.bytes > 0, "{look:?}");
    assert_eq!(
        look.level == Level::None,
        look.reason == Reason::Calm,
        "{look:?}"
    );
}

fn the_watcher_ends_with_the_last_subscription() {
    let (first, _) = told();
    let (second, _) = told();
    eventually("a watcher", || watchers() == 1);
    drop(first);
    drop(second);
    eventually("no watcher", || watchers() == 0);
    // Once more, and while the old one may still be there.
    for _ in 0..20 {
        let (subscription, _) = told();
        // One that has ended is there a moment longer.
        eventually("one watcher", || watchers() <= 1);
        drop(subscription);
    }
    eventually("no watcher again", || watchers() == 0);
}

fn an_idle_watcher_takes_next_to_no_time() {
    let (_subscription, _) = told();
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
        Look::now().unwrap();
    }
    // Ticks of 10 ms: a tenth of a CPU would be 30. What is more where a look takes so
    // long, under emulation, is not the watcher's doing: it looks once a second.
    let most = (begin.elapsed().as_millis() as u64 / 10).max(10);
    let before = ticks();
    thread::sleep(Duration::from_secs(3));
    let took = ticks() - before;
    assert!(took < most, "{took} ticks in 3 s, {most} at most");
}

fn reclaim_that_programs_wait_for_is_severe_and_ends() -> Completion {
    // What stands in for stalls is a guess at how long one takes, and an emulated
    // machine is ten times as slow.
    if tenure::Features::get().psi.is_err() {
        return skip("the kernel does not tell about stalls");
    }
    in_a_group(192 * MIB, "free_lazily_beyond_the_limit")
}

fn free_lazily_beyond_the_limit() {
    enter_group();
    let (_subscription, told) = told();
    let load = Load::start();
    wait_for(Level::Severe, &told);
    assert_eq!(pressure::level(), Level::Severe);
    drop(load);
    // One step after the other.
    assert_eq!(told.recv_timeout(LONG), Ok(Level::Some));
    assert_eq!(told.recv_timeout(LONG), Ok(Level::None));
}

/// Threads that write to, and free lazily, 256 MiB.
struct Load {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Load {
    fn start() -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let threads = (0..4).map(|_| {
            let stop = Arc::clone(&stop);
            let chunk = || anonymous(4 * MIB / page_size()).lazy_free().unwrap();
            thread::spawn(move || {
                let mut chunks: VecDeque<_> = (0..16).map(|_| chunk()).collect();
                while !stop.load(SeqCst) {
                    let memory = chunks.pop_front().unwrap().take_back().unwrap();
                    fill(memory.range());
                    chunks.push_back(memory.lazy_free().unwrap());
                }
            })
        });
        Self {
            threads: threads.collect(),
            stop,
        }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.stop.store(true, SeqCst);
        for thread in self.threads.drain(..) {
            thread.join().unwrap();
        }
    }
}

/// Where a neighbour's stalls do not count.
fn with_own_stalls(limit_bytes: usize, child: &str) -> Completion {
    if tenure::Features::get().psi.is_err() {
        return skip("the kernel does not tell about stalls");
    }
    match Group::with_limit(limit_bytes).and_then(Group::with_unified) {
        Ok(group) => group.run(child),
        Err(why) => return skip(&why),
    }
    Completion::Completed
}

fn the_stalls_of_the_own_cgroup_count() -> Completion {
    with_own_stalls(192 * MIB, "stall_in_the_own_cgroup")
}

fn stall_in_the_own_cgroup() {
    enter_group();
    let (_subscription, told) = told();
    let _load = Load::start();
    wait_for(Level::Severe, &told);
    let look = Look::now().unwrap();
    assert!(
        matches!(look.stall_source, StallSource::OwnCgroup(_)),
        "{look:?}"
    );
    assert!(look.trigger.is_ok(), "{look:?}");
}

fn streaming_files_at_the_limit_is_not_severe() -> Completion {
    with_own_stalls(64 * MIB, "stream_files")
}

fn stream_files() {
    use std::os::unix::fs::FileExt;
    enter_group();
    let file = tempfile::tempfile().unwrap();
    file.set_len(512 * MIB as u64).unwrap();
    let (subscription, told) = told();
    let mut buffer = vec![0; MIB];
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(4) {
        for at in 0..512 {
            file.read_exact_at(&mut buffer, (at * MIB) as u64).unwrap();
        }
    }
    drop(subscription);
    let levels: Vec<Level> = told.iter().collect();
    assert!(!levels.contains(&Level::Severe), "{levels:?}");
}

fn little_room_is_severe_before_the_kernel_kills() -> Completion {
    in_a_group(192 * MIB, "use_nearly_all")
}

fn use_nearly_all() {
    enter_group();
    let (_subscription, told) = told();
    assert_eq!(pressure::level(), Level::None);
    let memory = fill_up(4 * MIB);
    wait_for(Level::Severe, &told);
    assert_eq!(Look::now().unwrap().reason, Reason::LittleRoom);
    drop(memory);
}

/// Takes memory until so little of the group's limit is left.
fn fill_up(left_bytes: usize) -> Vec<tenure::Mapping> {
    let mut memory = Vec::new();
    while tenure::Room::now().unwrap().bytes > left_bytes {
        let piece = anonymous(MIB / page_size());
        fill(piece.range());
        memory.push(piece);
    }
    memory
}

fn who_subscribes_under_pressure_is_told() -> Completion {
    in_a_group(192 * MIB, "subscribe_in_little_room")
}

fn subscribe_in_little_room() {
    enter_group();
    let memory = fill_up(4 * MIB);
    assert_eq!(pressure::level(), Level::Severe);
    let (_first, told_first) = told();
    assert_eq!(told_first.recv_timeout(LONG), Ok(Level::Severe));
    let (_second, told_second) = told();
    assert_eq!(told_second.recv_timeout(LONG), Ok(Level::Severe));
    drop(memory);
}

fn a_subscription_may_be_dropped_by_its_own_call() -> Completion {
    in_a_group(192 * MIB, "drop_inside_the_call")
}

fn drop_inside_the_call() {
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
    // The closure is gone as well.
    assert_eq!(Arc::strong_count(&slot), 1);
    drop(memory);
}

fn dropping_waits_for_a_running_call() -> Completion {
    in_a_group(192 * MIB, "drop_during_the_call")
}

fn drop_during_the_call() {
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

fn a_panic_ends_that_subscription_only() -> Completion {
    in_a_group(192 * MIB, "panic_in_the_call")
}

fn panic_in_the_call() {
    enter_group();
    // A backtrace takes more memory than there is.
    std::panic::set_hook(Box::new(|_| ()));
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    let panicking = pressure::subscribe(move |_| {
        counted.fetch_add(1, SeqCst);
        panic!("as the test wants it");
    });
    let (_other, told) = told();
    let some = fill_up(16 * MIB);
    assert_eq!(told.recv_timeout(LONG), Ok(Level::Some));
    let severe = fill_up(4 * MIB);
    assert_eq!(told.recv_timeout(LONG), Ok(Level::Severe));
    assert_eq!(calls.load(SeqCst), 1);
    drop((panicking, some, severe));
}

fn a_child_begins_without_a_watcher() -> Completion {
    in_a_group(192 * MIB, "fork_with_a_watcher")
}

fn fork_with_a_watcher() {
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
    if Look::now().unwrap().trigger.is_ok() {
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
        let (subscription, told) = told();
        assert_eq!(told.recv_timeout(LONG), Ok(Level::Severe));
        assert_eq!(watchers(), 1);
        assert_eq!(calls.load(SeqCst), 0);
        drop((subscription, memory));
        0
    });
    assert_eq!(status, 0);
    assert_eq!(watchers(), 1);
}
