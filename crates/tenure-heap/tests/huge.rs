//! Huge pages: where a block fills them, and nowhere else.

#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "tests use blocks that they have allocated themselves"
)]

#[path = "../../tenure/tests/common/mod.rs"]
mod common;
mod heap;

use common::*;
use heap::*;
use tenure_heap::HeapOptions;

tests!(
    unless: || {
        let mode = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled");
        let has_some = mode.is_ok_and(|mode| !mode.contains("[never]"));
        (!has_some).then_some("there are no huge pages for who asks for them")
    };
    blocks_that_fill_huge_pages_have_them,
    what_a_block_does_not_fill_is_not_charged,
    small_blocks_have_none,
    a_block_that_grows_gets_them,
    zeros_that_little_is_put_into_have_none,
    none_if_they_are_not_wanted;
    children:
    filled,
    partly_filled,
    small,
    growing,
    sparse,
    unwanted,
);

/// What of it may be had in base pages because huge ones are short.
fn most_of(bytes: usize) -> usize {
    bytes / 4 * 3
}

fn blocks_that_fill_huge_pages_have_them() {
    in_child_ok("filled");
}

fn filled() {
    // Kept, so that nothing of them is given back meanwhile.
    let mut all = Vec::new();
    for size in [2 * MIB, 16 * MIB, 33 * MIB] {
        let before = Held::now().huge;
        let blocks: Vec<_> = (0..4).map(|seed| Block::filled(size, seed)).collect();
        let huge = Held::now().huge - before;
        assert!(huge >= most_of(4 * size), "{huge} of 4 times {size}");
        assert!(blocks.iter().all(Block::is_filled));
        all.extend(blocks);
    }
}

fn what_a_block_does_not_fill_is_not_charged() {
    in_child_ok("partly_filled");
}

fn partly_filled() {
    let mut all = Vec::new();
    for size in [2 * MIB + 64 * KIB, 4 * MIB + 300 * KIB, 7 * MIB] {
        let before = Held::now();
        all.extend((0..8).map(|seed| Block::filled(size, seed)));
        let after = Held::now();
        let charged = after.anonymous - before.anonymous;
        assert!(charged < 8 * size + size, "{charged} for 8 times {size}");
        let filled = size / (2 * MIB) * 2 * MIB;
        assert!(after.huge - before.huge >= most_of(8 * filled), "{after:?}");
    }
}

fn small_blocks_have_none() {
    in_child_ok("small");
}

fn small() {
    let before = Held::now().huge;
    let blocks: Vec<_> = (0..40).map(|seed| Block::filled(MIB, seed)).collect();
    assert_eq!(Held::now().huge, before);
    drop(blocks);
}

fn a_block_that_grows_gets_them() {
    in_child_ok("growing");
}

fn growing() {
    let before = Held::now().huge;
    // Moved from where there are none, and then where it is, past base pages.
    for first in [MIB, 2 * MIB + 64 * KIB] {
        let mut block = Block::filled(first, 1);
        while block.size < 40 * MIB {
            let (size, old) = (block.size * 5 / 4, block.size);
            assert!(block.resize(size));
            assert!(block.is_filled_up_to(old));
            block.fill(1);
        }
        let huge = Held::now().huge - before;
        assert!(huge >= most_of(32 * MIB), "{huge} of {}", block.size);
    }
}

fn zeros_that_little_is_put_into_have_none() {
    in_child_ok("sparse");
}

fn sparse() {
    let mode = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").unwrap();
    if mode.contains("[always]") {
        return;
    }
    let before = Held::now();
    let mut block = Block::zeroed(256 * MIB);
    let at = block.at;
    for piece in block.bytes_mut().chunks_mut(4 * MIB) {
        piece[MIB] = 1;
    }
    let after = Held::now();
    let charged = after.anonymous - before.anonymous;
    assert!(charged < 4 * MIB, "{charged} for 64 bytes");
    drop(block);
    // Whoever fills the place has them where nothing has been put: in half of it.
    let block = Block::filled(256 * MIB, 1);
    assert_eq!(block.at, at, "the place is used again");
    let huge = Held::now().huge - before.huge;
    assert!(huge >= most_of(128 * MIB), "{huge}");
}

fn none_if_they_are_not_wanted() {
    in_child_ok("unwanted");
}

fn unwanted() {
    let mode = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").unwrap();
    if mode.contains("[always]") {
        return;
    }
    tenure_heap::start(HeapOptions {
        huge_pages: false,
        ..HeapOptions::default()
    })
    .unwrap();
    let before = Held::now().huge;
    let mut block = Block::filled(16 * MIB, 1);
    assert!(block.resize(90 * MIB));
    block.fill(2);
    assert_eq!(Held::now().huge, before);
}
