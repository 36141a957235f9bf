//! `SharedArena` and `SharedCache` beside processes that are killed, and that write garbage to
//! the file.

mod common;

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use common::*;
use fastrand::Rng;
use tenure::volatile::Priority;
use tenure::{CacheOptions, SharedArena, SharedBuffer, SharedCache, SharedPin, page_size};

tests!(
    garbage_in_an_arena_neither_crashes_nor_hangs,
    killed_processes_leave_neither_pins_nor_wrong_bytes,
    garbage_in_a_cache_neither_crashes_nor_hangs,
    value_of_corrupt_length_is_a_miss_and_its_entry_is_used_again,
    key_of_corrupt_length_takes_no_memory,
    killed_processes_leave_a_cache_that_works;
    children:
    use_arena_with_garbage,
    kill_users_of_arena,
    use_cache_with_garbage,
    find_key_of_corrupt_length,
    kill_users_of_cache,
);

/// How long processes are killed: a part of a second, or what `TENURE_SOAK_SECONDS` says.
fn duration() -> Duration {
    let given = std::env::var("TENURE_SOAK_SECONDS").ok();
    let seconds = given.map(|text| text.parse().expect("a number of seconds"));
    seconds.map_or(Duration::from_millis(400), Duration::from_secs)
}

/// The seed of this run, which the output names.
fn rng() -> Rng {
    let given = std::env::var("TENURE_SEED").ok();
    let seed = given.map_or(24, |text| text.parse().expect("a number"));
    println!("TENURE_SEED={seed}");
    Rng::with_seed(seed)
}

fn garbage_in_an_arena_neither_crashes_nor_hangs() {
    in_child_within(Duration::from_secs(300), "use_arena_with_garbage");
}

/// Words that have a meaning, or nearly.
fn garbage(rng: &mut Rng) -> u64 {
    let word = match rng.u32(0..6) {
        0 => 0,
        1 => u64::MAX,
        2 => rng.u64(..),
        3 => 1 << rng.u32(0..64),
        4 => rng.u64(0..1 << 20) << rng.u32(0..44),
        _ => rng.u64(0..4) << 50 | rng.u64(0..4) << 48 | 1 << rng.u32(0..48),
    };
    word.wrapping_sub(rng.u64(0..2))
}

/// Overwrites words at random, in the header, the table, or both.
fn scribble(file: impl AsFd, rng: &mut Rng, len: u64) {
    for _ in 0..rng.u32(1..40) {
        let first = if rng.bool() { 0 } else { 128 };
        let at = rng.u64(first / 8..len / 8) * 8;
        let word = garbage(rng).to_ne_bytes();
        rustix::io::pwrite(&file, &word, at).unwrap();
    }
}

const COUNT: usize = 12;

fn use_arena_with_garbage() {
    let mut rng = rng();
    for _ in 0..150 {
        let arena = SharedArena::new(COUNT, 3 * page_size()).unwrap();
        let mut buffers: Vec<SharedBuffer> = Vec::new();
        let mut pins: Vec<SharedPin> = Vec::new();
        for _ in 0..40 {
            if rng.u32(0..4) == 0 {
                scribble(&arena, &mut rng, 4096 + 56 * COUNT as u64);
            }
            let any = (!buffers.is_empty()).then(|| rng.usize(0..buffers.len()));
            match (rng.u32(0..9), any) {
                (0, _) | (_, None) => {
                    let priority = Priority::ALL[rng.usize(0..4)];
                    if let Ok((buffer, pin)) = arena.allocate(rng.usize(0..9000), priority) {
                        let _ = pin.write(0, &[1]);
                        buffers.push(buffer);
                        pins.push(pin);
                    } else if buffers.is_empty() {
                        buffers.extend(arena.buffer(rng.u64(..)).ok());
                    }
                }
                (1 | 2, Some(any)) => pins.extend(buffers[any].pin().ok()),
                (3, Some(any)) => drop(buffers[any].purge()),
                (4, Some(any)) => drop(buffers.swap_remove(any).free()),
                (5, _) => pins.truncate(rng.usize(0..8)),
                (6, _) => drop(arena.purge(rng.usize(0..1 << 20))),
                (7, Some(any)) => {
                    let id = buffers[any].id() ^ (rng.u64(0..2) << rng.u32(0..64));
                    buffers.extend(arena.buffer(id).ok());
                }
                _ => {
                    let _ = arena.stats();
                    let fd = arena.as_fd().try_clone_to_owned().unwrap();
                    drop(SharedArena::from_fd(fd));
                }
            }
            for pin in &pins {
                let mut bytes = vec![0; pin.buffer().len().min(1 << 20)];
                let _ = pin.read(0, &mut bytes);
            }
        }
    }
}

