//! lock, unlock, lock_all and unlock_all. Every page is locked as before the call or as
//! requested.

use tenure::{
    Access, Features, LockMode, LockedFile, Mapping, PageRange, SecretBuffer,
    lock::{LockFlags, LockScope},
    page_size,
    populate::PopulateOptions,
};

use super::super::case::{Case, again};
use super::super::common::{file, lock_modes, may_lock_anything, pages};
use super::{Between, Group};

pub const ALL: Group = &[
    ("lock_now", |case| lock(case, LockMode::Now)),
    ("lock_on_fault", |case| lock(case, LockMode::OnFault)),
    ("lock_in_chunks", lock_in_chunks),
    ("unlock", unlock),
    ("unlock_one_mode", unlock_one_mode),
    ("lock_over_other_mode", lock_over_other_mode),
    ("lock_all", lock_all),
    ("unlock_all", unlock_all),
    ("unlock_all_beside_kept", unlock_all_beside_kept),
];

fn lock(case: &Case, mode: LockMode) {
    let memory = Between::new(10);
    let range = memory.range;
    if case.attempt(|| unsafe { range.lock(mode) }).is_err() {
        assert_eq!(lock_modes(range), [None; 10]);
        again(unsafe { range.lock(mode) });
    }
    assert_eq!(lock_modes(range), [Some(mode); 10]);
    again(unsafe { range.unlock(LockFlags::ALL) });
    assert_eq!(lock_modes(memory.whole.range()), [None; 12]);
    assert!(memory.is_intact());
}

/// Checks that every step of a lock in chunks is undone.
fn lock_in_chunks(case: &Case) {
    let (memory, before) = patchwork();
    let options = PopulateOptions::new(Access::Write).threads(1);
    let lock = || unsafe { memory.range.lock_with(&options) };
    if case.attempt(lock).is_err() {
        assert_eq!(lock_modes(memory.range), before);
        again(lock());
    }
    assert_eq!(lock_modes(memory.range), [Some(LockMode::Now); 10]);
    assert!(memory.is_intact());
}

fn unlock(case: &Case) {
    let memory = Between::new(10);
    let range = memory.range;
    again(unsafe { range.lock(LockMode::Now) });
    let part = pages(range, 3, 4);
    if case
        .attempt(|| unsafe { part.unlock(LockFlags::ALL) })
        .is_err()
    {
        again(unsafe { part.unlock(LockFlags::ALL) });
    }
    let mut wanted = [Some(LockMode::Now); 10];
    wanted[3..7].fill(None);
    assert_eq!(lock_modes(range), wanted);
    assert!(memory.is_intact());
}

/// Returns pages that are locked now, on fault, without tenure, and not at all.
fn patchwork() -> (Between, [Option<LockMode>; 10]) {
    let memory = Between::new(10);
    again(unsafe { pages(memory.range, 0, 3).lock(LockMode::Now) });
    again(unsafe { pages(memory.range, 3, 3).lock(LockMode::OnFault) });
    super::super::common::raw_lock_on_fault(pages(memory.range, 6, 2));
    let mut modes = [None; 10];
    modes[..3].fill(Some(LockMode::Now));
    modes[3..8].fill(Some(LockMode::OnFault));
    assert_eq!(lock_modes(memory.range), modes);
    (memory, modes)
}

fn unlock_one_mode(case: &Case) {
    let (memory, before) = patchwork();
    let unlock = || unsafe { memory.range.unlock(LockFlags::ON_FAULT) };
    if case.attempt(unlock).is_err() {
        let between = lock_modes(memory.range);
        assert!(
            between
                .iter()
                .zip(before)
                .all(|(is, was)| is.0.is_none() || *is == was)
        );
        assert_eq!(between[..3], before[..3]);
        again(unlock());
    }
    let mut wanted = [None; 10];
    wanted[..3].fill(Some(LockMode::Now));
    if Features::get().smaps_lock_mode.is_err() {
        // The mode of foreign locks is unknown.
        wanted[6..8].fill(Some(LockMode::OnFault));
    }
    assert_eq!(lock_modes(memory.range), wanted);
    assert!(memory.is_intact());
}

