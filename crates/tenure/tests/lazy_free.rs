//! lazy free: what the kernel may take, and what is refused.

#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "tests use memory that they have mapped themselves"
)]

mod common;

use common::*;
use tenure::{Error, LockMode, Mapping, MemfdPages, MemoryKind, PageRange, page_size};

tests!(
    the_kernel_takes_what_was_freed,
    what_is_taken_back_stays,
    a_write_takes_a_page_back,
    only_the_range_named_is_freed,
    nothing_is_nothing,
    a_hole_leaves_both_sides_alone,
    other_kinds_of_memory_are_refused,
    locked_memory_is_refused,
);

fn the_kernel_takes_what_was_freed() {
    let memory = anonymous(512);
    fill(memory.range());
    let idle = memory.lazy_free().unwrap();
    assert!(smaps_bytes(idle.range(), "LazyFree") > (512 - 32) * page_size() as u64);
    page_out_all(idle.range());
    let memory = idle.take_back().unwrap();
    assert!(is_zero(memory.range()));
}

fn what_is_taken_back_stays() {
    let memory = anonymous(512);
    fill(memory.range());
    let memory = memory.lazy_free().unwrap().take_back().unwrap();
    assert_eq!(smaps_bytes(memory.range(), "LazyFree"), 0);
    page_out(memory.range());
    assert!(is_filled(memory.range()));
}

fn a_write_takes_a_page_back() {
    let memory = anonymous(512);
    fill(memory.range());
    unsafe { memory.range().lazy_free() }.unwrap();
    let written = pages(memory.range(), 100, 3);
    fill(written);
    for part in [
        pages(memory.range(), 0, 100),
        pages(memory.range(), 103, 409),
    ] {
        page_out_all(part);
        assert!(is_zero(part));
    }
    page_out(written);
    assert!(is_filled(written));
}

fn only_the_range_named_is_freed() {
    let memory = anonymous(512);
    fill(memory.range());
    unsafe { pages(memory.range(), 100, 200).lazy_free() }.unwrap();
    page_out_all(pages(memory.range(), 100, 200));
    assert!(is_filled(pages(memory.range(), 0, 100)));
    assert!(is_filled(pages(memory.range(), 300, 212)));
    // Half a page would be a neighbour's loss: there is no such range.
    assert!(matches!(
        PageRange::new(memory.range().start(), 1),
        Err(Error::Unaligned { .. })
    ));
}

fn nothing_is_nothing() {
    unsafe { PageRange::new(page_size(), 0).unwrap().lazy_free() }.unwrap();
}

fn a_hole_leaves_both_sides_alone() {
    let memory = anonymous(512);
    fill(memory.range());
    let hole = pages(memory.range(), 200, 1);
    raw_unmap(hole);
    let refused = memory.lazy_free().unwrap_err();
    assert!(
        matches!(refused.error, Error::Hole { hole: at, .. } if at == hole),
        "{refused}"
    );
    let range = refused.value.range();
    for part in [pages(range, 0, 200), pages(range, 201, 311)] {
        assert_eq!(smaps_bytes(part, "LazyFree"), 0);
        page_out(part);
        assert!(is_filled(part));
    }
}

fn other_kinds_of_memory_are_refused() {
    let len = 64 * page_size();
    let file = file(len);
    for (builder, kind) in [
        (Mapping::shared_anonymous(len), MemoryKind::Shared),
        (Mapping::memfd(len, MemfdPages::Base), MemoryKind::Shared),
        (
            Mapping::memfd(len, MemfdPages::Base).private(),
            MemoryKind::PrivateFile,
        ),
        (
            unsafe { Mapping::file(&file) }.private().read_write(),
            MemoryKind::PrivateFile,
        ),
    ] {
        let memory = builder.map().unwrap();
        fill(memory.range());
        let refused = memory.lazy_free().unwrap_err();
        assert!(
            matches!(refused.error, Error::WrongKind { found, .. } if found == kind),
            "{refused}"
        );
        assert_eq!(refused.error.errno(), libc::EINVAL);
        assert!(is_filled(refused.value.range()));
    }
}

fn locked_memory_is_refused() {
    let memory = anonymous(64);
    fill(memory.range());
    memory
        .lock(40 * page_size()..41 * page_size(), LockMode::Now)
        .unwrap();
    let refused = memory.lazy_free().unwrap_err();
    assert!(matches!(refused.error, Error::Locked { .. }), "{refused}");
    // The part before the lock has not been freed either.
    assert_eq!(smaps_bytes(refused.value.range(), "LazyFree"), 0);
    page_out(pages(refused.value.range(), 0, 40));
    assert!(is_filled(refused.value.range()));
}
