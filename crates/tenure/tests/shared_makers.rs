//! Missing values of a `SharedCache`: of all processes one makes each.

#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "tests use memory that they have mapped themselves, and end their children"
)]

mod common;

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use common::volatile::{was_under_pressure, watch_pressure};
use tenure::volatile::Priority;
use tenure::{CacheOptions, Mapping, SharedCache};

tests!(
    missing_value_is_made_by_one_thread_of_all_processes_at_a_time,
    value_of_a_killed_maker_is_made_by_another,
    stopped_maker_blocks_nobody,
    value_that_is_replaced_while_it_is_made_does_not_stay,
    maker_that_asks_for_its_own_key_makes_it_again,
    value_that_is_made_alone_and_removed_meanwhile_does_not_stay,
    value_is_made_while_a_thread_ends,
    removed_value_is_not_found_again_while_others_make_it,
);

fn cache() -> SharedCache {
    watch_pressure();
    SharedCache::new(CacheOptions::new().max_bytes(32 << 20)).unwrap()
}

/// Starts a process that ends with the status that `body` returns.
fn start(body: impl FnOnce() -> i32) -> libc::pid_t {
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0);
    if pid == 0 {
        let status = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body));
        unsafe { libc::_exit(status.unwrap_or(101)) };
    }
    pid
}

fn wait_for(pid: libc::pid_t) -> i32 {
    let mut status = 0;
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    status
}

/// Counters that forked processes share.
fn shared_counters() -> &'static [AtomicUsize; 64] {
    let memory = Mapping::shared_anonymous(4096).map().unwrap();
    let counters = memory.range().as_ptr().cast();
    std::mem::forget(memory);
    unsafe { &*counters }
}

fn missing_value_is_made_by_one_thread_of_all_processes_at_a_time() {
    let cache = cache();
    let [makers, made, refused] = [0, 10, 20].map(|first| &shared_counters()[first..first + 10]);
    let make = |key: usize| {
        assert_eq!(makers[key].fetch_add(1, Ordering::SeqCst), 0, "two makers");
        made[key].fetch_add(1, Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(1));
        makers[key].fetch_sub(1, Ordering::SeqCst);
        vec![key as u8; 3000]
    };
    let ask = || {
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for key in 0..10 {
                        let found = cache.get_or_insert_with(&[key as u8], || make(key));
                        assert_eq!(found.unwrap()[..], [key as u8; 3000]);
                    }
                });
            }
        });
        let count = cache.stats().unwrap().refused as usize;
        refused[0].fetch_add(count, Ordering::SeqCst);
        0
    };
    let children = [0; 3].map(|_| start(ask));
    ask();
    assert!(children.into_iter().all(|child| wait_for(child) == 0));
    // A value that was refused, or given up, is made again.
    if refused[0].load(Ordering::SeqCst) == 0 && !was_under_pressure() {
        assert!(made.iter().all(|count| count.load(Ordering::SeqCst) == 1));
    }
}

/// Starts a process that makes the key's value until it is killed.
fn start_endless_maker(cache: &SharedCache, key: &[u8]) -> libc::pid_t {
    let is_making = &shared_counters()[0];
    let child = start(|| {
        let endless = || {
            is_making.store(1, Ordering::SeqCst);
            loop {
                std::thread::sleep(Duration::from_secs(1));
            }
        };
        cache.get_or_insert_with(key, endless).map_or(1, |_| 2)
    });
    while is_making.load(Ordering::SeqCst) == 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    child
}

fn kill_with(child: libc::pid_t, signal: libc::c_int) {
    assert_eq!(unsafe { libc::kill(child, signal) }, 0);
}

fn value_of_a_killed_maker_is_made_by_another() {
    let cache = cache();
    let child = start_endless_maker(&cache, b"key");
    let value = std::thread::scope(|scope| {
        let waiting = scope.spawn(|| cache.get_or_insert_with(b"key", || b"other".to_vec()));
        kill_with(child, libc::SIGKILL);
        waiting.join().unwrap().unwrap()
    });
    assert_eq!(value[..], *b"other");
    wait_for(child);
}

fn stopped_maker_blocks_nobody() {
    let cache = cache();
    let child = start_endless_maker(&cache, b"key");
    kill_with(child, libc::SIGSTOP);
    let value = cache.get_or_insert_with(b"key", || b"other".to_vec());
    assert_eq!(value.unwrap()[..], *b"other");
    kill_with(child, libc::SIGKILL);
    wait_for(child);
}

