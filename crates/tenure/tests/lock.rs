//! lock: which pages stay, which locks an unlock clears, and the limit.

#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "tests use memory that they have mapped themselves"
)]

mod common;

use common::*;
use rustix::process::{Resource, Rlimit, setrlimit};
use tenure::{Error, LockMode, LockModes, Mapping, PageRange, page_size};

tests!(
    now_brings_every_page_in,
    on_fault_brings_in_what_is_touched,
    a_part_and_rounding,
    unlock_clears_only_the_modes_named,
    unlock_of_interleaved_ranges,
    the_last_mode_counts,
    all_clears_what_tenure_did_not_lock,
    nothing_is_nothing,
    a_hole_is_refused_before_anything_is_done,
    a_page_that_cannot_come_in_leaves_the_locks_as_they_were,
    over_the_limit_says_so,
    no_limit_at_all_is_eperm,
    a_child_has_no_locks,
    munmap_forgets;
    children:
    lock_past_the_limit,
    lock_without_a_limit,
);

/// Whether the first page is locked, and how.
fn mode(range: PageRange) -> Option<LockMode> {
    match (has_vm_flag(range, "lo"), has_vm_flag(range, "lf")) {
        (false, _) => None,
        (true, false) => Some(LockMode::Now),
        (true, true) => Some(LockMode::OnFault),
    }
}

fn modes(range: PageRange) -> Vec<Option<LockMode>> {
    (0..range.pages())
        .map(|page| mode(pages(range, page, 1)))
        .collect()
}

const NOW: Option<LockMode> = Some(LockMode::Now);
const ON_FAULT: Option<LockMode> = Some(LockMode::OnFault);

fn now_brings_every_page_in() {
    let memory = anonymous(64);
    let before = status_kib("VmLck");
    memory.lock(.., LockMode::Now).unwrap();
    assert_eq!(mode(memory.range()), NOW);
    assert_eq!(count_present(memory.range()), 64);
    assert_eq!(status_kib("VmLck") - before, (memory.len() / 1024) as u64);
    memory.unlock(.., LockModes::NOW).unwrap();
    assert_eq!(mode(memory.range()), None);
    assert_eq!(status_kib("VmLck"), before);
}

fn on_fault_brings_in_what_is_touched() {
    let memory = anonymous(64);
    memory.lock(.., LockMode::OnFault).unwrap();
    assert_eq!(mode(memory.range()), ON_FAULT);
    assert_eq!(count_present(memory.range()), 0);
    fill(pages(memory.range(), 7, 2));
    assert_eq!(count_present(memory.range()), 2);
    assert_eq!(
        smaps_bytes(memory.range(), "Locked"),
        2 * page_size() as u64
    );
    // Locked pages cannot be paged out.
    let advice = rustix::mm::Advice::LinuxPageOut;
    let answer = unsafe { rustix::mm::madvise(memory.as_ptr().cast(), memory.len(), advice) };
    assert_eq!(answer, Err(rustix::io::Errno::INVAL));
}

fn a_part_and_rounding() {
    let memory = anonymous(4);
    memory
        .lock(page_size()..page_size() + 1, LockMode::OnFault)
        .unwrap();
    assert_eq!(modes(memory.range()), [None, ON_FAULT, None, None]);
    let error = memory.lock(1.., LockMode::OnFault).unwrap_err();
    assert!(matches!(error, Error::Unaligned { .. }), "{error}");
}

fn unlock_clears_only_the_modes_named() {
    let memory = anonymous(8);
    memory.lock(.., LockMode::Now).unwrap();
    memory
        .lock(2 * page_size()..5 * page_size(), LockMode::OnFault)
        .unwrap();
    memory.unlock(.., LockModes::ON_FAULT).unwrap();
    assert_eq!(
        modes(memory.range()),
        [NOW, NOW, None, None, None, NOW, NOW, NOW]
    );
    memory.unlock(.., LockModes::ON_FAULT).unwrap();
    assert_eq!(
        modes(memory.range()),
        [NOW, NOW, None, None, None, NOW, NOW, NOW]
    );
    memory.unlock(.., LockModes::NOW).unwrap();
    assert_eq!(modes(memory.range()), [None; 8]);
}

fn unlock_of_interleaved_ranges() {
    let memory = anonymous(8);
    for page in 0..8 {
        let mode = if page % 2 == 0 {
            LockMode::Now
        } else {
            LockMode::OnFault
        };
        memory
            .lock(page * page_size()..(page + 1) * page_size(), mode)
            .unwrap();
    }
    memory
        .unlock(2 * page_size()..6 * page_size(), LockModes::NOW)
        .unwrap();
    assert_eq!(
        modes(memory.range()),
        [NOW, ON_FAULT, None, ON_FAULT, None, ON_FAULT, NOW, ON_FAULT]
    );
}

fn the_last_mode_counts() {
    let memory = anonymous(4);
    memory.lock(.., LockMode::OnFault).unwrap();
    memory.lock(.., LockMode::Now).unwrap();
    assert_eq!(mode(memory.range()), NOW);
    memory.unlock(.., LockModes::ON_FAULT).unwrap();
    assert_eq!(mode(memory.range()), NOW);
    memory.lock(.., LockMode::OnFault).unwrap();
    memory.unlock(.., LockModes::NOW).unwrap();
    assert_eq!(mode(memory.range()), ON_FAULT);
}

