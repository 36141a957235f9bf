//! Blocks: where they lie, how large they are, and what is none.

#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "tests use blocks that they have allocated themselves"
)]

#[path = "../../tenure/tests/common/mod.rs"]
mod common;
mod heap;

use std::os::unix::process::ExitStatusExt;
use std::process::Output;

use common::*;
use heap::*;
use tenure::page_size;
use tenure_heap::{HeapOptions, stats};

const GIB: usize = 1 << 30;

tests!(
    every_size_is_served_whole,
    what_is_small_or_enormous_is_not_served,
    alignments_are_kept,
    blocks_do_not_overlap,
    a_freed_block_is_the_next_one,
    a_block_freed_on_one_thread_serves_another,
    the_heap_owns_its_blocks_and_nothing_else,
    freeing_twice_aborts,
    freeing_the_middle_of_a_block_aborts,
    freeing_what_never_was_aborts,
    resizing_a_freed_block_aborts,
    the_size_of_a_freed_block_aborts,
    the_threshold_can_be_chosen,
    a_full_class_overflows_into_the_next;
    children:
    free_twice,
    free_the_middle,
    free_what_never_was,
    resize_a_freed_block,
    size_of_a_freed_block,
    choose_the_threshold,
    fill_a_class,
);

fn every_size_is_served_whole() {
    let sizes = [
        256 * KIB,
        256 * KIB + 1,
        300_000,
        MIB,
        2 * MIB - 1,
        2 * MIB,
        2 * MIB + 1,
    ]
    .into_iter()
    .chain([3 * MIB + 5, 33 * MIB, 64 * MIB + 1]);
    for size in sizes {
        let block = Block::filled(size, 7);
        assert!(block.is_filled());
        unsafe { block.at.add(size - 1).write(1) };
    }
    // Addresses only.
    for size in [1 << 33, 100 << 30, 200 << 30] {
        let block = tenure_heap::allocate(size, 16);
        if !block.is_null() {
            unsafe {
                block.add(size - 1).write(1);
                tenure_heap::deallocate(block);
            }
        }
    }
}

fn what_is_small_or_enormous_is_not_served() {
    let too = [
        0,
        1,
        256 * KIB - 1,
        1 << 45,
        isize::MAX as usize,
        usize::MAX,
    ];
    for size in too {
        assert!(tenure_heap::allocate(size, 16).is_null(), "{size}");
        assert!(tenure_heap::allocate_zeroed(size, 16).is_null(), "{size}");
    }
    assert!(tenure_heap::allocate(MIB, 2 << 30).is_null());
    assert!(tenure_heap::allocate(MIB, 1 << 50).is_null());
}

fn alignments_are_kept() {
    for align in (0..=30).map(|log| 1 << log) {
        for size in [256 * KIB, 300 * KIB, 2 * MIB + 1, 9 * MIB, 70 * MIB] {
            let mut block = Block::aligned(size, align);
            let one = Block::aligned(size, align);
            block.bytes_mut()[0] = 1;
            drop(one);
            // Warm ones too.
            drop(Block::aligned(size, align));
        }
    }
}

fn blocks_do_not_overlap() {
    let sizes = [256 * KIB, 257 * KIB, 400 * KIB, MIB + 1, 2 * MIB, 5 * MIB];
    let blocks: Vec<_> = (1..=60)
        .map(|seed| Block::filled(sizes[seed % sizes.len()], seed as u64))
        .collect();
    assert!(blocks.iter().all(Block::is_filled));
}

fn a_freed_block_is_the_next_one() {
    let block = Block::filled(700 * KIB, 3);
    let at = block.at;
    on_one_cpu(|| {
        drop(block);
        for size in [700 * KIB, 680 * KIB, 699 * KIB] {
            assert_eq!(Block::new(size).at, at);
        }
    });
}

fn a_block_freed_on_one_thread_serves_another() {
    let block = Block::filled(13 * MIB, 3);
    let at = block.at.addr();
    let free = || on_cpu(1, || drop(block));
    std::thread::scope(|scope| scope.spawn(free).join().unwrap());
    let before = stats();
    on_cpu(0, || assert_eq!(Block::new(13 * MIB).at.addr(), at));
    assert_eq!(stats().from_warm, before.from_warm + 1);
}

