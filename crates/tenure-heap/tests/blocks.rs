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
use std::sync::{Barrier, mpsc};

use common::*;
use heap::*;
use libtest_mimic::Completion;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tenure_heap::{HeapOptions, stats};

tests!(
    allocate_any_size_returns_usable_block,
    allocate_too_large_returns_null,
    allocate_with_alignment_returns_aligned_block,
    live_blocks_do_not_overlap,
    freed_block_is_reused,
    freed_medium_block_is_cached_for_next_request,
    freed_medium_blocks_of_each_class_are_cached,
    cached_medium_blocks_stay_while_such_are_requested,
    cached_medium_blocks_are_within_limit_on_dirty_memory,
    cached_medium_blocks_are_freed_before_memory_ends,
    zeroed_block_where_medium_was_freed_is_zero,
    owns_is_true_only_for_heap_addresses,
    deallocate_large_block_twice_aborts,
    deallocate_medium_block_twice_aborts,
    reallocate_freed_large_block_aborts,
    usable_size_of_freed_large_block_aborts,
    small_block_where_large_was_freed_is_live,
    unnoted_block_where_large_was_freed_is_live,
    first_blocks_take_short_way,
    short_way_closes_before_memory_ends,
    threshold_option_is_applied,
    addresses_are_mapped_as_they_are_needed,
    addresses_are_mapped_as_they_are_needed_under_strict_overcommit,
    blocks_under_address_limit_are_served;
    children:
    free_first_blocks,
    cache_medium_blocks,
    cache_blocks_of_each_class,
    request_on_and_stop,
    cache_within_limit,
    request_all_memory,
    zero_medium_blocks,
    free_medium_twice,
    free_twice,
    resize_a_freed_block,
    size_of_a_freed_block,
    use_unnoted_blocks,
    fill_all_addresses,
    choose_the_threshold,
    map_little,
    under_address_limit,
);

const SIZES: [usize; 16] = [
    0,
    1,
    8,
    24,
    100,
    5000,
    40_000,
    256 * KIB,
    300_000,
    MIB,
    2 * MIB - 1,
    2 * MIB,
    2 * MIB + 1,
    4 * MIB,
    33 * MIB,
    64 * MIB + 1,
];

