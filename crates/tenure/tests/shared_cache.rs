//! `SharedCache`: values that one process inserts, and all find.

mod common;

use std::fs::{self, File};
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use common::names::without_names;
use common::volatile::{was_under_pressure, watch_pressure};
use common::*;
use libtest_mimic::Completion;
use tenure::volatile::Priority;
use tenure::{CacheOptions, SharedArena, SharedCache, SharedFile, page_size};

tests!(
    value_is_found_by_another_process,
    keys_and_values_of_all_sizes_are_found,
    inserted_value_replaces_the_previous_one,
    removed_value_is_found_no_more,
    value_that_was_found_often_follows_other_processes,
    copies_of_one_process_are_not_those_of_its_child,
    low_priority_goes_first_when_the_limit_is_reached,
    value_beyond_the_limit_is_refused,
    expired_value_is_a_miss,
    more_values_than_entries_evict_each_other,
    missing_value_is_made_and_found_again,
    retain_and_clear_remove_values,
    threads_find_whole_values_while_others_replace_them,
    replaced_value_is_never_missing_nor_older_than_one_found,
    name_is_shared_and_survives_its_processes,
    arena_is_no_cache_and_cache_no_arena,
    truncated_cache_misses_and_refuses,
    name_in_use_stays_and_others_are_removed,
    closed_descriptor_is_an_error_and_other_files_stay,
    other_file_under_the_descriptor_s_number_is_not_read,
    lowered_file_size_limit_refuses_values;
    children:
    close_descriptor_of_cache,
    replace_descriptor_of_cache,
    lower_file_size_limit,
);

fn cache() -> SharedCache {
    watch_pressure();
    SharedCache::new(small()).unwrap()
}

/// Options that make a table of a few thousand entries.
fn small() -> CacheOptions {
    CacheOptions::new().max_bytes(32 << 20)
}

fn insert(cache: &SharedCache, key: &[u8], value: &[u8]) {
    cache.insert(key, value, Priority::Normal).unwrap();
}

/// Whether the value is what was inserted. Under pressure any process may give it up.
fn has(cache: &SharedCache, key: &[u8], value: &[u8]) -> bool {
    match cache.get(key) {
        Some(found) => found[..] == *value,
        None => was_under_pressure(),
    }
}

fn value_is_found_by_another_process() {
    let cache = cache();
    let passed_on = cache.as_fd().try_clone_to_owned().unwrap();
    let status = fork(|| {
        let other = SharedCache::from_fd(passed_on, small()).unwrap();
        insert(&other, b"from the child", &[8; 5000]);
        // The parent's value attaches itself here, too.
        insert(&cache, b"by its parent's value", &[9; 10]);
        0
    });
    assert_eq!(status, 0);
    assert!(has(&cache, b"from the child", &[8; 5000]));
    assert!(has(&cache, b"by its parent's value", &[9; 10]));
    assert!(cache.get(b"missing").is_none());
    let stats = cache.stats().unwrap();
    assert!(stats.misses >= 1 && stats.hits + stats.misses == 3);
}

fn keys_and_values_of_all_sizes_are_found() {
    let cache = cache();
    let page = page_size();
    let key = vec![7; 64 << 10];
    for len in [
        0,
        1,
        64,
        page - 17,
        page - 16,
        page,
        5 * page,
        300_000,
        5 << 20,
    ] {
        let value: Vec<u8> = (0..len).map(|at| (at % 251) as u8).collect();
        for key in [&b""[..], b"k", &key] {
            insert(&cache, key, &value);
            assert!(has(&cache, key, &value), "{len}");
        }
    }
    assert!(cache.contains_key(b"k") || was_under_pressure());
    assert!(!cache.contains_key(&key[1..]));
}

fn inserted_value_replaces_the_previous_one() {
    let cache = cache();
    for version in 0..50_u8 {
        insert(&cache, b"key", &vec![version; 1 + version as usize * 1000]);
        assert!(has(
            &cache,
            b"key",
            &vec![version; 1 + version as usize * 1000]
        ));
    }
    let stats = cache.stats().unwrap();
    assert!(stats.values <= 1 && stats.bytes <= 65536);
    assert_eq!(stats.insertions + stats.refused, 50);
}

fn removed_value_is_found_no_more() {
    let cache = cache();
    insert(&cache, b"key", b"value");
    let other = SharedCache::from_fd(cache.as_fd().try_clone_to_owned().unwrap(), small());
    assert!(other.unwrap().remove(b"key") || was_under_pressure());
    assert!(cache.get(b"key").is_none() && !cache.remove(b"key"));
    assert_eq!(cache.stats().unwrap().bytes, 0);
}

/// Looks a value up so often that the process keeps a copy of its own.
fn find_often(cache: &SharedCache, key: &[u8], value: &[u8]) {
    for _ in 0..5 {
        assert!(has(cache, key, value));
    }
}

