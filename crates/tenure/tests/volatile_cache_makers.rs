//! The cache: values that are out of date when they are made.

mod common;

use std::time::Duration;

use tenure::{CacheOptions, VolatileCache};

tests!(
    value_that_is_inserted_while_an_older_one_is_made_stays,
    key_that_is_removed_while_its_value_is_made_stays_removed,
    value_that_is_made_beside_other_keys_is_cached,
    waiting_thread_makes_its_own_value_when_the_first_is_out_of_date,
    value_made_within_its_own_maker_stays,
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
        // What is refused replaces nothing, but the previous value is out of date.
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
