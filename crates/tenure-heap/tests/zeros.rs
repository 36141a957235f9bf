//! calloc returns zeros whatever the place held before, and clears nothing that is
//! zero.

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
    calloc_of_new_place_is_zero,
    calloc_of_dirty_block_is_zero,
    calloc_past_touched_pages_is_zero,
    calloc_after_shrink_is_zero,
    calloc_of_vacated_place_is_zero,
    calloc_of_muzzy_block_is_zero,
    calloc_of_retained_place_touches_no_page;
    children:
    calloc_of_muzzy,
    calloc_of_retained,
);

const SIZES: [usize; 8] = [
    24,
    5000,
    256 * KIB,
    300_000,
    2 * MIB,
    2 * MIB + 8,
    5 * MIB,
    40 * MIB,
];

fn calloc_of_new_place_is_zero() {
    let blocks: Vec<_> = SIZES.into_iter().chain(SIZES).map(Block::zeroed).collect();
    assert!(blocks.iter().all(Block::is_zero));
}

fn calloc_of_dirty_block_is_zero() {
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

fn calloc_past_touched_pages_is_zero() {
    // The smallest and the largest block of a class.
    for (small, large) in [(257 * KIB, 288 * KIB), (4 * MIB + 1, 4 * MIB + 512 * KIB)] {
        drop(Block::filled(small, 5));
        drop(Block::filled(large, 5));
        drop(Block::filled(small, 5));
        assert!(Block::zeroed(large).is_zero());
    }
}

fn calloc_after_shrink_is_zero() {
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

fn calloc_of_vacated_place_is_zero() {
    for size in [2 * MIB, 10 * MIB] {
        let mut block = Block::filled(size, 5);
        assert!(block.resize(10 * size));
        let again: Vec<_> = (0..20).map(|_| Block::zeroed(size)).collect();
        assert!(again.iter().all(Block::is_zero));
    }
}

fn calloc_of_muzzy_block_is_zero() {
    in_child_ok("calloc_of_muzzy");
}

fn calloc_of_muzzy() {
    tenure_heap::start(HeapOptions {
        dirty_decay: Duration::from_millis(10),
        muzzy_decay: Duration::from_secs(1000),
        ..HeapOptions::default()
    })
    .unwrap();
    let blocks: Vec<_> = (0..20).map(|seed| Block::filled(MIB, seed)).collect();
    drop(blocks);
    assert!(
        comes_true(|| stats().muzzy_bytes >= 18 * MIB),
        "{:?}",
        stats()
    );
    let blocks: Vec<_> = (0..20).map(|_| Block::zeroed(MIB)).collect();
    assert!(blocks.iter().all(Block::is_zero));
}

fn calloc_of_retained_place_touches_no_page() {
    in_child_ok("calloc_of_retained");
}

fn calloc_of_retained() {
    use_small_pages();
    tenure_heap::start(HeapOptions {
        dirty_decay: Duration::ZERO,
        muzzy_decay: Duration::ZERO,
        huge_pages: false,
        ..HeapOptions::default()
    })
    .unwrap();
    let before = Held::now().anonymous;
    let blocks: Vec<_> = (0..40).map(|seed| Block::filled(MIB, seed)).collect();
    drop(blocks);
    assert!(comes_true(|| Held::now().anonymous < before + 5 * MIB));
    let blocks: Vec<_> = (0..40).map(|_| Block::zeroed(MIB)).collect();
    // Nothing was cleared: the blocks have no memory.
    assert!(Held::now().anonymous < before + 5 * MIB);
    assert!(blocks.iter().all(Block::is_zero));
}