fn value_that_was_found_often_follows_other_processes() {
    let other = cache();
    let reopen = |options| {
        let fd = other.as_fd().try_clone_to_owned().unwrap();
        SharedCache::from_fd(fd, options).unwrap()
    };
    let cache = reopen(small());
    for version in 0..20 {
        insert(&other, b"key", &[version; 1000]);
        find_often(&cache, b"key", &[version; 1000]);
    }
    other.remove(b"key");
    assert!(cache.get(b"key").is_none());

    insert(&other, b"key", b"expires");
    let cache = reopen(small().time_to_live(Duration::from_secs(1)));
    let start = Instant::now();
    while let Some(found) = cache.get(b"key") {
        assert_eq!(found[..], b"expires"[..]);
        assert!(start.elapsed() < Duration::from_secs(60));
    }
    assert!(has(&other, b"key", b"expires"));
}

fn copies_of_one_process_are_not_those_of_its_child() {
    let cache = cache();
    insert(&cache, b"key", b"of both");
    find_often(&cache, b"key", b"of both");
    let status = fork(|| {
        find_often(&cache, b"key", b"of both");
        insert(&cache, b"key", b"of the child");
        find_often(&cache, b"key", b"of the child");
        0
    });
    assert_eq!(status, 0);
    find_often(&cache, b"key", b"of the child");
}

fn low_priority_goes_first_when_the_limit_is_reached() {
    let page = page_size();
    let options = CacheOptions::new().max_bytes(40 * page);
    watch_pressure();
    let cache = SharedCache::new(options).unwrap();
    let value = vec![1; page / 2];
    for number in 0..20_u8 {
        cache.insert(&[0, number], &value, Priority::Low).unwrap();
        cache.insert(&[1, number], &value, Priority::High).unwrap();
    }
    assert!(cache.stats().unwrap().bytes <= 40 * page as u64);
    for number in 20..30_u8 {
        cache.insert(&[1, number], &value, Priority::High).unwrap();
    }
    let count = |kind| {
        (0..30)
            .filter(|&number| cache.contains_key(&[kind, number]))
            .count()
    };
    let (low, high) = (count(0), count(1));
    assert!(cache.stats().unwrap().bytes <= 40 * page as u64);
    // None of a higher priority goes for a value.
    cache.clear();
    for number in 0..40_u8 {
        cache.insert(&[2, number], &value, Priority::High).unwrap();
    }
    cache.insert(&[0, 0], &value, Priority::Low).unwrap();
    let is_refused = !cache.contains_key(&[0, 0]) && cache.stats().unwrap().refused > 0;
    if !was_under_pressure() {
        assert_eq!((low, high), (10, 30));
        assert!(is_refused);
    }
}

fn value_beyond_the_limit_is_refused() {
    let cache = SharedCache::new(CacheOptions::new().max_bytes(1 << 20)).unwrap();
    insert(&cache, b"key", b"small");
    insert(&cache, b"key", &vec![1; 1 << 20]);
    assert!(
        cache.get(b"key").is_none(),
        "the previous value is out of date"
    );
    let stats = cache.stats().unwrap();
    assert_eq!((stats.values, stats.refused), (0, 1));
}

fn expired_value_is_a_miss() {
    let cache = SharedCache::new(small().time_to_live(Duration::ZERO)).unwrap();
    insert(&cache, b"key", b"value");
    assert!(cache.get(b"key").is_none());
    let fd = || cache.as_fd().try_clone_to_owned().unwrap();
    let day = small().time_to_live(Duration::from_secs(86400));
    let patient = SharedCache::from_fd(fd(), day).unwrap();
    assert!(patient.contains_key(b"key") || patient.stats().unwrap().values == 0);
}

fn more_values_than_entries_evict_each_other() {
    let cache = SharedCache::new(CacheOptions::new().max_bytes(8 << 20)).unwrap();
    for number in 0..3000_u32 {
        let key = number.to_ne_bytes();
        insert(&cache, &key, &key);
        let found = cache.get(&key).map(|found| found[..] == key);
        assert!(found != Some(false));
    }
    let stats = cache.stats().unwrap();
    assert!(stats.values <= 1024, "{stats:?}");
    assert_eq!(stats.insertions, stats.values + stats.evicted);
    let found = (0..3000_u32).filter_map(|number| {
        let key = number.to_ne_bytes();
        Some(cache.get(&key)?[..] == key)
    });
    assert!(found.into_iter().all(|is_right| is_right));
}

fn missing_value_is_made_and_found_again() {
    let cache = cache();
    let made = cache.get_or_insert_with(b"key", || vec![7; 3000]).unwrap();
    assert_eq!(made[..], [7; 3000]);
    let found = cache.get_or_insert_with(b"key", || vec![8; 2]).unwrap();
    assert!(found[..] == [7; 3000] || was_under_pressure());
}