fn lock_over_other_mode(case: &Case) {
    let (memory, before) = patchwork();
    let lock = || unsafe { memory.range.lock(LockMode::Now) };
    if case.attempt(lock).is_err() {
        assert_eq!(lock_modes(memory.range), before);
        again(lock());
    }
    assert_eq!(lock_modes(memory.range), [Some(LockMode::Now); 10]);
    assert!(memory.is_intact());
}

fn lock_all(case: &Case) {
    if !may_lock_anything() {
        return;
    }
    let memory = Between::new(4);
    let lock = || tenure::lock::lock_all(LockScope::CurrentAndFuture, LockMode::OnFault);
    if case.attempt(lock).is_err() {
        assert_eq!(lock_modes(memory.range), [None; 4]);
        let other = Mapping::anonymous(4096).map().unwrap();
        assert_eq!(lock_modes(other.range()), [None]);
        again(lock());
    }
    assert_eq!(lock_modes(memory.range), [Some(LockMode::OnFault); 4]);
    again(tenure::lock::unlock_all(LockFlags::ALL));
    assert_eq!(lock_modes(memory.range), [None; 4]);
}

fn unlock_all(case: &Case) {
    if !may_lock_anything() {
        return;
    }
    let memory = Between::new(4);
    again(unsafe { memory.range.lock(LockMode::Now) });
    again(tenure::lock::lock_all(LockScope::Future, LockMode::OnFault));
    let unlock = || tenure::lock::unlock_all(LockFlags::ON_FAULT);
    if case.attempt(unlock).is_err() {
        // As documented, pages stay locked in one mode or the other.
        assert!(lock_modes(memory.range).iter().all(|lock| lock.0.is_some()));
        again(unsafe { memory.range.lock(LockMode::Now) });
        again(unlock());
    }
    assert_eq!(lock_modes(memory.range), [Some(LockMode::Now); 4]);
    let other = Mapping::anonymous(4096).map().unwrap();
    assert_eq!(lock_modes(other.range()), [None]);
    again(tenure::lock::unlock_all(LockFlags::ALL));
}

/// Checks that a secret and a locked file stay locked, whatever fails, while the other
/// memory is unlocked: by mode, and with locks on new mappings or without.
fn unlock_all_beside_kept(case: &Case) {
    if !may_lock_anything() {
        return;
    }
    let mut secret = again(SecretBuffer::with_max_len(20_000));
    again(secret.extend_from_slice(&[7; 20_000]));
    let start = secret.as_slice().as_ptr().expose_provenance();
    let secret_range = again(PageRange::new(start, 4 * page_size()));
    let source = file(64 << 10);
    let locked_file = again(unsafe { LockedFile::map(&source) });
    let kept = [secret_range, locked_file.range()];
    let are_kept = || {
        let mut modes = kept.into_iter().flat_map(lock_modes);
        modes.all(|seen| seen == Some(LockMode::OnFault))
    };
    let memory = Between::new(4);
    for scope in [None, Some(LockScope::Future)] {
        for flags in [LockFlags::NOW, LockFlags::ON_FAULT, LockFlags::ALL] {
            again(unsafe { memory.range.lock(LockMode::Now) });
            if let Some(scope) = scope {
                again(tenure::lock::lock_all(scope, LockMode::OnFault));
            }
            let unlock = || tenure::lock::unlock_all(flags);
            if case.attempt(unlock).is_err() {
                assert!(are_kept(), "after an error");
                again(unlock());
            }
            assert!(are_kept());
            if flags != LockFlags::ON_FAULT {
                assert_eq!(lock_modes(memory.range), [None; 4]);
            }
            again(tenure::lock::unlock_all(LockFlags::ALL));
            assert!(are_kept());
            assert_eq!(lock_modes(memory.whole.range()), [None; 6]);
        }
    }
    assert!(secret.as_slice().iter().all(|&byte| byte == 7));
    case.armed(|| drop((secret, locked_file)));
}
