//! The cache: small and huge values, limits, expiry, and one maker for each value.

#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "tests use memory that they have mapped themselves"
)]

mod common;

use std::hash::{Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use common::cgroup::{Group, enter_group};
use common::values::assert_adds_up;
use common::*;
use libtest_mimic::Completion;
use tenure::{CacheOptions, VolatileCache, page_size, volatile::Priority};

tests!(
    small_values_take_a_quarter_more_at_most,
    full_cache_of_small_values_stays_dense_and_below_its_limit,
    limit_holds_for_values_of_all_sizes,
    pinned_memory_counts_against_the_limit,
    scan_displaces_no_values_in_use,
    insertion_beside_values_in_use_moves_few_of_them,
    limit_below_a_segment_keeps_small_values,
    evicted_key_that_returns_outlives_new_ones,
    pinned_small_value_outlives_its_neighbours_and_the_cache,
    small_value_is_replaced_by_a_large_one_and_back,
    concurrent_misses_make_the_value_once,
    failed_maker_lets_the_next_one_try,
    panicking_maker_lets_the_next_one_try,
    panicking_fill_gives_its_place_back,
    panicking_key_comparison_leaves_the_cache_usable,
    expired_value_is_a_miss_and_removed,
    retained_keys_are_those_listed,
    value_larger_than_memory_is_refused_and_counted,
    empty_and_long_keys_are_found,
    small_values_larger_than_cgroup_stay_below_limit;
    children:
    use_more_than_the_limit,
);

const LONG: Duration = Duration::from_secs(3600);
const MIB: usize = 1 << 20;

/// Returns a value that identifies its key.
fn value(key: u64, len: usize) -> Vec<u8> {
    let bytes = (0..len as u64).map(|at| (key.wrapping_mul(31) ^ at.wrapping_mul(7)) as u8 | 1);
    bytes.collect()
}

fn limited(bytes: usize) -> VolatileCache<u64> {
    VolatileCache::with_options(CacheOptions::new().max_bytes(bytes))
}

fn small_values_take_a_quarter_more_at_most() {
    tenure::volatile::set_offer_delay(LONG);
    const LEN: usize = 256;
    const VALUES: u64 = 200_000;
    let before_kib = status_kib("RssAnon");
    let cache = VolatileCache::new();
    let bytes = value(1, LEN);
    for key in 0..VALUES {
        cache.insert(key, &bytes).unwrap();
    }
    let taken_bytes = (status_kib("RssAnon") - before_kib) * 1024;
    // Other processes may have taken the memory meanwhile.
    let kept_bytes = cache.len() as u64 * (LEN + size_of::<u64>()) as u64;
    println!("{taken_bytes} bytes for {kept_bytes}");
    assert!(cache.stats().bytes * 100 <= kept_bytes * 102);
    if cache.len() as u64 == VALUES {
        assert!(taken_bytes * 100 <= kept_bytes * 125, "{taken_bytes}");
    }
    assert!((0..VALUES).step_by(997).all(|key| {
        let found = cache.get(&key);
        found.is_none_or(|found| found[..] == bytes)
    }));
}

fn full_cache_of_small_values_stays_dense_and_below_its_limit() {
    tenure::volatile::set_offer_delay(LONG);
    const LEN: usize = 256;
    let cache = limited(4 * MIB);
    let mut random = fastrand::Rng::with_seed(1);
    for _ in 0..200_000 {
        // Low keys are asked for more often.
        let key = random.u64(0..100_000).min(random.u64(0..100_000));
        match cache.get(&key) {
            Some(found) => assert_eq!(found[..], value(key, LEN)),
            None => cache.insert(key, &value(key, LEN)).unwrap(),
        }
    }
    let stats = cache.stats();
    assert!(stats.bytes <= 4 * MIB as u64, "{stats:?}");
    assert!(stats.evicted > 10_000 && stats.refused == 0, "{stats:?}");
    let kept_bytes = stats.values * LEN as u64;
    assert!(kept_bytes * 125 >= stats.bytes * 100, "{stats:?}");
    assert_adds_up(&cache);
}

fn limit_holds_for_values_of_all_sizes() {
    tenure::volatile::set_offer_delay(LONG);
    const LIMIT: usize = 2 * MIB;
    let cache = limited(LIMIT);
    let mut random = fastrand::Rng::with_seed(2);
    for step in 0..20_000 {
        let key = random.u64(0..2000);
        let len = match random.u32(0..20) {
            0 => random.usize(0..500_000),
            1..5 => random.usize(0..20_000),
            _ => random.usize(0..3000),
        };
        cache.insert(key, &value(key, len)).unwrap();
        let found = cache.get(&key).expect("it fits");
        assert_eq!(found[..], value(key, len));
        if step % 64 == 0 {
            assert!(cache.stats().bytes <= LIMIT as u64);
        }
    }
    assert_eq!(cache.stats().refused, 0);
    cache.insert(1, &vec![1; LIMIT + 1]).unwrap();
    assert!(!cache.contains_key(&1));
    assert_eq!(cache.stats().refused, 1);
    assert_adds_up(&cache);
}

fn pinned_memory_counts_against_the_limit() {
    tenure::volatile::set_offer_delay(LONG);
    let cache = limited(MIB);
    let len = MIB / 4;
    let held: Vec<_> = (0..4)
        .map(|key| cache.get_or_insert_with(key, || value(key, len)))
        .collect();
    assert_eq!(cache.len(), 4);
    let uncached = cache.get_or_insert_with(4, || value(4, len));
    assert_eq!((uncached[..] == value(4, len), cache.len()), (true, 4));
    // A removed value is not free before it is unpinned.
    cache.remove(&0);
    cache.insert(5, &value(5, len)).unwrap();
    assert_eq!((cache.contains_key(&5), cache.stats().refused), (false, 2));
    assert!(
        (0..)
            .zip(&held)
            .all(|(key, held)| held[..] == value(key, len))
    );
    drop(held);
    cache.insert(5, &value(5, len)).unwrap();
    assert!(cache.contains_key(&5));
    assert_adds_up(&cache);
}

fn scan_displaces_no_values_in_use() {
    tenure::volatile::set_offer_delay(LONG);
    for len in [200, 5000] {
        let cache = limited(8 * MIB);
        let used = (2 * MIB / len) as u64;
        for key in 0..used {
            cache.insert(key, &value(key, len)).unwrap();
        }
        // Each is found again before the scan begins.
        assert!((0..used).all(|key| cache.get(&key).is_some()));
        for key in used..20 * used {
            cache.insert(key, &value(key, len)).unwrap();
            let _ = cache.get(&(key % used));
        }
        let found = (0..used).filter(|key| cache.contains_key(key)).count() as u64;
        assert!(found * 10 >= used * 9, "{found} of {used}");
        assert_adds_up(&cache);
    }
}

/// Values that were found lately are moved together; an insertion does not wait for all.
fn insertion_beside_values_in_use_moves_few_of_them() {
    tenure::volatile::set_offer_delay(LONG);
    const LEN: usize = 256;
    let cache = limited(4 * MIB);
    let mut count = 0;
    while cache.stats().evicted == 0 {
        cache.insert(count, &value(count, LEN)).unwrap();
        count += 1;
    }
    let places = || -> Vec<_> {
        let place = |key| cache.get(&key).map(|found| found.as_ptr().addr());
        (0..count).map(place).collect()
    };
    let before = places();
    let evicted = cache.stats().evicted;
    let mut inserted = 0;
    while cache.stats().evicted == evicted {
        inserted += 1;
        cache.insert(count + inserted, &value(1, LEN)).unwrap();
    }
    let after = places();
    let moved = before.iter().zip(&after).filter(|(old, new)| old != new);
    let (moved, all) = (moved.count(), before.len());
    assert!(all > 10_000 && moved < 1000, "{moved} of {all}, {inserted}");
    assert!(cache.stats().refused == 0);
}

fn limit_below_a_segment_keeps_small_values() {
    let cache = limited(2 * page_size());
    cache.insert(1, &value(1, 100)).unwrap();
    assert_eq!(cache.get(&1).unwrap()[..], value(1, 100));
    for key in 0..10 {
        cache.insert(key, &value(key, 100)).unwrap();
    }
    let stats = cache.stats();
    assert!(
        stats.refused == 0 && stats.bytes <= 2 * page_size() as u64,
        "{stats:?}"
    );
}

fn evicted_key_that_returns_outlives_new_ones() {
    tenure::volatile::set_offer_delay(LONG);
    let cache = limited(4 * MIB);
    let (len, fit) = (1000, (4 * MIB / 1000) as u64);
    let insert = |key| cache.insert(key, &value(key, len)).unwrap();
    (0..2 * fit).for_each(insert);
    // Evicted without a find, not long ago.
    let gone: Vec<u64> = (0..2 * fit)
        .filter(|key| !cache.contains_key(key))
        .collect();
    let returned = &gone[gone.len() - 200..];
    returned.iter().copied().for_each(insert);
    (2 * fit..3 * fit).for_each(insert);
    let kept = returned.iter().filter(|key| cache.contains_key(key));
    assert!(kept.count() > 150);
    assert_adds_up(&cache);
}

fn pinned_small_value_outlives_its_neighbours_and_the_cache() {
    for delay in [Duration::ZERO, LONG] {
        tenure::volatile::set_offer_delay(delay);
        let cache = limited(2 * MIB);
        let held: Vec<_> = (0..50)
            .map(|key| cache.get_or_insert_with(key, || value(key, 300)))
            .collect();
        for key in 0..25 {
            assert!(cache.remove(&key));
        }
        for key in 100..20_000 {
            cache.insert(key, &value(key, 300)).unwrap();
        }
        let check = || {
            let mut held = (0..).zip(&held);
            held.all(|(key, held)| held[..] == value(key, 300))
        };
        assert!(check());
        assert_adds_up(&cache);
        cache.clear();
        assert!(check() && cache.is_empty());
        cache.insert(1, &value(1, 300)).unwrap();
        drop(cache);
        assert!(check());
    }
}

fn small_value_is_replaced_by_a_large_one_and_back() {
    tenure::volatile::set_offer_delay(LONG);
    let cache = VolatileCache::new();
    for len in [0, 3072, 3073, 64 << 10, 1, page_size(), 300] {
        cache.insert("key", &value(7, len)).unwrap();
        assert_eq!(cache.get("key").unwrap()[..], value(7, len), "{len}");
        assert_eq!(cache.len(), 1);
    }
    assert_adds_up(&cache);
}

fn concurrent_misses_make_the_value_once() {
    tenure::volatile::set_offer_delay(LONG);
    let cache = VolatileCache::new();
    let made = AtomicU64::new(0);
    let barrier = Barrier::new(8);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for key in 0..50 {
                    barrier.wait();
                    let found = cache.get_or_insert_with(key, || {
                        made.fetch_add(1, Ordering::Relaxed);
                        std::thread::yield_now();
                        value(key, 500)
                    });
                    assert_eq!(found[..], value(key, 500));
                }
            });
        }
    });
    let stats = cache.stats();
    assert_eq!((made.into_inner(), stats.misses, stats.hits), (50, 50, 350));
    assert_adds_up(&cache);
}

