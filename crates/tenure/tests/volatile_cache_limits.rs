//! The cache: what it evicts for a new value, what pinned values keep, and what a memory cgroup
//! leaves it.

mod common;

use std::time::Duration;

use common::cgroup::{Group, enter_group};
use common::pool::wait_until;
use common::values::{assert_adds_up, is_value, value};
use common::volatile::can_offer;
use common::*;
use fastrand::Rng;
use libtest_mimic::Completion;
use tenure::volatile::Priority;
use tenure::{
    CacheOptions, Features, Headroom, Mapping, PageRange, Pinned, VolatileCache, page_size,
};

tests!(
    value_that_exceeds_memory_evicts_nothing,
    value_that_fits_only_without_pinned_values_evicts_nothing,
    value_that_fits_only_without_higher_priorities_evicts_nothing,
    value_that_fits_without_all_idle_values_is_cached,
    pinned_values_on_probation_let_the_main_queue_be_evicted,
    value_pinned_across_clear_is_freed_with_its_guard,
    cache_larger_than_cgroup_stays_below_limit,
    cache_larger_than_cgroup_without_userfaultfd_stays_below_limit,
    eviction_takes_lower_priorities_first,
    eviction_spares_values_in_use,
    pressure_purges_values_of_lower_priority_first,
    cache_shrinks_when_program_needs_memory,
    [thorough] full_cache_gives_memory_to_another_process_of_its_cgroup,
    [exclusive] busy_cache_gives_memory_to_another_process_of_its_cgroup;
    children:
    use_more_than_the_limit, fill_with_three_priorities, fill_beside_values_in_use,
    run_short_of_memory, take_memory_from_the_cache,
    fill_the_cgroup_beside_another_process, take_most_of_the_cgroup,
    use_values_beside_another_process, take_half_of_the_small_cgroup,
);

const LONG: Duration = Duration::from_secs(3600);
const MIB: usize = 1 << 20;
const CGROUP_BYTES: usize = 256 * MIB;
const SMALL_CGROUP_BYTES: usize = 128 * MIB;

fn limited(bytes: usize) -> VolatileCache<u64> {
    tenure::volatile::set_offer_delay(LONG);
    VolatileCache::with_options(CacheOptions::new().max_bytes(bytes))
}

/// Runs a child in a memory cgroup with this limit.
fn in_group(limit_bytes: usize, child: &str) -> Completion {
    match Group::with_limit(limit_bytes) {
        Ok(group) => group.run(child),
        Err(reason) => return skip(&reason),
    }
    Completion::Completed
}

/// The same where the kernel purges nothing by itself.
fn in_group_without_userfaultfd(limit_bytes: usize, child: &str) -> Completion {
    match Group::with_limit(limit_bytes) {
        Ok(group) => group.run_without("userfaultfd", child),
        Err(reason) => return skip(&reason),
    }
    Completion::Completed
}

fn insert(cache: &VolatileCache<u64>, key: u64, len: usize, priority: Priority) {
    cache
        .insert_with(key, len, priority, |value| value.fill(7))
        .unwrap();
}

/// Asserts that a value is refused and takes no other with it.
fn assert_refuses(cache: &VolatileCache<u64>, len: usize, priority: Priority) {
    let before = cache.stats();
    insert(cache, 1 << 40, len, priority);
    let after = cache.stats();
    assert_eq!(after.refused, before.refused + 1);
    let kept = |stats: &tenure::CacheStats| (stats.values, stats.bytes, stats.evicted);
    assert_eq!(kept(&before), kept(&after));
}

fn value_that_exceeds_memory_evicts_nothing() {
    let limit = 1 << 44;
    let cache = limited(limit);
    for key in 0..8 {
        insert(&cache, key, MIB, Priority::Normal);
    }
    // Below the limit, if values are evicted.
    assert_refuses(&cache, limit - MIB, Priority::High);
}

