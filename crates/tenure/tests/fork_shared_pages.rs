//! Pages that a process and its children have in common: none loses what another one frees or
//! offers. The kernel may discard a page everywhere that one of them frees lazily, if no page
//! table says that it was written, as for copies that it made for a call which reads memory.

#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "tests use memory that they have mapped themselves"
)]

mod common;

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use common::volatile::can_offer;
use common::*;
use libtest_mimic::Completion;
use tenure::lazy_free::FreePolicy;
use tenure::volatile::VolatileOptions;
use tenure::{Features, Mapping, PageRange, VolatileArena, VolatileBuffer, page_size};

tests!(
    parent_keeps_what_child_frees_lazily,
    parent_keeps_what_child_frees_adaptively,
    parent_keeps_what_child_frees_lazily_where_kernel_does_not_tell,
    process_without_forks_frees_lazily_without_reading_pagemap,
    range_without_shared_pages_is_freed_without_reading_pagemap_until_next_fork,
    parent_keeps_range_that_child_offers,
    parent_keeps_buffer_that_child_offers,
    parent_keeps_arena_buffer_that_child_offers,
    child_keeps_range_that_parent_offers,
    shared_range_is_offered_after_child_has_ended,
    shared_buffer_is_offered_after_child_has_ended,
    shared_arena_buffer_is_offered_after_child_has_ended,
    own_pages_of_partly_shared_range_are_offered_at_once,
    arena_made_after_fork_is_offered_without_reading_pagemap;
    children: free_lazily_without_pagemap, free_before_and_after_fork, offer_arena_without_pagemap
);

const PAGES: usize = 256;

/// A child that has the memory of its parent until it is told to end.
struct Beside {
    pid: i32,
    stream: UnixStream,
}

impl Beside {
    /// `at_end` returns whether the child has found what it should.
    fn fork(at_end: impl FnOnce() -> bool) -> Self {
        let (stream, mut in_child) = UnixStream::pair().unwrap();
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0);
        if pid == 0 {
            let _ = in_child.read(&mut [0]);
            unsafe { libc::_exit(i32::from(!at_end())) };
        }
        Self { pid, stream }
    }

    fn end(mut self) {
        self.stream.write_all(&[0]).unwrap();
        let mut status = 0;
        assert_eq!(unsafe { libc::waitpid(self.pid, &mut status, 0) }, self.pid);
        assert_eq!(status, 0);
    }
}

/// Has the kernel copy pages for a call that reads them while a child has them, too: no page
/// table says then that this process has written them.
fn make_clean(range: PageRange) {
    let child = Beside::fork(|| true);
    let mut bytes = vec![0_u8; range.len()];
    let local = libc::iovec {
        iov_base: bytes.as_mut_ptr().cast(),
        iov_len: range.len(),
    };
    let remote = libc::iovec {
        iov_base: range.as_ptr().cast(),
        iov_len: range.len(),
    };
    let pid = std::process::id().cast_signed();
    let copied = unsafe { libc::process_vm_readv(pid, &local, 1, &remote, 1, 0) };
    assert_eq!(copied, range.len().cast_signed());
    child.end();
}

fn filled_memory() -> Mapping {
    let memory = anonymous(PAGES);
    use_base_pages(memory.range());
    fill(memory.range());
    memory
}

fn clean_memory() -> Mapping {
    let memory = filled_memory();
    make_clean(memory.range());
    memory
}

/// Has the kernel reclaim all that it may.
fn reclaim(range: PageRange) {
    flush_all_batches();
    page_out(range);
}

/// Checks that this process has lost nothing of the range to what a child does.
#[track_caller]
fn assert_kept_beside_child(range: PageRange, in_child: impl FnOnce()) {
    let status = fork(|| {
        in_child();
        flush_all_batches();
        0
    });
    assert_eq!(status, 0);
    reclaim(range);
    assert!(is_filled(range));
}

fn parent_keeps_what_child_frees_lazily() {
    let memory = clean_memory();
    let range = memory.range();
    assert_kept_beside_child(range, || unsafe { range.lazy_free() }.unwrap());
}

fn parent_keeps_what_child_frees_adaptively() {
    let memory = clean_memory();
    let range = memory.range();
    assert_kept_beside_child(range, || {
        for _ in 0..3 {
            unsafe { range.free(FreePolicy::Adaptive) }.unwrap();
        }
    });
}

fn parent_keeps_what_child_frees_lazily_where_kernel_does_not_tell() {
    let memory = clean_memory();
    let range = memory.range();
    assert_kept_beside_child(range, || {
        // Reads of pagemap.
        refuse(libc::SYS_pread64, libc::EPERM);
        unsafe { range.lazy_free() }.unwrap();
    });
}

fn process_without_forks_frees_lazily_without_reading_pagemap() {
    in_child_ok("free_lazily_without_pagemap");
}

fn free_lazily_without_pagemap() {
    // Finds out that there has been no fork.
    unsafe { filled_memory().range().lazy_free() }.unwrap();
    refuse(libc::SYS_pread64, libc::EPERM);
    let memory = filled_memory();
    unsafe { memory.range().lazy_free() }.unwrap();
    assert!(smaps_bytes(memory.range(), "LazyFree") > 0);
}

fn range_without_shared_pages_is_freed_without_reading_pagemap_until_next_fork() {
    in_child_ok("free_before_and_after_fork");
}

