//! Large blocks have the missing pages from tenure's pool.

#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "tests use blocks that they have allocated themselves"
)]

#[path = "../../tenure/tests/common/mod.rs"]
mod common;
mod heap;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::pool::{LEN, Pool, fill_pool, given_bytes, missing};
use common::*;
use heap::*;
use libtest_mimic::Completion;
use tenure::pool::{self, PoolOptions};

tests!(
    unless: missing;
    large_blocks_take_pages_of_pool,
    block_with_huge_pages_takes_no_base_pages_of_pool,
    block_of_heap_does_not_start_prefilling,
    large_block_during_fork_is_served;
    children:
    during_fork,
);

/// Where the kernel uses huge pages: `always`, `madvise` or `never`.
fn has_huge_pages(mode: &str) -> bool {
    let path = "/sys/kernel/mm/transparent_hugepage/enabled";
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.contains(&format!("[{mode}]"))
}

fn large_blocks_take_pages_of_pool() -> Completion {
    if has_huge_pages("always") {
        return skip("all blocks have huge pages, and the pool of the test has none");
    }
    let _pool = Pool::of(LEN);
    if let Err(skipped) = fill_pool(LEN) {
        return skipped;
    }
    let before = given_bytes();
    let mut block = Block::new(LEN / 4);
    let zeroed = Block::zeroed(LEN / 4);
    let given = given_bytes() - before;
    assert!(given as usize >= LEN / 4, "{given}");
    block.fill(7);
    assert!(block.is_filled() && zeroed.is_zero());
    Completion::Completed
}

fn block_with_huge_pages_takes_no_base_pages_of_pool() -> Completion {
    if !has_huge_pages("always") && !has_huge_pages("madvise") {
        return skip("the kernel has no huge pages");
    }
    let _pool = Pool::of(LEN);
    if let Err(skipped) = fill_pool(LEN) {
        return skipped;
    }
    let before = given_bytes();
    let mut block = Block::new(LEN);
    assert_eq!(given_bytes(), before);
    block.fill(7);
    assert!(block.is_filled());
    Completion::Completed
}

/// Most blocks are memory that the heap has kept.
fn block_of_heap_does_not_start_prefilling() {
    let options = PoolOptions::new().max_bytes(LEN).prefill_bytes(LEN);
    pool::configure(&options.prefill_on_use(true)).unwrap();
    let _pool = Pool;
    let before = pool::stats().prefilled_bytes;
    assert!(Block::filled(LEN, 1).is_filled() && Block::filled(LEN / 4, 2).is_filled());
    // A thread that fills the pool would have begun.
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(pool::stats().prefilled_bytes, before);
}

fn large_block_during_fork_is_served() {
    in_child_ok("during_fork");
}

/// Forks while another thread allocates large blocks, and handlers allocate some.
fn during_fork() {
    unsafe extern "C" fn allocate() {
        assert!(Block::filled(8 * MIB, 1).is_filled());
    }
    let _pool = Pool::of(LEN);
    // The heap's handlers are registered before this one, which runs before them.
    drop(Block::new(MIB));
    let registered = unsafe { libc::pthread_atfork(Some(allocate), None, None) };
    assert_eq!(registered, 0);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                assert!(Block::filled(8 * MIB, 2).is_filled());
            }
        });
        for _ in 0..20 {
            let _ = fill_pool(LEN / 2);
            let child = unsafe { libc::fork() };
            if child == 0 {
                let is_filled = Block::filled(8 * MIB, 3).is_filled();
                unsafe { libc::_exit(i32::from(!is_filled)) };
            }
            let mut status = 0;
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            assert_eq!(status, 0);
        }
        is_over.store(true, Ordering::Relaxed);
    });
}
