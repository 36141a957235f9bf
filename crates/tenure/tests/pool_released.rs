//! pool: which releases enter it where the program asks for that, and which never do.

#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "tests use memory that they have mapped themselves"
)]

mod common;

use std::io::Read as _;
use std::mem::ManuallyDrop;
use std::os::fd::AsRawFd as _;
use std::time::Instant;

use common::pool::*;
use common::*;
use libtest_mimic::Completion;
use tenure::pool::{self, PoolOptions};
use tenure::pressure::{self, Level};
use tenure::{Mapping, PageRange, page_size};

tests!(
    unless: missing;
    released_memory_stays_out_of_pool_by_default,
    munmapped_memory_enters_pool_if_asked_for,
    dropped_mapping_enters_pool_if_asked_for,
    munmapped_range_of_several_mappings_enters_pool_if_asked_for,
    discarded_memory_enters_pool_if_asked_for,
    releases_that_end_at_once_never_enter_pool,
    setting_for_released_memory_ends_with_the_next;
    children:
);

fn recycled_bytes() -> u64 {
    pool::stats().recycled_bytes
}

/// Turns a pool on that released memory enters.
fn pool_of_released() -> Pool {
    tenure::drain(Some(LIMIT)).unwrap();
    let options = PoolOptions::new().max_bytes(LEN).recycle_released(true);
    pool::configure(&options).unwrap();
    Pool
}

/// Releases filled memory until the pool has kept some of it.
fn until_kept(release: impl Fn(Mapping)) -> Completion {
    let _pool = pool_of_released();
    let start = Instant::now();
    let before = recycled_bytes();
    while recycled_bytes() == before {
        if start.elapsed() > LIMIT {
            assert_ne!(pressure::level(), Level::None, "the pool has kept nothing");
            return skip("memory is short, and the pool keeps nothing");
        }
        release(base_pages(LEN));
        tenure::drain(Some(LIMIT)).unwrap();
        let memory = map_populated(LEN);
        assert!(is_all_zero(&memory));
        // Not by the way of the others, which may not be the one under test.
        memory.munmap_sync().unwrap();
    }
    Completion::Completed
}

fn released_memory_stays_out_of_pool_by_default() {
    let _pool = Pool::of(LEN);
    let before = recycled_bytes();
    drop(base_pages(LEN));
    base_pages(LEN).munmap().unwrap();
    let mut memory = base_pages(LEN);
    memory.discard(..).unwrap();
    tenure::drain(Some(LIMIT)).unwrap();
    assert_eq!(recycled_bytes(), before);
    // A page that the kernel refers to still has its bytes.
    let (reader, writer) = std::io::pipe().unwrap();
    memory.as_mut_slice().unwrap().fill(8);
    let vector = libc::iovec {
        iov_base: memory.range().as_ptr().cast(),
        iov_len: page_size(),
    };
    let sent = unsafe { libc::vmsplice(writer.as_raw_fd(), &raw const vector, 1, 0) };
    assert_eq!(sent, page_size() as isize);
    drop(memory);
    tenure::drain(Some(LIMIT)).unwrap();
    map_populated(LEN).as_mut_slice().unwrap().fill(9);
    let mut bytes = vec![0; page_size()];
    (&reader).read_exact(&mut bytes).unwrap();
    assert!(bytes.iter().all(|&byte| byte == 8));
}

fn munmapped_memory_enters_pool_if_asked_for() -> Completion {
    until_kept(|memory| memory.munmap().unwrap())
}

fn dropped_mapping_enters_pool_if_asked_for() -> Completion {
    until_kept(drop)
}

/// The part between two mappings without dumps has one flag less.
fn munmapped_range_of_several_mappings_enters_pool_if_asked_for() -> Completion {
    until_kept(|memory| {
        let range = ManuallyDrop::new(memory).range();
        let count = range.pages() / 3;
        let middle = pages(range, count, count);
        let advice = libc::MADV_DONTDUMP;
        let answer = unsafe { libc::madvise(middle.as_ptr().cast(), middle.len(), advice) };
        assert_eq!(answer, 0);
        unsafe { range.munmap() }.unwrap();
    })
}

fn discarded_memory_enters_pool_if_asked_for() -> Completion {
    until_kept(|mut memory| {
        memory.discard(..).unwrap();
        assert!(is_all_zero(&memory));
        // It is used again, while a worker zeroes the pages that it had.
        memory.as_mut_slice().unwrap().fill(5);
        tenure::drain(Some(LIMIT)).unwrap();
        assert!(memory.as_slice().iter().all(|&byte| byte == 5));
        memory.munmap_sync().unwrap();
    })
}

fn releases_that_end_at_once_never_enter_pool() {
    let _pool = pool_of_released();
    let before = recycled_bytes();
    base_pages(LEN).munmap_sync().unwrap();
    // Shorter than what is deferred.
    let mut short = base_pages(3 * MIB);
    short.discard(..).unwrap();
    drop(short);
    let mut shared = Mapping::shared_anonymous(LEN).map().unwrap();
    shared.as_mut_slice().unwrap().fill(7);
    shared.punch(..LEN / 2).unwrap();
    drop(shared);
    let memory = ManuallyDrop::new(base_pages(LEN)).range();
    protect(memory, libc::PROT_READ);
    unsafe { memory.munmap() }.unwrap();
    tenure::drain(Some(LIMIT)).unwrap();
    assert_eq!(recycled_bytes(), before);
}

fn protect(range: PageRange, protection: i32) {
    let answer = unsafe { libc::mprotect(range.as_ptr().cast(), range.len(), protection) };
    assert_eq!(answer, 0);
}

fn setting_for_released_memory_ends_with_the_next() {
    let _pool = pool_of_released();
    pool::configure(&PoolOptions::new().max_bytes(LEN)).unwrap();
    let before = recycled_bytes();
    drop(base_pages(LEN));
    tenure::drain(Some(LIMIT)).unwrap();
    assert_eq!(recycled_bytes(), before);
}
