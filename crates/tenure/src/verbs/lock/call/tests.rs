use std::cell::RefCell;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::super::chunked;
use super::*;
use crate::ground::mapping::{HugePages, Mapping};
use crate::ground::sys::advise::{Advice, advise};
use crate::ground::sys::page_size;
use crate::ground::sys::process::{LockLimit, may_exceed_lock_limit};

const NOW: Target = Target::Lock(LockMode::Now);
const ON_FAULT: Target = Target::Lock(LockMode::OnFault);

/// Memory in which each page is a mapping, for `chunk_count` chunks, or `None` where
/// `RLIMIT_MEMLOCK` allows too little. One test at a time has such memory.
fn many_mappings(chunk_count: usize) -> Option<(Mapping, MutexGuard<'static, ()>)> {
    static ALONE: Mutex<()> = Mutex::new(());
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let len = chunk_count * MAX_MAPPINGS * page_size();
    let is_limited = LockLimit::now().is_some_and(|limit| limit.limit_bytes < 2 * len);
    if is_limited && !may_exceed_lock_limit() {
        return None;
    }
    let memory = Mapping::anonymous(len).huge_pages(HugePages::Never);
    let memory = memory.map().unwrap();
    for page in memory.range().chunks(page_size()).step_by(2) {
        advise(page, Advice::DontDump).unwrap();
    }
    Some((memory, alone))
}

fn pages(of: PageRange, first: usize, end: usize) -> PageRange {
    let start = of.start();
    PageRange::between(start + first * page_size(), start + end * page_size())
}

fn begin(range: PageRange, target: Target) -> Call {
    let mut call = Call::begin(Cover::read(range).unwrap(), target).unwrap();
    if let Target::Lock(_) = target {
        call.check_limit().unwrap();
    }
    call
}

/// The locks of the range by the registry, where the kernel has one too.
fn locks(range: PageRange) -> Vec<LockedPart> {
    let vmas = vma::cover(range).unwrap();
    let parts = registry().locked_parts(&vmas).unwrap();
    let locks: RangeMap<usize, LockMode> = parts
        .into_iter()
        .map(|(part, mode)| (part.as_std(), mode))
        .collect();
    let part = |(part, mode)| (PageRange::from(part), mode);
    locks.into_iter().map(part).collect()
}

#[test]
fn change_of_many_mappings_releases_the_registry_after_a_bounded_number() {
    let Some((memory, _alone)) = many_mappings(3) else {
        return;
    };
    let call = begin(memory.range(), Target::Unlock(LockFlags::ALL));
    let seen = RefCell::new(Vec::new());
    let set = |part: PageRange| {
        seen.borrow_mut().push((part.pages(), registry::changes()));
        Ok(())
    };
    assert!(call.change(memory.range(), set, None).is_ok());
    let seen = seen.into_inner();
    assert!(seen.len() >= 3);
    assert!(seen.iter().all(|(count, _)| *count <= MAX_MAPPINGS));
    assert!(seen.is_sorted_by(|a, b| a.1 < b.1), "held all the time");
}

#[test]
fn lock_and_unlock_of_many_mappings_take_several_steps() {
    let Some((memory, _alone)) = many_mappings(3) else {
        return;
    };
    let steps = |work: &dyn Fn() -> Result<()>| {
        let before = registry::changes();
        work().unwrap();
        registry::changes() - before
    };
    for (mode, flags) in [
        (LockMode::OnFault, LockFlags::ALL),
        (LockMode::OnFault, LockFlags::ON_FAULT),
        (LockMode::Now, LockFlags::NOW),
    ] {
        assert!(steps(&|| memory.lock(.., mode)) >= 3);
        assert_eq!(locks(memory.range()), [(memory.range(), mode)]);
        assert!(steps(&|| memory.unlock(.., flags)) >= 3);
        assert_eq!(locks(memory.range()), []);
    }
}

#[test]
fn mappings_are_read_without_the_registry_mutex() {
    let Some((memory, _alone)) = many_mappings(2) else {
        return;
    };
    let held = registry();
    // This thread would wait for itself.
    let cover = Cover::read(memory.range()).unwrap();
    assert!(!cover.is_one_step());
    drop(held);
}

