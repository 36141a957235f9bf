//! realloc keeps contents, however a block grows or shrinks.

#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "tests use blocks that they have allocated themselves"
)]

#[path = "../../tenure/tests/common/mod.rs"]
mod common;
mod heap;

use common::*;
use heap::*;
use tenure_heap::{HeapOptions, stats};

tests!(
    grow_within_place_stays_in_place,
    shrink_returns_memory,
    grow_past_place_moves_pages,
    repeated_growth_rarely_moves,
    repeated_moves_keep_contents,
    block_with_base_page_tail_is_moved_whole,
    block_split_by_madvise_is_copied,
    small_block_growth_is_copied,
    reallocate_below_threshold_returns_null,
    returned_places_are_one_mapping_again;
    children:
    shrink,
    grow_in_steps,
    move_often,
    merge_mappings,
);

fn grow_within_place_stays_in_place() {
    let mut block = Block::filled(257 * KIB, 3);
    let at = block.at;
    assert!(block.resize(288 * KIB));
    assert_eq!(block.at, at);
    assert!(block.is_filled_up_to(257 * KIB));
    let mut block = Block::filled(2 * MIB + 1, 3);
    let at = block.at;
    assert!(block.resize(4 * MIB));
    assert_eq!(block.at, at);
    assert!(block.is_filled_up_to(2 * MIB));
    block.fill(4);
    assert!(block.is_filled());
}

fn shrink_returns_memory() {
    in_child_ok("shrink");
}

fn shrink() {
    let mut block = Block::filled(100 * MIB, 3);
    let (at, before) = (block.at, Held::now());
    assert!(block.resize(10 * MIB));
    assert_eq!(block.at, at);
    assert!(block.is_filled());
    let after = Held::now();
    assert!(
        before.anonymous - after.anonymous > 88 * MIB,
        "{before:?} {after:?}"
    );
    assert_eq!(stats().live_bytes, 10 * MIB);
}

fn grow_past_place_moves_pages() {
    for size in [MIB, MIB + 5000, 2 * MIB, 3 * MIB, 60 * MIB] {
        let before = stats().moved;
        let mut block = Block::filled(size, size as u64);
        let at = block.at;
        assert!(block.resize(5 * size), "{size}");
        assert_ne!(block.at, at);
        assert_eq!(stats().moved, before + 1);
        assert!(block.is_filled_up_to(size));
        block.fill(4);
        assert!(block.is_filled());
    }
}

fn repeated_growth_rarely_moves() {
    in_child_ok("grow_in_steps");
}

fn grow_in_steps() {
    let mut block = Block::filled(MIB, 3);
    let mut size = MIB;
    while size < 300 * MIB {
        size += 100 * KIB;
        assert!(block.resize(size));
    }
    assert!(block.is_filled_up_to(MIB));
    let stats = stats();
    assert!(stats.moved <= 6, "{stats:?}");
    assert_eq!((stats.live_blocks, stats.live_bytes), (1, size));
}

fn repeated_moves_keep_contents() {
    in_child_ok("move_often");
}

/// Each part keeps its mapping: past the maximum the block is copied once, and has one
/// again.
fn move_often() {
    let (mut seeds, mut copied) = (Vec::new(), 0);
    let mut size = MIB;
    let mut block = Block::new(size);
    let mark = |block: &mut Block, from: usize, seed: u64| {
        let words = block.bytes_mut();
        for word in words[from..].iter_mut().step_by(4096) {
            *word = seed as u8;
        }
    };
    mark(&mut block, 0, 1);
    seeds.push((0, size, 1));
    for seed in 2..11 {
        let larger = unsafe { tenure_heap::usable_size(block.at) } * 2;
        // Past the addresses left for growth.
        while block.size < larger {
            let at = block.at;
            let before = block.size;
            let next = before + before / 2;
            copied += usize::from(!block.resize(next));
            if block.at != at {
                break;
            }
        }
        mark(&mut block, size, seed);
        seeds.push((size, block.size, seed));
        size = block.size;
    }
    for (from, to, seed) in seeds {
        let words = &block.bytes()[from..to];
        assert!(
            words.iter().step_by(4096).all(|&word| word == seed as u8),
            "{from}..{to}"
        );
    }
    assert!(stats().moved >= 4, "{:?} {copied}", stats());
}

fn block_with_base_page_tail_is_moved_whole() {
    // Two huge pages, and base pages behind them.
    let mut block = Block::filled(4 * MIB + 300 * KIB, 3);
    let before = stats().moved;
    assert!(block.resize(50 * MIB));
    assert_eq!(stats().moved, before + 1);
    assert!(block.is_filled_up_to(4 * MIB + 300 * KIB));
    // A second move.
    block.fill(5);
    assert!(block.resize(900 * MIB));
    assert_eq!(stats().moved, before + 2);
    assert!(block.is_filled_up_to(50 * MIB));
}

fn block_split_by_madvise_is_copied() {
    let mut block = Block::filled(8 * MIB, 3);
    let before = stats().moved;
    let middle = block.at.wrapping_add(2 * MIB);
    let advice = rustix::mm::Advice::LinuxDontDump;
    unsafe { rustix::mm::madvise(middle.cast(), MIB, advice) }.unwrap();
    assert!(!block.resize(80 * MIB));
    assert_eq!(stats().moved, before);
    assert!(block.is_filled_up_to(8 * MIB));
}

fn small_block_growth_is_copied() {
    let mut block = Block::filled(300 * KIB, 3);
    assert!(!block.resize(600 * KIB));
    assert!(block.is_filled_up_to(300 * KIB));
}

fn reallocate_below_threshold_returns_null() {
    let mut block = Block::filled(300 * KIB, 3);
    assert!(block.resize(200 * KIB), "a little below the threshold");
    assert!(unsafe { tenure_heap::reallocate(block.at, 100 * KIB) }.is_null());
    assert!(unsafe { tenure_heap::reallocate(block.at, 0) }.is_null());
    assert!(unsafe { tenure_heap::reallocate(block.at, usize::MAX) }.is_null());
    assert!(block.is_filled());
}

fn returned_places_are_one_mapping_again() {
    in_child_ok("merge_mappings");
}

fn merge_mappings() {
    tenure_heap::start(HeapOptions {
        dirty_decay: std::time::Duration::ZERO,
        muzzy_decay: std::time::Duration::ZERO,
        ..HeapOptions::default()
    })
    .unwrap();
    // Makes every class take its first places.
    let work = || {
        let sizes = [MIB, 2 * MIB + 100 * KIB, 5 * MIB];
        let mut blocks: Vec<_> = (0..60)
            .map(|seed| Block::filled(sizes[seed % 3], seed as u64))
            .collect();
        for block in &mut blocks {
            let size = block.size;
            assert!(block.resize(5 * size));
            assert!(block.is_filled_up_to(size));
        }
        let most = mappings();
        drop(blocks);
        assert!(comes_true(|| stats().dirty_bytes + stats().muzzy_bytes == 0));
        most
    };
    let most = work();
    let left = mappings();
    assert!(left + 100 < most, "{left} of {most} mappings are left");
    for _ in 0..3 {
        work();
    }
    assert!(mappings() <= left + 20, "{left}, then {}", mappings());
}
