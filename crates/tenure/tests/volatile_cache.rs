//! The cache that follows memory pressure.

#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "tests use memory that they have mapped themselves"
)]

mod common;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use common::cgroup::{Group, enter_group};
use common::values::{assert_adds_up, is_value, value};
use common::volatile::can_offer;
use common::*;
use libtest_mimic::Completion;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use tenure::{PageRange, Pinned, VolatileCache, page_size, volatile::Priority};

tests!(
    inserted_value_is_found,
    pinned_value_survives_replace_and_remove,
    pinned_value_is_not_reclaimed,
    partially_purged_value_is_a_miss,
    concurrent_pins_of_one_value_all_succeed,
    missed_value_is_rebuilt_once,
    rebuild_that_fails_or_reenters_keeps_cache_consistent,
    removed_value_is_freed_when_unpinned,
    keys_of_purged_values_are_dropped,
    cleared_cache_frees_all_but_pinned_values,
    cache_of_100k_values_needs_few_mappings,
    empty_and_large_values_are_found_whole,
    random_steps_match_hash_map_model,
    concurrent_use_under_reclaim_returns_right_values,
    forked_child_has_empty_cache,
    insert_without_address_space_keeps_no_stale_value,
    cache_contract_holds_without_userfaultfd,
    dropped_key_may_use_the_cache_while_values_are_evicted,
    closure_may_use_another_cache;
    children:
    run_out_of_address_space,
    check_contract_without_userfaultfd,
    insert_from_dropped_keys,
);

fn skip_without_userfaultfd() -> Completion {
    skip("needs userfaultfd and MADV_POPULATE_WRITE")
}

const NONE: Duration = Duration::ZERO;
const LONG: Duration = Duration::from_secs(3600);
const MIB: usize = 1 << 20;

/// Returns the pages of a value: also those of its neighbours if it is small.
fn range(pinned: &Pinned) -> PageRange {
    let addr = pinned.as_ptr().addr();
    let start = addr / page_size() * page_size();
    PageRange::covering(start, addr - start + pinned.len().max(1)).unwrap()
}

/// The size of the memory that small values share.
fn shared_bytes() -> usize {
    page_size().max(16 << 10)
}

/// Makes the kernel reclaim offered pages, as far as it does so immediately.
fn reclaim_some(range: PageRange) {
    // The range may be unmapped by now.
    let _ = unsafe {
        rustix::mm::madvise(
            range.as_ptr().cast(),
            range.len(),
            rustix::mm::Advice::LinuxPageOut,
        )
    };
}

fn inserted_value_is_found() {
    tenure::volatile::set_offer_delay(LONG);
    let cache: VolatileCache<String> = VolatileCache::new();
    assert!(cache.is_empty() && cache.get("a").is_none());
    cache.insert("a".to_owned(), &value(1, 10_000)).unwrap();
    cache.insert("b".to_owned(), &value(2, 1)).unwrap();
    cache
        .insert_with("c".to_owned(), 5000, Priority::High, |bytes| {
            assert!(bytes.iter().all(|&byte| byte == 0));
            bytes.copy_from_slice(&value(3, 5000));
        })
        .unwrap();
    for (key, number, len) in [("a", 1, 10_000), ("b", 2, 1), ("c", 3, 5000)] {
        let pinned = cache.get(key).unwrap();
        assert_eq!(pinned[..], value(number, len));
        assert!(cache.contains_key(key));
    }
    assert!(!cache.contains_key("d"));
    let stats = cache.stats();
    assert_eq!((stats.hits, stats.misses, stats.insertions), (3, 1, 3));
    let pages = 10_000_usize.div_ceil(page_size()) + 5000_usize.div_ceil(page_size());
    let bytes = pages * page_size() + shared_bytes();
    assert_eq!(stats.bytes, bytes as u64);
    assert!(cache.remove("a") && !cache.remove("a") && cache.get("a").is_none());
    cache.clear();
    assert!(cache.is_empty() && cache.get("b").is_none());
    assert_eq!(cache.stats().removed, 3);
    assert_adds_up(&cache);
}