fn value_that_fits_only_without_pinned_values_evicts_nothing() {
    let cache = limited(16 * MIB);
    for key in 0..14 {
        insert(&cache, key, MIB, Priority::Normal);
    }
    let pinned: Vec<_> = (0..10).filter_map(|key| cache.get(&key)).collect();
    if pinned.len() == 10 && cache.len() == 14 {
        assert_refuses(&cache, 7 * MIB, Priority::High);
    }
    drop(pinned);
    insert(&cache, 1 << 40, 7 * MIB, Priority::High);
    assert!(cache.get(&(1 << 40)).is_some());
}

fn value_that_fits_only_without_higher_priorities_evicts_nothing() {
    let cache = limited(16 * MIB);
    for key in 0..14 {
        let priority = if key < 10 {
            Priority::High
        } else {
            Priority::Low
        };
        insert(&cache, key, MIB, priority);
    }
    assert_refuses(&cache, 7 * MIB, Priority::Low);
    assert_refuses(&cache, 7 * MIB, Priority::Normal);
    insert(&cache, 1 << 40, 7 * MIB, Priority::High);
    assert!(cache.get(&(1 << 40)).is_some());
}

fn value_that_fits_without_all_idle_values_is_cached() {
    let cache = limited(16 * MIB);
    for key in 0..14 {
        insert(&cache, key, MIB, Priority::Normal);
    }
    insert(&cache, 1 << 40, 16 * MIB, Priority::Normal);
    let stats = cache.stats();
    assert_eq!((stats.values, stats.refused), (1, 0), "{stats:?}");
}

/// More is pinned of the queue to evict from than may be in it, and nothing of it is idle.
fn pinned_values_on_probation_let_the_main_queue_be_evicted() {
    // A cache this small has one shard.
    const LEN: usize = 8 << 10;
    let count = (512 << 10) / LEN as u64;
    let cache = limited(count as usize * LEN.next_multiple_of(page_size()));
    for key in 0..count {
        insert(&cache, key, LEN, Priority::Normal);
        assert!(cache.get(&key).is_some(), "{key}");
    }
    // Values that were found go on to the main queue when others come.
    let mut pinned: Vec<Pinned> = Vec::new();
    for key in count..count + count / 2 {
        pinned.push(cache.get_or_insert_with(key, || vec![7; LEN]));
        assert_eq!(cache.stats().refused, 0, "{key}: {:?}", cache.stats());
    }
    assert!(cache.stats().evicted >= count / 2);
}

fn value_pinned_across_clear_is_freed_with_its_guard() {
    tenure::volatile::set_offer_delay(LONG);
    let cache = VolatileCache::new();
    let page_count = MIB / page_size();
    let mut pinned: Vec<Pinned> = Vec::new();
    for key in 0..3 {
        pinned.push(cache.get_or_insert_with(key, || vec![7; MIB]));
    }
    let range = |pinned: &Pinned| PageRange::new(pinned.as_ptr().addr(), MIB).unwrap();
    let ranges: Vec<_> = pinned.iter().map(range).collect();
    cache.clear();
    while let Some(held) = pinned.pop() {
        assert!(held.iter().all(|&byte| byte == 7));
        assert_eq!(count_present(ranges[pinned.len()]), page_count);
        drop(held);
        // The last one takes the address space with it, which others may have mapped since.
        if !pinned.is_empty() {
            assert_eq!(count_present(ranges[pinned.len()]), 0);
        }
    }
}

/// Returns a random key that prefers low ones: with values of 3 × the limit, more than half
/// of all choices fall into the lowest sixth.
fn some_key(random: &mut fastrand::Rng, keys: u64) -> u64 {
    let unit = random.f64();
    ((unit * unit * unit) * keys as f64) as u64
}

