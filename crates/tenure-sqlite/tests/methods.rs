//! The methods that SQLite calls, beside a model of what each page holds.

#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "tests call the methods as SQLite does, with what those have returned"
)]

#[path = "../../tenure/tests/common/mod.rs"]
mod common;
mod pcache;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use common::cgroup::{Group, enter_group};
use common::volatile::can_offer;
use common::*;
use libtest_mimic::Completion;
use pcache::{Create, SIZE, TestCache};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tenure::volatile::{purge_all, set_offer_delay};
use tenure::{page_size, stats};

tests!(
    any_call_sequence_matches_model,
    any_call_sequence_matches_model_without_userfaultfd,
    purged_page_is_a_miss_and_not_found_again,
    overrun_of_a_page_is_readable_whatever_is_purged,
    pages_of_each_size_keep_their_contents,
    pinned_page_survives_purging,
    unpurgeable_pages_stay,
    much_pinned_cache_makes_no_page_if_easy,
    bounded_cache_drops_pages_beyond_its_size,
    cache_of_a_small_size_is_limited,
    shrink_drops_unpinned_pages,
    purged_pages_that_nobody_asks_for_are_dropped,
    caches_of_threads_keep_their_contents,
    forked_child_and_parent_have_separate_pages,
    cache_larger_than_its_cgroup_is_not_killed,
    cache_below_a_limit_of_data_leaves_a_part_of_it,
    cache_at_a_limit_of_data_takes_none_for_a_moment,
    cache_of_locked_process_takes_memory_as_it_is_used,
    cache_below_a_limit_of_locked_memory_leaves_a_part_of_it;
    children:
    call_sequences,
    read_overruns,
    fill_bounded_cache,
    fork_with_pages,
    fill_cgroup,
    fill_below_a_limit_of_data,
    map_beside_a_cache_at_a_limit,
    fill_under_lock_of_future_memory,
    fill_below_a_limit_of_locked_memory,
);

const LIMIT: usize = 96 << 20;

#[derive(Clone, Debug)]
enum Call {
    Fetch(u32, Create),
    /// Unpins one of the pinned pages.
    Unpin(usize, bool),
    /// Gives one of the pinned pages another key.
    Rekey(usize, u32),
    Truncate(u32),
    Size(i32),
    Shrink,
    Purge,
}

fn calls() -> impl Strategy<Value = Vec<Call>> {
    let create = prop_oneof![
        Just(Create::Never),
        Just(Create::IfEasy),
        Just(Create::Always)
    ];
    let call = prop_oneof![
        40 => (1..60_u32, create).prop_map(|(key, create)| Call::Fetch(key, create)),
        40 => (any::<usize>(), prop::bool::weighted(0.1)).prop_map(|(at, discard)| Call::Unpin(at, discard)),
        3 => (any::<usize>(), 1..60_u32).prop_map(|(at, key)| Call::Rekey(at, key)),
        2 => prop_oneof![Just(0), 1..60_u32, Just(u32::MAX)].prop_map(Call::Truncate),
        2 => (0..300_i32).prop_map(Call::Size),
        1 => (0..20_i32).prop_map(Call::Size),
        1 => Just(Call::Shrink),
        4 => Just(Call::Purge),
    ];
    prop::collection::vec(call, 1..150)
}

/// A page as the model knows it.
#[derive(Clone, Copy)]
struct Known {
    value: u64,
    /// The page's address while it is pinned.
    pinned: Option<usize>,
    /// When it was unpinned.
    unpinned: u64,
    /// Its contents are gone.
    purged: bool,
}

fn any_call_sequence_matches_model() {
    in_child_ok("call_sequences");
}

fn any_call_sequence_matches_model_without_userfaultfd() {
    in_child_without("userfaultfd", "call_sequences");
}