fn pinned_value_survives_replace_and_remove() {
    for delay in [NONE, LONG] {
        tenure::volatile::set_offer_delay(delay);
        let cache = VolatileCache::new();
        let len = 3 * page_size();
        for key in 0..3 {
            cache.insert(key, &value(key, len)).unwrap();
        }
        let held: Vec<_> = (0..3).map(|key| cache.get(&key).unwrap()).collect();
        cache.insert(0, &value(10, len)).unwrap();
        cache.remove(&1);
        assert!(is_value(&cache.get(&0).unwrap(), 10));
        assert_adds_up(&cache);
        cache.clear();
        assert!(cache.get(&2).is_none());
        drop(cache);
        for (key, pinned) in held.iter().enumerate() {
            reclaim_some(range(pinned));
            assert!(is_value(pinned, key as u64), "{key}");
        }
    }
}

fn pinned_value_is_not_reclaimed() {
    for delay in [NONE, LONG] {
        tenure::volatile::set_offer_delay(delay);
        let cache = VolatileCache::new();
        cache.insert(1, &value(1, 8 * page_size())).unwrap();
        let volatile_bytes = || tenure::stats().volatile_bytes;
        let before = volatile_bytes();
        let first = cache.get(&1).unwrap();
        let second = cache.get(&1).unwrap();
        assert_eq!(before - volatile_bytes(), range(&first).len() as u64);
        drop(first);
        for _ in 0..10 {
            reclaim_some(range(&second));
        }
        assert!(is_value(&second, 1));
        assert!(volatile_bytes() < before);
        drop(second);
        assert_eq!(volatile_bytes(), before);
    }
}

fn partially_purged_value_is_a_miss() -> Completion {
    if !can_offer() {
        return skip_without_userfaultfd();
    }
    tenure::volatile::set_offer_delay(NONE);
    let cache = VolatileCache::new();
    let (len, all) = (4 * page_size(), 32);
    for key in 0..all {
        cache.insert(key, &value(key, len)).unwrap();
    }
    flush_all_batches();
    let ranges: Vec<_> = (0..all)
        .map(|key| cache.get(&key).map(|pinned| range(&pinned)))
        .collect();
    let mut reclaimed = 0;
    for (key, range) in ranges.iter().enumerate() {
        if let Some(range) = range.filter(|_| key % 2 == 0) {
            page_out_all(pages(range, key / 2 % 4, 1));
            reclaimed += 1;
        }
    }
    for key in 0..all {
        let found = cache.get(&key);
        assert!(key % 2 == 1 || found.is_none(), "{key}");
        assert!(found.is_none_or(|pinned| is_value(&pinned, key)), "{key}");
    }
    let stats = cache.stats();
    assert!(reclaimed > 0 && stats.purged >= reclaimed);
    assert_eq!(stats.purged_bytes, stats.purged * len as u64);
    assert_eq!(stats.values + stats.purged, all);
    assert_adds_up(&cache);
    // The key can get a new value.
    cache.insert(0, &value(0, len)).unwrap();
    assert!(cache.get(&0).is_none_or(|pinned| is_value(&pinned, 0)));
    Completion::Completed
}

fn concurrent_pins_of_one_value_all_succeed() {
    tenure::volatile::set_offer_delay(NONE);
    let cache = VolatileCache::new();
    let barrier = std::sync::Barrier::new(4);
    cache.insert(1, &value(1, 3 * page_size())).unwrap();
    let held = cache.get(&1).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..200 {
                    let pinned = cache.get(&1).expect("the value is pinned throughout");
                    reclaim_some(range(&pinned));
                    assert!(is_value(&pinned, 1));
                    barrier.wait();
                }
            });
        }
    });
    drop(held);
    assert_eq!(cache.stats().hits, 801);
}