fn use_more_than_the_limit() {
    enter_group();
    const LEN: usize = 16 << 10;
    let keys = (3 * SMALL_CGROUP_BYTES / LEN) as u64;
    let cache = VolatileCache::new();
    let mut rebuilt = 0;
    for key in 0..keys {
        cache.insert(key, &value(key, LEN)).unwrap();
    }
    let kept = cache.stats().bytes as usize;
    assert!(
        kept > SMALL_CGROUP_BYTES / 2 && kept < SMALL_CGROUP_BYTES,
        "{kept} bytes"
    );
    let inserted = keys;
    let mut random = fastrand::Rng::with_seed(7);
    for _ in 0..keys {
        let key = some_key(&mut random, keys);
        let pinned = cache.get_or_insert_with(key, || {
            rebuilt += 1;
            value(key, LEN)
        });
        assert!(is_value(&pinned, key), "{key}");
    }
    let stats = cache.stats();
    println!("{stats:?}");
    assert_eq!(stats.misses, rebuilt);
    assert_eq!(stats.insertions + stats.refused, inserted + rebuilt);
    assert!(stats.hits > stats.misses / 2, "{stats:?}");
    assert!(stats.refused * 100 < keys, "{stats:?}");
    assert_adds_up(&cache);
}

fn cache_larger_than_cgroup_stays_below_limit() -> Completion {
    in_group(SMALL_CGROUP_BYTES, "use_more_than_the_limit")
}

fn cache_larger_than_cgroup_without_userfaultfd_stays_below_limit() -> Completion {
    in_group_without_userfaultfd(SMALL_CGROUP_BYTES, "use_more_than_the_limit")
}

fn fill_with_three_priorities() {
    enter_group();
    tenure::volatile::set_offer_delay(LONG);
    const LEN: usize = 64 << 10;
    let cache = VolatileCache::new();
    let insert = |key, priority| {
        let bytes = value(key, LEN);
        cache.insert_with(key, LEN, priority, |value| value.copy_from_slice(&bytes))
    };
    let count = |from, to| (from..to).filter(|key| cache.contains_key(key)).count();
    // 64 MiB of high priority, and 25 of the lowest.
    for key in 0..1000 {
        insert(key, Priority::High).unwrap();
    }
    for key in 1000..1400 {
        insert(key, Priority::Lowest).unwrap();
    }
    for key in 2000..6000 {
        insert(key, Priority::Normal).unwrap();
    }
    assert_eq!((count(0, 1000), count(1000, 1400)), (1000, 0));
    assert!(count(2000, 6000) > 100);
    // Values of a lower priority evict none of these.
    let normal = count(2000, 6000);
    for key in 6000..7000 {
        insert(key, Priority::Lowest).unwrap();
    }
    assert_eq!((count(0, 1000), count(2000, 6000)), (1000, normal));
    assert!(cache.stats().refused > 0 || count(6000, 7000) > 0);
    // Within one priority the old values have been evicted.
    let (old, new) = (count(2000, 4000), count(5800, 6000));
    assert!(old < new, "{old} old ones, {new} new ones");
}

fn eviction_takes_lower_priorities_first() -> Completion {
    in_group_without_userfaultfd(SMALL_CGROUP_BYTES, "fill_with_three_priorities")
}

fn fill_beside_values_in_use() {
    enter_group();
    tenure::volatile::set_offer_delay(LONG);
    const LEN: usize = 64 << 10;
    let cache = VolatileCache::new();
    let insert = |key| cache.insert(key, &value(key, LEN)).unwrap();
    (0..1000).for_each(insert);
    assert!((0..1000).step_by(2).all(|key| cache.get(&key).is_some()));
    let count = |first| {
        let keys = (first..1000).step_by(2);
        keys.filter(|key| cache.contains_key(key)).count()
    };
    let mut next = 1000;
    while count(0) + count(1) > 600 {
        assert!(next < 10_000, "no value is evicted");
        insert(next);
        next += 1;
    }
    // The cache evicts the oldest of a few random values.
    let (used, unused) = (count(0), count(1));
    assert!(2 * unused < used, "{used} used ones, {unused} others");
}

fn eviction_spares_values_in_use() -> Completion {
    in_group_without_userfaultfd(SMALL_CGROUP_BYTES, "fill_beside_values_in_use")
}