fn retain_and_clear_remove_values() {
    let cache = cache();
    (0..100_u8).for_each(|number| insert(&cache, &[number], &[number; 10]));
    let before = cache.stats().unwrap().values;
    let removed = cache.retain(|key| key[0] % 2 == 0) as u64;
    assert!(cache.get(&[1]).is_none() && has(&cache, &[2], &[2; 10]));
    assert!(removed <= before && (removed == 50 || was_under_pressure()));
    cache.clear();
    let stats = cache.stats().unwrap();
    assert_eq!((stats.values, stats.bytes), (0, 0));
}

fn threads_find_whole_values_while_others_replace_them() {
    let cache = cache();
    let is_uniform = |value: &[u8]| value.iter().all(|&byte| byte == value[0]);
    std::thread::scope(|scope| {
        for thread in 0..4_u8 {
            let cache = &cache;
            scope.spawn(move || {
                for round in 0..300_usize {
                    let key = [(round % 3) as u8];
                    let value = vec![thread * 50 + (round % 50) as u8; 9000 + round];
                    match round % 4 {
                        0 => insert(cache, &key, &value),
                        3 if round % 100 == 3 => drop(cache.remove(&key)),
                        _ => {
                            let found = cache.get(&key);
                            assert!(found.is_none_or(|found| is_uniform(&found)));
                        }
                    }
                }
            });
        }
    });
    let stats = cache.stats().unwrap();
    assert!(stats.values <= 3, "{stats:?}");
}

fn replaced_value_is_never_missing_nor_older_than_one_found() {
    const VERSIONS: u32 = 1500;
    let cache = cache();
    let insert_version = |version: u32| {
        let mut value = version.to_ne_bytes().to_vec();
        value.resize(4 + version as usize % 7 * 1500, 0);
        insert(&cache, b"key", &value);
    };
    insert_version(0);
    let has_given_up = || {
        let stats = cache.stats().unwrap();
        stats.refused + stats.evicted > 0
    };
    let find_all = || {
        let mut newest = 0;
        while newest < VERSIONS {
            let found = cache.get(b"key");
            let version = found.map(|value| value[..4].try_into().unwrap());
            match version.map(u32::from_ne_bytes) {
                Some(version) => {
                    assert!(version >= newest, "{version} after {newest}");
                    newest = version;
                }
                // Without memory for a value the key has none.
                None => {
                    // The process that purges it counts it afterwards.
                    let end = Instant::now() + Duration::from_secs(10);
                    while !has_given_up() {
                        assert!(Instant::now() < end, "no value after {newest}");
                        std::thread::sleep(Duration::from_millis(1));
                    }
                    return;
                }
            }
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(find_all);
        scope.spawn(find_all);
        (1..=VERSIONS).for_each(insert_version);
    });
    let stats = cache.stats().unwrap();
    assert!(stats.values <= 1 && stats.bytes <= 64 << 10, "{stats:?}");
}

/// A name of this process, whose file is removed in the end.
struct Name(String);

impl Name {
    fn new() -> Self {
        Self(format!("test.{}.{}", std::process::id(), fastrand::u64(..)))
    }

    fn path(&self) -> PathBuf {
        PathBuf::from(format!("/dev/shm/tenure.{}", self.0))
    }

    fn open(&self) -> tenure::Result<SharedCache> {
        watch_pressure();
        SharedCache::open(&self.0, small())
    }
}

impl Drop for Name {
    fn drop(&mut self) {
        let _ = fs::remove_file(self.path());
    }
}

fn name_is_shared_and_survives_its_processes() -> Completion {
    if let Some(skipped) = without_names() {
        return skipped;
    }
    let name = Name::new();
    let status = fork(|| {
        insert(&name.open().unwrap(), b"key", b"value");
        0
    });
    assert_eq!(status, 0);
    let cache = name.open().unwrap();
    // That process may have seen pressure.
    let found = cache.get(b"key");
    assert!(found.is_none_or(|found| found[..] == *b"value"));
    assert!(!has(&cache, b"key", b"other") || was_under_pressure());
    Completion::Completed
}

fn arena_is_no_cache_and_cache_no_arena() {
    let errno = |result: tenure::Result<()>| result.unwrap_err().errno();
    let fd = cache().as_fd().try_clone_to_owned().unwrap();
    assert_eq!(errno(SharedArena::from_fd(fd).map(drop)), libc::EPROTO);
    let arena = SharedArena::new(8, 1).unwrap();
    let fd = arena.as_fd().try_clone_to_owned().unwrap();
    let as_cache = SharedCache::from_fd(fd, small());
    assert_eq!(errno(as_cache.map(drop)), libc::EPROTO);
}

