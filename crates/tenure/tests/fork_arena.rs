//! Children of fork find in their copy of an arena what the kernel has purged, and nothing
//! else.

#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "tests use memory that they have mapped themselves"
)]

mod common;

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use common::volatile::can_offer;
use common::*;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tenure::{Outcome, VolatileArena, VolatileBuffer, page_size};

tests!(
    unless: || (!can_offer()).then_some("needs userfaultfd (Linux 5.11) and MADV_POPULATE_WRITE (5.14)");
    arena_in_early_child_handler_reports_purged_pages,
    arena_in_child_after_close_range_is_exact,
    arena_in_child_without_descriptors_reports_every_buffer,
    unmark_in_child_without_descriptors_is_emfile;
    children: use_in_early_handler, use_after_close_range, use_after_fork_without_descriptors,
    use_without_descriptors
);

/// Runs before tenure's own entry in `.init_array`, which has no number.
#[used]
#[unsafe(link_section = ".init_array.00100")]
static BEFORE_TENURE: extern "C" fn() = register_handler;

extern "C" fn register_handler() {
    extern "C" fn in_child() {
        if IS_ACTIVE.load(Relaxed) {
            check_purged(BUFFER.lock().unwrap().take().unwrap());
        }
    }
    assert_eq!(
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) },
        0
    );
}

static IS_ACTIVE: AtomicBool = AtomicBool::new(false);
static BUFFER: Mutex<Option<VolatileBuffer>> = Mutex::new(None);

/// Returns a buffer with contents that the kernel has been offered.
fn offered(arena: &VolatileArena) -> VolatileBuffer {
    tenure::volatile::set_offer_delay(Duration::ZERO);
    let mut buffer = arena.buffer(8 * page_size()).unwrap();
    fill(buffer.range());
    buffer.mark_volatile();
    buffer
}

/// The same, with its first two pages purged.
fn purged(arena: &VolatileArena) -> VolatileBuffer {
    let buffer = offered(arena);
    page_out_all(pages(buffer.range(), 0, 2));
    buffer
}

fn check_purged(mut buffer: VolatileBuffer) {
    let expected = Outcome::Purged(vec![pages(buffer.range(), 0, 2)]);
    assert_eq!(buffer.mark_nonvolatile(), Ok(expected));
    assert!(is_filled(pages(buffer.range(), 2, 6)));
}

fn new_arena() -> VolatileArena {
    VolatileArena::new(1 << 20).unwrap()
}

fn set_max_descriptors(current: Option<u64>) {
    let limit = Rlimit {
        current,
        ..getrlimit(Resource::Nofile)
    };
    setrlimit(Resource::Nofile, limit).unwrap();
}

fn use_in_early_handler() {
    let arena = new_arena();
    *BUFFER.lock().unwrap() = Some(purged(&arena));
    IS_ACTIVE.store(true, Relaxed);
    assert_eq!(fork(|| 0), 0);
    IS_ACTIVE.store(false, Relaxed);
    check_purged(BUFFER.lock().unwrap().take().unwrap());
}

fn arena_in_early_child_handler_reports_purged_pages() {
    in_child_ok("use_in_early_handler");
}

fn use_after_close_range() {
    let arena = new_arena();
    let (mut intact, doomed) = (offered(&arena), purged(&arena));
    close_all_descriptors();
    let status = fork(|| {
        assert_eq!(intact.mark_nonvolatile(), Ok(Outcome::Intact));
        assert!(is_filled(intact.range()));
        check_purged(doomed);
        0
    });
    assert_eq!(status, 0);
}

fn arena_in_child_after_close_range_is_exact() {
    in_child_ok("use_after_close_range");
}

fn use_after_fork_without_descriptors() {
    let arena = new_arena();
    let (mut first, mut second) = (offered(&arena), purged(&arena));
    let max = getrlimit(Resource::Nofile).current;
    set_max_descriptors(Some(3));
    let status = fork(|| {
        set_max_descriptors(max);
        // The child could not protect them.
        for buffer in [&mut first, &mut second] {
            let all = Outcome::Purged(vec![buffer.range()]);
            assert_eq!(buffer.mark_nonvolatile(), Ok(all));
        }
        0
    });
    assert_eq!(status, 0);
}

fn arena_in_child_without_descriptors_reports_every_buffer() {
    in_child_ok("use_after_fork_without_descriptors");
}

fn use_without_descriptors() {
    let arena = new_arena();
    let mut buffer = offered(&arena);
    let max = getrlimit(Resource::Nofile).current;
    set_max_descriptors(Some(3));
    let status = fork(|| {
        let error = buffer.mark_nonvolatile().unwrap_err();
        assert_eq!(error.errno(), libc::EMFILE, "{error}");
        assert!(buffer.is_volatile());
        0
    });
    assert_eq!(status, 0);
    set_max_descriptors(max);
    assert_eq!(buffer.mark_nonvolatile(), Ok(Outcome::Intact));
    assert!(is_filled(buffer.range()));
}

fn unmark_in_child_without_descriptors_is_emfile() {
    in_child_ok("use_without_descriptors");
}
