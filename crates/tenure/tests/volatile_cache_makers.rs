//! The cache: values that are out of date when they are made, and closures and keys that use
//! the cache.

#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "tests fork, and wait for their children"
)]

mod common;

use std::cell::Cell;
use std::hash::{Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;
use std::time::Duration;

use tenure::{CacheOptions, VolatileCache};

tests!(
    value_that_is_inserted_while_an_older_one_is_made_stays,
    key_that_is_removed_while_its_value_is_made_stays_removed,
    value_that_is_made_beside_other_keys_is_cached,
    waiting_thread_makes_its_own_value_when_the_first_is_out_of_date,
    value_made_within_its_own_maker_stays,
    closure_that_uses_the_cache_panics_instead_of_waiting,
    panicking_retain_removes_nothing_of_its_shard,
    closure_that_forks_has_no_more_keys_in_the_child,
    dropped_key_may_use_the_cache,
);

const LONG: Duration = Duration::from_secs(3600);

type Cache = VolatileCache<u64>;

/// Small values, and such that have pages of their own.
const LENS: [usize; 2] = [100, 10_000];

fn value(kind: u8, len: usize) -> Vec<u8> {
    vec![kind; len]
}

/// Runs the change in another thread while the value of key 1 is made, whose caller gets it all
/// the same. Returns the cache.
fn with_change_while_made(len: usize, change: impl Fn(&Cache) + Sync) -> Cache {
    tenure::volatile::set_offer_delay(LONG);
    let cache = VolatileCache::with_options(CacheOptions::new().max_bytes(16 << 20));
    let made = cache.get_or_insert_with(1, || {
        std::thread::scope(|scope| {
            scope.spawn(|| change(&cache));
        });
        value(b'm', len)
    });
    assert_eq!(made[..], value(b'm', len));
    drop(made);
    let stats = cache.stats();
    let gone = stats.removed + stats.purged + stats.evicted;
    assert_eq!(stats.insertions, stats.values + gone, "{stats:?}");
    assert_eq!(stats.values == 0, stats.bytes == 0, "{stats:?}");
    cache
}

fn value_that_is_inserted_while_an_older_one_is_made_stays() {
    for len in LENS {
        let cache = with_change_while_made(len, |cache| {
            cache.insert(1, &value(b'n', len)).unwrap();
        });
        assert_eq!(cache.get(&1).unwrap()[..], value(b'n', len));
    }
}

fn key_that_is_removed_while_its_value_is_made_stays_removed() {
    let changes: [&(dyn Fn(&Cache) + Sync); 6] = [
        &|cache| assert!(!cache.remove(&1)),
        &|cache| {
            cache.insert(1, &value(b'n', 100)).unwrap();
            assert!(cache.remove(&1));
        },
        &|cache| cache.clear(),
        &|cache| assert_eq!(cache.retain(|_| true), 0),
        &|cache| {
            cache.insert(1, &value(b'n', 10_000)).unwrap();
            assert_eq!(cache.retain(|_| false), 1);
        },
        // A refused value replaces nothing, but the previous value is out of date.
        &|cache| {
            let fill = |_: &mut [u8]| panic!("it exceeds the limit");
            let priority = tenure::volatile::Priority::High;
            cache.insert_with(1, 17 << 20, priority, fill).unwrap();
        },
    ];
    for change in changes {
        for len in LENS {
            let cache = with_change_while_made(len, change);
            assert!(cache.get(&1).is_none() && cache.is_empty());
            // The next one is cached again.
            drop(cache.get_or_insert_with(1, || value(b'o', len)));
            assert_eq!(cache.get(&1).unwrap()[..], value(b'o', len));
        }
    }
}

fn value_that_is_made_beside_other_keys_is_cached() {
    for len in LENS {
        let cache = with_change_while_made(len, |cache| {
            for key in 2..100 {
                cache.insert(key, &value(b'n', 100)).unwrap();
            }
            assert!(cache.remove(&2) && !cache.remove(&200));
            drop(cache.get_or_insert_with(300, || value(b'n', 100)));
        });
        assert_eq!(cache.get(&1).unwrap()[..], value(b'm', len));
    }
}

fn waiting_thread_makes_its_own_value_when_the_first_is_out_of_date() {
    tenure::volatile::set_offer_delay(LONG);
    let cache = Cache::new();
    std::thread::scope(|scope| {
        let mut waiting = Vec::new();
        let first = cache.get_or_insert_with(1, || {
            let make = || cache.get_or_insert_with(1, || value(b'n', 100));
            waiting.extend((0..4).map(|_| scope.spawn(make)));
            cache.remove(&1);
            value(b'm', 100)
        });
        assert_eq!(first[..], value(b'm', 100));
        for waiting in waiting {
            assert_eq!(waiting.join().unwrap()[..], value(b'n', 100));
        }
    });
    assert_eq!(cache.get(&1).unwrap()[..], value(b'n', 100));
    assert_eq!(cache.stats().insertions, 1);
}

fn value_made_within_its_own_maker_stays() {
    tenure::volatile::set_offer_delay(LONG);
    let cache = Cache::new();
    let outer = cache.get_or_insert_with(1, || {
        drop(cache.get_or_insert_with(1, || value(b'n', 100)));
        value(b'm', 100)
    });
    assert_eq!(outer[..], value(b'm', 100));
    assert_eq!(cache.get(&1).unwrap()[..], value(b'n', 100));
}

fn filled() -> Cache {
    tenure::volatile::set_offer_delay(LONG);
    let cache = Cache::new();
    for key in 0..100 {
        cache.insert(key, &value(1, 100)).unwrap();
    }
    cache
}

fn closure_that_uses_the_cache_panics_instead_of_waiting() {
    let cache = filled();
    // The key's own shard is locked.
    let uses: [&dyn Fn(u64); 4] = [
        &|key| drop(cache.get(&key)),
        &|key| assert!(cache.remove(&key)),
        &|key| cache.insert(key, b"").unwrap(),
        &|_| assert_eq!(cache.retain(|_| true), 0),
    ];
    for used in uses {
        let panics = |call: &dyn Fn()| catch_unwind(AssertUnwindSafe(call)).is_err();
        assert!(panics(&|| cache.for_each_key(|&key| used(key))));
        let retain = |&key: &u64| {
            used(key);
            true
        };
        assert!(panics(&|| assert_eq!(cache.retain(retain), 0)));
    }
    // Another cache may be used, also afterwards.
    let (other, mut keys) = (filled(), 0);
    cache.for_each_key(|key| {
        other.for_each_key(|_| keys += 1);
        assert!(other.get(key).is_some());
    });
    assert_eq!(keys, 100 * 100);
    std::thread::scope(|scope| {
        let found = scope.spawn(|| (0..100).filter(|key| cache.get(key).is_some()).count());
        assert_eq!(found.join().unwrap(), 100);
    });
}

fn panicking_retain_removes_nothing_of_its_shard() {
    let cache = VolatileCache::with_options(CacheOptions::new().max_bytes(1 << 20));
    for key in 0..100_u64 {
        cache.insert(key, &value(1, 100)).unwrap();
    }
    let calls = Cell::new(0);
    let fails_at_last = |_: &u64| {
        calls.set(calls.get() + 1);
        assert!(calls.get() < 100, "on purpose");
        false
    };
    let retain = || cache.retain(fails_at_last);
    assert!(catch_unwind(AssertUnwindSafe(retain)).is_err());
    // A cache this small has one shard.
    assert_eq!((calls.get(), cache.len()), (100, 100));
}

fn closure_that_forks_has_no_more_keys_in_the_child() {
    let cache = filled();
    let run = |call: &dyn Fn(&Cache, &dyn Fn()) -> usize| {
        let (child, calls, calls_in_child) = (Cell::new(-1), Cell::new(0), Cell::new(0));
        let done = call(&cache, &|| {
            calls.set(calls.get() + 1);
            if calls.get() == 50 {
                child.set(unsafe { libc::fork() });
            } else if child.get() == 0 {
                calls_in_child.set(calls_in_child.get() + 1);
            }
        });
        if child.get() == 0 {
            let is_inert = calls_in_child.get() == 0 && cache.is_empty() && cache.get(&1).is_none();
            unsafe { libc::_exit(i32::from(!is_inert)) };
        }
        let mut status = -1;
        let pid = child.get();
        assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
        assert_eq!((status, calls.get()), (0, 100));
        done
    };
    let listed = run(&|cache, visit| {
        cache.for_each_key(|_| visit());
        0
    });
    assert_eq!((listed, cache.len()), (0, 100));
    let removed = run(&|cache, visit| {
        cache.retain(|_| {
            visit();
            false
        })
    });
    assert_eq!((removed, cache.len()), (100, 0));
}

static OWN_CACHE: OnceLock<VolatileCache<Using>> = OnceLock::new();

/// A key whose `Drop` uses the cache that it was in.
struct Using {
    key: u64,
    is_value: bool,
}

impl Using {
    fn probe(key: u64) -> Self {
        let is_value = false;
        Self { key, is_value }
    }
}

impl PartialEq for Using {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key
    }
}