fn run_short_of_memory() {
    enter_group();
    tenure::volatile::set_offer_delay(LONG);
    const LEN: usize = 64 << 10;
    let cache = VolatileCache::new();
    let insert = |key, priority| {
        let bytes = value(key, LEN);
        let filled = cache.insert_with(key, LEN, priority, |value| value.copy_from_slice(&bytes));
        filled.unwrap();
    };
    // Older than the others, and half of them used since.
    (0..200).for_each(|key| insert(key, Priority::High));
    assert!((0..100).all(|key| cache.get(&key).is_some()));
    // More than tenure purges at once.
    let others = 1000..1000 + 2 * (64 * MIB / LEN) as u64;
    others.clone().for_each(|key| insert(key, Priority::Normal));
    let count = |keys: std::ops::Range<u64>| keys.filter(|key| cache.contains_key(key)).count();
    assert_eq!((count(0..200), count(others.clone())), (200, 2048));
    let mut taken = Vec::new();
    while count(others.clone()) + count(0..200) == 2248 {
        assert!(taken.len() < 200, "more memory than the limit allows");
        let mut memory = Mapping::anonymous(MIB).map().unwrap();
        memory.as_mut_slice().unwrap().fill(1);
        taken.push(memory);
        // Slowly: past the limit the kernel kills.
        let is_near = Headroom::now().unwrap().bytes < SMALL_CGROUP_BYTES / 4;
        std::thread::sleep(Duration::from_millis(if is_near { 300 } else { 20 }));
    }
    assert_eq!(count(0..200), 200);
}

fn pressure_purges_values_of_lower_priority_first() -> Completion {
    in_group_without_userfaultfd(CGROUP_BYTES, "run_short_of_memory")
}

fn take_memory_from_the_cache() {
    enter_group();
    tenure::volatile::set_offer_delay(Duration::from_millis(20));
    const LEN: usize = 64 << 10;
    let cache = VolatileCache::new();
    for key in 0..2000 {
        cache.insert(key, &value(key, LEN)).unwrap();
    }
    let count = || (0..2000).filter(|key| cache.contains_key(key)).count();
    let before = count();
    // Waits until everything is offered.
    std::thread::sleep(Duration::from_millis(500));
    let mut memory = Mapping::anonymous(SMALL_CGROUP_BYTES / 2).map().unwrap();
    for part in memory.as_mut_slice().unwrap().chunks_mut(MIB) {
        part.fill(1);
    }
    let after = count();
    assert!(after < before, "{after} of {before}");
    // New values replace others.
    for key in 2000..4000 {
        cache.insert(key, &value(key, LEN)).unwrap();
        let pinned = cache.get(&key);
        assert!(pinned.is_none_or(|pinned| is_value(&pinned, key)));
    }
    assert!(cache.stats().bytes < (SMALL_CGROUP_BYTES / 2) as u64);
    assert!(memory.as_slice().iter().all(|&byte| byte == 1));
    drop(memory);
    // It grows again once it has read how much memory there is.
    let has_grown = wait_until(|| {
        for key in 0..2000 {
            let found = cache.get(&key);
            assert!(found.is_none_or(|pinned| is_value(&pinned, key)), "{key}");
            cache.insert(key, &value(key, LEN)).unwrap();
        }
        cache.stats().bytes > (SMALL_CGROUP_BYTES / 2) as u64
    });
    assert!(has_grown, "{:?}", cache.stats());
    assert_adds_up(&cache);
}

fn cache_shrinks_when_program_needs_memory() -> Completion {
    if !can_offer() {
        return skip("needs userfaultfd and MADV_POPULATE_WRITE");
    }
    in_group(SMALL_CGROUP_BYTES, "take_memory_from_the_cache")
}

const VALUE_BYTES: usize = 16 << 10;

fn full_cache_gives_memory_to_another_process_of_its_cgroup() -> Completion {
    if !Features::get().sigbus_on_missing() {
        return skip("needs userfaultfd: the kernel can reclaim nothing of the cache");
    }
    match Group::with_limit(CGROUP_BYTES).and_then(Group::without_swap) {
        Ok(group) => group.run("fill_the_cgroup_beside_another_process"),
        Err(reason) => return skip(&reason),
    }
    Completion::Completed
}