fn missed_value_is_rebuilt_once() {
    tenure::volatile::set_offer_delay(LONG);
    let cache = VolatileCache::new();
    let rebuilt = AtomicU64::new(0);
    let get_or_build = |key| {
        cache.get_or_insert_with(key, || {
            rebuilt.fetch_add(1, Ordering::Relaxed);
            value(key, 5000)
        })
    };
    for round in 0..3 {
        for key in 0..50 {
            assert_eq!(get_or_build(key)[..], value(key, 5000), "{round}");
        }
    }
    assert_eq!(rebuilt.into_inner(), 50);
    let stats = cache.stats();
    assert_eq!((stats.hits, stats.misses, stats.insertions), (100, 50, 50));
}

fn rebuild_that_fails_or_reenters_keeps_cache_consistent() {
    tenure::volatile::set_offer_delay(LONG);
    let cache = VolatileCache::new();
    let failed = cache.get_or_try_insert_with(1, || Err("no such picture"));
    assert_eq!(failed.unwrap_err(), "no such picture");
    assert!(!cache.contains_key(&1));
    let pinned = cache.get_or_insert_with(1, || {
        // Another insertion comes first.
        cache.insert(1, b"theirs").unwrap();
        let inner = cache.get_or_insert_with(2, || b"inner".to_vec());
        inner.to_vec()
    });
    assert_eq!(&pinned[..], b"inner");
    assert_eq!(&cache.get(&1).unwrap()[..], b"theirs");
    assert_adds_up(&cache);
}

fn removed_value_is_freed_when_unpinned() {
    for delay in [NONE, LONG] {
        tenure::volatile::set_offer_delay(delay);
        let cache = VolatileCache::new();
        let len = 64 * page_size();
        let mut ranges = Vec::new();
        for key in 0..4 {
            let pinned = cache.get_or_insert_with(key, || value(key, len));
            ranges.push(range(&pinned));
            assert_eq!(count_present(ranges[key as usize]), 64);
        }
        let held = cache.get(&2);
        // While all are present: the new value does not reuse another's slot.
        cache.insert(0, b"short").unwrap();
        cache.remove(&1);
        cache.remove(&2);
        let present = [0, 1, 2].map(|key| count_present(ranges[key]));
        assert_eq!(present, [0, 0, 64]);
        drop(held);
        assert_eq!(count_present(ranges[2]), 0);
        cache.clear();
        assert_eq!(count_present(ranges[3]), 0);
    }
}

/// A key that counts how many of its kind exist.
#[derive(PartialEq, Eq, Hash)]
struct Counted(u64, Same);