/// The byte that every process writes there.
fn pattern_of(buffer: usize, at: usize) -> u8 {
    (buffer * 31 + at / page_size() * 7) as u8 | 1
}

/// Pins, checks, writes, purges at random, until it is killed.
fn use_at_random(arena: &SharedArena, ids: &[u64], seed: u64) -> ! {
    let mut rng = Rng::with_seed(seed);
    loop {
        let which = rng.usize(0..ids.len());
        let buffer = arena.buffer(ids[which]).expect("nobody frees it");
        match rng.u32(0..8) {
            0 => drop(buffer.purge().unwrap()),
            1 => drop(arena.purge(rng.usize(0..1 << 20)).unwrap()),
            _ => {
                let pin = match buffer.pin() {
                    Ok(pin) => pin,
                    Err(error) => {
                        assert_eq!(error.errno(), libc::EBUSY, "{error}");
                        continue;
                    }
                };
                let wanted: Vec<u8> = (0..buffer.len()).map(|at| pattern_of(which, at)).collect();
                let mut found = vec![0; wanted.len()];
                pin.read(0, &mut found).unwrap();
                let is_right = |(found, wanted)| found == 0 || found == wanted;
                let mut pairs = found.iter().copied().zip(wanted.iter().copied());
                assert!(pairs.all(is_right), "wrong byte in {which}");
                pin.write(0, &wanted).unwrap();
                pin.read(0, &mut found).unwrap();
                assert!(found == wanted, "purged while pinned");
            }
        }
    }
}

fn killed_processes_leave_neither_pins_nor_wrong_bytes() {
    let limit = duration() + Duration::from_secs(120);
    in_child_within(limit, "kill_users_of_arena");
}

/// Starts a process that runs `body`; it must not return.
fn start(body: impl FnOnce()) -> libc::pid_t {
    // SAFETY: the child uses what a child may use, and ends.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0);
    if pid == 0 {
        let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body));
        // SAFETY: `_exit` has no preconditions.
        unsafe { libc::_exit(101) };
    }
    pid
}

/// Kills the process and waits for it. It must not have ended by itself.
fn kill(pid: libc::pid_t) {
    let mut status = 0;
    // SAFETY: `pid` is a child that nobody has waited for.
    unsafe {
        libc::kill(pid, libc::SIGKILL);
        assert_eq!(libc::waitpid(pid, &mut status, 0), pid);
    }
    assert!(libc::WIFSIGNALED(status), "a process has failed");
}

/// Keeps some processes busy, and kills one after the other until the time is over. Returns
/// how many.
fn kill_some(rng: &mut Rng, body: impl Fn(u64)) -> usize {
    let mut processes: Vec<_> = (0..3).map(|seed| start(|| body(seed))).collect();
    let (begin, mut killed) = (Instant::now(), 0);
    while begin.elapsed() < duration() {
        std::thread::sleep(Duration::from_micros(rng.u64(0..8000)));
        let which = rng.usize(0..processes.len());
        kill(processes[which]);
        let seed = rng.u64(..);
        processes[which] = start(|| body(seed));
        killed += 1;
    }
    killed += processes.len();
    processes.into_iter().for_each(kill);
    killed
}