fn truncated_cache_misses_and_refuses() -> Completion {
    if let Some(skipped) = without_names() {
        return skipped;
    }
    for len in [0, 100, 70_000] {
        let name = Name::new();
        let cache = name.open().unwrap();
        insert(&cache, b"key", b"value");
        let file = File::options().write(true).open(name.path()).unwrap();
        file.set_len(len).unwrap();
        assert!(cache.get(b"key").is_none() && !cache.remove(b"key"));
        let inserted = cache.insert(b"key", b"value", Priority::Normal);
        assert_eq!(inserted.unwrap_err().errno(), libc::EPROTO);
        assert!(cache.stats().is_err() && cache.retain(|_| true) == 0);
        assert_eq!(name.open().unwrap_err().errno(), libc::EPROTO);
    }
    Completion::Completed
}

fn name_in_use_stays_and_others_are_removed() -> Completion {
    if let Some(skipped) = without_names() {
        return skipped;
    }
    let name = Name::new();
    let cache = name.open().unwrap();
    insert(&cache, b"key", b"value");
    assert!(SharedFile::names().unwrap().contains(&name.0));
    let file = SharedFile::open(&name.0).unwrap();
    let stats = file.stats().unwrap();
    assert!(file.is_cache() && stats.processes == 1 && stats.pinned == 0);
    assert!(stats.bytes == page_size() as u64 || was_under_pressure());
    let remove = || SharedFile::remove_unused(&name.0).map_err(|error| error.errno());
    assert_eq!(remove(), Err(libc::EBUSY));
    drop(cache);
    assert_eq!(remove(), Ok(()));
    assert_eq!(remove(), Err(libc::ENOENT));
    // Nobody can use a corrupt one.
    fs::write(name.path(), "corrupt").unwrap();
    let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    fs::set_permissions(name.path(), private).unwrap();
    assert_eq!(remove(), Ok(()));
    assert_eq!(
        SharedFile::remove_unused("a/b").unwrap_err().errno(),
        libc::EINVAL
    );
    Completion::Completed
}

fn closed_descriptor_is_an_error_and_other_files_stay() {
    in_child("close_descriptor_of_cache");
}

fn close_descriptor_of_cache() {
    let cache = cache();
    insert(&cache, b"key", b"value");
    let number = cache.as_fd().as_raw_fd();
    // As a daemon does, which then opens a file of its own.
    // SAFETY: the cache expects it.
    unsafe { libc::close(number) };
    let mut other = tempfile::tempfile().unwrap();
    assert_eq!(other.as_raw_fd(), number);
    for key in 0..100 {
        let error = cache.insert(&[key], &[1; 9000], Priority::Normal);
        assert_eq!(error.unwrap_err().errno(), libc::EBADF);
    }
    assert!(!cache.remove(b"key") && cache.get(b"missing").is_none());
    cache.clear();
    drop(cache);
    let mut bytes = Vec::new();
    other.read_to_end(&mut bytes).unwrap();
    assert_eq!((bytes.len(), other.as_raw_fd()), (0, number));
}

fn other_file_under_the_descriptor_s_number_is_not_read() {
    in_child("replace_descriptor_of_cache");
}

fn replace_descriptor_of_cache() {
    let cache = cache();
    insert(&cache, b"key", b"value");
    // Has another value at the same place.
    let other = tempfile::tempfile().unwrap();
    let mut at = 0;
    // SAFETY: the descriptor is open; the call changes its position only.
    while let start @ 0.. = unsafe { libc::lseek(cache.as_fd().as_raw_fd(), at, libc::SEEK_DATA) } {
        let mut page = vec![0; page_size()];
        rustix::io::pread(&cache, &mut page, start.cast_unsigned()).unwrap();
        if let Some(found) = page.windows(5).position(|bytes| bytes == b"value") {
            page[found..found + 5].copy_from_slice(b"wrong");
        }
        rustix::io::pwrite(&other, &page, start.cast_unsigned()).unwrap();
        at = start + page_size().cast_signed() as i64;
    }
    // SAFETY: the cache expects it.
    assert!(unsafe { libc::dup2(other.as_raw_fd(), cache.as_fd().as_raw_fd()) } >= 0);
    for _ in 0..3 {
        assert!(cache.get(b"key").is_none());
    }
}

fn lowered_file_size_limit_refuses_values() {
    in_child("lower_file_size_limit");
}

fn lower_file_size_limit() {
    let cache = cache();
    let limit = libc::rlimit {
        rlim_cur: 4096,
        rlim_max: 4096,
    };
    // SAFETY: the call only reads the limit.
    unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit) };
    insert(&cache, b"key", b"value");
    assert!(cache.get(b"key").is_none());
    assert_eq!(cache.stats().unwrap().refused, 1);
}