/// Looks each key up, and inserts the missing ones. Returns how many were found.
fn find_or_make(cache: &VolatileCache<u64>, keys: u64) -> usize {
    let find_or_make = |&key: &u64| {
        let byte = key as u8 | 1;
        match cache.get(&key) {
            Some(value) => {
                assert!(value.len() == VALUE_BYTES && value.iter().all(|&one| one == byte));
                true
            }
            None => {
                let fill = |value: &mut [u8]| value.fill(byte);
                let inserted = cache.insert_with(key, VALUE_BYTES, Priority::Normal, fill);
                inserted.unwrap();
                false
            }
        }
    };
    (0..keys).filter(find_or_make).count()
}

fn fill_the_cgroup_beside_another_process() {
    enter_group();
    // More than fits.
    let keys = (CGROUP_BYTES / VALUE_BYTES) as u64;
    let cache = VolatileCache::new();
    for round in 1..=3 {
        find_or_make(&cache, keys);
        let before = cache.stats();
        assert!(before.bytes > CGROUP_BYTES as u64 / 2, "{before:?}");
        // The kernel can reclaim what has been offered, and nothing else. Too little memory
        // has the cache give up the rest itself.
        while tenure::stats().offered_bytes < before.bytes / 8 * 7 {
            std::thread::sleep(Duration::from_millis(10));
        }
        // It succeeds unless the kernel kills it; this process would not come to an end.
        in_child_ok("take_most_of_the_cgroup");
        let found = find_or_make(&cache, keys) as u64;
        assert!(found < before.values, "{found} of {}", before.values);
        let purged = cache.stats().purged - before.purged;
        assert!(purged > 0, "round {round}: {before:?}");
    }
    // The memory is the cache's again.
    let after = cache.stats();
    assert!(after.bytes > CGROUP_BYTES as u64 / 2, "{after:?}");
}

/// Keeps as much as leaves the cache less than a half.
fn take_most_of_the_cgroup() {
    let taken = vec![7_u8; CGROUP_BYTES / 8 * 5];
    assert!(taken.chunks(page_size()).all(|page| page[0] == 7));
}

/// All values are in use, so the kernel has been offered few of them.
fn busy_cache_gives_memory_to_another_process_of_its_cgroup() -> Completion {
    if !Features::get().sigbus_on_missing() {
        return skip("needs userfaultfd: the kernel can reclaim nothing of the cache");
    }
    match Group::with_limit(SMALL_CGROUP_BYTES).and_then(Group::without_swap) {
        Ok(group) => group.run("use_values_beside_another_process"),
        Err(reason) => return skip(&reason),
    }
    Completion::Completed
}

fn use_values_beside_another_process() {
    enter_group();
    // More than twice as much as fits; about as by Zipf's law with an exponent of 0.8.
    let keys = (SMALL_CGROUP_BYTES / VALUE_BYTES * 5 / 2) as f64;
    let mut random = Rng::with_seed(1);
    let cache = VolatileCache::new();
    let mut use_one = || {
        let key = (keys * random.f64().powi(5)) as u64;
        let byte = key as u8 | 1;
        match cache.get(&key) {
            Some(value) => assert_eq!((value[0], value[VALUE_BYTES - 1]), (byte, byte)),
            None => {
                let fill = |value: &mut [u8]| value.fill(byte);
                let inserted = cache.insert_with(key, VALUE_BYTES, Priority::Normal, fill);
                inserted.unwrap();
            }
        }
    };
    for round in 0..4 {
        (0..100_000).for_each(|_| use_one());
        let mut other = child("take_half_of_the_small_cgroup").spawn().unwrap();
        let status = loop {
            (0..100).for_each(|_| use_one());
            if let Some(status) = other.try_wait().unwrap() {
                break status;
            }
        };
        assert!(status.success(), "round {round}: {status}");
    }
}

/// Takes more than a half, which leaves the cache less than a half of its values.
fn take_half_of_the_small_cgroup() {
    let taken = vec![7_u8; SMALL_CGROUP_BYTES / 8 * 5];
    assert!(taken.chunks(page_size()).all(|page| page[0] == 7));
    // The cache goes on beside it.
    std::thread::sleep(Duration::from_millis(100));
    std::hint::black_box(&taken);
}
