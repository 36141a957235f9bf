//! While the heap is off, the inner allocator serves.

#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "tests use blocks that they have allocated themselves"
)]

#[path = "../../tenure/tests/common/mod.rs"]
mod common;
mod heap;

use std::alloc::{GlobalAlloc, Layout, System};

use common::*;
use heap::*;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tenure_heap::{Heap, HeapOptions, HeapStats, stats};

tests!(
    heap_without_addresses_is_off,
    heap_without_working_madvise_is_off,
    start_after_failure_tries_again;
    children:
    without_addresses,
    without_madvise,
    start_again,
);

fn set_address_limit(current: Option<u64>) {
    let maximum = getrlimit(Resource::As).maximum;
    setrlimit(Resource::As, Rlimit { current, maximum }).unwrap();
}

/// Leaves this process no addresses but those that it has.
fn limit_addresses() {
    set_address_limit(Some(1 << 20));
}

/// Asserts that the heap serves nothing, and the inner allocator everything.
fn assert_inner_allocator_serves() {
    assert_eq!(tenure_heap::threshold_bytes(), usize::MAX);
    assert!(tenure_heap::allocate(100, 16).is_null());
    assert!(tenure_heap::allocate_zeroed(100, 16).is_null());
    let allocator = Heap(System);
    let layout = Layout::from_size_align(100, 16).unwrap();
    unsafe {
        let block = allocator.alloc_zeroed(layout);
        assert!(!block.is_null() && !tenure_heap::owns(block));
        block.write(7);
        let block = allocator.realloc(block, layout, 400);
        assert_eq!((block.read(), tenure_heap::owns(block)), (7, false));
        allocator.dealloc(block, Layout::from_size_align(400, 16).unwrap());
    }
    assert_eq!(stats(), HeapStats::default());
    assert!(!tenure_heap::owns(std::ptr::null()) && !tenure_heap::trim());
}

fn heap_without_addresses_is_off() {
    in_child_ok("without_addresses");
}

fn without_addresses() {
    limit_addresses();
    // The first allocation starts the heap.
    assert!(tenure_heap::allocate(MIB, 16).is_null());
    assert_inner_allocator_serves();
}

fn heap_without_working_madvise_is_off() {
    in_child_ok("without_madvise");
}

fn without_madvise() {
    // It succeeds, and has no effect.
    refuse(libc::SYS_madvise, 0);
    tenure_heap::start(HeapOptions::default()).unwrap_err();
    assert_inner_allocator_serves();
}

fn start_after_failure_tries_again() {
    in_child_ok("start_again");
}

fn start_again() {
    let before = getrlimit(Resource::As).current;
    limit_addresses();
    tenure_heap::start(HeapOptions::default()).unwrap_err();
    assert_inner_allocator_serves();
    set_address_limit(before);
    tenure_heap::start(HeapOptions::default()).unwrap();
    assert!(Block::filled(3 * MIB, 1).is_filled());
}