fn call_sequences() {
    // The cache waits 100 times as long where enough memory is left.
    set_offer_delay(Duration::from_micros(2));
    let config = Config {
        cases: 150,
        failure_persistence: None,
        ..Config::default()
    };
    let inputs = (
        0..3_usize,
        prop_oneof![Just(512), Just(4096), Just(65_536)],
        calls(),
    );
    TestRunner::new(config)
        .run(&inputs, |(kind, page, calls)| {
            run_through(kind > 0, page, &calls);
            Ok(())
        })
        .unwrap();
}

fn run_through(is_purgeable: bool, page_bytes: i32, calls: &[Call]) {
    let cache = TestCache::new(page_bytes, is_purgeable);
    let mut pages: BTreeMap<u32, Known> = BTreeMap::new();
    let (mut value, mut size) = (0, SIZE as usize);
    for call in calls {
        value += 1;
        let pinned: Vec<u32> = (pages.iter())
            .filter_map(|(key, known)| known.pinned.map(|_| *key))
            .collect();
        let of = |at: usize| (!pinned.is_empty()).then(|| pinned[at % pinned.len()]);
        match *call {
            Call::Fetch(key, create) => {
                let known = pages.remove(&key);
                let Some(page) = cache.fetch(key, create) else {
                    assert!(create != Create::Always, "there is memory");
                    let has_to_be = known.filter(|it| it.pinned.is_some() || !is_purgeable);
                    assert!(has_to_be.is_none(), "{call:?}: page {key} is gone");
                    // SQLite asks again for such a page, which may be there.
                    let kept = known.filter(|_| create == Create::IfEasy);
                    pages.extend(kept.map(|known| (key, known)));
                    continue;
                };
                let found = page.value();
                match known {
                    Some(it) if it.pinned.is_some() => {
                        assert_eq!((found, it.pinned), (it.value, Some(page.addr())));
                    }
                    Some(it) if found == it.value => assert!(!it.purged, "{call:?}"),
                    Some(_) | None => {
                        assert!(create != Create::Never, "{call:?}: a stale page {found}");
                        assert!(page.is_zero(), "{call:?}: {found}");
                        assert!(is_purgeable || known.is_none());
                    }
                }
                page.fill(value);
                let pinned = Some(page.addr());
                let purged = false;
                pages.insert(
                    key,
                    Known {
                        value,
                        pinned,
                        unpinned: 0,
                        purged,
                    },
                );
            }
            Call::Unpin(at, discard) => {
                if let Some(key) = of(at) {
                    let page = cache.fetch(key, Create::Never).unwrap();
                    cache.unpin(page, discard && is_purgeable);
                    let known = pages.get_mut(&key).unwrap();
                    (known.pinned, known.unpinned) = (None, value);
                    if discard && is_purgeable {
                        pages.remove(&key);
                    }
                }
            }
            Call::Rekey(at, key) => {
                // SQLite gives no page the key of a pinned one.
                if let Some(old) = of(at).filter(|_| !pinned.contains(&key)) {
                    let page = cache.fetch(old, Create::Never).unwrap();
                    cache.rekey(page, old, key);
                    let known = pages.remove(&old).unwrap();
                    pages.insert(key, known);
                }
            }
            Call::Truncate(limit) => {
                cache.truncate(limit);
                pages.split_off(&limit);
            }
            Call::Size(pages) => {
                cache.set_size(pages);
                size = pages as usize;
            }
            Call::Shrink => {
                cache.shrink();
                if is_purgeable {
                    pages.retain(|_, known| known.pinned.is_some());
                }
            }
            Call::Purge => {
                purge_all().unwrap();
                if is_purgeable && can_offer() {
                    let unpinned = pages.values_mut().filter(|it| it.pinned.is_none());
                    let mut unpinned: Vec<_> = unpinned.collect();
                    unpinned.sort_by_key(|it| std::cmp::Reverse(it.unpinned));
                    // The last few may rest.
                    let offered = unpinned.into_iter().skip(size / 8);
                    offered.for_each(|it| it.purged = true);
                }
            }
        }
        let pinned = pages.values().filter(|it| it.pinned.is_some()).count();
        assert!((pinned..=pages.len()).contains(&cache.len()), "{call:?}");
        assert_eq!(stats().sqlite_pages, cache.len() as u64);
    }
    drop(cache);
    assert_eq!(stats().sqlite_pages, 0);
}