fn kill_users_of_arena() {
    let mut rng = rng();
    let lens = [100, page_size(), 3 * page_size() + 1, 40 * page_size()];
    let arena = SharedArena::new(COUNT, 40 * page_size()).unwrap();
    let ids = (0..COUNT - 1).map(|index| {
        let priority = Priority::ALL[index % 4];
        let (buffer, _pin) = arena.allocate(lens[index % 4], priority).unwrap();
        buffer.id()
    });
    let ids: Vec<u64> = ids.collect();
    let killed = kill_some(&mut rng, |seed| use_at_random(&arena, &ids, seed));
    println!("{killed} processes killed");
    for id in ids {
        let buffer = arena.buffer(id).unwrap();
        // The evictor of this process may be at it.
        let end = Instant::now() + Duration::from_secs(60);
        while !buffer.purge().unwrap() {
            assert!(Instant::now() < end, "the pin of a dead process stays");
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(!buffer.pin().unwrap().is_intact());
        buffer.free().unwrap();
    }
    let stats = arena.stats().unwrap();
    assert_eq!((stats.pinned, stats.buffers, stats.bytes), (0, 0, 0));
    assert_eq!(stats.processes, 1);
}

fn garbage_in_a_cache_neither_crashes_nor_hangs() {
    in_child_within(Duration::from_secs(300), "use_cache_with_garbage");
}

/// A cache of 1024 entries.
fn small_cache() -> SharedCache {
    SharedCache::new(CacheOptions::new().max_bytes(4 << 20)).unwrap()
}

fn use_cache_with_garbage() {
    let mut rng = rng();
    for _ in 0..40 {
        let cache = small_cache();
        for _ in 0..150 {
            if rng.u32(0..5) == 0 {
                scribble(&cache, &mut rng, 4096 + 56 * 1024);
            }
            let key = [rng.u8(0..20)];
            match rng.u32(0..20) {
                0..8 => {
                    let value = vec![1; rng.usize(0..20_000)];
                    let priority = Priority::ALL[rng.usize(0..4)];
                    let _ = cache.insert(&key, &value, priority);
                }
                8..15 => drop(cache.get(&key)),
                15 => drop(cache.remove(&key)),
                16 => drop(cache.stats()),
                17 => drop(cache.retain(|key| key.len() == 1)),
                18 => {
                    let fd = cache.as_fd().try_clone_to_owned().unwrap();
                    drop(SharedCache::from_fd(fd, CacheOptions::new()));
                }
                _ => cache.clear(),
            }
        }
    }
}

/// Returns the offset of the only entry whose contents have this length on the first side.
fn entry_of_len(file: impl AsFd, len: u64) -> u64 {
    let entries = (0..1024).map(|index| 4096 + index * 56);
    let mut found = entries.filter(|&at| word_at(&file, at + 16) == len);
    let entry = found.next().expect("an entry of this length");
    assert_eq!(found.next(), None);
    entry
}

fn word_at(file: impl AsFd, at: u64) -> u64 {
    let mut bytes = [0; 8];
    rustix::io::pread(file, &mut bytes, at).unwrap();
    u64::from_ne_bytes(bytes)
}

fn value_of_corrupt_length_is_a_miss_and_its_entry_is_used_again() {
    // No place is so large; and the largest place, where there are no pages.
    for corrupt in [u64::MAX, 4 << 30] {
        let cache = small_cache();
        cache.insert(b"key", &[7; 300], Priority::Normal).unwrap();
        let entry = entry_of_len(&cache, 16 + 3 + 300);
        rustix::io::pwrite(&cache, &corrupt.to_ne_bytes(), entry + 16).unwrap();
        assert!(cache.get(b"key").is_none());
        cache.remove(b"key");
        let states = 0b11 << 50;
        assert_eq!(word_at(&cache, entry) & states, 0, "the entry is not free");
        cache.insert(b"key", &[8; 300], Priority::Normal).unwrap();
        assert!(cache.get(b"key").is_none_or(|found| found[..] == [8; 300]));
    }
}

fn key_of_corrupt_length_takes_no_memory() {
    in_child("find_key_of_corrupt_length");
}

fn find_key_of_corrupt_length() {
    let cache = small_cache();
    cache.insert(b"key", &[7; 300], Priority::Normal).unwrap();
    let entry = entry_of_len(&cache, 16 + 3 + 300);
    let page = page_size() as u64;
    // The largest place of the entry, and a head there that says that all of it is the key.
    let len = page << 20;
    rustix::io::pwrite(&cache, &len.to_ne_bytes(), entry + 16).unwrap();
    let table = (4096_u64 + 56 * 1024).next_multiple_of(page);
    let smaller: u64 = (0..10).map(|class| page << (2 * class)).sum();
    let place = table + smaller * 2 * 1024 + (entry - 4096) / 56 * len;
    rustix::io::pwrite(&cache, &(len - 16).to_ne_bytes(), place + 8).unwrap();
    // SAFETY: the structure has integers only.
    let mut before: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the call writes a structure of this type.
    unsafe { libc::getrusage(libc::RUSAGE_SELF, &raw mut before) };
    assert!(cache.get(b"key").is_none());
    let mut after = before;
    // SAFETY: as above.
    unsafe { libc::getrusage(libc::RUSAGE_SELF, &raw mut after) };
    assert!(after.ru_maxrss - before.ru_maxrss < 16 << 10, "KiB");
}

fn killed_processes_leave_a_cache_that_works() {
    let limit = duration() + Duration::from_secs(120);
    in_child_within(limit, "kill_users_of_cache");
}

/// Returns a value that says which key it belongs to.
fn value_of(key: u8, rng: &mut Rng) -> Vec<u8> {
    let (version, len) = (rng.u8(..), rng.usize(3..60_000));
    let mut value = vec![version ^ key; len];
    value[0] = version;
    value
}

fn is_value_of(key: u8, value: &[u8]) -> bool {
    value[1..].iter().all(|&byte| byte == value[0] ^ key)
}

fn use_cache_at_random(cache: &SharedCache, seed: u64) -> ! {
    let mut rng = Rng::with_seed(seed);
    loop {
        let key = rng.u8(..);
        match rng.u32(0..10) {
            0..4 => {
                let priority = Priority::ALL[rng.usize(0..4)];
                let value = value_of(key, &mut rng);
                cache.insert(&[key], &value, priority).unwrap();
            }
            4 => drop(cache.remove(&[key])),
            _ => {
                let found = cache.get(&[key]);
                assert!(found.is_none_or(|found| is_value_of(key, &found)));
            }
        }
    }
}

fn kill_users_of_cache() {
    let mut rng = rng();
    let cache = small_cache();
    let killed = kill_some(&mut rng, |seed| use_cache_at_random(&cache, seed));
    println!("{killed} processes killed");
    for key in 0..=u8::MAX {
        let found = cache.get(&[key]);
        assert!(found.is_none_or(|found| is_value_of(key, &found)));
    }
    cache.clear();
    // Claims of dead processes end when a process evicts, or takes their slots.
    let fd = cache.as_fd().try_clone_to_owned().unwrap();
    let again = SharedCache::from_fd(fd, CacheOptions::new()).unwrap();
    for key in 0..=u8::MAX {
        let value = value_of(key, &mut rng);
        again.insert(&[key], &value, Priority::Normal).unwrap();
        let found = cache.get(&[key]);
        assert!(found.is_none_or(|found| found[..] == value[..]));
    }
    assert!(again.stats().unwrap().insertions > 0);
}
