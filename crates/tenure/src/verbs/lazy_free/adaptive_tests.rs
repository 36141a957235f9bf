//! Giving back, without waiting for pressure.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use rustix::thread::CpuSet;

use super::*;
use crate::ground::mapping::{HugePages, Mapping};
use crate::ground::sys::features::Features;
use crate::ground::sys::map::{self, Backing};
use crate::ground::sys::{numa, page_size};
use crate::verbs::lazy_free::forget_freed;
use crate::verbs::populate::Access;
use crate::verbs::volatile::set_hand_over_delay;

/// What is freed lazily is known to the whole process: one test at a time.
pub(in crate::verbs::lazy_free) static ALONE: Mutex<()> = Mutex::new(());

fn filled(page_count: usize) -> Mapping {
    let memory = Mapping::anonymous(page_count * page_size()).huge_pages(HugePages::Never);
    let mut memory = memory.map().unwrap();
    memory.as_mut_slice().unwrap().fill(7);
    memory
}

/// Frees as if there were no pressure.
fn free_lazily(range: PageRange) {
    assert!(known::note(range, true).is_lazy);
    // SAFETY: the tests' own memory, written again before it is read.
    unsafe { range.lazy_free() }.unwrap();
}

fn count_zeros(memory: &Mapping) -> usize {
    let pages = memory.as_slice().chunks(page_size());
    pages
        .filter(|page| page.iter().all(|&byte| byte == 0))
        .count()
}

#[test]
fn takes_what_is_free_and_keeps_what_was_written_since() {
    let _alone = ALONE.lock();
    // The kernel passes over what waits in the batch of another CPU.
    let mut here = CpuSet::new();
    here.set(rustix::thread::sched_getcpu());
    numa::run_on(&here);
    let mut memory = filled(256);
    free_lazily(memory.range());
    let written = 10 * page_size()..30 * page_size();
    memory.as_mut_slice().unwrap()[written.clone()].fill(9);
    give_back();
    assert_eq!(count_zeros(&memory), 256 - 20);
    assert!(memory.as_slice()[written].iter().all(|&byte| byte == 9));
}

#[test]
fn leaves_alone_what_is_in_use_again() {
    let _alone = ALONE.lock();
    let uses: [fn(&Mapping); 3] = [
        |memory| memory.range().reuse(),
        |memory| memory.populate(.., Access::Write).unwrap(),
        |memory| {
            let features = Features::get();
            if !features.sigbus_on_missing() || features.madv_populate.is_err() {
                // What is volatile is offered nowhere, and stays free.
                return forget_freed(memory.range());
            }
            set_hand_over_delay(Duration::ZERO);
            // SAFETY: the test's own memory, which nobody reads meanwhile.
            unsafe { memory.range().mark_volatile() }.unwrap();
            set_hand_over_delay(Duration::from_millis(100));
        },
    ];
    for use_again in uses {
        let memory = filled(64);
        free_lazily(memory.range());
        use_again(&memory);
        assert_eq!(known::take_freed(), None);
    }
    let memory = filled(64);
    free_lazily(memory.range());
    drop(memory);
    assert_eq!(known::take_freed(), None);
}

#[test]
fn leaves_files_alone_that_were_mapped_over_it() {
    let _alone = ALONE.lock();
    let (page, len) = (page_size(), 64 * page_size());
    let memory = filled(64);
    free_lazily(memory.range());
    let file = map::memfd(len, false).unwrap();
    let backing = Backing::File {
        fd: std::os::fd::AsFd::as_fd(&file),
        offset: 0,
    };
    // SAFETY: the test's own memory; a hole stays at its end.
    unsafe {
        map::unmap(memory.range()).unwrap();
        let part = PageRange::between(memory.range().start(), memory.range().end() - page);
        map::map_over(part, backing, true).unwrap();
        part.as_ptr().write_bytes(5, part.len());
        give_back();
        let bytes = std::slice::from_raw_parts(part.as_ptr(), part.len());
        assert!(bytes.iter().all(|&byte| byte == 5));
    }
}

/// Writers take memory back without a word, beside one that gives back.
#[test]
fn nothing_that_was_written_is_ever_lost() {
    let _alone = ALONE.lock();
    const WRITERS: u64 = 3;
    let (is_over, given_back) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        let writers: Vec<_> = (1..=WRITERS)
            .map(|seed| {
                scope.spawn(move || {
                    let mut memory = filled(64);
                    for round in 0..300_u64 {
                        free_lazily(memory.range());
                        let value = (round * WRITERS + seed) as u8 | 1;
                        memory.as_mut_slice().unwrap().fill(value);
                        thread::yield_now();
                        let bytes = memory.as_slice();
                        assert!(bytes.iter().all(|&byte| byte == value), "round {round}");
                    }
                })
            })
            .collect();
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                give_back();
                given_back.fetch_add(1, Ordering::Relaxed);
            }
        });
        for writer in writers {
            let ended = writer.join();
            is_over.store(true, Ordering::Relaxed);
            ended.unwrap();
        }
    });
    assert!(given_back.into_inner() > 10);
}

#[test]
fn a_child_has_nothing_to_give_back() {
    let _alone = ALONE.lock();
    known::empty_in_children().unwrap();
    let memory = filled(64);
    free_lazily(memory.range());
    // SAFETY: the child takes a lock that is whole in it, and ends.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let is_empty = known::take_freed().is_none();
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(i32::from(!is_empty)) }
    }
    let mut status = 0;
    // SAFETY: waits for the child made above.
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
    assert_eq!(status, 0);
    assert_eq!(known::take_freed(), Some(memory.range()));
}