fn allocate_any_size_returns_usable_block() {
    for size in SIZES {
        let block = Block::filled(size, 7);
        assert!(block.is_filled() && block.at.addr().is_multiple_of(16));
        let zeroed = Block::zeroed(size);
        assert!(zeroed.is_zero() && zeroed.at.addr().is_multiple_of(16));
        assert!(block.is_filled());
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

fn allocate_too_large_returns_null() {
    for size in [1 << 50, isize::MAX as usize, usize::MAX] {
        assert!(tenure_heap::allocate(size, 16).is_null(), "{size}");
        assert!(tenure_heap::allocate_zeroed(size, 16).is_null(), "{size}");
    }
    assert!(tenure_heap::allocate(MIB, 1 << 50).is_null());
    assert!(tenure_heap::allocate(MIB, 1 << 63).is_null());
}

fn allocate_with_alignment_returns_aligned_block() {
    for align in (0..=26).map(|log| 1 << log) {
        for size in [1, 100, 5000, 256 * KIB, 2 * MIB + 1, 9 * MIB] {
            let mut block = Block::aligned(size, align);
            let one = Block::aligned(size, align);
            block.bytes_mut()[0] = 1;
            drop(one);
            // The same alignment from dirty pages.
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

fn freed_block_is_reused() {
    for size in [100, 20_000, MIB, 13 * MIB] {
        let block = Block::filled(size, 3);
        let before = stats().mapped_bytes;
        drop(block);
        for _ in 0..100 {
            drop(Block::new(size));
        }
        assert!(stats().mapped_bytes <= before, "{size}: {:?}", stats());
    }
}

/// The sizes of blocks that are cached so, and others.
const CACHED: [usize; 4] = [64 * KIB + 1, 100_000, 256 * KIB, MIB];
const NOT_CACHED: [usize; 3] = [64 * KIB, MIB + 1, 3 * MIB];

fn start_decay_thread() {
    drop(Block::new(16 * MIB));
    assert!(comes_true(tenure_heap::publish_by_decay_thread));
}

fn freed_medium_block_is_cached_for_next_request() {
    in_child_ok("cache_medium_blocks");
}

fn cache_medium_blocks() {
    start_decay_thread();
    for size in CACHED {
        // A tick may come between, and the first ones find no use for a cache.
        let is_cached = comes_true(|| {
            (0..200).for_each(|_| drop(Block::new(size)));
            tenure_heap::trim();
            let before = stats();
            let (live_bytes, live_blocks) = (before.live_bytes, before.live_blocks);
            let block = Block::filled(size, 3);
            let at = block.at;
            drop(block);
            let after = stats();
            assert_eq!(
                (after.live_bytes, after.live_blocks),
                (live_bytes, live_blocks)
            );
            // Not one of another size.
            drop([Block::filled(60 * KIB, 4), Block::filled(MIB / 2 * 3, 5)]);
            let next = Block::filled(size, 6);
            after.cached_bytes >= before.cached_bytes + size && next.at == at
        });
        assert!(is_cached, "{size}: {:?}", stats());
        let idle_bytes = stats().cached_bytes;
        drop(Block::filled(size, 7));
        // The decay thread frees it.
        assert!(comes_true(|| stats().cached_bytes <= idle_bytes), "{size}");
    }
    // One of another size takes its memory.
    let is_freed = comes_true(|| {
        (0..200).for_each(|_| drop(Block::new(256 * KIB)));
        let cached_bytes = stats().cached_bytes;
        let other = Block::filled(128 * KIB, 7);
        let is_freed = stats().cached_bytes + 256 * KIB <= cached_bytes;
        is_freed && other.is_filled()
    });
    assert!(is_freed, "{:?}", stats());
    for size in NOT_CACHED {
        tenure_heap::trim();
        let before = stats().cached_bytes;
        drop(Block::filled(size, 8));
        assert!(
            stats().cached_bytes < before + 2 * size.min(65 * KIB),
            "{size}"
        );
    }
}

/// One size of each class, of which the blocks have 80, 96, 112, 128, 160, 192, 224 and 256 KiB.
const OF_EACH_CLASS: [usize; 8] = [
    64 * KIB + 1,
    96 * KIB,
    100 * KIB,
    127 * KIB,
    129 * KIB,
    161 * KIB,
    210 * KIB,
    256 * KIB - 1,
];

fn freed_medium_blocks_of_each_class_are_cached() {
    in_child_ok("cache_blocks_of_each_class");
}

fn cache_blocks_of_each_class() {
    start_decay_thread();
    // A tick may come between, and the first ones find no use for a cache.
    let are_cached = comes_true(|| {
        (0..200).for_each(|_| drop(Block::new(MIB)));
        let blocks = OF_EACH_CLASS.map(|size| Block::filled(size, 3));
        let addresses = blocks.each_ref().map(|block| block.at);
        // It is not the one that was requested last that is freed.
        let last = Block::filled(100 * KIB, 4);
        let before = stats().cached_bytes;
        drop(blocks);
        let after = stats().cached_bytes;
        let next = OF_EACH_CLASS.map(|size| Block::filled(size, 5));
        assert!(next.iter().all(Block::is_filled) && last.is_filled());
        let bytes = OF_EACH_CLASS.iter().sum::<usize>();
        after >= before + bytes && next.each_ref().map(|block| block.at) == addresses
    });
    assert!(are_cached, "{:?}", stats());
}

fn cached_medium_blocks_stay_while_such_are_requested() {
    in_child_ok("request_on_and_stop");
}

/// Has a tick find use for a cache.
fn open_cache() {
    (0..200).for_each(|_| drop(Block::new(MIB)));
    assert!(comes_true(tenure_heap::publish_by_decay_thread));
}

/// Has a block of 200 KiB be cached that was not requested last.
fn cache_one() {
    open_cache();
    let block = Block::filled(200 * KIB, 3);
    let _last = Block::new(100 * KIB);
    drop(block);
}

/// Returns whether so much less is cached than before.
fn is_less_cached(before: usize) -> bool {
    stats().cached_bytes + 200 * KIB <= before
}

/// Requests so many blocks between two ticks, several times.
fn request_between_ticks(count: usize) {
    for _ in 0..5 {
        (0..count).for_each(|_| drop(Block::new(MIB)));
        assert!(comes_true(tenure_heap::publish_by_decay_thread));
    }
}

/// Returns whether a block of 200 KiB comes from the cache, while that is open.
fn is_one_cached() -> bool {
    let before = stats().cached_bytes;
    let next = Block::filled(200 * KIB, 4);
    is_less_cached(before) && next.is_filled()
}

fn request_on_and_stop() {
    start_decay_thread();
    let stays = comes_true(|| {
        cache_one();
        request_between_ticks(200);
        is_one_cached()
    });
    assert!(stays, "{:?}", stats());
    // A tick may come at any time, and another thread may share this one's slot.
    const TIMES: usize = 20;
    let of_few = (0..TIMES).filter(|_| {
        cache_one();
        let before = stats().cached_bytes;
        request_between_ticks(1);
        is_less_cached(before)
    });
    assert!(of_few.count() > 10, "few requests: {:?}", stats());
    // The threads' addresses choose the slots, and the next thread has those of one that has ended.
    let end = Barrier::new(TIMES + 1);
    let of_another = std::thread::scope(|scope| {
        let is_freed_by_another = |_: &usize| {
            cache_one();
            let (is_done, done) = mpsc::channel();
            scope.spawn({
                let end = &end;
                move || {
                    request_between_ticks(200);
                    is_done.send(()).unwrap();
                    end.wait();
                }
            });
            done.recv().unwrap();
            !is_one_cached()
        };
        let of_another = (0..TIMES).filter(is_freed_by_another).count();
        end.wait();
        of_another
    });
    assert!(of_another > 10, "another thread's: {:?}", stats());
}

fn cached_medium_blocks_are_within_limit_on_dirty_memory() {
    in_child_ok("cache_within_limit");
}

fn cache_within_limit() {
    // A sixteenth is for the blocks of few threads.
    tenure_heap::start(HeapOptions {
        max_dirty_bytes: 4 * MIB,
        ..HeapOptions::default()
    })
    .unwrap();
    start_decay_thread();
    let cached_bytes = || {
        open_cache();
        let blocks = OF_EACH_CLASS.map(|size| Block::filled(size, 3));
        let _last = Block::new(100 * KIB);
        drop(blocks);
        stats().cached_bytes
    };
    let cached: Vec<_> = (0..20).map(|_| cached_bytes()).collect();
    // Threads keep smaller ones as well.
    let range = 160 * KIB..320 * KIB;
    assert!(
        cached.iter().any(|bytes| *bytes > range.start),
        "{cached:?}"
    );
    assert!(cached.iter().all(|bytes| *bytes < range.end), "{cached:?}");
}

fn cached_medium_blocks_are_freed_before_memory_ends() {
    in_child_ok("request_all_memory");
}

fn request_all_memory() {
    start_decay_thread();
    open_cache();
    let blocks = OF_EACH_CLASS.map(|size| Block::filled(size, 3));
    leave_few_addresses();
    let _last = Block::new(100 * KIB);
    drop(blocks);
    let request = || tenure_heap::allocate(500 * KIB, 16);
    let served: Vec<_> = std::iter::repeat_with(request)
        .take_while(|block| !block.is_null())
        .collect();
    let left = stats().cached_bytes;
    for block in served {
        unsafe { tenure_heap::deallocate(block) };
    }
    assert!(left < 200 * KIB, "{left}");
}

fn first_blocks_take_short_way() {
    in_child_ok("free_first_blocks");
}

fn free_first_blocks() {
    let blocks: Vec<_> = (1..1000)
        .map(|size| tenure_heap::allocate(size, 16))
        .collect();
    let freed = |block: &&*mut u8| unsafe { tenure_heap::deallocate_simple(**block) };
    let simple = blocks.iter().filter(freed).count();
    // One may begin where a unit does.
    assert!(simple + 1 >= blocks.len(), "{simple} of {}", blocks.len());
}

fn zeroed_block_where_medium_was_freed_is_zero() {
    in_child_ok("zero_medium_blocks");
}

fn zero_medium_blocks() {
    start_decay_thread();
    for size in CACHED.into_iter().chain(NOT_CACHED) {
        for _ in 0..20 {
            drop(Block::filled(size, 9));
            assert!(Block::zeroed(size).is_zero(), "{size}");
        }
    }
}

fn owns_is_true_only_for_heap_addresses() {
    let block = Block::new(MIB);
    let small = Block::new(10);
    let local = 0_u8;
    let boxed = Box::new(0_u8);
    assert!(tenure_heap::owns(block.at) && tenure_heap::owns(small.at));
    assert!(!tenure_heap::owns(&local) && !tenure_heap::owns(&*boxed));
    assert!(!tenure_heap::owns(std::ptr::null()));
    assert!(!tenure_heap::owns(std::ptr::without_provenance(usize::MAX)));
    // No mapping with a name lies in the heap.
    for line in std::fs::read_to_string("/proc/self/maps").unwrap().lines() {
        let mut words = line.split_whitespace();
        let (from, _) = words.next().unwrap().split_once('-').unwrap();
        let from = usize::from_str_radix(from, 16).unwrap();
        if tenure_heap::owns(std::ptr::without_provenance(from)) {
            assert_eq!(words.count(), 4, "a name in {line}");
        }
    }
}

fn assert_aborts(output: &Output, call: &str) {
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.signal(), Some(libc::SIGABRT), "{told}");
    assert!(told.starts_with(&format!("tenure: {call} of 0x")), "{told}");
    assert!(
        told.ends_with(": the block has been freed already\n"),
        "{told}"
    );
    assert_eq!(told.lines().count(), 1, "{told}");
}

fn deallocate_large_block_twice_aborts() {
    assert_aborts(&in_child("free_twice"), "free");
}

fn deallocate_medium_block_twice_aborts() {
    assert_aborts(&in_child("free_medium_twice"), "free");
}

fn free_medium_twice() {
    start_decay_thread();
    loop {
        // A block is cached while such sizes are requested often, and until the next tick.
        (0..200).for_each(|_| drop(Block::new(256 * KIB)));
        tenure_heap::publish_by_decay_thread();
        let block = tenure_heap::allocate(256 * KIB, 16);
        let before = stats().cached_bytes;
        unsafe { tenure_heap::deallocate(block) };
        if stats().cached_bytes > before {
            unsafe { tenure_heap::deallocate(block) };
        }
    }
}

fn freed_large_block() -> *mut u8 {
    // The first free starts the decay thread, which may take a block of its own from what is
    // freed. Nobody could tell then that another one was freed there.
    start_decay_thread();
    let block = tenure_heap::allocate(8 * MIB, 16);
    unsafe { tenure_heap::deallocate(block) };
    block
}

fn free_twice() {
    unsafe { tenure_heap::deallocate(freed_large_block()) };
}

fn reallocate_freed_large_block_aborts() {
    assert_aborts(&in_child("resize_a_freed_block"), "realloc");
}

fn resize_a_freed_block() {
    let _ = unsafe { tenure_heap::reallocate(freed_large_block(), 100) };
}

fn usable_size_of_freed_large_block_aborts() {
    assert_aborts(&in_child("size_of_a_freed_block"), "the size");
}

fn size_of_a_freed_block() {
    let _ = unsafe { tenure_heap::usable_size(freed_large_block()) };
}

fn small_block_where_large_was_freed_is_live() {
    // Whatever lies at the large block's address, in whatever way it came there.
    let freed = freed_large_block();
    let sizes = [64 * KIB, 200 * KIB, MIB, 3 * MIB];
    let mut blocks: Vec<_> = (0..200).map(|i| Block::filled(sizes[i % 4], 7)).collect();
    blocks.extend((0..50).map(|_| Block::zeroed(200 * KIB)));
    blocks.extend((0..50).map(|_| Block::aligned(200 * KIB, 2 * MIB)));
    for block in blocks.iter_mut().step_by(3) {
        block.resize(5 * MIB);
        block.resize(50 * KIB);
    }
    assert!(tenure_heap::owns(freed));
}

fn threshold_option_is_applied() {
    in_child_ok("choose_the_threshold");
}

fn choose_the_threshold() {
    assert_eq!(tenure_heap::threshold_bytes(), 0);
    tenure_heap::start(HeapOptions {
        threshold_bytes: 64 * KIB,
        ..HeapOptions::default()
    })
    .unwrap();
    assert_eq!(tenure_heap::threshold_bytes(), 64 * KIB);
    assert!(tenure_heap::allocate(64 * KIB - 1, 16).is_null());
    assert!(tenure_heap::allocate_zeroed(0, 16).is_null());
    let blocks: Vec<_> = (64..200)
        .map(|kib| Block::filled(kib * KIB, kib as u64))
        .collect();
    assert!(blocks.iter().all(Block::is_filled));
    // A second start changes nothing.
    tenure_heap::start(HeapOptions::default()).unwrap();
    assert_eq!(tenure_heap::threshold_bytes(), 64 * KIB);
}

/// malloc's short way allocates without a note.
fn unnoted_block_where_large_was_freed_is_live() {
    in_child_ok("use_unnoted_blocks");
}

fn use_unnoted_blocks() {
    let large = freed_large_block();
    let mut blocks = Vec::new();
    while blocks.last() != Some(&large) {
        assert!(
            blocks.len() < 1 << 16,
            "the large block's place is not reused"
        );
        blocks.push(unsafe { tenure_heap::entry::malloc(4000) }.cast());
    }
    for block in blocks {
        assert!(unsafe { tenure_heap::usable_size(block) } >= 4000);
        unsafe { tenure_heap::deallocate(block) };
    }
}

/// Has the process map 16 MiB more at most.
fn leave_few_addresses() {
    let figures = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = figures.split(' ').next().unwrap().parse().unwrap();
    let maximum = getrlimit(Resource::As).maximum;
    let current = Some(pages * tenure::page_size() as u64 + (16 << 20));
    setrlimit(Resource::As, Rlimit { current, maximum }).unwrap();
}

/// The caller of the short way does not ask another allocator.
fn short_way_closes_before_memory_ends() {
    in_child_ok("fill_all_addresses");
}

fn fill_all_addresses() {
    drop(Block::filled(100, 1));
    assert!(tenure_heap::small_limit() > 0);
    leave_few_addresses();
    while tenure_heap::small_limit() > 0 {
        assert!(!unsafe { tenure_heap::entry::malloc(1000) }.is_null());
    }
    while !tenure_heap::allocate(1000, 16).is_null() {}
    assert_eq!(tenure_heap::small_limit(), 0);
}

fn addresses_are_mapped_as_they_are_needed() {
    in_child_ok("map_little");
}

fn addresses_are_mapped_as_they_are_needed_under_strict_overcommit() -> Completion {
    // jemalloc reads the file; the kernel's own setting stays, for other programs.
    let setting = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(setting.path(), "2\n").unwrap();
    let script = "mount --bind \"$0\" /proc/sys/vm/overcommit_memory || exit 77; exec \"$@\"";
    let mut command = std::process::Command::new("unshare");
    command.args(["-m", "sh", "-c", script]).arg(setting.path());
    let own = child("map_little");
    command.arg(own.get_program()).args(own.get_args());
    match command.output() {
        Ok(output) if output.status.code() != Some(77) && is_root() => {
            assert_ended_well("map_little", &output);
            Completion::Completed
        }
        _ => skip("needs root, to mount over vm.overcommit_memory"),
    }
}

fn map_little() {
    let blocks: Vec<_> = (0..3000).map(|number| Block::new(10 * number)).collect();
    drop(blocks);
    let first = stats().mapped_bytes;
    assert!(first < 1 << 30, "{first}");
    drop(Block::filled(64 * MIB, 1));
    let more = stats().mapped_bytes - first;
    assert!(more < 256 * MIB, "{more}");
}

fn blocks_under_address_limit_are_served() {
    in_child_ok("under_address_limit");
}

fn under_address_limit() {
    drop(Block::filled(100, 1));
    let maximum = getrlimit(Resource::As).maximum;
    let current = Some(8 << 30);
    setrlimit(Resource::As, Rlimit { current, maximum }).unwrap();
    let blocks: Vec<_> = (0..100).map(|seed| Block::filled(MIB, seed)).collect();
    assert!(blocks.iter().all(Block::is_filled));
    assert!(tenure_heap::allocate(16 << 30, 16).is_null());
    assert!(Block::filled(200 * MIB, 1).is_filled());
}
