//! admit, and the verbs that admit what they take, while the limits cannot be read: before
//! the first reading, after it, and without a descriptor, where a thread with an empty
//! descriptor table reads them. Each call succeeds or returns an error, and (as after each
//! operation) nothing stays admitted.

use tenure::headroom::{self, Headroom};
use tenure::{
    Access, Error, LockMode, Mapping, VolatileCache, lock,
    lock::{LockFlags, LockScope},
    page_size,
};

use super::super::case::{AsError, Case, again};
use super::super::common::{anonymous, count_present, is_zero, lock_modes, may_lock_anything};
use super::Group;

/// In a process that has a reading.
pub const ALL: Group = &[
    ("admit", |case| later(|| admit_by_last_reading(case))),
    ("admit_without_descriptors", |case| {
        later(|| without_descriptors(|| admit_by_last_reading(case)));
    }),
    ("admit_refused", |case| refuse(case)),
    ("admit_refused_without_descriptors", |case| {
        without_descriptors(|| refuse(case));
    }),
    ("headroom_without_descriptors", |case| {
        let found = without_descriptors(|| case.attempt_twice(Headroom::now));
        assert!(found.bytes > 0);
    }),
    ("populate_without_descriptors", |case| {
        later(|| populate(case, true));
    }),
    ("lock_now_without_descriptors", |case| {
        later(|| lock_now(case, true));
    }),
    ("map_locked_now_later", |case| later(|| map_locked(case))),
    ("lock_all_now", |case| later(|| lock_all(case))),
    ("cache_insert", |case| later(|| insert(case, false))),
    ("cache_insert_without_descriptors", |case| {
        later(|| insert(case, true));
    }),
];

/// In a process that has no reading.
pub const FIRST: Group = &[
    ("admit_first", |case| admit(case)),
    ("admit_first_without_descriptors", |case| {
        without_descriptors(|| admit(case));
    }),
    ("headroom_first", |case| {
        assert!(case.attempt_twice(Headroom::now).bytes > 0);
    }),
    ("populate_first", |case| populate(case, false)),
    ("populate_first_without_descriptors", |case| {
        populate(case, true);
    }),
    ("lock_now_first", |case| lock_now(case, false)),
    ("lock_now_first_without_descriptors", |case| {
        lock_now(case, true);
    }),
    ("map_locked_now_first", map_locked),
    ("lock_all_now_first", lock_all),
    ("cache_insert_first", |case| insert(case, false)),
    ("cache_insert_first_without_descriptors", |case| {
        insert(case, true);
    }),
];

const BYTES: usize = 1 << 20;

/// Runs `work` after a reading, when another is due because half of what that one found is
/// admitted.
fn later(work: impl FnOnce()) {
    let found = again(headroom::read());
    let half = again(headroom::admit(found.bytes / 2));
    work();
    drop(half);
}

fn without_descriptors<T>(work: impl FnOnce() -> T) -> T {
    // A thread of tenure that closes one meanwhile leaves a descriptor.
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let maximum = getrlimit(Resource::Nofile).maximum;
    let current = Some(256);
    setrlimit(Resource::Nofile, Rlimit { current, maximum }).unwrap();
    let open = || std::fs::File::open("/dev/null").ok();
    let taken: Vec<_> = std::iter::from_fn(open).collect();
    let answer = work();
    drop(taken);
    answer
}

fn admit(case: &Case) {
    use_admission(case, case.attempt_twice(|| headroom::admit(BYTES)));
}

/// Admits without a repetition: whatever fails, the last reading holds.
fn admit_by_last_reading(case: &Case) {
    let admitted = case.armed(|| headroom::admit(BYTES));
    let admission = admitted.expect("the last reading holds");
    use_admission(case, admission);
}

fn use_admission(case: &Case, admission: headroom::Admission) {
    assert_eq!(admission.bytes(), BYTES);
    case.armed(|| admission.mark_resident(BYTES / 4));
    assert_eq!(admission.bytes(), BYTES / 4 * 3);
    case.armed(|| drop(admission));
}

/// More than the headroom is refused, also where nobody can tell by which limit.
fn refuse(case: &Case) {
    let bytes = again(headroom::read()).bytes * 2;
    let answer = case.armed(|| headroom::admit(bytes));
    let is_refused =
        matches!(answer, Err(Error::NotAdmitted { need_bytes, .. }) if need_bytes == bytes);
    assert!(is_refused, "{answer:?}");
}

/// Runs a call armed, without descriptors if so wanted. Its error is the fault's, or that no
/// descriptor is left.
fn attempt<T, E: AsError>(
    case: &Case,
    is_without_descriptors: bool,
    work: impl FnOnce() -> Result<T, E>,
) -> Option<T> {
    let answer = match is_without_descriptors {
        true => without_descriptors(|| case.armed(work)),
        false => case.armed(work),
    };
    let error = match answer {
        Ok(value) => return Some(value),
        Err(error) => error,
    };
    let error = error.as_error();
    if !is_without_descriptors || error.errno() != libc::EMFILE {
        case.check(error);
    }
    None
}

fn populate(case: &Case, is_without_descriptors: bool) {
    let memory = anonymous(300);
    let populate = || memory.populate(.., Access::Write);
    if attempt(case, is_without_descriptors, populate).is_none() {
        again(populate());
    }
    assert_eq!(count_present(memory.range()), 300);
    assert!(is_zero(memory.range()));
}

fn lock_now(case: &Case, is_without_descriptors: bool) {
    let memory = anonymous(30);
    let lock = || unsafe { memory.range().lock(LockMode::Now) };
    if attempt(case, is_without_descriptors, lock).is_none() {
        assert_eq!(lock_modes(memory.range()), [None; 30]);
        again(lock());
    }
    assert_eq!(lock_modes(memory.range()), [Some(LockMode::Now); 30]);
    assert_eq!(count_present(memory.range()), 30);
}

fn map_locked(case: &Case) {
    let map = || Mapping::anonymous(30 * page_size()).map_locked(LockMode::Now);
    let memory = case.attempt_twice(map);
    assert_eq!(lock_modes(memory.range()), [Some(LockMode::Now); 30]);
}

fn lock_all(case: &Case) {
    if !may_lock_anything() {
        return;
    }
    let memory = anonymous(30);
    let lock = || lock::lock_all(LockScope::Current, LockMode::Now);
    if case.attempt(lock).is_err() {
        assert_eq!(lock_modes(memory.range()), [None; 30]);
        again(lock());
    }
    assert_eq!(lock_modes(memory.range()), [Some(LockMode::Now); 30]);
    assert_eq!(count_present(memory.range()), 30);
    again(lock::unlock_all(LockFlags::ALL));
}

/// A value whose memory cannot be admitted is not kept, and one that is found is whole.
fn insert(case: &Case, is_without_descriptors: bool) {
    let cache = VolatileCache::<usize>::new();
    let value = |key: usize| vec![key as u8 + 1; 200_000];
    for key in 0..3 {
        attempt(case, is_without_descriptors, || {
            cache.insert(key, &value(key))
        });
    }
    for key in 0..3 {
        let found = cache.get(&key);
        assert!(found.is_none_or(|found| found[..] == value(key)));
    }
    // Memory pressure on the machine may purge a value at once.
    let is_kept = (0..50).any(|_| {
        again(cache.insert(1, &value(1)));
        cache.get(&1).is_some_and(|found| found[..] == value(1))
    });
    assert!(is_kept);
}
