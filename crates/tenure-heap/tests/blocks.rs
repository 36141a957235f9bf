//! Blocks: their addresses, their sizes, and what aborts.

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
    allocate_any_large_size_returns_usable_block,
    allocate_below_threshold_or_too_large_returns_null,
    allocate_with_alignment_returns_aligned_block,
    live_blocks_do_not_overlap,
    freed_block_on_same_cpu_is_reused_first,
    block_freed_on_other_cpu_is_reused,
    owns_is_true_only_for_heap_addresses,
    deallocate_twice_aborts,
    deallocate_interior_pointer_aborts,
    deallocate_unallocated_address_aborts,
    reallocate_freed_block_aborts,
    usable_size_of_freed_block_aborts,
    threshold_option_is_clamped_and_applied,
    full_class_takes_places_of_larger_class;
    children:
    free_twice,
    free_interior_pointer,
    free_unallocated_address,
    resize_a_freed_block,
    size_of_a_freed_block,
    choose_the_threshold,
    fill_a_class,
);

fn allocate_any_large_size_returns_usable_block() {
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
    // Nothing but addresses.
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

fn allocate_below_threshold_or_too_large_returns_null() {
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

fn allocate_with_alignment_returns_aligned_block() {
    for align in (0..=30).map(|log| 1 << log) {
        for size in [256 * KIB, 300 * KIB, 2 * MIB + 1, 9 * MIB, 70 * MIB] {
            let mut block = Block::aligned(size, align);
            let one = Block::aligned(size, align);
            block.bytes_mut()[0] = 1;
            drop(one);
            // The same alignment from dirty blocks.
            drop(Block::aligned(size, align));
        }
    }
}

fn live_blocks_do_not_overlap() {
    let sizes = [256 * KIB, 257 * KIB, 400 * KIB, MIB + 1, 2 * MIB, 5 * MIB];
    let blocks: Vec<_> = (1..=60)
        .map(|seed| Block::filled(sizes[seed % sizes.len()], seed as u64))
        .collect();
    assert!(blocks.iter().all(Block::is_filled));
}

fn freed_block_on_same_cpu_is_reused_first() {
    let block = Block::filled(700 * KIB, 3);
    let at = block.at;
    on_one_cpu(|| {
        drop(block);
        for size in [700 * KIB, 680 * KIB, 699 * KIB] {
            assert_eq!(Block::new(size).at, at);
        }
    });
}

fn block_freed_on_other_cpu_is_reused() {
    let block = Block::filled(13 * MIB, 3);
    let at = block.at.addr();
    let free = || on_cpu(1, || drop(block));
    std::thread::scope(|scope| scope.spawn(free).join().unwrap());
    let before = stats();
    on_cpu(0, || assert_eq!(Block::new(13 * MIB).at.addr(), at));
    assert_eq!(stats().from_dirty, before.from_dirty + 1);
}

fn owns_is_true_only_for_heap_addresses() {
    let block = Block::new(MIB);
    let local = 0_u8;
    let boxed = Box::new(0_u8);
    assert!(!tenure_heap::owns(&local) && !tenure_heap::owns(&*boxed));
    assert!(!tenure_heap::owns(std::ptr::null()));
    assert!(!tenure_heap::owns(std::ptr::without_provenance(usize::MAX)));
    // The heap is one range of whole mappings without holes, with no other mapping in
    // it.
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

fn deallocate_twice_aborts() {
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

fn deallocate_interior_pointer_aborts() {
    assert_aborts(&in_child("free_interior_pointer"), "no block begins there");
}

fn free_interior_pointer() {
    let block = tenure_heap::allocate(MIB, 16);
    unsafe { tenure_heap::deallocate(block.add(page_size())) };
}

fn deallocate_unallocated_address_aborts() {
    assert_aborts(
        &in_child("free_unallocated_address"),
        "no block begins there",
    );
}

fn free_unallocated_address() {
    let block = tenure_heap::allocate(MIB, 16);
    unsafe { tenure_heap::deallocate(block.add(5 * MIB)) };
}

fn reallocate_freed_block_aborts() {
    assert_aborts(&in_child("resize_a_freed_block"), "realloc of 0x");
}

fn resize_a_freed_block() {
    let block = tenure_heap::allocate(MIB, 16);
    unsafe {
        tenure_heap::deallocate(block);
        let _ = tenure_heap::reallocate(block, 2 * MIB);
    }
}

fn usable_size_of_freed_block_aborts() {
    assert_aborts(&in_child("size_of_a_freed_block"), "the size of 0x");
}

fn size_of_a_freed_block() {
    let block = tenure_heap::allocate(MIB, 16);
    unsafe {
        tenure_heap::deallocate(block);
        let _ = tenure_heap::usable_size(block);
    }
}

fn threshold_option_is_clamped_and_applied() {
    in_child_ok("choose_the_threshold");
}

fn choose_the_threshold() {
    assert_eq!(tenure_heap::threshold_bytes(), 256 * KIB);
    tenure_heap::start(HeapOptions {
        // Below the minimum.
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
    // A second start changes nothing.
    tenure_heap::start(HeapOptions::default()).unwrap();
    assert_eq!(tenure_heap::threshold_bytes(), 64 * KIB);
}

fn full_class_takes_places_of_larger_class() {
    in_child_ok("fill_a_class");
}

fn fill_a_class() {
    // A class has places for a few blocks of this size, and none is touched.
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