fn value_that_is_replaced_while_it_is_made_does_not_stay() {
    let cache = cache();
    let made = cache.get_or_insert_with(b"key", || {
        cache.insert(b"key", b"newer", Priority::Normal).unwrap();
        b"older".to_vec()
    });
    assert_eq!(made.unwrap()[..], *b"older");
    let found = cache.get(b"key");
    assert!(found.is_none_or(|found| found[..] == *b"newer"));
    let remove = [
        |cache: &SharedCache| assert!(!cache.remove(b"removed")),
        SharedCache::clear,
    ];
    for remove in remove {
        let made = cache.get_or_insert_with(b"removed", || {
            remove(&cache);
            b"older".to_vec()
        });
        assert_eq!(made.unwrap()[..], *b"older");
        assert!(cache.get(b"removed").is_none());
    }
}

fn maker_that_asks_for_its_own_key_makes_it_again() {
    let cache = cache();
    let made = cache.get_or_insert_with(b"key", || {
        let inner = cache.get_or_insert_with(b"key", || b"inner".to_vec());
        inner.unwrap().to_vec()
    });
    assert_eq!(made.unwrap()[..], *b"inner");
}

fn value_that_is_made_alone_and_removed_meanwhile_does_not_stay() {
    let cache = cache();
    let make_removed = |key: &[u8]| {
        let made = cache.get_or_insert_with(key, || {
            cache.remove(key);
            b"older".to_vec()
        });
        assert_eq!(made.unwrap()[..], *b"older");
    };
    // The thread makes the value already.
    let outer = cache.get_or_insert_with(b"key", || {
        make_removed(b"key");
        assert!(cache.get(b"key").is_none());
        // The outer maker is still known as one.
        make_removed(b"key");
        b"outer".to_vec()
    });
    assert_eq!(outer.unwrap()[..], *b"outer");
    assert!(cache.get(b"key").is_none());
    // The maker is stopped.
    let child = start_endless_maker(&cache, b"stopped");
    kill_with(child, libc::SIGSTOP);
    make_removed(b"stopped");
    assert!(cache.get(b"stopped").is_none());
    kill_with(child, libc::SIGKILL);
    wait_for(child);
}

/// Makes a value when its thread ends.
struct MakeAtEnd(RefCell<Option<Arc<SharedCache>>>);

impl Drop for MakeAtEnd {
    fn drop(&mut self) {
        if let Some(cache) = self.0.take() {
            let made = cache.get_or_insert_with(b"end", || b"value".to_vec());
            assert_eq!(made.unwrap()[..], *b"value");
        }
    }
}

fn value_is_made_while_a_thread_ends() {
    thread_local!(static AT_END: MakeAtEnd = const { MakeAtEnd(RefCell::new(None)) });
    let cache = Arc::new(cache());
    let used = Arc::clone(&cache);
    let thread = std::thread::spawn(move || {
        // Its destructor runs after those of variables that are used later.
        AT_END.with(|at_end| at_end.0.replace(Some(Arc::clone(&used))));
        used.get_or_insert_with(b"key", || b"value".to_vec())
            .unwrap();
    });
    thread.join().unwrap();
    let found = cache.get(b"end");
    assert!(found.is_some() || was_under_pressure());
}

fn removed_value_is_not_found_again_while_others_make_it() {
    let cache = cache();
    let [current, end] = [0, 20].map(|first| &shared_counters()[first]);
    // The makers' versions are those of their beginning.
    let make = || {
        while end.load(Ordering::SeqCst) == 0 {
            let value = || current.load(Ordering::SeqCst).to_ne_bytes().to_vec();
            cache.get_or_insert_with(b"key", value).unwrap();
        }
        0
    };
    let children = [0; 4].map(|_| start(make));
    for version in 1..20_000 {
        current.store(version, Ordering::SeqCst);
        cache.remove(b"key");
        if let Some(found) = cache.get(b"key") {
            let found = usize::from_ne_bytes(found[..].try_into().unwrap());
            assert!(found >= version, "{found} after {version}");
        }
    }
    end.store(1, Ordering::SeqCst);
    assert!(children.into_iter().all(|child| wait_for(child) == 0));
}