fn the_heap_owns_its_blocks_and_nothing_else() {
    let block = Block::new(MIB);
    let local = 0_u8;
    let boxed = Box::new(0_u8);
    assert!(!tenure_heap::owns(&local) && !tenure_heap::owns(&*boxed));
    assert!(!tenure_heap::owns(std::ptr::null()));
    assert!(!tenure_heap::owns(std::ptr::without_provenance(usize::MAX)));
    // One piece of whole ranges, all of it mapped, and nothing of anybody else in it.
    let owns = |at: usize| tenure_heap::owns(std::ptr::without_provenance(at));
    let (mut low, mut high) = (block.at.addr(), block.at.addr());
    while owns(low - GIB) {
        low -= GIB;
    }
    while owns(high + GIB) {
        high += GIB;
    }
    let (low, high) = (low / GIB * GIB, high / GIB * GIB + GIB);
    assert!(owns(low) && !owns(low - 1) && owns(high - 1) && !owns(high));
    let mut mapped_to = None;
    for line in std::fs::read_to_string("/proc/self/maps").unwrap().lines() {
        let mut words = line.split_whitespace();
        let (from, to) = words.next().unwrap().split_once('-').unwrap();
        let number = |text| usize::from_str_radix(text, 16).unwrap();
        let (from, to) = (number(from), number(to));
        if to > low && from < high {
            assert!(
                mapped_to.is_none_or(|end| end == from),
                "a hole before {line}"
            );
            assert_eq!(words.count(), 4, "a name in {line}");
            mapped_to = Some(to);
        }
    }
    assert!(mapped_to.unwrap() >= high);
}

fn assert_aborts(output: &Output, message: &str) {
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.signal(), Some(libc::SIGABRT), "{told}");
    assert!(
        told.starts_with("tenure: ") && told.contains(message),
        "{told}"
    );
    assert_eq!(told.lines().count(), 1, "{told}");
}

fn freeing_twice_aborts() {
    assert_aborts(&in_child("free_twice"), "free of 0x");
    assert_aborts(&in_child("free_twice"), "freed already");
}

fn free_twice() {
    let block = tenure_heap::allocate(MIB, 16);
    unsafe {
        tenure_heap::deallocate(block);
        tenure_heap::deallocate(block);
    }
}

fn freeing_the_middle_of_a_block_aborts() {
    assert_aborts(&in_child("free_the_middle"), "no block begins there");
}

fn free_the_middle() {
    let block = tenure_heap::allocate(MIB, 16);
    unsafe { tenure_heap::deallocate(block.add(page_size())) };
}

fn freeing_what_never_was_aborts() {
    assert_aborts(&in_child("free_what_never_was"), "no block begins there");
}

fn free_what_never_was() {
    let block = tenure_heap::allocate(MIB, 16);
    unsafe { tenure_heap::deallocate(block.add(5 * MIB)) };
}

fn resizing_a_freed_block_aborts() {
    assert_aborts(&in_child("resize_a_freed_block"), "realloc of 0x");
}

fn resize_a_freed_block() {
    let block = tenure_heap::allocate(MIB, 16);
    unsafe {
        tenure_heap::deallocate(block);
        let _ = tenure_heap::reallocate(block, 2 * MIB);
    }
}

fn the_size_of_a_freed_block_aborts() {
    assert_aborts(&in_child("size_of_a_freed_block"), "the size of 0x");
}

fn size_of_a_freed_block() {
    let block = tenure_heap::allocate(MIB, 16);
    unsafe {
        tenure_heap::deallocate(block);
        let _ = tenure_heap::usable_size(block);
    }
}

fn the_threshold_can_be_chosen() {
    in_child_ok("choose_the_threshold");
}

fn choose_the_threshold() {
    assert_eq!(tenure_heap::threshold_bytes(), 256 * KIB);
    tenure_heap::start(HeapOptions {
        // The least there is.
        threshold_bytes: 1,
        ..HeapOptions::default()
    })
    .unwrap();
    assert_eq!(tenure_heap::threshold_bytes(), 64 * KIB);
    assert!(tenure_heap::allocate(64 * KIB - 1, 16).is_null());
    let blocks: Vec<_> = (64..200)
        .map(|kib| Block::filled(kib * KIB, kib as u64))
        .collect();
    assert!(blocks.iter().all(Block::is_filled));
    // Another start changes nothing.
    tenure_heap::start(HeapOptions::default()).unwrap();
    assert_eq!(tenure_heap::threshold_bytes(), 64 * KIB);
}

fn a_full_class_overflows_into_the_next() {
    in_child_ok("fill_a_class");
}

fn fill_a_class() {
    // A range has places for a few blocks as large as this, and none is touched.
    let size = 60 << 30;
    let mut blocks = Vec::new();
    loop {
        let block = tenure_heap::allocate(size, 16);
        if block.is_null() {
            break;
        }
        blocks.push(block.addr());
        assert!(blocks.len() < 1000);
    }
    assert!(blocks.len() > 8, "{}", blocks.len());
    blocks.sort_unstable();
    assert!(blocks.windows(2).all(|pair| pair[1] - pair[0] >= size));
    for block in blocks {
        unsafe { tenure_heap::deallocate(std::ptr::with_exposed_provenance_mut(block)) };
    }
}
