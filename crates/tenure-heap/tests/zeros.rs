//! calloc: zeros, whatever was in the place before, and nothing cleared that is zero.

#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "tests use blocks that they have allocated themselves"
)]

#[path = "../../tenure/tests/common/mod.rs"]
mod common;
mod heap;

use std::time::Duration;

use common::*;
use heap::*;
use tenure_heap::{HeapOptions, stats};

tests!(
    new_places_are_zeros,
    warm_blocks_are_cleared,
    a_part_that_was_not_touched_is_zeros,
    blocks_that_shrank_are_cleared_whole,
    blocks_that_were_moved_away_leave_zeros,
    what_was_lazily_free_is_cleared,
    what_was_given_back_is_not_touched;
    children:
    zeros_after_lazily_free,
    zeros_after_given_back,
);

const SIZES: [usize; 6] = [256 * KIB, 300_000, 2 * MIB, 2 * MIB + 8, 5 * MIB, 40 * MIB];

fn new_places_are_zeros() {
    let blocks: Vec<_> = SIZES.into_iter().chain(SIZES).map(Block::zeroed).collect();
    assert!(blocks.iter().all(Block::is_zero));
}

fn warm_blocks_are_cleared() {
    for size in SIZES {
        for _ in 0..3 {
            let block = Block::filled(size, 5);
            drop(block);
            let mut block = Block::zeroed(size);
            assert!(block.is_zero(), "{size}");
            block.fill(6);
        }
    }
}

fn a_part_that_was_not_touched_is_zeros() {
    // The smallest and the largest block of a class.
    for (small, large) in [(257 * KIB, 288 * KIB), (4 * MIB + 1, 4 * MIB + 512 * KIB)] {
        drop(Block::filled(small, 5));
        drop(Block::filled(large, 5));
        drop(Block::filled(small, 5));
        assert!(Block::zeroed(large).is_zero());
    }
}

fn blocks_that_shrank_are_cleared_whole() {
    for size in [MIB, 7 * MIB, 64 * MIB] {
        let mut block = Block::filled(size, 5);
        assert!(block.resize(size / 2));
        assert!(block.is_filled());
        drop(block);
        assert!(Block::zeroed(size / 2).is_zero());
        assert!(Block::zeroed(size).is_zero());
        let mut block = Block::filled(size, 5);
        assert!(block.resize(size - 8));
        drop(block);
        assert!(Block::zeroed(size).is_zero());
    }
}

fn blocks_that_were_moved_away_leave_zeros() {
    for size in [2 * MIB, 10 * MIB] {
        let mut block = Block::filled(size, 5);
        let at = block.at;
        assert!(block.resize(10 * size));
        assert_ne!(block.at, at);
        let again: Vec<_> = (0..20).map(|_| Block::zeroed(size)).collect();
        assert!(
            again.iter().any(|block| block.at == at),
            "the place is used again"
        );
        assert!(again.iter().all(Block::is_zero));
    }
}

fn what_was_lazily_free_is_cleared() {
    in_child_ok("zeros_after_lazily_free");
}

fn zeros_after_lazily_free() {
    tenure_heap::start(HeapOptions {
        warm_for: Duration::ZERO,
        lazy_for: Duration::from_secs(1000),
        ..HeapOptions::default()
    })
    .unwrap();
    let blocks: Vec<_> = (0..20).map(|seed| Block::filled(MIB, seed)).collect();
    drop(blocks);
    assert!(
        comes_true(|| stats().lazy_bytes >= 20 * MIB),
        "{:?}",
        stats()
    );
    let blocks: Vec<_> = (0..20).map(|_| Block::zeroed(MIB)).collect();
    assert_eq!(stats().from_lazy, 20, "{:?}", stats());
    assert!(blocks.iter().all(Block::is_zero));
}

fn what_was_given_back_is_not_touched() {
    in_child_ok("zeros_after_given_back");
}

fn zeros_after_given_back() {
    tenure_heap::start(HeapOptions {
        warm_for: Duration::ZERO,
        lazy_for: Duration::ZERO,
        huge_pages: false,
        ..HeapOptions::default()
    })
    .unwrap();
    let before = Held::now().anonymous;
    let blocks: Vec<_> = (0..40).map(|seed| Block::filled(MIB, seed)).collect();
    drop(blocks);
    assert!(comes_true(|| Held::now().anonymous < before + 5 * MIB));
    assert!(comes_true(|| stats().warm_bytes + stats().lazy_bytes == 0));
    let blocks: Vec<_> = (0..40).map(|_| Block::zeroed(MIB)).collect();
    assert_eq!(stats().from_given, 40, "{:?}", stats());
    // Nobody has cleared what is zero: there is no memory behind it.
    assert!(Held::now().anonymous < before + 5 * MIB);
    assert!(blocks.iter().all(Block::is_zero));
    drop(blocks);
    // Where pages were moved to.
    let mut block = Block::filled(5 * MIB, 5);
    assert!(block.resize(20 * MIB));
    let to = block.at;
    block.fill(6);
    drop(block);
    assert!(comes_true(|| stats().warm_bytes + stats().lazy_bytes == 0));
    let block = Block::zeroed(80 * MIB);
    assert_eq!(block.at, to, "there was room to grow");
    assert!(block.is_zero());
}