struct Same(#[expect(dead_code, reason = "it counts")] Arc<()>);

impl PartialEq for Same {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Same {}

impl std::hash::Hash for Same {
    fn hash<H: std::hash::Hasher>(&self, _: &mut H) {}
}

fn cleared_cache_frees_all_but_pinned_values() {
    const LEN: usize = 64 << 10;
    tenure::volatile::set_offer_delay(Duration::ZERO);
    for is_dropped in [false, true] {
        let before = tenure::stats();
        let cache = VolatileCache::new();
        for key in 0..200 {
            let bytes = value(key, LEN);
            let filled = cache.insert_with(key, LEN, Priority::Normal, |value| {
                value.copy_from_slice(&bytes);
            });
            filled.unwrap();
        }
        let pinned = cache.get(&7);
        let arena_rss_kib = || status_kib("RssAnon");
        let full_kib = arena_rss_kib();
        if is_dropped {
            drop(cache);
        } else {
            cache.clear();
            assert!(cache.is_empty() && cache.get(&8).is_none());
        }
        assert!(full_kib - arena_rss_kib() >= 190 * 64, "{full_kib}");
        // The kernel may have purged it before.
        assert!(pinned.is_none_or(|pinned| pinned[..] == value(7, LEN)[..]));
        let now = tenure::stats();
        assert_eq!(now.volatile_bytes, before.volatile_bytes);
        assert_eq!(now.offered_bytes, before.offered_bytes);
    }
}

fn keys_of_purged_values_are_dropped() -> Completion {
    if !can_offer() {
        return skip_without_userfaultfd();
    }
    tenure::volatile::set_offer_delay(NONE);
    const ALL: u64 = 12_000;
    let cache = VolatileCache::new();
    let count = Arc::new(());
    let insert = |number| {
        let key = Counted(number, Same(count.clone()));
        let pinned = cache.get_or_insert_with(key, || value(number, 2 * page_size()));
        range(&pinned)
    };
    for hundred in 0..ALL / 100 {
        let reclaimed: Vec<_> = (0..100).map(|nth| insert(100 * hundred + nth)).collect();
        // Every eighth value is left out. Others may stay, too: those whose pages wait in a
        // batch of the kernel's.
        let others = reclaimed
            .into_iter()
            .enumerate()
            .filter(|(nth, _)| nth % 8 != 0);
        others.for_each(|(_, range)| reclaim_some(range));
    }
    let stats = cache.stats();
    assert!(stats.purged > ALL / 2, "{stats:?}");
    let keys = Arc::strong_count(&count) as u64;
    assert!(keys < ALL * 3 / 4, "{keys} keys, {stats:?}");
    for number in 0..ALL {
        let _ = cache.get(&Counted(number, Same(count.clone())));
    }
    assert_eq!(Arc::strong_count(&count), cache.len() + 1);
    assert_adds_up(&cache);
    Completion::Completed
}

fn mapping_count() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().count()
}

fn cache_of_100k_values_needs_few_mappings() {
    tenure::volatile::set_offer_delay(Duration::from_millis(100));
    const VALUES: u64 = 100_000;
    let cache = VolatileCache::new();
    let before = mapping_count();
    for key in 0..VALUES {
        cache.insert(key, &key.to_le_bytes()).unwrap();
    }
    // Some values are offered and some are pinned.
    let held: Vec<_> = (0..VALUES).step_by(7).map(|key| cache.get(&key)).collect();
    let added = mapping_count() - before;
    assert!(added < 1000, "{added} additional mappings");
    for (key, pinned) in (0..VALUES).step_by(7).zip(held) {
        assert!(pinned.is_none_or(|pinned| pinned[..] == key.to_le_bytes()));
    }
    assert_adds_up(&cache);
}

fn empty_and_large_values_are_found_whole() {
    tenure::volatile::set_offer_delay(NONE);
    let cache = VolatileCache::new();
    // Values in the first arena, in an arena of their own, and in none.
    for (key, len) in [(0, 0), (1, 63 * MIB), (2, 2 * MIB), (3, 65 * MIB)] {
        let pinned = cache.get_or_insert_with(key, || vec![key as u8; len]);
        assert_eq!(pinned.len(), len);
        assert!(pinned.iter().all(|&byte| byte == key as u8));
        drop(pinned);
        let found = cache.get(&key);
        assert!(found.is_none_or(|pinned| pinned.iter().all(|&byte| byte == key as u8)));
        cache.remove(&(key - key % 2));
    }
    assert_adds_up(&cache);
}

#[derive(Clone, Debug)]
enum Step {
    Insert(u64, usize, usize),
    Get(u64),
    Rebuild(u64, usize),
    Remove(u64),
    Pin(u64),
    Unpin,
    Reclaim(u64),
    Retain(u64),
    Clear,
}

fn step() -> impl Strategy<Value = Step> {
    let key = 0..12_u64;
    // Values that share pages, and others.
    let len = prop_oneof![Just(0_usize), 1..4_000_usize, 1..20_000_usize];
    prop_oneof![
        4 => (key.clone(), len.clone(), 0..4_usize).prop_map(|(key, len, priority)| Step::Insert(key, len, priority)),
        4 => key.clone().prop_map(Step::Get),
        2 => (key.clone(), len).prop_map(|(key, len)| Step::Rebuild(key, len)),
        2 => key.clone().prop_map(Step::Remove),
        2 => key.clone().prop_map(Step::Pin),
        2 => Just(Step::Unpin),
        2 => key.prop_map(Step::Reclaim),
        1 => (2..5_u64).prop_map(Step::Retain),
        1 => Just(Step::Clear),
    ]
}

/// Applies the same steps to a cache and to a map. If nothing is offered the two are equal;
/// otherwise the cache may have fewer values.
fn apply_steps(steps: &[Step], may_purge: bool) -> Result<(), TestCaseError> {
    let cache = VolatileCache::new();
    let mut model: HashMap<u64, Vec<u8>> = HashMap::new();
    let mut held: Vec<(Pinned, Vec<u8>)> = Vec::new();
    let mut contents = 0;
    let mut next = |len| {
        contents += 1;
        value(contents, len)
    };
    for step in steps {
        match *step {
            Step::Insert(key, len, priority) => {
                let bytes = next(len);
                let priority = Priority::ALL[priority];
                let fill = |value: &mut [u8]| value.copy_from_slice(&bytes);
                cache.insert_with(key, bytes.len(), priority, fill).unwrap();
                model.insert(key, bytes);
            }
            Step::Get(key) | Step::Pin(key) => {
                let found = cache.get(&key);
                match (found, model.get(&key)) {
                    (Some(pinned), Some(expected)) => {
                        prop_assert_eq!(&pinned[..], &expected[..]);
                        if let Step::Pin(_) = step {
                            held.push((pinned, expected.clone()));
                        }
                    }
                    (None, None) => {}
                    (None, Some(_)) if may_purge => drop(model.remove(&key)),
                    (found, expected) => {
                        return Err(TestCaseError::fail(format!("{found:?} for {expected:?}")));
                    }
                }
            }
            Step::Rebuild(key, len) => {
                let bytes = next(len);
                let mut rebuilt = false;
                let pinned = cache.get_or_insert_with(key, || {
                    rebuilt = true;
                    bytes.clone()
                });
                prop_assert!(may_purge || rebuilt != model.contains_key(&key));
                if rebuilt {
                    model.insert(key, bytes);
                }
                prop_assert_eq!(&pinned[..], &model[&key][..]);
            }
            Step::Remove(key) => {
                let had = model.remove(&key).is_some();
                let removed = cache.remove(&key);
                prop_assert!(removed == had || may_purge && !removed);
            }
            Step::Unpin => drop(held.pop()),
            Step::Reclaim(key) => {
                let found = cache.get(&key).map(|pinned| range(&pinned));
                found.into_iter().for_each(reclaim_some);
            }
            Step::Retain(divisor) => {
                let before = model.len();
                model.retain(|key, _| key % divisor == 0);
                let removed = cache.retain(|key| key % divisor == 0);
                prop_assert!(may_purge || removed == before - model.len());
                let mut keys = 0;
                cache.for_each_key(|key| keys += usize::from(model.contains_key(key)));
                prop_assert_eq!(keys, cache.len());
            }
            Step::Clear => {
                cache.clear();
                model.clear();
            }
        }
        prop_assert!(
            held.iter()
                .all(|(pinned, expected)| pinned[..] == expected[..])
        );
        prop_assert!(cache.len() <= model.len() || may_purge);
    }
    assert_adds_up(&cache);
    Ok(())
}

fn random_steps_match_hash_map_model() {
    for (delay, may_purge) in [(LONG, false), (NONE, true)] {
        tenure::volatile::set_offer_delay(delay);
        let mut runner = TestRunner::new(Config {
            cases: 100,
            failure_persistence: None,
            ..Config::default()
        });
        let steps = prop::collection::vec(step(), 1..150);
        runner
            .run(&steps, |steps| apply_steps(&steps, may_purge))
            .unwrap();
    }
}

fn concurrent_use_under_reclaim_returns_right_values() {
    let delays = [NONE, Duration::from_millis(1)];
    for (delay, len) in delays
        .into_iter()
        .flat_map(|delay| [(delay, 9000), (delay, 700)])
    {
        tenure::volatile::set_offer_delay(delay);
        let cache = VolatileCache::new();
        let seen: Vec<AtomicU64> = (0..64).map(|_| AtomicU64::new(0)).collect();
        let (rebuilt, asked, done) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
        let work = |thread: u64| {
            let mut random = fastrand::Rng::with_seed(thread);
            for _ in 0..3000 / slowness() {
                let key = random.u64(0..200);
                match random.u32(0..20) {
                    0 => drop(cache.remove(&key)),
                    1 => cache
                        .insert(key, &value(key, random.usize(1..3 * len)))
                        .unwrap(),
                    _ => {
                        asked.fetch_add(1, Ordering::Relaxed);
                        let pinned = cache.get_or_insert_with(key, || {
                            rebuilt.fetch_add(1, Ordering::Relaxed);
                            value(key, len)
                        });
                        assert!(is_value(&pinned, key), "{key}");
                        let at = &seen[random.usize(0..seen.len())];
                        at.store(range(&pinned).start() as u64, Ordering::Relaxed);
                    }
                }
            }
        };
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..4)
                .map(|thread| scope.spawn(move || work(thread)))
                .collect();
            scope.spawn(|| {
                let mut random = fastrand::Rng::new();
                while !done.load(Ordering::Relaxed) {
                    let start = seen[random.usize(0..seen.len())].load(Ordering::Relaxed);
                    let len = random.usize(1..6) * page_size();
                    reclaim_some(PageRange::new(start as usize, len).unwrap());
                }
            });
            let ended: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
            done.store(true, Ordering::Relaxed);
            ended.into_iter().for_each(|ended| ended.unwrap());
        });
        let stats = cache.stats();
        assert_eq!(stats.misses, rebuilt.into_inner());
        assert_eq!(stats.hits + stats.misses, asked.into_inner());
        assert!(stats.hits > 0);
        assert_adds_up(&cache);
    }
}