#[test]
fn failed_lock_of_many_mappings_restores_the_locks_of_all_chunks() {
    let Some((memory, _alone)) = many_mappings(3) else {
        return;
    };
    let range = memory.range();
    let on_fault = pages(range, 10, MAX_MAPPINGS + 10);
    let now = pages(range, on_fault.pages() + 20, 3 * MAX_MAPPINGS - 1);
    memory
        .lock(
            10 * page_size()..on_fault.end() - range.start(),
            LockMode::OnFault,
        )
        .unwrap();
    memory
        .lock(
            now.start() - range.start()..now.end() - range.start(),
            LockMode::Now,
        )
        .unwrap();
    let before = locks(range);
    assert_eq!(
        before,
        [(on_fault, LockMode::OnFault), (now, LockMode::Now)]
    );
    let mut call = begin(range, ON_FAULT);
    let last = pages(range, 3 * MAX_MAPPINGS - 1, 3 * MAX_MAPPINGS);
    let set = |part: PageRange| match part.contains(last) {
        true => Err(Errno::AGAIN),
        false => lock::mlock_onfault(part),
    };
    let refused = call
        .change(range, set, Some(LockMode::OnFault))
        .unwrap_err();
    assert_ne!(locks(range), before);
    let _ = call.fail(&refused, false);
    assert_eq!(locks(range), before);
}

#[test]
fn locks_made_after_the_mappings_were_read_are_told_apart() {
    let memory = Mapping::anonymous(8 * page_size()).map().unwrap();
    let range = memory.range();
    memory.lock(..4 * page_size(), LockMode::OnFault).unwrap();
    let cover = Cover::read(range).unwrap();
    memory
        .lock(page_size()..2 * page_size(), LockMode::Now)
        .unwrap();
    assert_eq!(cover.locked_parts(&registry()), None);
    let unlocked_bytes = chunked::unlock(cover, LockFlags::NOW).unwrap();
    assert_eq!(unlocked_bytes, page_size());
    let first = (pages(range, 0, 1), LockMode::OnFault);
    let second = (pages(range, 2, 4), LockMode::OnFault);
    assert_eq!(locks(range), [first, second]);
}

#[test]
fn failed_call_leaves_the_lock_of_the_call_it_took_over() {
    let Some((memory, _alone)) = many_mappings(1) else {
        return;
    };
    let range = memory.range();
    let middle = pages(range, 20, 40);
    let first = begin(range, ON_FAULT);
    // Fails before `first` has come to its part.
    drop(begin(middle, NOW));
    let mode = Some(LockMode::OnFault);
    assert!(first.change(range, lock::mlock_onfault, mode).is_ok());
    first.done();
    assert_eq!(locks(range), [(range, LockMode::OnFault)]);

    let first = begin(range, Target::Unlock(LockFlags::ON_FAULT));
    drop(begin(middle, NOW));
    assert!(first.change(range, lock::munlock, None).is_ok());
    drop(first);
    assert_eq!(locks(range), []);
}

#[test]
fn unlock_takes_over_locks_in_progress_of_its_modes_only() {
    for (flags, expected) in [(LockFlags::NOW, 1), (LockFlags::ON_FAULT, 0)] {
        let Some((memory, _alone)) = many_mappings(1) else {
            return;
        };
        let range = memory.range();
        let first = begin(range, ON_FAULT);
        chunked::unlock(Cover::read(range).unwrap(), flags).unwrap();
        let mode = Some(LockMode::OnFault);
        assert!(first.change(range, lock::mlock_onfault, mode).is_ok());
        first.done();
        assert_eq!(locks(range).len(), expected, "{flags:?}");
    }
}

#[test]
fn unlock_and_failed_lock_of_many_mappings_keep_a_kept_range() {
    let Some((memory, _alone)) = many_mappings(2) else {
        return;
    };
    let range = memory.range();
    let kept = pages(range, 10, 12);
    lock::mlock_onfault(kept).unwrap();
    registry().keep(kept);
    // The lock is undone, but not of a range that has been kept since it began.
    let call = begin(range, NOW);
    let late = pages(range, 300, 301);
    lock::mlock_onfault(late).unwrap();
    registry().keep(late);
    drop(call);
    let on_fault = [(kept, LockMode::OnFault), (late, LockMode::OnFault)];
    assert_eq!(locks(range), on_fault);
    for flags in [LockFlags::ON_FAULT, LockFlags::ALL] {
        memory.lock(.., LockMode::OnFault).unwrap();
        memory.unlock(.., flags).unwrap();
        assert_eq!(locks(range), on_fault);
        for part in [kept, late] {
            memory
                .unlock(
                    part.start() - range.start()..part.end() - range.start() + 1,
                    flags,
                )
                .unwrap();
        }
        assert_eq!(locks(range), on_fault);
    }
    memory.munmap().unwrap();
    assert_eq!(registry().unkept_parts(range), [range]);
}