fn free_before_and_after_fork() {
    assert_eq!(fork(|| 0), 0);
    let memory = filled_memory();
    let range = memory.range();
    let lazily_free_after_free = || {
        fill(range);
        unsafe { range.free(FreePolicy::Adaptive) }.unwrap();
        smaps_bytes(range, "LazyFree") > 0
    };
    // Its mappings are checked, and then its pages, which are this process's own.
    lazily_free_after_free();
    let is_lazy = lazily_free_after_free();
    refuse(libc::SYS_pread64, libc::EPERM);
    assert_eq!(lazily_free_after_free(), is_lazy);
    assert_eq!(fork(|| 0), 0);
    assert!(!lazily_free_after_free());
}

const OFFER_NOW: VolatileOptions = VolatileOptions::new().offer_now();

fn cannot_offer() -> Option<Completion> {
    (!can_offer()).then(|| skip("needs userfaultfd (Linux 5.11) and MADV_POPULATE_WRITE (5.14)"))
}

fn parent_keeps_range_that_child_offers() -> Completion {
    let memory = clean_memory();
    let range = memory.range();
    assert_kept_beside_child(range, || {
        unsafe { range.mark_volatile_with(OFFER_NOW) }.unwrap();
    });
    cannot_offer().unwrap_or(Completion::Completed)
}

fn parent_keeps_buffer_that_child_offers() -> Completion {
    let mut buffer = VolatileBuffer::from_mapping(clean_memory()).unwrap();
    assert_kept_beside_child(buffer.range(), || buffer.mark_volatile_with(OFFER_NOW));
    cannot_offer().unwrap_or(Completion::Completed)
}

fn arena_buffer() -> (VolatileArena, VolatileBuffer) {
    let arena = VolatileArena::new(4 << 20).unwrap();
    let buffer = arena.buffer(PAGES * page_size()).unwrap();
    use_base_pages(buffer.range());
    fill(buffer.range());
    (arena, buffer)
}

fn parent_keeps_arena_buffer_that_child_offers() -> Completion {
    let (_arena, mut buffer) = arena_buffer();
    make_clean(buffer.range());
    assert_kept_beside_child(buffer.range(), || buffer.mark_volatile_with(OFFER_NOW));
    cannot_offer().unwrap_or(Completion::Completed)
}

fn child_keeps_range_that_parent_offers() -> Completion {
    let memory = clean_memory();
    let range = memory.range();
    let child = Beside::fork(|| {
        reclaim(range);
        is_filled(range)
    });
    unsafe { range.mark_volatile_with(OFFER_NOW) }.unwrap();
    flush_all_batches();
    // The kernel reclaims pages on request that one process has.
    memory.munmap().unwrap();
    drain_pending();
    child.end();
    cannot_offer().unwrap_or(Completion::Completed)
}

/// Returns whether the kernel has been offered the pages, now or soon; but for some in batches of
/// its CPUs, where reclaim ends what MADV_FREE has begun.
fn is_offered_soon(range: PageRange) -> bool {
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(60) {
        reclaim(range);
        if count_present(range) < PAGES / 2 {
            return true;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    false
}

/// Checks that what `mark` marks is offered after a child has ended that has its pages, which
/// keeps them.
fn assert_offered_after_child(range: PageRange, mark: impl FnOnce()) -> Completion {
    if let Some(skipped) = cannot_offer() {
        return skipped;
    }
    let child = Beside::fork(|| is_filled(range));
    mark();
    reclaim(range);
    assert_eq!(count_present(range), range.pages());
    child.end();
    assert!(is_offered_soon(range));
    Completion::Completed
}

fn shared_range_is_offered_after_child_has_ended() -> Completion {
    let memory = filled_memory();
    let range = memory.range();
    assert_offered_after_child(range, || {
        unsafe { range.mark_volatile_with(OFFER_NOW) }.unwrap();
    })
}

fn shared_buffer_is_offered_after_child_has_ended() -> Completion {
    let mut buffer = VolatileBuffer::from_mapping(filled_memory()).unwrap();
    assert_offered_after_child(buffer.range(), || buffer.mark_volatile_with(OFFER_NOW))
}

fn shared_arena_buffer_is_offered_after_child_has_ended() -> Completion {
    let (_arena, mut buffer) = arena_buffer();
    assert_offered_after_child(buffer.range(), || buffer.mark_volatile_with(OFFER_NOW))
}

fn own_pages_of_partly_shared_range_are_offered_at_once() -> Completion {
    if let Some(skipped) = cannot_offer() {
        return skipped;
    }
    let memory = filled_memory();
    let range = memory.range();
    let child = Beside::fork(|| is_filled(range));
    // Written since the fork, and so this process's own.
    let own = pages(range, 10, 100);
    fill(own);
    unsafe { range.mark_volatile_with(OFFER_NOW) }.unwrap();
    reclaim(range);
    assert_eq!(count_present(range), range.pages() - own.pages());
    assert_eq!(count_present(own), 0);
    child.end();
    Completion::Completed
}

fn arena_made_after_fork_is_offered_without_reading_pagemap() -> Completion {
    if let Some(skipped) = cannot_offer() {
        return skipped;
    }
    if Features::get().pagemap_scan.is_err() {
        return skip("without PAGEMAP_SCAN (before Linux 6.7) each offer reads pagemap");
    }
    in_child_ok("offer_arena_without_pagemap");
    Completion::Completed
}

fn offer_arena_without_pagemap() {
    assert_eq!(fork(|| 0), 0);
    let (_arena, mut buffer) = arena_buffer();
    refuse(libc::SYS_pread64, libc::EPERM);
    buffer.mark_volatile_with(OFFER_NOW);
    reclaim(buffer.range());
    assert_eq!(buffer.is_intact(), Ok(false));
}
