//! Without enough addresses the heap is off, and the inner allocator serves.

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
use tenure::Error;
use tenure_heap::{HeapOptions, Large, stats};

tests!(
    heap_under_rlimit_as_is_off,
    heap_without_free_addresses_is_off,
    heap_with_fewer_addresses_works,
    second_start_after_failure_tries_again;
    children:
    with_limited_addresses,
    with_addresses_taken,
    with_fewer_addresses,
    start_again,
);

fn limit_addresses() {
    set_soft_limit(Some(1 << 40));
}

fn set_soft_limit(current: Option<u64>) {
    let maximum = getrlimit(Resource::As).maximum;
    setrlimit(Resource::As, Rlimit { current, maximum }).unwrap();
}

/// Leaves no free range of `piece` bytes.
fn take_addresses(piece: usize) {
    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
    let mut bytes = 64 << 40;
    while bytes >= piece {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        let none = ProtFlags::empty();
        let taken = unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, none, flags) };
        if taken.is_err() {
            bytes /= 2;
        }
    }
}

/// Asserts that the heap serves nothing, and the inner allocator everything.
fn assert_inner_allocator_serves() {
    assert_eq!(tenure_heap::threshold_bytes(), usize::MAX);
    assert!(tenure_heap::allocate(MIB, 16).is_null());
    assert!(tenure_heap::allocate_zeroed(MIB, 16).is_null());
    let allocator = Large(System);
    let layout = Layout::from_size_align(MIB, 16).unwrap();
    unsafe {
        let block = allocator.alloc_zeroed(layout);
        assert!(!block.is_null() && !tenure_heap::owns(block));
        block.write(7);
        let block = allocator.realloc(block, layout, 4 * MIB);
        assert_eq!((block.read(), tenure_heap::owns(block)), (7, false));
        allocator.dealloc(block, Layout::from_size_align(4 * MIB, 16).unwrap());
    }
    assert_eq!(stats(), tenure_heap::HeapStats::default());
    assert!(!tenure_heap::owns(std::ptr::null()));
}

fn heap_under_rlimit_as_is_off() {
    in_child_ok("with_limited_addresses");
}

fn with_limited_addresses() {
    limit_addresses();
    // The first allocation starts the heap.
    assert!(tenure_heap::allocate(MIB, 16).is_null());
    assert_inner_allocator_serves();
}

fn heap_without_free_addresses_is_off() {
    in_child_ok("with_addresses_taken");
}

fn with_addresses_taken() {
    take_addresses(1 << 37);
    let error = tenure_heap::start(HeapOptions::default()).unwrap_err();
    assert!(matches!(error, Error::Unsupported { .. }), "{error}");
    assert_inner_allocator_serves();
}

fn heap_with_fewer_addresses_works() {
    in_child_ok("with_fewer_addresses");
}

fn with_fewer_addresses() {
    take_addresses(3 << 40);
    tenure_heap::start(HeapOptions::default()).unwrap();
    let blocks: Vec<_> = (1..40)
        .map(|seed| Block::filled(seed * 300_000, seed as u64))
        .collect();
    assert!(blocks.iter().all(Block::is_filled));
    assert!(tenure_heap::allocate(100 << 30, 16).is_null());
    let block = tenure_heap::allocate(5 << 30, 16);
    assert!(!block.is_null());
    unsafe { tenure_heap::deallocate(block) };
}

fn second_start_after_failure_tries_again() {
    in_child_ok("start_again");
}

fn start_again() {
    let before = getrlimit(Resource::As).current;
    limit_addresses();
    let error = tenure_heap::start(HeapOptions::default()).unwrap_err();
    assert!(error.to_string().contains("ulimit -v"), "{error}");
    let again = tenure_heap::start(HeapOptions::default()).unwrap_err();
    assert_eq!(again.to_string(), error.to_string());
    assert_inner_allocator_serves();
    set_soft_limit(before);
    tenure_heap::start(HeapOptions::default()).unwrap();
    assert!(Block::filled(3 * MIB, 1).is_filled());
}
