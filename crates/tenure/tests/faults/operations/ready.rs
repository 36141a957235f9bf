//! The ready-made types on top of the verbs.

use std::time::Duration;

use tenure::volatile::Priority;
use tenure::{CacheOptions, LockedFile, SecretBuffer, SharedArena, SharedCache, VolatileCache};

use super::super::case::{AsError, Case, again};
use super::Group;

pub const ALL: Group = &[
    ("locked_file", locked_file),
    ("locked_file_with_budget", locked_file_with_budget),
    ("secret_buffer", |case| {
        secret(case, SecretBuffer::with_max_len)
    }),
    ("secret_buffer_hidden", secret_hidden),
    ("volatile_cache", cache),
    ("shared_arena", shared_arena),
    ("shared_cache", shared_cache),
];

const FILE_LEN: usize = 1 << 20;

fn read_all(file: &LockedFile) {
    for (index, &byte) in file.as_slice().iter().enumerate() {
        assert_eq!(usize::from(byte), index % 251);
    }
}

fn locked_file(case: &Case) {
    let file = super::super::common::file(FILE_LEN);
    let mapped = case.attempt_twice(|| unsafe { LockedFile::map(&file) });
    read_all(&mapped);
    let locked = case.attempt_twice(|| mapped.locked_bytes());
    assert!(locked <= FILE_LEN);
    let resident = case.attempt_twice(|| mapped.resident_bytes());
    assert_eq!(resident, FILE_LEN);
    case.armed(|| drop(mapped));
}

fn locked_file_with_budget(case: &Case) {
    let file = super::super::common::file(FILE_LEN);
    let mapped = case.attempt_twice(|| unsafe { LockedFile::with_budget(&file, 512 << 10) });
    read_all(&mapped);
    case.attempt_twice(|| mapped.trim());
    read_all(&mapped);
    again(mapped.trim());
    assert!(again(mapped.locked_bytes()) <= 512 << 10);
    read_all(&mapped);
    case.armed(|| drop(mapped));
}

fn secret(case: &Case, make: fn(usize) -> tenure::Result<SecretBuffer>) {
    let mut secret = case.attempt_twice(|| make(20_000));
    case.attempt_twice(|| secret.extend_from_slice(&[7; 5000]));
    case.attempt_twice(|| secret.resize(9000, 9));
    assert!(secret.as_slice()[..5000].iter().all(|&byte| byte == 7));
    assert!(secret.as_slice()[5000..].iter().all(|&byte| byte == 9));
    case.armed(|| secret.clear());
    case.armed(|| drop(secret));
}

fn secret_hidden(case: &Case) {
    if tenure::Features::get().memfd_secret.is_ok() {
        secret(case, SecretBuffer::hidden_with_max_len);
    }
}

/// Checks that a value is found whole or not at all.
fn cache(case: &Case) {
    tenure::volatile::set_offer_delay(Duration::ZERO);
    let value = |key: usize| vec![key as u8 + 1; 20_000];
    let cache = case.armed(VolatileCache::<usize>::new);
    for key in 0..3 {
        if let Err(error) = case.armed(|| cache.insert(key, &value(key))) {
            case.check(error.as_error());
            again(cache.insert(key, &value(key)));
        }
    }
    for key in 0..3 {
        let found = case.armed(|| cache.get(&key));
        assert!(found.is_none_or(|found| found[..] == value(key)));
    }
    let made = case.armed(|| cache.get_or_insert_with(7, || value(7)));
    assert!(made[..] == value(7));
    drop(made);
    case.armed(|| cache.remove(&0));
    assert!(cache.get(&0).is_none());
    case.armed(|| cache.clear());
    // Memory pressure on the machine may purge a value at once.
    let is_kept = (0..50).any(|_| {
        again(cache.insert(1, &value(1)));
        cache.get(&1).is_some_and(|found| found[..] == value(1))
    });
    assert!(is_kept);
    case.armed(|| drop(cache));
}

/// Checks that a buffer has its contents, or says that it has not.
fn shared_arena(case: &Case) {
    // More than the kernel is asked to free at a time.
    const LEN: usize = (1 << 20) + 20_000;
    let arena = case.attempt_twice(|| SharedArena::new(4, LEN));
    let (buffer, pin) = case.attempt_twice(|| arena.allocate(LEN, Priority::Normal));
    case.attempt_twice(|| pin.write(0, &[7; LEN]));
    let mut bytes = [0; LEN];
    case.attempt_twice(|| pin.read(0, &mut bytes));
    assert_eq!(bytes, [7; LEN]);
    case.armed(|| drop(pin));
    case.attempt_twice(|| buffer.purge());
    let pin = case.attempt_twice(|| buffer.pin());
    assert!(!pin.is_intact());
    again(pin.read(0, &mut bytes));
    assert_eq!(bytes, [0; LEN]);
    drop(pin);
    case.attempt_twice(|| arena.stats());
    case.armed(|| drop((buffer, arena)));
}

/// Checks that a value is found whole or not at all.
fn shared_cache(case: &Case) {
    // The first is more than the kernel is asked to free at a time.
    let value = |key: u8| vec![key + 1; if key == 0 { (1 << 20) + 5 } else { 20_000 }];
    let options = CacheOptions::new().max_bytes(8 << 20);
    let cache = case.attempt_twice(|| SharedCache::new(options));
    for key in 0..3 {
        case.attempt_twice(|| cache.insert(&[key], &value(key), Priority::Normal));
    }
    for key in 0..3 {
        let found = case.armed(|| cache.get(&[key]));
        assert!(found.is_none_or(|found| found[..] == value(key)));
    }
    let made = case.attempt_twice(|| cache.get_or_insert_with(&[7], || value(7)));
    assert!(made[..] == value(7));
    case.armed(|| cache.remove(&[0]));
    assert!(cache.get(&[0]).is_none());
    case.armed(|| cache.clear());
    case.armed(|| drop(cache));
}