fn failed_maker_lets_the_next_one_try() {
    tenure::volatile::set_offer_delay(LONG);
    let cache = VolatileCache::new();
    let (tries, failed) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| {
                let made = cache.get_or_try_insert_with(1, || {
                    match tries.fetch_add(1, Ordering::Relaxed) {
                        0..3 => Err("not yet"),
                        _ => Ok(value(1, 500)),
                    }
                });
                match made {
                    Ok(found) => assert_eq!(found[..], value(1, 500)),
                    Err(_) => drop(failed.fetch_add(1, Ordering::Relaxed)),
                }
            });
        }
    });
    assert_eq!((tries.into_inner(), failed.into_inner()), (4, 3));
}

fn panicking_maker_lets_the_next_one_try() {
    tenure::volatile::set_offer_delay(LONG);
    let cache = VolatileCache::new();
    let has_begun = Barrier::new(2);
    std::thread::scope(|scope| {
        let failing = scope.spawn(|| {
            catch_unwind(AssertUnwindSafe(|| {
                cache.get_or_insert_with(1, || {
                    has_begun.wait();
                    panic!("on purpose");
                })
            }))
        });
        has_begun.wait();
        assert_eq!(
            cache.get_or_insert_with(1, || b"made".to_vec())[..],
            *b"made"
        );
        assert!(failing.join().unwrap().is_err());
    });
    assert_eq!(cache.get(&1).unwrap()[..], *b"made");
}