fn purged_page_is_a_miss_and_not_found_again() -> Completion {
    if !can_offer() {
        return skip("needs userfaultfd");
    }
    let before = stats().sqlite_purged;
    let cache = TestCache::new(4096, true);
    for create in [Create::Never, Create::IfEasy, Create::Always] {
        let page = cache.fetch(7, Create::Always).unwrap();
        page.fill(1);
        cache.unpin(page, false);
        cache.wake();
        purge_all().unwrap();
        let found = cache.fetch(7, create);
        assert_eq!(found.is_some(), create != Create::Never);
        assert!(found.is_none_or(|page| page.is_zero()));
        // Whatever the first answer was, the old contents do not come back.
        let page = cache.fetch(7, Create::Always).unwrap();
        assert!(page.is_zero());
        cache.truncate(0);
        assert_eq!(cache.len(), 0);
    }
    assert_eq!(stats().sqlite_purged.calls - before.calls, 3);
    assert_eq!(stats().sqlite_purged.bytes - before.bytes, 3 * 4096);
    Completion::Completed
}

fn overrun_of_a_page_is_readable_whatever_is_purged() {
    // A purged neighbour would be SIGBUS.
    in_child_ok("read_overruns");
}

fn read_overruns() {
    for page_bytes in [512, 4096, 65_536] {
        let cache = TestCache::new(page_bytes, true);
        let mut pages: Vec<_> = (1..100)
            .map(|key| cache.fetch(key, Create::Always).unwrap())
            .collect();
        for page in &pages {
            page.fill(1);
        }
        for page in pages.split_off(1) {
            cache.unpin(page, false);
        }
        // Their blocks are registered with the userfaultfd, and the pages missing.
        purge_all().unwrap();
        for key in [1, 50, 99] {
            let page = cache.fetch(key, Create::Always).unwrap();
            assert_eq!(page.overrun(), [0; 16], "{page_bytes}");
        }
        cache.shrink();
        assert_eq!(pages[0].overrun(), [0; 16], "{page_bytes}");
    }
}

fn pages_of_each_size_keep_their_contents() {
    for page_bytes in (9..=16).map(|log| 1 << log) {
        let cache = TestCache::new(page_bytes, true);
        cache.set_size(1000);
        for key in 1..=200 {
            let page = cache.fetch(key, Create::Always).unwrap();
            page.fill(key.into());
            cache.unpin(page, false);
        }
        let mut found = 0;
        for key in (1..=200).rev() {
            if let Some(page) = cache.fetch(key, Create::Never) {
                assert_eq!(page.value(), key.into());
                found += 1;
            }
        }
        // Only what the machine has purged is missing, or what it had no memory for.
        assert_eq!(found, cache.len());
    }
}

fn pinned_page_survives_purging() {
    let cache = TestCache::new(4096, true);
    let page = cache.fetch(1, Create::Always).unwrap();
    page.fill(9);
    purge_all().unwrap();
    assert_eq!(page.value(), 9);
    let again = cache.fetch(1, Create::Never).unwrap();
    assert_eq!((again.addr(), again.value()), (page.addr(), 9));
}

fn unpurgeable_pages_stay() {
    let cache = TestCache::new(1024, false);
    cache.set_size(3);
    for key in 1..50 {
        let page = cache.fetch(key, Create::IfEasy).unwrap();
        page.fill(key.into());
        cache.unpin(page, false);
    }
    purge_all().unwrap();
    cache.shrink();
    for key in 1..50 {
        let page = cache.fetch(key, Create::Never).unwrap();
        assert_eq!(page.value(), key.into());
    }
}

