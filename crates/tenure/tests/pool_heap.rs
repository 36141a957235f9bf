//! pool: what a heap calls for fresh pages at addresses that it has reserved.

#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "tests use memory that they have mapped themselves"
)]

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use common::pool::*;
use common::*;
use libtest_mimic::Completion;
use tenure::pool;
use tenure::{HugePages, Mapping, page_size};

tests!(
    unless: missing;
    reserved_range_is_filled_without_allocator,
    pages_of_reserved_range_stay,
    range_shorter_than_block_stays_as_it_is;
    children:
);

/// The system's allocator, which counts the calls of each thread.
struct Counting;

thread_local! {
    static CALLS: Cell<usize> = const { Cell::new(0) };
}

unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        CALLS.set(CALLS.get() + 1);
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        CALLS.set(CALLS.get() + 1);
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Maps addresses as a heap does, from which no page is there.
fn reserved() -> Mapping {
    let memory = Mapping::anonymous(LEN).huge_pages(HugePages::Never);
    memory.map().unwrap()
}

fn reserved_range_is_filled_without_allocator() -> Completion {
    let _pool = Pool::of(LEN);
    let fill = || {
        let memory = reserved();
        let before = CALLS.get();
        let filled = unsafe { pool::fill_missing(memory.range(), Some(false)) };
        (memory, filled, CALLS.get() - before)
    };
    completion(until_given(fill).map(|(mut memory, filled, calls)| {
        assert_eq!(calls, 0, "it has called the allocator");
        assert!(filled > 0 && filled <= LEN);
        assert!(count_present(memory.range()) * page_size() >= filled);
        assert!(is_all_zero(&memory));
        memory.as_mut_slice().unwrap().fill(3);
        assert!(memory.as_slice().iter().all(|&byte| byte == 3));
    }))
}

fn pages_of_reserved_range_stay() -> Completion {
    let _pool = Pool::of(LEN);
    let fill = || {
        let mut memory = reserved();
        for block in memory.as_mut_slice().unwrap().chunks_mut(4 * MIB) {
            block[3 * page_size()] = 9;
        }
        unsafe { pool::fill_missing(memory.range(), None) };
        memory
    };
    completion(until_given(fill).map(|mut memory| {
        for block in memory.as_mut_slice().unwrap().chunks_mut(4 * MIB) {
            assert_eq!(std::mem::take(&mut block[3 * page_size()]), 9);
        }
        assert!(is_all_zero(&memory));
    }))
}

fn range_shorter_than_block_stays_as_it_is() {
    let _pool = Pool::of(LEN);
    let memory = reserved();
    let part = pages(memory.range(), 1, 4);
    assert_eq!(unsafe { pool::fill_missing(part, None) }, 0);
    assert_eq!(count_present(memory.range()), 0);
}
