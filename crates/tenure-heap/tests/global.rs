//! The heap as the global allocator of this Rust program.

#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "tests use blocks that they have allocated themselves"
)]

#[path = "../../tenure/tests/common/mod.rs"]
mod common;
mod heap;

use std::alloc::{GlobalAlloc, Layout};

use common::*;
use heap::*;
use tenure_heap::Heap;

#[global_allocator]
static ALLOCATOR: Heap = Heap::new();

tests!(
    vectors_are_owned_by_heap,
    growing_vector_keeps_contents,
    shrinking_vector_keeps_contents,
    zeroed_vector_is_zero,
    realloc_keeps_alignment,
    vectors_of_concurrent_threads_keep_contents;
    children: grow,
);

fn is_ours<T>(values: &[T]) -> bool {
    tenure_heap::owns(values.as_ptr().cast())
}

fn vectors_are_owned_by_heap() {
    assert!(is_ours(&vec![1_u8; 256 * KIB]));
    assert!(is_ours("x".repeat(MIB).as_bytes()) && is_ours("x".repeat(3).as_bytes()));
}

fn growing_vector_keeps_contents() {
    in_child_ok("grow");
}

fn grow() {
    let mut numbers = Vec::new();
    for number in 0..8_u64 << 20 {
        numbers.push(number);
    }
    assert!(is_ours(&numbers));
    assert!(
        numbers
            .iter()
            .enumerate()
            .all(|(index, &number)| index as u64 == number)
    );
}

fn shrinking_vector_keeps_contents() {
    let mut numbers: Vec<u32> = (0..1 << 20).collect();
    for len in [500_000, 80_000, 60_000, 1000, 0] {
        numbers.truncate(len);
        numbers.shrink_to_fit();
        assert!(
            numbers
                .iter()
                .enumerate()
                .all(|(index, &number)| index as u32 == number)
        );
    }
}

fn zeroed_vector_is_zero() {
    for len in [100, 300 * KIB, 3 * MIB, 30 * MIB] {
        for _ in 0..3 {
            let mut bytes = vec![0_u8; len];
            assert!(
                bytes
                    .chunks(4096)
                    .all(|piece| piece == &[0; 4096][..piece.len()])
            );
            bytes.fill(7);
        }
    }
}

fn realloc_keeps_alignment() {
    for align in [16, 4096, 64 * KIB, 2 * MIB, 16 * MIB] {
        let layout = Layout::from_size_align(300 * KIB, align).unwrap();
        unsafe {
            let block = ALLOCATOR.alloc(layout);
            block.write_bytes(7, layout.size());
            let mut layout = layout;
            let mut block = block;
            for size in [20 * MIB, 100 * KIB, 3 * MIB, 50 * MIB] {
                block = ALLOCATOR.realloc(block, layout, size);
                assert!(block.addr().is_multiple_of(align), "{align}");
                assert_eq!(block.add(100 * KIB - 1).read(), 7);
                layout = Layout::from_size_align(size, align).unwrap();
            }
            ALLOCATOR.dealloc(block, layout);
        }
    }
}

fn vectors_of_concurrent_threads_keep_contents() {
    std::thread::scope(|scope| {
        for thread in 0..8_u8 {
            scope.spawn(move || {
                for round in 0..200 {
                    let bytes = vec![thread; 300 * KIB + round * 1000];
                    let copy = bytes.clone();
                    drop(bytes);
                    assert!(copy.iter().step_by(1000).all(|&byte| byte == thread));
                }
            });
        }
    });
}