fn panicking_fill_gives_its_place_back() {
    tenure::volatile::set_offer_delay(LONG);
    let cache = VolatileCache::new();
    for len in [100, 10_000] {
        let filled = catch_unwind(AssertUnwindSafe(|| {
            cache.insert_with(1, len, Priority::Normal, |_| panic!("on purpose"))
        }));
        assert!(filled.is_err() && cache.is_empty());
        assert_eq!(cache.stats().bytes, 0);
        cache.insert(1, &value(1, len)).unwrap();
        assert_eq!(cache.get(&1).unwrap()[..], value(1, len));
        cache.clear();
    }
}

/// A key whose comparison panics while this is set.
static COMPARISON_PANICS: AtomicBool = AtomicBool::new(false);

struct Fragile(u64);

impl PartialEq for Fragile {
    fn eq(&self, other: &Self) -> bool {
        assert!(!COMPARISON_PANICS.load(Ordering::Relaxed), "on purpose");
        self.0 == other.0
    }
}

impl Eq for Fragile {}

impl Hash for Fragile {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

fn panicking_key_comparison_leaves_the_cache_usable() {
    tenure::volatile::set_offer_delay(LONG);
    let cache = VolatileCache::new();
    cache.insert(Fragile(1), b"one").unwrap();
    COMPARISON_PANICS.store(true, Ordering::Relaxed);
    let fails = |call: &dyn Fn()| catch_unwind(AssertUnwindSafe(call)).is_err();
    assert!(fails(&|| drop(cache.get(&Fragile(1)))));
    assert!(fails(&|| cache.insert(Fragile(1), b"two").unwrap()));
    assert!(fails(&|| assert!(cache.remove(&Fragile(1)))));
    let make = || drop(cache.get_or_insert_with(Fragile(1), || b"two".to_vec()));
    assert!(fails(&make));
    COMPARISON_PANICS.store(false, Ordering::Relaxed);
    std::thread::scope(|scope| {
        // From another thread: nothing is left locked, and no value is being made.
        let found = scope.spawn(|| cache.get_or_insert_with(Fragile(1), || b"two".to_vec()));
        assert_eq!(found.join().unwrap()[..], *b"one");
    });
    assert!(cache.remove(&Fragile(1)));
    assert_adds_up(&cache);
}

fn expired_value_is_a_miss_and_removed() {
    tenure::volatile::set_offer_delay(LONG);
    let with_lifetime = |lifetime| {
        let cache = VolatileCache::with_options(CacheOptions::new().time_to_live(lifetime));
        for (key, len) in [(1, 100), (2, 10_000)] {
            cache.insert(key, &value(key, len)).unwrap();
        }
        cache
    };
    let lasting = with_lifetime(LONG);
    let expiring = with_lifetime(Duration::from_millis(30));
    wait_until(|| !expiring.contains_key(&1) && !expiring.contains_key(&2));
    assert!(expiring.get(&1).is_none() && expiring.get(&2).is_none());
    assert_eq!((expiring.len(), expiring.stats().removed), (0, 2));
    let forever = with_lifetime(Duration::MAX);
    for cache in [&lasting, &forever] {
        assert!(cache.get(&1).is_some() && cache.get(&2).is_some());
    }
    expiring.insert(1, b"again").unwrap();
    wait_until(|| expiring.retain(|_| true) == 1);
    let zero = with_lifetime(Duration::ZERO);
    assert!(zero.get(&1).is_none());
    [lasting, expiring, forever, zero]
        .iter()
        .for_each(assert_adds_up);
}

/// Waits for what happens in less than a second on an idle machine.
fn wait_until(is_done: impl Fn() -> bool) {
    let began = std::time::Instant::now();
    while !is_done() {
        assert!(began.elapsed() < Duration::from_secs(120));
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn retained_keys_are_those_listed() {
    tenure::volatile::set_offer_delay(LONG);
    let cache = VolatileCache::new();
    for key in 0..1000_u64 {
        let len = if key % 10 == 0 { 5000 } else { 50 };
        cache.insert(key, &value(key, len)).unwrap();
    }
    let held = cache.get(&3).unwrap();
    assert_eq!(cache.retain(|key| key % 2 == 0), 500);
    let mut keys = Vec::new();
    cache.for_each_key(|&key| keys.push(key));
    keys.sort_unstable();
    assert!(keys.into_iter().eq((0..1000).step_by(2)));
    assert_eq!(held[..], value(3, 50));
    assert_eq!(cache.stats().removed, 500);
    assert_adds_up(&cache);
}

fn value_larger_than_memory_is_refused_and_counted() {
    tenure::volatile::set_offer_delay(LONG);
    let cache = VolatileCache::new();
    cache.insert(1, b"one").unwrap();
    cache.insert(2, b"two").unwrap();
    let largest = isize::MAX as usize;
    for len in [1 << 46, largest, largest + 1, usize::MAX] {
        let fill = |_: &mut [u8]| panic!("there is no memory for {len} bytes");
        cache.insert_with(1, len, Priority::High, fill).unwrap();
        // The previous value is out of date.
        assert!(cache.get(&1).is_none());
    }
    assert_eq!((cache.stats().refused, cache.len()), (4, 1));
    assert_eq!(cache.get(&2).unwrap()[..], *b"two");
    assert_adds_up(&cache);
}

fn empty_and_long_keys_are_found() {
    tenure::volatile::set_offer_delay(LONG);
    let cache: VolatileCache<Vec<u8>> = VolatileCache::new();
    let long = value(9, 64 << 10);
    for len in [0, 100, 10_000] {
        cache.insert(Vec::new(), &value(1, len)).unwrap();
        cache.insert(long.clone(), &value(2, len)).unwrap();
        assert_eq!(cache.get(&[][..]).unwrap()[..], value(1, len));
        assert_eq!(cache.get(&long[..]).unwrap()[..], value(2, len));
        assert!(cache.get(&long[1..]).is_none());
    }
    assert!(cache.remove(&[][..]) && cache.remove(&long[..]) && cache.is_empty());
}

const LIMIT: usize = 128 * MIB;

fn use_more_than_the_limit() {
    enter_group();
    const LEN: usize = 1000;
    let keys = (2 * LIMIT / LEN) as u64;
    let cache = VolatileCache::new();
    for key in 0..keys {
        cache.insert(key, &value(key, LEN)).unwrap();
    }
    let kept = cache.stats().bytes as usize;
    assert!(kept > LIMIT / 2 && kept < LIMIT, "{kept} bytes");
    for key in (0..keys).rev() {
        let found = cache.get_or_insert_with(key, || value(key, LEN));
        assert!(key % 16 != 0 || found[..] == value(key, LEN), "{key}");
    }
    let stats = cache.stats();
    println!("{stats:?}");
    assert!(stats.hits > 0 && stats.evicted > 0, "{stats:?}");
    assert!(stats.bytes < LIMIT as u64, "{stats:?}");
    assert_adds_up(&cache);
}

fn small_values_larger_than_cgroup_stay_below_limit() -> Completion {
    match Group::with_limit(LIMIT) {
        Ok(group) => group.run("use_more_than_the_limit"),
        Err(reason) => return skip(&reason),
    }
    Completion::Completed
}
