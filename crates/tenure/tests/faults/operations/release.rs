//! munmap, discard, punch and drain.

use std::time::Duration;

use tenure::{Mapping, MemfdPages, PageRange, page_size};

use super::super::case::{Case, again};
use super::super::common::{fill, is_filled, is_still_mapped, is_zero, pages, tag};
use super::{Between, Group, large_pages};

pub const ALL: Group = &[
    ("munmap_small", munmap_small),
    ("munmap_large", munmap_large),
    ("munmap_shared_large", munmap_shared_large),
    ("munmap_mixed", munmap_mixed),
    ("munmap_file", munmap_file),
    ("munmap_sync", munmap_sync),
    ("drop_large", drop_large),
    ("discard_small", discard_small),
    ("discard_large", discard_large),
    ("discard_private_file", discard_private_file),
    ("punch", punch),
];

fn drain() {
    tenure::drain(Some(Duration::from_secs(20))).unwrap();
}

/// Unmaps the range until that succeeds, and waits until all is freed.
fn munmap(case: &Case, range: PageRange) {
    case.armed(|| {
        let unmapped = unsafe { range.munmap() };
        drain();
        unmapped
    })
    .or_else(|error| {
        case.check(&error);
        unsafe { range.munmap() }
    })
    .map_or_else(|error| again(Err(error)), |()| drain());
}

/// Whether the tagged mapping is not there any more. (A thread's stack may be there by
/// now.)
fn is_unmapped(range: PageRange) -> bool {
    let is_there = |page| is_still_mapped(pages(range, page, 1));
    !is_there(0) && !is_there(range.pages() / 2) && !is_there(range.pages() - 1)
}

fn munmap_between(case: &Case, page_count: usize) {
    let memory = Between::new(page_count);
    tag(memory.whole.range());
    munmap(case, memory.range);
    assert!(is_unmapped(memory.range));
    assert!(memory.neighbours_are_intact());
    memory.unmap_neighbours();
}

fn munmap_small(case: &Case) {
    munmap_between(case, 5);
}

fn munmap_large(case: &Case) {
    munmap_between(case, large_pages());
}

fn munmap_shared_large(case: &Case) {
    let memory = Mapping::shared_anonymous((large_pages() + 2) * page_size());
    let whole = memory.map().unwrap();
    fill(whole.range());
    tag(whole.range());
    let range = pages(whole.range(), 1, large_pages());
    let memory = Between { whole, range };
    munmap(case, range);
    assert!(is_unmapped(range));
    assert!(memory.neighbours_are_intact());
    memory.unmap_neighbours();
}

/// Unmaps two mappings that are moved, one that is locked, and a hole.
fn munmap_mixed(case: &Case) {
    let memory = Between::new(2 * large_pages() + 8);
    tag(memory.whole.range());
    let part = |first, count| pages(memory.range, first, count);
    let locked = part(large_pages(), 2);
    unsafe { rustix::mm::mlock(locked.as_ptr().cast(), locked.len()) }.unwrap();
    super::super::common::raw_unmap(part(large_pages() + 2, 2));
    munmap(case, memory.range);
    assert!(is_unmapped(memory.range));
    assert!(memory.neighbours_are_intact());
    memory.unmap_neighbours();
}

fn munmap_file(case: &Case) {
    let file = super::super::common::file(6 << 20);
    let memory = unsafe { Mapping::file(&file) }.map().unwrap();
    let range = memory.range();
    std::mem::forget(memory);
    munmap(case, range);
}

fn munmap_sync(case: &Case) {
    let memory = Mapping::anonymous(5 << 20).map().unwrap();
    fill(memory.range());
    if let Err(refused) = case.attempt(|| memory.munmap_sync()) {
        again(refused.value.munmap_sync());
    }
}

/// Checks that a failed drop frees the pages. It leaves the same as a failed munmap, which
/// is checked above.
fn drop_large(case: &Case) {
    let memory = Mapping::anonymous(5 << 20).map().unwrap();
    fill(memory.range());
    tag(memory.range());
    let range = memory.range();
    case.armed(|| {
        drop(memory);
        drain();
    });
    if !is_unmapped(range) {
        unsafe { range.munmap() }.unwrap();
        drain();
    }
}

/// Discards until that succeeds. After an error a part may be discarded, in whole pages.
fn discard(case: &Case, range: PageRange) {
    let discarded = case.armed(|| {
        let discarded = unsafe { range.discard() };
        drain();
        discarded
    });
    if let Err(error) = discarded {
        case.check(&error);
        for page in 0..range.pages() {
            let page = pages(range, page, 1);
            assert!(
                is_filled(page) || is_zero(page),
                "{page} is discarded in part"
            );
        }
        again(unsafe { range.discard() });
        drain();
    }
    assert!(is_zero(range));
    fill(range);
    assert!(is_filled(range));
}

fn discard_small(case: &Case) {
    let memory = Between::new(5);
    discard(case, memory.range);
    assert!(memory.is_intact());
}

fn discard_large(case: &Case) {
    let memory = Between::new(large_pages());
    discard(case, memory.range);
    assert!(memory.is_intact());
}

fn discard_private_file(case: &Case) {
    let file = super::super::common::file(5 << 20);
    let mut memory = unsafe { Mapping::file(&file) }
        .private()
        .read_write()
        .map()
        .unwrap();
    let before = memory.as_slice().to_vec();
    memory.as_mut_slice().unwrap()[..64 << 10].fill(7);
    case.attempt_twice(|| memory.discard(..));
    assert_eq!(memory.as_slice(), before);
}

fn punch(case: &Case) {
    let mut memory = Mapping::memfd(40 << 20, MemfdPages::Base).map().unwrap();
    let (first, page) = (memory.range().start(), page_size());
    let ends = [
        PageRange::new(first, page).unwrap(),
        PageRange::new(first + (40 << 20) - page, page).unwrap(),
    ];
    ends.into_iter().for_each(fill);
    memory.as_mut_slice().unwrap()[page..page + 100].fill(7);
    case.attempt_twice(|| memory.punch(page..(40 << 20) - page));
    assert!(ends.into_iter().all(is_filled));
    assert!(is_zero(pages(memory.range(), 1, 2)));
}
