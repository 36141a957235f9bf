//! Large blocks have the missing pages from tenure's pool.

#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "tests use blocks that they have allocated themselves"
)]

#[path = "../../tenure/tests/common/mod.rs"]
mod common;
mod heap;

use std::sync::atomic::{AtomicBool, Ordering};

use common::pool::{LEN, Pool, fill_pool, given_bytes, missing};
use common::*;
use heap::*;
use libtest_mimic::Completion;

tests!(
    unless: missing;
    large_blocks_take_pages_of_pool,
    large_block_during_fork_is_served;
    children:
    during_fork,
);

fn large_blocks_take_pages_of_pool() -> Completion {
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