fn much_pinned_cache_makes_no_page_if_easy() {
    let cache = TestCache::new(4096, true);
    cache.set_size(200);
    let pinned: Vec<_> = (1..1000)
        .map_while(|key| cache.fetch(key, Create::IfEasy))
        .collect();
    assert_eq!(pinned.len(), 180);
    let page = cache.fetch(1000, Create::Always).unwrap();
    page.fill(5);
    cache.unpin(page, false);
    // Nor does it pin one that is there.
    assert!(cache.fetch(1000, Create::IfEasy).is_none());
    assert!(cache.fetch(1000, Create::Always).is_some());
    assert!(cache.fetch(180, Create::IfEasy).is_some());
}

fn bounded_cache_drops_pages_beyond_its_size() {
    let output = in_child_with("TENURE_WITHOUT", "userfaultfd", "fill_bounded_cache");
    assert_ended_well("fill_bounded_cache", &output);
    let errors = String::from_utf8(output.stderr).unwrap();
    let said = "volatile memory is unavailable here";
    assert_eq!(errors.matches(said).count(), 1, "{errors}");
}

fn cache_of_a_small_size_is_limited() {
    for page_bytes in [512, 4096, 65_536] {
        fill_limited_cache(page_bytes, 5);
    }
}

fn fill_bounded_cache() {
    for _ in 0..2 {
        fill_limited_cache(4096, 200);
    }
}

fn fill_limited_cache(page_bytes: i32, size: i32) {
    let cache = TestCache::new(page_bytes, true);
    cache.set_size(size);
    let size = size as u32;
    for key in 1..=2 * size {
        let page = cache.fetch(key, Create::Always).unwrap();
        assert!(page.is_zero());
        page.fill(key.into());
        cache.unpin(page, false);
        assert!(cache.len() <= size as usize);
    }
    let kept = (1..=2 * size).filter_map(|key| Some((key, cache.fetch(key, Create::Never)?)));
    let kept: Vec<_> = kept.collect();
    // The last ones, as SQLite's own cache keeps them.
    let keys: Vec<u32> = kept.iter().map(|(key, _)| *key).collect();
    assert_eq!(keys, (size + 2..=2 * size).collect::<Vec<_>>());
    for (key, page) in kept {
        assert_eq!(page.value(), key.into());
    }
    // Pinned pages are not limited.
    let pinned = (1..=2 * size).map(|key| cache.fetch(key, Create::Always).unwrap());
    let pinned: Vec<_> = pinned.collect();
    assert_eq!(cache.len(), 2 * size as usize);
    pinned.into_iter().for_each(|page| cache.unpin(page, false));
    assert_eq!(cache.len(), size as usize);
    cache.set_size(0);
    assert_eq!(cache.len(), 0);
}

fn shrink_drops_unpinned_pages() {
    let cache = TestCache::new(4096, true);
    let kept = cache.fetch(1000, Create::Always).unwrap();
    for key in 1..100 {
        let page = cache.fetch(key, Create::Always).unwrap();
        cache.unpin(page, false);
    }
    cache.shrink();
    assert_eq!((cache.len(), stats().sqlite_pages), (1, 1));
    cache.unpin(kept, true);
    assert_eq!(cache.len(), 0);
}

fn purged_pages_that_nobody_asks_for_are_dropped() -> Completion {
    if !can_offer() {
        return skip("needs userfaultfd");
    }
    let cache = TestCache::new(4096, true);
    let add = |keys: std::ops::Range<u32>| {
        for key in keys {
            let page = cache.fetch(key, Create::Always).unwrap();
            page.fill(1);
            cache.unpin(page, false);
        }
    };
    add(1..2000);
    purge_all().unwrap();
    add(10_000..12_000);
    // A few rested when the others were purged.
    assert!(cache.len() < 2100, "{} pages", cache.len());
    Completion::Completed
}

fn caches_of_threads_keep_their_contents() {
    set_offer_delay(Duration::from_micros(5));
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..4_u64)
            .map(|thread| scope.spawn(move || use_cache(thread)))
            .collect();
        while workers.iter().any(|worker| !worker.is_finished()) {
            purge_all().unwrap();
            std::thread::sleep(Duration::from_millis(1));
        }
    });
}