fn forked_child_has_empty_cache() {
    tenure::volatile::set_offer_delay(NONE);
    let cache = VolatileCache::new();
    for key in 0..8 {
        cache.insert(key, &value(key, 3 * page_size())).unwrap();
    }
    let held = cache.get_or_insert_with(8, || value(8, 9000));
    let kept = cache.get(&8).unwrap();
    let status = fork(|| {
        assert!(is_value(&held, 8));
        assert!(cache.is_empty() && (0..9).all(|key| cache.get(&key).is_none()));
        cache.insert(1, b"one").unwrap();
        assert!(!cache.contains_key(&1) && !cache.remove(&1));
        cache.clear();
        assert_eq!(&cache.get_or_insert_with(2, || b"two".to_vec())[..], b"two");
        drop(held);
        drop(cache);
        let own = VolatileCache::new();
        own.insert(1, b"one").unwrap();
        i32::from(own.get(&1).is_some_and(|pinned| pinned[..] != *b"one"))
    });
    assert_eq!(status, 0);
    assert!(is_value(&kept, 8));
}

/// Runs `act` with little more address space than is in use. Failures are reported outside
/// of it, where memory can be allocated.
fn with_little_address_space<T>(more_bytes: usize, act: impl FnOnce() -> T) -> T {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let before = getrlimit(Resource::As);
    let bytes = status_kib("VmSize") * 1024 + more_bytes as u64;
    let limit = Rlimit {
        current: Some(bytes),
        ..before
    };
    setrlimit(Resource::As, limit).unwrap();
    let answer = act();
    setrlimit(Resource::As, before).unwrap();
    answer
}

