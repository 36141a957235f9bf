//! Tests of reclaiming freed ranges, without waiting for pressure.

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
use crate::verbs::volatile::set_offer_delay;

/// Serializes the tests, because the records belong to the whole process.
pub(in crate::verbs::lazy_free) static SERIAL: Mutex<()> = Mutex::new(());

fn filled(page_count: usize) -> Mapping {
    let memory = Mapping::anonymous(page_count * page_size()).huge_pages(HugePages::Never);
    let mut memory = memory.map().unwrap();
    memory.as_mut_slice().unwrap().fill(7);
    memory
}

/// Frees lazily, as without pressure.
fn free_lazily(range: PageRange) {
    assert!(freed_ranges::record(range, true).is_lazy);
    // SAFETY: the memory belongs to the test, to which old contents and zeros are fine.
    unsafe { range.lazy_free() }.unwrap();
}

fn count_zeros(memory: &Mapping) -> usize {
    let pages = memory.as_slice().chunks(page_size());
    pages
        .filter(|page| page.iter().all(|&byte| byte == 0))
        .count()
}

#[test]
fn reclaim_after_partial_rewrite_keeps_written_pages() {
    let _serial = SERIAL.lock();
    // The kernel skips pages that are in the batch of another CPU.
    let mut here = CpuSet::new();
    here.set(rustix::thread::sched_getcpu());
    numa::run_on(&here);
    let mut memory = filled(256);
    free_lazily(memory.range());
    let written = 10 * page_size()..30 * page_size();
    memory.as_mut_slice().unwrap()[written.clone()].fill(9);
    reclaim_freed();
    assert_eq!(count_zeros(&memory), 256 - 20);
    assert!(memory.as_slice()[written].iter().all(|&byte| byte == 9));
}

#[test]
fn reused_ranges_are_not_reclaimed() {
    let _serial = SERIAL.lock();
    let uses: [fn(&Mapping); 3] = [
        |memory| memory.range().reuse(),
        |memory| memory.populate(.., Access::Write).unwrap(),
        |memory| {
            let features = Features::get();
            if !features.sigbus_on_missing() || features.madv_populate.is_err() {
                // Volatile memory is never offered here, so its record stays.
                return forget_freed(memory.range());
            }
            set_offer_delay(Duration::ZERO);
            // SAFETY: the memory belongs to the test, which does not read it while it is
            // volatile.
            unsafe { memory.range().mark_volatile() }.unwrap();
            set_offer_delay(Duration::from_millis(100));
        },
    ];
    for use_again in uses {
        let memory = filled(64);
        free_lazily(memory.range());
        use_again(&memory);
        assert_eq!(freed_ranges::pop_lazily_free(), None);
    }
    let memory = filled(64);
    free_lazily(memory.range());
    drop(memory);
    assert_eq!(freed_ranges::pop_lazily_free(), None);
}

#[test]
fn file_mapped_over_freed_range_is_not_reclaimed() {
    let _serial = SERIAL.lock();
    let (page, len) = (page_size(), 64 * page_size());
    let memory = filled(64);
    free_lazily(memory.range());
    let file = map::memfd(len, false).unwrap();
    let backing = Backing::File {
        fd: std::os::fd::AsFd::as_fd(&file),
        offset: 0,
    };
    // SAFETY: the memory belongs to the test; its last page stays unmapped.
    unsafe {
        map::unmap(memory.range()).unwrap();
        let part = PageRange::between(memory.range().start(), memory.range().end() - page);
        map::map_over(part, backing, true).unwrap();
        part.as_ptr().write_bytes(5, part.len());
        reclaim_freed();
        let bytes = std::slice::from_raw_parts(part.as_ptr(), part.len());
        assert!(bytes.iter().all(|&byte| byte == 5));
    }
}

/// Writers reuse freed memory without a report while another thread reclaims.
#[test]
fn concurrent_reclaim_never_destroys_written_pages() {
    let _serial = SERIAL.lock();
    const WRITERS: u64 = 3;
    let (is_over, reclaims) = (AtomicBool::new(false), AtomicU64::new(0));
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
                reclaim_freed();
                reclaims.fetch_add(1, Ordering::Relaxed);
            }
        });
        for writer in writers {
            let ended = writer.join();
            is_over.store(true, Ordering::Relaxed);
            ended.unwrap();
        }
    });
    assert!(reclaims.into_inner() > 10);
}

#[test]
fn child_after_fork_has_no_freed_ranges() {
    let _serial = SERIAL.lock();
    freed_ranges::register_fork_handlers().unwrap();
    let memory = filled(64);
    free_lazily(memory.range());
    // SAFETY: the child only takes a lock that the fork handlers keep consistent, and
    // ends.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let is_empty = freed_ranges::pop_lazily_free().is_none();
        // SAFETY: `_exit` runs no handlers and touches no memory.
        unsafe { libc::_exit(i32::from(!is_empty)) }
    }
    let mut status = 0;
    // SAFETY: `pid` is a child of this process, and `status` outlives the call.
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
    assert_eq!(status, 0);
    assert_eq!(freed_ranges::pop_lazily_free(), Some(memory.range()));
}