impl Eq for Using {}

impl Hash for Using {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.key.hash(state);
    }
}

thread_local!(static DROPPED: Cell<u64> = const { Cell::new(0) });

impl Drop for Using {
    fn drop(&mut self) {
        if self.is_value {
            DROPPED.set(DROPPED.get() + 1);
            let cache = OWN_CACHE.get().unwrap();
            drop(cache.get(&Self::probe(self.key)));
            cache
                .insert(Self::probe(self.key + 1000), b"dropped")
                .unwrap();
            cache.for_each_key(|_| {});
        }
    }
}

fn dropped_key_may_use_the_cache() {
    tenure::volatile::set_offer_delay(LONG);
    let options = CacheOptions::new().max_bytes(1 << 20);
    let cache = OWN_CACHE.get_or_init(|| VolatileCache::with_options(options));
    let is_value = true;
    let insert = |key| {
        cache
            .insert(Using { key, is_value }, &value(1, 100))
            .unwrap()
    };
    let dropped = |act: &dyn Fn()| {
        let before = DROPPED.get();
        act();
        DROPPED.get() - before
    };
    insert(1);
    assert_eq!(dropped(&|| insert(1)), 1);
    assert_eq!(dropped(&|| assert!(cache.remove(&Using::probe(1)))), 1);
    insert(1);
    let retain = || assert_eq!(cache.retain(|key| !key.is_value), 1);
    assert_eq!(dropped(&retain), 1);
    insert(1);
    assert_eq!(dropped(&|| cache.clear()), 1);
    insert(1);
    let made = || drop(cache.get_or_insert_with(Using { key: 1, is_value }, || value(2, 100)));
    assert_eq!(dropped(&made), 1);
    let evict = || {
        for key in 0..300 {
            cache
                .insert(Using { key, is_value }, &value(1, 10_000))
                .unwrap();
        }
    };
    assert!(dropped(&evict) > 100);
    assert!(cache.stats().evicted > 100);
}