fn run_out_of_address_space() {
    tenure::volatile::set_offer_delay(LONG);
    let cache = VolatileCache::new();
    cache.insert(0, &value(0, 10_000)).unwrap();
    // Threads map their stacks, and the allocator maps an arena for each.
    std::thread::sleep(Duration::from_millis(500));
    let bytes = vec![1; MIB];
    let (refused, rebuilt, replaced) = with_little_address_space(200 * MIB, || {
        let refused = (1..500).find_map(|key| cache.insert(key, &bytes).err());
        let rebuilt = cache.get_or_insert_with(500, || bytes.clone());
        (refused, rebuilt, cache.insert(0, &bytes))
    });
    // The cache holds all of the first arena, and some of what the limit allows.
    assert!((100..264).contains(&cache.len()), "{}", cache.len());
    let error = refused.expect("500 values do not fit");
    assert_eq!(error.errno(), libc::ENOMEM, "{error}");
    assert_eq!(rebuilt[..], bytes);
    // A failed replacement leaves no value rather than the old one.
    assert!(replaced.is_err() && !cache.contains_key(&0));
    assert_eq!(cache.stats().refused, 3);
    cache.clear();
    cache.insert(0, &bytes).unwrap();
    assert_adds_up(&cache);
}

fn insert_without_address_space_keeps_no_stale_value() {
    in_child_ok("run_out_of_address_space");
}

