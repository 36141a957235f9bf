//! `SharedCache` beside processes that are killed in the middle of what they do: no wrong byte,
//! no pin, and how long a call was blocked.

#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "tests use memory that they have mapped themselves, and end their children"
)]

mod common;

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::*;
use fastrand::Rng;
use tenure::volatile::Priority;
use tenure::{CacheOptions, Mapping, SharedCache};

tests!(
    [thorough] killed_processes_leave_no_wrong_byte_and_block_nobody;
    children:
    kill_processes,
);

/// How long processes are killed.
fn duration() -> Duration {
    let given = std::env::var("TENURE_SOAK_SECONDS").ok();
    let seconds = given.map_or(20, |text| text.parse().expect("a number of seconds"));
    Duration::from_secs(seconds)
}

fn killed_processes_leave_no_wrong_byte_and_block_nobody() {
    let limit = duration() + Duration::from_secs(120);
    in_child_within(limit, "kill_processes");
}

const PROCESSES: usize = 8;
const MAX_LEN: usize = 60_000;

/// The longest times of one kind of call, of all processes.
#[derive(Default)]
struct Longest {
    calls: AtomicU64,
    wall_nanos: AtomicU64,
    /// Without what the thread ran, and waited for a CPU.
    blocked_nanos: AtomicU64,
}

const KINDS: [&str; 3] = ["insert", "remove", "get"];

fn shared_longest() -> &'static [Longest; 3] {
    let memory = Mapping::shared_anonymous(4096).map().unwrap();
    let longest = memory.range().as_ptr().cast();
    std::mem::forget(memory);
    unsafe { &*longest }
}

/// The clocks of a thread.
struct Clocks {
    schedstat: Option<File>,
}

impl Clocks {
    fn of_this_thread() -> Self {
        Self {
            schedstat: File::open("/proc/thread-self/schedstat").ok(),
        }
    }

    /// Returns the nanoseconds that the thread has run, and waited for a CPU.
    fn busy_nanos(&self) -> u64 {
        let cpu = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        let mut text = [0; 80];
        let len = self
            .schedstat
            .as_ref()
            .map_or(0, |file| file.read_at(&mut text, 0).unwrap_or(0));
        let text = std::str::from_utf8(&text[..len]).unwrap_or_default();
        let waited = text.split(' ').nth(1).and_then(|text| text.parse().ok());
        cpu.tv_sec as u64 * 1_000_000_000 + cpu.tv_nsec as u64 + waited.unwrap_or(0)
    }

    fn measure<T>(&self, longest: &Longest, call: impl FnOnce() -> T) -> T {
        let (busy, begin) = (self.busy_nanos(), Instant::now());
        let result = call();
        let wall = begin.elapsed().as_nanos() as u64;
        let blocked = wall.saturating_sub(self.busy_nanos() - busy);
        longest.calls.fetch_add(1, Ordering::Relaxed);
        longest.wall_nanos.fetch_max(wall, Ordering::Relaxed);
        longest.blocked_nanos.fetch_max(blocked, Ordering::Relaxed);
        result
    }
}

/// Returns a value that says which key it belongs to. Processes keep copies of half of them.
fn value_of(key: u8, rng: &mut Rng) -> Vec<u8> {
    let max_len = if key.is_multiple_of(2) { MAX_LEN } else { 2000 };
    let (version, len) = (rng.u8(..), rng.usize(3..max_len));
    let mut value = vec![version ^ key; len];
    value[0] = version;
    value
}

fn is_value_of(key: u8, value: &[u8]) -> bool {
    value[1..].iter().all(|&byte| byte == value[0] ^ key)
}

fn use_at_random(cache: &SharedCache, longest: &[Longest; 3], seed: u64) {
    let (mut rng, clocks) = (Rng::with_seed(seed), Clocks::of_this_thread());
    // One of eight leaves the others little memory for as long as it lives.
    let limit = if rng.u8(0..8) == 0 { 1 << 20 } else { 24 << 20 };
    let fd = cache.as_fd().try_clone_to_owned().unwrap();
    let cache = SharedCache::from_fd(fd, CacheOptions::new().max_bytes(limit)).unwrap();
    loop {
        let key = rng.u8(..);
        match rng.u32(0..10) {
            0..4 => {
                let value = value_of(key, &mut rng);
                let priority = Priority::ALL[rng.usize(0..4)];
                let insert = || cache.insert(&[key], &value, priority);
                clocks.measure(&longest[0], insert).unwrap();
            }
            4 => drop(clocks.measure(&longest[1], || cache.remove(&[key]))),
            _ => {
                let found = clocks.measure(&longest[2], || cache.get(&[key]));
                assert!(found.is_none_or(|found| is_value_of(key, &found)));
            }
        }
    }
}

fn start(body: impl FnOnce()) -> libc::pid_t {
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0);
    if pid == 0 {
        let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body));
        unsafe { libc::_exit(101) };
    }
    pid
}

/// Kills the process and waits for it. It must not have ended by itself.
fn kill(pid: libc::pid_t) {
    let mut status = 0;
    unsafe {
        libc::kill(pid, libc::SIGKILL);
        assert_eq!(libc::waitpid(pid, &raw mut status, 0), pid);
    }
    assert!(libc::WIFSIGNALED(status), "a process has failed");
}

fn kill_processes() {
    let mut rng = Rng::new();
    let longest = shared_longest();
    let cache = SharedCache::new(CacheOptions::new().max_bytes(32 << 20)).unwrap();
    let begin = Instant::now();
    let start_one = |seed| start(|| use_at_random(&cache, longest, seed));
    let mut processes: Vec<_> = (0..PROCESSES as u64).map(start_one).collect();
    let mut killed = 0;
    while begin.elapsed() < duration() {
        std::thread::sleep(Duration::from_micros(rng.u64(0..120_000)));
        let which = rng.usize(0..PROCESSES);
        kill(processes[which]);
        processes[which] = start_one(rng.u64(..));
        killed += 1;
    }
    processes.into_iter().for_each(kill);
    println!("{killed} processes killed");
    for (kind, longest) in KINDS.iter().zip(longest) {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let millis = |counter| read(counter) as f64 / 1e6;
        println!(
            "{kind}: {} calls, longest {:.1} ms, of it blocked {:.1} ms at most",
            read(&longest.calls),
            millis(&longest.wall_nanos),
            millis(&longest.blocked_nanos),
        );
    }
    for key in 0..=u8::MAX {
        let found = cache.get(&[key]);
        assert!(found.is_none_or(|found| is_value_of(key, &found)));
    }
    // A process that attaches itself ends what the dead ones had, and every set takes values.
    let fd = || cache.as_fd().try_clone_to_owned().unwrap();
    let all: Vec<_> = (0..PROCESSES + 1)
        .map(|_| SharedCache::from_fd(fd(), CacheOptions::new()).unwrap())
        .collect();
    cache.clear();
    for key in 0..=u8::MAX {
        let value = value_of(key, &mut rng);
        all[0].insert(&[key], &value, Priority::Normal).unwrap();
    }
    cache.clear();
    let stats = cache.stats().unwrap();
    assert_eq!((stats.values, stats.bytes), (0, 0));
}
