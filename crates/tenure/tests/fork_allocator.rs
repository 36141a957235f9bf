//! Forks beside an allocator that locks itself across them, as jemalloc does: it registers
//! its handlers at the first allocation, so they run before tenure's.

#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "tests use memory that they have mapped themselves"
)]

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::*;
use tenure::{Access, Mapping, headroom};

tests!(
    forks_beside_allocator_with_a_lock_do_not_hang;
    children: fork_beside_populates,
);

struct Locked;

static IS_LOCKED: AtomicBool = AtomicBool::new(false);
static IS_REGISTERED: AtomicBool = AtomicBool::new(false);

extern "C" fn lock() {
    while IS_LOCKED.swap(true, Ordering::Acquire) {
        std::thread::yield_now();
    }
}

extern "C" fn unlock() {
    IS_LOCKED.store(false, Ordering::Release);
}

unsafe impl GlobalAlloc for Locked {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if !IS_REGISTERED.swap(true, Ordering::Relaxed) {
            unsafe { libc::pthread_atfork(Some(lock), Some(unlock), Some(unlock)) };
        }
        lock();
        let block = unsafe { System.alloc(layout) };
        unlock();
        block
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        lock();
        unsafe { System.dealloc(block, layout) };
        unlock();
    }
}

#[global_allocator]
static ALLOCATOR: Locked = Locked;

fn forks_beside_allocator_with_a_lock_do_not_hang() {
    in_child_within(Duration::from_secs(60), "fork_beside_populates");
}

fn fork_beside_populates() {
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while !is_done.load(Ordering::Relaxed) {
                    // Every second one takes a reading.
                    drop(headroom::admit(usize::MAX / 4));
                    let memory = Mapping::anonymous(64 << 10).map().unwrap();
                    memory.populate(.., Access::Write).unwrap();
                }
            });
        }
        for _ in 0..500 {
            assert_eq!(fork(|| 0), 0);
        }
        is_done.store(true, Ordering::Relaxed);
    });
}