fn use_cache(thread: u64) {
    let mut random = fastrand::Rng::with_seed(thread);
    let cache = TestCache::new(4096, true);
    cache.set_size(120);
    for _ in 0..5000 {
        let key = random.u32(1..400);
        let page = cache.fetch(key, Create::Always).unwrap();
        let wanted = thread << 32 | u64::from(key);
        if !page.is_zero() {
            assert_eq!(page.value(), wanted);
        }
        page.fill(wanted);
        cache.unpin(page, false);
    }
}

fn forked_child_and_parent_have_separate_pages() {
    in_child_ok("fork_with_pages");
}

fn fork_with_pages() {
    set_offer_delay(Duration::ZERO);
    let cache = TestCache::new(4096, true);
    let pinned = cache.fetch(1, Create::Always).unwrap();
    pinned.fill(1);
    for key in 2..50 {
        let page = cache.fetch(key, Create::Always).unwrap();
        page.fill(key.into());
        cache.unpin(page, false);
    }
    let in_child = || {
        assert_eq!(stats().sqlite_pages, 0);
        assert_eq!(pinned.value(), 1);
        pinned.fill(100);
        for key in 2..50 {
            if let Some(page) = cache.fetch(key, Create::Never) {
                assert_eq!(page.value(), key.into());
                page.fill(200);
            }
        }
        purge_all().unwrap();
        let own = TestCache::new(4096, true);
        own.fetch(1, Create::Always).unwrap().fill(7);
        assert_eq!(stats().sqlite_pages, 1);
        drop(own);
        cache.truncate(0);
        assert_eq!(stats().sqlite_pages, 0);
        0
    };
    assert_eq!(fork(in_child), 0);
    assert_eq!(pinned.value(), 1);
    for key in 2..50 {
        if let Some(page) = cache.fetch(key, Create::Never) {
            assert_eq!(page.value(), key.into());
        }
    }
}

fn cache_larger_than_its_cgroup_is_not_killed() -> Completion {
    if !can_offer() {
        return skip("needs userfaultfd");
    }
    match Group::with_limit(LIMIT) {
        Ok(group) => group.run("fill_cgroup"),
        Err(reason) => return skip(&reason),
    }
    Completion::Completed
}

fn fill_cgroup() {
    enter_group();
    let cache = TestCache::new(4096, true);
    cache.set_size(500);
    let pages = (4 * LIMIT / page_size()) as u32;
    for round in 0..2 {
        for key in 1..=pages {
            let page = cache.fetch(key, Create::Always).unwrap();
            assert!(page.is_zero() || page.value() == key.into(), "{round}");
            page.fill(key.into());
            cache.unpin(page, false);
        }
    }
    // Where memory is short the cache shrinks to its size; the kernel may have purged more.
    assert!(cache.len() > 64, "{} pages", cache.len());
}

fn cache_below_a_limit_of_data_leaves_a_part_of_it() {
    in_child_ok("fill_below_a_limit_of_data");
}

/// Of RLIMIT_DATA the rest of the process, and SQLite itself, need something.
fn fill_below_a_limit_of_data() {
    const LIMIT: usize = 48 << 20;
    let before = limit_data(LIMIT);
    let cache = TestCache::new(4096, true);
    for key in 1..=(LIMIT / page_size()) as u32 {
        let page = cache.fetch(key, Create::Always).unwrap();
        page.fill(key.into());
        cache.unpin(page, false);
    }
    let other = tenure::Mapping::anonymous(LIMIT / 2).map();
    // Another cache, which has no page to use again.
    let second = TestCache::new(4096, true);
    let pinned: Vec<_> = (1..300)
        .map_while(|key| second.fetch(key, Create::Always))
        .collect();
    // A panic takes memory, too.
    setrlimit(Resource::Data, before).unwrap();
    other.unwrap();
    assert_eq!(pinned.len(), 299);
}

