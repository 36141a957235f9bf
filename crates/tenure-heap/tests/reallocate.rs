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
    any_growth_keeps_contents,
    shrink_returns_memory,
    large_growth_moves_pages,
    repeated_moves_keep_contents,
    block_split_by_madvise_keeps_contents,
    advice_of_moved_block_leaves_its_old_addresses,
    impossible_size_leaves_block,
    mappings_of_moved_blocks_do_not_accumulate,
    refused_moves_cost_few_addresses;
    children:
    grow_large,
    shrink,
    move_often,
    merge_mappings,
    moves_are_refused,
    move_with_advice,
);

fn refused_moves_cost_few_addresses() {
    in_child_ok("moves_are_refused");
}

fn moves_are_refused() {
    // As with too many mappings, of which `move_pages` learns from the kernel.
    refuse(libc::SYS_mremap, libc::ENOMEM);
    const BLOCKS: usize = 60;
    for seed in 0..BLOCKS {
        let mut block = Block::filled(2 * MIB, seed as u64);
        let _next = Block::new(2 * MIB);
        assert!(block.resize(8 * MIB));
        assert!(block.is_filled_up_to(2 * MIB));
    }
    // A second and more passes between two attempts.
    let live_bytes = stats().live_bytes;
    assert!(live_bytes < BLOCKS / 4 * 8 * MIB, "{:?}", stats());
}

fn shrink_returns_memory() {
    in_child_ok("shrink");
}

fn shrink() {
    // The first free starts threads, whose stacks may each be a huge page (before Linux 6.7).
    drop(Block::new(16 * MIB));
    assert!(comes_true(tenure_heap::publish_by_decay_thread));
    let mut block = Block::filled(100 * MIB, 3);
    let (at, before) = (block.at, Held::now());
    assert!(block.resize(10 * MIB));
    assert_eq!(block.at, at);
    assert!(block.is_filled());
    // The decay thread may have returned all of it already.
    let _ = tenure_heap::trim();
    let after = Held::now();
    assert!(
        before.anonymous - after.anonymous > 88 * MIB,
        "{before:?} {after:?}"
    );
    assert!(stats().live_bytes < 12 * MIB);
}

fn large_growth_moves_pages() {
    in_child_ok("grow_large");
}

fn grow_large() {
    for size in [2 * MIB, 4 * MIB, 60 * MIB] {
        let before = stats().moved;
        let mut block = Block::filled(size, size as u64);
        // Nothing is free behind the block.
        let _next: Vec<_> = (0..4).map(|seed| Block::filled(size, seed)).collect();
        assert!(block.resize(5 * size), "{size}");
        assert_eq!(stats().moved, before + 1, "{size}");
        assert!(block.is_filled_up_to(size));
        block.fill(4);
        assert!(block.is_filled());
    }
}

fn any_growth_keeps_contents() {
    for size in [1, 100, 5000, 300 * KIB, MIB, 3 * MIB] {
        let mut block = Block::filled(size, size as u64);
        for factor in [2, 3, 7] {
            let before = block.size;
            assert!(block.resize(factor * before));
            assert!(block.is_filled_up_to(before), "{before}");
            block.fill(factor as u64);
        }
        for size in [block.size / 2, block.size / 9, 1] {
            assert!(block.resize(size));
            assert!(block.is_filled(), "{size}");
        }
    }
}

fn impossible_size_leaves_block() {
    let mut block = Block::filled(300 * KIB, 3);
    assert!(unsafe { tenure_heap::reallocate(block.at, usize::MAX) }.is_null());
    assert!(unsafe { tenure_heap::reallocate(block.at, 1 << 50) }.is_null());
    assert!(block.is_filled());
    block.fill(4);
}

fn repeated_moves_keep_contents() {
    in_child_ok("move_often");
}

fn move_often() {
    let mut seeds = Vec::new();
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
            assert!(block.resize(next));
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
}

fn block_split_by_madvise_keeps_contents() {
    let mut block = Block::filled(8 * MIB, 3);
    let _next: Vec<_> = (0..4).map(|seed| Block::filled(8 * MIB, seed)).collect();
    let before = stats().moved;
    let middle = block.at.wrapping_add(2 * MIB);
    let advice = rustix::mm::Advice::LinuxDontDump;
    unsafe { rustix::mm::madvise(middle.cast(), MIB, advice) }.unwrap();
    assert!(block.resize(80 * MIB));
    assert_eq!(stats().moved, before + 1);
    assert!(block.is_filled_up_to(8 * MIB));
}

fn advice_of_moved_block_leaves_its_old_addresses() {
    in_child_ok("move_with_advice");
}

fn move_with_advice() {
    use rustix::mm::Advice;
    let advise = |block: &Block, advice| {
        unsafe { rustix::mm::madvise(block.at.cast(), 8 * MIB, advice) }.unwrap();
    };
    let mut block = Block::filled(8 * MIB, 3);
    let _next: Vec<_> = (0..4).map(|seed| Block::filled(8 * MIB, seed)).collect();
    advise(&block, Advice::LinuxWipeOnFork);
    let (from, before) = (block.at.addr(), stats().moved);
    assert!(block.resize(80 * MIB));
    assert_eq!(stats().moved, before + 1);
    advise(&block, Advice::LinuxKeepOnFork);
    let others: Vec<_> = (0..40).map(|seed| Block::filled(MIB, seed)).collect();
    let is_there = |other: &Block| (from..from + 8 * MIB).contains(&other.at.addr());
    assert!(others.iter().any(is_there));
    assert_eq!(fork(|| i32::from(!others.iter().all(Block::is_filled))), 0);
}

fn mappings_of_moved_blocks_do_not_accumulate() {
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
        drop(blocks);
        assert!(comes_true(|| stats().dirty_bytes + stats().muzzy_bytes == 0));
    };
    // 60 blocks each time, of which each has a mapping or two of its own.
    for _ in 0..6 {
        work();
    }
    assert!(mappings() < 400, "{}", mappings());
}