/// Repeats the tests where nothing can be offered.
fn check_contract_without_userfaultfd() {
    inserted_value_is_found();
    pinned_value_survives_replace_and_remove();
    pinned_value_is_not_reclaimed();
    concurrent_pins_of_one_value_all_succeed();
    removed_value_is_freed_when_unpinned();
    empty_and_large_values_are_found_whole();
    random_steps_match_hash_map_model();
    concurrent_use_under_reclaim_returns_right_values();
    forked_child_has_empty_cache();
}

fn cache_contract_holds_without_userfaultfd() {
    for features in ["userfaultfd", "userfaultfd,madv_guard", "madv_populate"] {
        in_child_without(features, "check_contract_without_userfaultfd");
    }
}

/// A key whose drop inserts another one.
#[derive(PartialEq, Eq, Hash)]
struct Successor(u64);

static OF_SUCCESSORS: LazyLock<VolatileCache<Successor>> = LazyLock::new(VolatileCache::new);

/// A successor has none itself.
const HAS_NONE: u64 = 1 << 40;

impl Drop for Successor {
    fn drop(&mut self) {
        if self.0 & HAS_NONE == 0 {
            let value = vec![7; 5 << 20];
            let key = Self(self.0 | HAS_NONE);
            OF_SUCCESSORS.insert(key, &value).unwrap();
        }
    }
}

fn insert_from_dropped_keys() {
    enter_group();
    let value = vec![7; 5 << 20];
    for key in 0..100 {
        OF_SUCCESSORS.insert(Successor(key), &value).unwrap();
    }
    let stats = OF_SUCCESSORS.stats();
    assert!(stats.evicted > 0, "{stats:?}");
    assert_adds_up(&OF_SUCCESSORS);
}

fn dropped_key_may_use_the_cache_while_values_are_evicted() -> Completion {
    match Group::with_limit(128 * MIB) {
        Ok(group) => group.run("insert_from_dropped_keys"),
        Err(reason) => return skip(&reason),
    }
    Completion::Completed
}

fn closure_may_use_another_cache() {
    let [first, second] = [VolatileCache::new(), VolatileCache::new()];
    for key in 0..100_u64 {
        first.insert(key, &[7; 100]).unwrap();
        second.insert(key, &[7; 100]).unwrap();
    }
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !is_done.load(Ordering::Relaxed) {
                    for key in 0..100 {
                        second.insert(key, &[7; 100]).unwrap();
                    }
                }
            });
        }
        let uses = std::panic::AssertUnwindSafe(|| {
            for _ in 0..300 / slowness() {
                first.for_each_key(|key| drop(second.get(key)));
                first.retain(|key| second.contains_key(key) || *key < 100);
            }
        });
        let used = std::panic::catch_unwind(uses);
        is_done.store(true, Ordering::Relaxed);
        assert!(used.is_ok());
    });
}