fn cache_at_a_limit_of_data_takes_none_for_a_moment() {
    in_child_ok("map_beside_a_cache_at_a_limit");
}

/// Another thread can map as much at any time as while the cache does nothing.
fn map_beside_a_cache_at_a_limit() {
    const LIMIT: usize = 256 << 20;
    const MIB: usize = 1 << 20;
    let map = |bytes| tenure::Mapping::anonymous(bytes).map();
    let before = limit_data(LIMIT);
    let cache = TestCache::new(4096, true);
    let use_page = |key| {
        let page = cache.fetch(key, Create::Always).unwrap();
        page.fill(key.into());
        cache.unpin(page, false);
    };
    let mut next_key = 1..;
    let full = (LIMIT / page_size()) as u32;
    next_key.by_ref().take(full as usize).for_each(use_page);
    let largest = (1..LIMIT / MIB).rev().find(|mib| map(mib * MIB).is_ok());
    // The threads, and allocations meanwhile, take a little.
    let bytes = largest.unwrap().saturating_sub(8) * MIB;
    let is_done = AtomicBool::new(false);
    let refused = thread::scope(|scope| {
        let mapper = scope.spawn(|| {
            let refused = (0..20_000).filter(|_| map(bytes).is_err()).count();
            is_done.store(true, Ordering::Relaxed);
            refused
        });
        while !is_done.load(Ordering::Relaxed) {
            use_page(next_key.next().unwrap());
        }
        mapper.join().unwrap()
    });
    // A panic takes memory, too.
    setrlimit(Resource::Data, before).unwrap();
    assert_eq!(refused, 0, "of {bytes} bytes");
}

fn cache_of_locked_process_takes_memory_as_it_is_used() -> Completion {
    in_child_if_unlimited("fill_under_lock_of_future_memory")
}

fn fill_under_lock_of_future_memory() {
    const LIMIT: usize = 1 << 30;
    assert_eq!(unsafe { libc::mlockall(libc::MCL_FUTURE) }, 0);
    limit_data(LIMIT);
    let before_kib = status_kib("VmHWM");
    let cache = TestCache::new(4096, true);
    for key in 1..=100 {
        cache.unpin(cache.fetch(key, Create::Always).unwrap(), false);
    }
    // The stacks of threads are locked as well.
    let taken_kib = status_kib("VmHWM") - before_kib;
    assert!(taken_kib < 32 << 10, "{taken_kib} KiB");
}

fn cache_below_a_limit_of_locked_memory_leaves_a_part_of_it() {
    in_child_ok("fill_below_a_limit_of_locked_memory");
}

/// A part of RLIMIT_MEMLOCK is for the rest of a process that locks all it maps.
fn fill_below_a_limit_of_locked_memory() {
    const LIMIT: u64 = 8 << 20;
    // Their threads have stacks before there is a limit.
    tenure::pressure::level();
    let cache = TestCache::new(4096, true);
    cache.set_size(100);
    cache.unpin(cache.fetch(1, Create::Always).unwrap(), false);
    let other = TestCache::new(65_536, true);
    other.set_size(10);
    limit_memlock(LIMIT);
    assert_eq!(unsafe { libc::mlockall(libc::MCL_FUTURE) }, 0);
    for key in 1..=1000 {
        other.unpin(other.fetch(key, Create::Always).unwrap(), false);
    }
    let rest = tenure::Mapping::anonymous(LIMIT as usize / 2).map();
    rest.unwrap();
}

/// Lets the process take so many bytes more, and returns the limit before.
fn limit_data(bytes: usize) -> Rlimit {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let used_kib = status.lines().find_map(|line| line.strip_prefix("VmData:"));
    let used_kib = used_kib.and_then(|used| used.trim().strip_suffix(" kB"));
    let used = used_kib.unwrap().parse::<u64>().unwrap() << 10;
    let before = getrlimit(Resource::Data);
    let current = Some(used + bytes as u64);
    setrlimit(Resource::Data, Rlimit { current, ..before }).unwrap();
    before
}
