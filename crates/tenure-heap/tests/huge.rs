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
use libtest_mimic::Completion;
use tenure_heap::HeapOptions;

tests!(
    unless: || {
        let mode = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled");
        let has_some = mode.is_ok_and(|mode| !mode.contains("[never]"));
        // 512 MiB with pages of 64 KiB.
        let is_larger = tenure::page_size() > 16 * KIB;
        let reasons = [
            (!has_some, "there are no huge pages for who asks for them"),
            (is_larger, "huge pages are larger than the blocks here"),
        ];
        reasons.into_iter().find_map(|(is_so, reason)| is_so.then_some(reason))
    };
    filled_blocks_get_huge_pages,
    partly_filled_huge_page_is_not_charged,
    blocks_below_16_mib_get_no_huge_pages,
    growing_block_gets_huge_pages,
    sparse_zeroed_block_gets_no_huge_pages,
    huge_pages_option_off_gives_none,
    metadata_of_a_heap_gets_no_huge_pages,
    metadata_of_many_slabs_gets_huge_pages;
    children:
    filled,
    partly_filled,
    small,
    growing,
    sparse,
    unwanted,
    metadata,
    slabs,
);

/// The huge-page bytes expected of `bytes`; the rest may be base pages because huge
/// ones are short.
fn min_huge_bytes(bytes: usize) -> usize {
    bytes / 4 * 3
}

fn filled_blocks_get_huge_pages() {
    in_child_ok("filled");
}

fn filled() {
    // Kept, so that none of their memory is returned meanwhile.
    let mut all = Vec::new();
    for size in [16 * MIB, 18 * MIB, 33 * MIB] {
        let before = Held::now().huge;
        let blocks: Vec<_> = (0..4).map(|seed| Block::filled(size, seed)).collect();
        let huge = Held::now().huge - before;
        assert!(huge >= min_huge_bytes(4 * size), "{huge} of 4 times {size}");
        assert!(blocks.iter().all(Block::is_filled));
        all.extend(blocks);
    }
}

fn partly_filled_huge_page_is_not_charged() {
    in_child_ok("partly_filled");
}

fn partly_filled() {
    let mut all = Vec::new();
    for size in [16 * MIB + 300 * KIB, 19 * MIB] {
        let before = Held::now();
        all.extend((0..8).map(|seed| Block::filled(size, seed)));
        let after = Held::now();
        let charged = after.anonymous - before.anonymous;
        assert!(charged < 10 * size, "{charged} for 8 times {size}");
        let filled = size / (2 * MIB) * 2 * MIB;
        assert!(
            after.huge - before.huge >= min_huge_bytes(8 * filled),
            "{after:?}"
        );
    }
}

fn blocks_below_16_mib_get_no_huge_pages() -> Completion {
    if huge_pages_are_always() {
        return skip("the kernel gives huge pages to all memory");
    }
    in_child_ok("small");
    Completion::Completed
}

fn small() {
    let before = Held::now().huge;
    let blocks: Vec<_> = (0..40).map(|seed| Block::filled(MIB, seed)).collect();
    assert_eq!(Held::now().huge, before);
    drop(blocks);
}

fn growing_block_gets_huge_pages() {
    in_child_ok("growing");
}

fn growing() {
    let before = Held::now().huge;
    // Moved from a place without huge pages, then grown in place past base pages.
    for first in [MIB, 2 * MIB + 64 * KIB] {
        let mut block = Block::filled(first, 1);
        while block.size < 40 * MIB {
            let (size, old) = (block.size * 5 / 4, block.size);
            assert!(block.resize(size));
            assert!(block.is_filled_up_to(old));
            block.fill(1);
        }
        let huge = Held::now().huge - before;
        // A huge page of which a part was filled with base pages before stays so.
        assert!(huge >= 8 * MIB, "{huge} of {}", block.size);
    }
}

fn sparse_zeroed_block_gets_no_huge_pages() {
    in_child_ok("sparse");
}

fn sparse() {
    let mode = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").unwrap();
    if mode.contains("[always]") {
        return;
    }
    let before = Held::now();
    let mut block = Block::zeroed(256 * MIB);
    for piece in block.bytes_mut().chunks_mut(4 * MIB) {
        piece[MIB] = 1;
    }
    let after = Held::now();
    let charged = after.anonymous - before.anonymous;
    assert!(charged < 4 * MIB, "{charged} for 64 bytes");
}

fn huge_pages_option_off_gives_none() {
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

fn metadata_of_a_heap_gets_no_huge_pages() {
    in_child_ok("metadata");
}

/// An arena's metadata begins with 2 MiB of addresses, of which little is ever used: with
/// `always` the kernel would give all of it.
fn metadata() {
    let before = ranges_without_huge_pages();
    tenure_heap::start(HeapOptions::default()).unwrap();
    let block = Block::filled(MIB, 1);
    assert!(ranges_without_huge_pages() > before);
    drop(block);
}

fn ranges_without_huge_pages() -> usize {
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let flags = smaps.lines().filter(|line| line.starts_with("VmFlags:"));
    let refusing = flags.filter(|line| line.split(' ').any(|flag| flag == "nh"));
    refusing.count()
}

fn metadata_of_many_slabs_gets_huge_pages() -> Completion {
    if cfg!(not(target_arch = "x86_64")) {
        return skip("jemalloc's pages are larger here, and their metadata smaller");
    }
    in_child_ok("slabs");
    Completion::Completed
}

fn slabs() {
    // The first arena has huge pages later: it is this thread's now.
    drop(Block::new(KIB));
    let before = Held::now();
    // 27,000 slabs, of which the metadata takes 128 bytes each.
    let fill = || (0..400_000).map(|seed| Block::filled(1000, seed)).collect();
    let blocks: Vec<_> = std::thread::spawn(fill).join().unwrap();
    let after = Held::now();
    let huge = after.huge - before.huge;
    assert!(huge >= 2 * MIB, "{before:?}, then {after:?}");
    // No more than the metadata and what is known of the blocks.
    assert!(huge <= 24 * MIB || huge_pages_are_always(), "{after:?}");
    assert!(blocks.iter().step_by(1000).all(Block::is_filled));
}