fn all_clears_what_tenure_did_not_lock() {
    let memory = anonymous(4);
    unsafe { rustix::mm::mlock(memory.as_ptr().cast(), memory.len()) }.unwrap();
    memory.unlock(.., LockModes::NOW).unwrap();
    assert_eq!(mode(memory.range()), NOW);
    memory.unlock(.., LockModes::ALL).unwrap();
    assert_eq!(mode(memory.range()), None);
}

fn nothing_is_nothing() {
    let nowhere = PageRange::new(page_size(), 0).unwrap();
    unsafe { nowhere.lock(LockMode::Now) }.unwrap();
    unsafe { nowhere.unlock(LockModes::ALL) }.unwrap();
}

fn a_hole_is_refused_before_anything_is_done() {
    let memory = anonymous(8);
    let hole = pages(memory.range(), 5, 1);
    raw_unmap(hole);
    for mode in [LockMode::Now, LockMode::OnFault] {
        let error = memory.lock(.., mode).unwrap_err();
        assert!(
            matches!(error, Error::Hole { hole: at, .. } if at == hole),
            "{error}"
        );
    }
    assert_eq!(mode(memory.range()), None);
    memory.lock(..5 * page_size(), LockMode::Now).unwrap();
    let error = memory.unlock(.., LockModes::ALL).unwrap_err();
    assert!(matches!(error, Error::Hole { .. }), "{error}");
    assert_eq!(mode(memory.range()), NOW);
}

fn a_page_that_cannot_come_in_leaves_the_locks_as_they_were() {
    let file = file(4 * page_size());
    let memory = unsafe { Mapping::file(&file) }
        .len(8 * page_size())
        .map()
        .unwrap();
    memory
        .lock(page_size()..2 * page_size(), LockMode::OnFault)
        .unwrap();
    let before = modes(memory.range());
    let error = memory.lock(.., LockMode::Now).unwrap_err();
    assert!(matches!(error, Error::NoBacking { .. }), "{error}");
    assert_eq!(modes(memory.range()), before);
    // The registry is as before, too.
    memory.unlock(.., LockModes::NOW).unwrap();
    assert_eq!(modes(memory.range()), before);
    memory.unlock(.., LockModes::ON_FAULT).unwrap();
    assert_eq!(modes(memory.range()), [None; 8]);
}

/// Becomes a process that `RLIMIT_MEMLOCK` holds for.
fn limit_memlock(bytes: u64) {
    let limit = Rlimit {
        current: Some(bytes),
        maximum: Some(bytes),
    };
    setrlimit(Resource::Memlock, limit).unwrap();
    give_up_privileges();
}

fn lock_past_the_limit() {
    let memory = anonymous(8);
    limit_memlock(6 * page_size() as u64);
    memory.lock(..4 * page_size(), LockMode::OnFault).unwrap();
    for mode in [LockMode::Now, LockMode::OnFault] {
        let error = memory.lock(4 * page_size().., mode).unwrap_err();
        let Error::LockLimit {
            limit_bytes,
            used_bytes,
            range,
        } = error
        else {
            panic!("{error}")
        };
        assert_eq!(
            (limit_bytes, used_bytes),
            (6 * page_size(), 4 * page_size())
        );
        assert_eq!(range.pages(), 4);
        assert_eq!(error.errno(), libc::ENOMEM);
        assert!(error.to_string().contains("ulimit -l"), "{error}");
        assert_eq!(modes(memory.range())[3..5], [ON_FAULT, None]);
    }
    // What is locked already is not counted twice.
    memory.lock(..6 * page_size(), LockMode::OnFault).unwrap();
}

fn over_the_limit_says_so() {
    in_child_ok("lock_past_the_limit");
}

fn lock_without_a_limit() {
    let memory = anonymous(2);
    limit_memlock(0);
    let error = memory.lock(.., LockMode::OnFault).unwrap_err();
    assert!(
        matches!(
            error,
            Error::LockLimit {
                limit_bytes: 0,
                used_bytes: 0,
                ..
            }
        ),
        "{error}"
    );
    assert_eq!(error.errno(), libc::EPERM);
}

fn no_limit_at_all_is_eperm() {
    in_child_ok("lock_without_a_limit");
}

fn a_child_has_no_locks() {
    let memory = anonymous(8);
    memory.lock(.., LockMode::Now).unwrap();
    let status = fork(|| {
        assert_eq!(mode(memory.range()), None);
        // The registry has forgotten the parent's: this lock is another's.
        unsafe { rustix::mm::mlock(memory.as_ptr().cast(), memory.len()) }.unwrap();
        memory.unlock(.., LockModes::NOW).unwrap();
        assert_eq!(mode(memory.range()), NOW);
        0
    });
    assert_eq!(status, 0);
    assert_eq!(mode(memory.range()), NOW);
}

fn munmap_forgets() {
    let memory = anonymous(8);
    let range = memory.range();
    memory.lock(.., LockMode::Now).unwrap();
    memory.munmap().unwrap();
    raw_map_over(range);
    unsafe { rustix::mm::mlock(range.as_ptr().cast(), range.len()) }.unwrap();
    // The lock of the new mapping is not tenure's.
    unsafe { range.unlock(LockModes::NOW) }.unwrap();
    assert_eq!(mode(range), NOW);
    raw_unmap(range);
}
