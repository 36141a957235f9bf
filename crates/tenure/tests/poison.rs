//! Memory with a hardware error (MADV_HWPOISON injects it): each verb ends with an error or
//! leaves that page out, and none raises a signal.

#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "tests use memory that they have mapped themselves"
)]

mod common;

use std::time::Duration;

use common::*;
use libtest_mimic::Completion;
use tenure::lazy_free::FreePolicy;
use tenure::populate::{PopulateOptions, Strategy};
use tenure::{Access, Error, LockMode, Mapping, Outcome, PageRange, VolatileBuffer, page_size};

tests!(
    unless: without_injection;
    populate_of_poisoned_memory_is_an_error,
    lock_of_poisoned_memory_is_an_error,
    freed_poisoned_memory_is_not_reused,
    discard_replaces_poisoned_page,
    poisoned_page_of_buffer_is_purged,
    munmap_of_poisoned_memory_unmaps_it,
    punch_of_poisoned_shared_memory_is_no_signal;
    children:
    inject,
    populate_poisoned,
    lock_poisoned,
    free_poisoned,
    discard_poisoned,
    mark_poisoned,
    unmap_poisoned,
    punch_poisoned,
);

const PAGES: usize = 64;
const MIDDLE: usize = 30;

/// The exit status of a child whose kernel injects no errors.
const CANNOT: i32 = 77;

fn without_injection() -> Option<&'static str> {
    if !machine_is_ours() || !is_root() {
        return Some("takes pages of memory from the machine for good");
    }
    let output = in_child("inject");
    (output.status.code() == Some(CANNOT)).then_some("needs MADV_HWPOISON (CONFIG_MEMORY_FAILURE)")
}

fn inject() {
    let _memory = poisoned();
}

/// Has the kernel treat the memory of a page as broken. The injection itself may raise SIGBUS,
/// as a program that reads the page would see; no later call may.
fn poison(page: PageRange) {
    extern "C" fn ignore(_: libc::c_int) {}
    let handler = ignore as extern "C" fn(libc::c_int);
    let answer = unsafe {
        libc::signal(libc::SIGBUS, handler as libc::sighandler_t);
        let answer = libc::madvise(page.as_ptr().cast(), page.len(), libc::MADV_HWPOISON);
        libc::signal(libc::SIGBUS, libc::SIG_DFL);
        answer
    };
    if answer != 0 {
        std::process::exit(CANNOT);
    }
}

/// Maps and fills memory of which one page in the middle is poisoned.
fn poisoned() -> Mapping {
    let memory = anonymous(PAGES);
    fill(memory.range());
    poison(middle(memory.range()));
    memory
}

fn middle(range: PageRange) -> PageRange {
    pages(range, MIDDLE, 1)
}

/// Whether the pages beside the poisoned one have their contents.
fn is_filled_but_for_middle(range: PageRange) -> bool {
    is_filled(pages(range, 0, MIDDLE)) && is_filled(pages(range, MIDDLE + 1, PAGES - MIDDLE - 1))
}

fn populate_poisoned() {
    let memory = poisoned();
    for access in [Access::Write, Access::Read] {
        let error = memory.populate(.., access).unwrap_err();
        assert!(matches!(error, Error::HwPoison { .. }), "{error}");
        for strategy in [Strategy::Auto, Strategy::Populate, Strategy::Touch] {
            for threads in [1, 2] {
                let options = PopulateOptions::new(access)
                    .strategy(strategy)
                    .threads(threads);
                let error = memory.populate_with(.., &options).unwrap_err();
                println!("{access:?} {strategy:?} {threads}: {error}");
            }
        }
    }
    assert!(is_filled_but_for_middle(memory.range()));
}

fn lock_poisoned() {
    let memory = poisoned();
    let error = memory.lock(.., LockMode::Now).unwrap_err();
    println!("{error}");
    assert_eq!(status_kib("VmLck"), 0);
    assert!(is_filled_but_for_middle(memory.range()));
    // Nothing has to be present yet.
    memory.lock(.., LockMode::OnFault).unwrap();
}

fn free_poisoned() {
    for policy in [FreePolicy::Lazy, FreePolicy::Adaptive] {
        let idle = poisoned().free(policy).unwrap();
        match idle.reuse() {
            Ok(memory) => assert!(!memory.as_slice().is_empty()),
            Err(refused) => println!("{policy:?}: {}", refused.error),
        }
    }
    let idle = poisoned().free(FreePolicy::Eager).unwrap();
    assert!(is_zero(idle.reuse().unwrap().range()));
}

fn discard_poisoned() {
    let mut memory = poisoned();
    memory.discard(..).unwrap();
    drain_pending();
    assert!(is_zero(memory.range()));
    fill(memory.range());
    assert!(is_filled(memory.range()));
    // Enough for another thread to free it.
    let mut large = large();
    poison(middle(large.range()));
    large.discard(..).unwrap();
    drain_pending();
    assert!(is_zero(large.range()));
}

fn mark_poisoned() {
    // The kernel is offered the pages at once: what is not offered stays as it is.
    tenure::volatile::set_offer_delay(Duration::ZERO);
    let mut buffer = VolatileBuffer::from_mapping(poisoned()).unwrap();
    let page = middle(buffer.range());
    buffer.mark_volatile();
    let outcome = buffer.mark_nonvolatile().unwrap();
    assert_eq!(outcome, Outcome::Purged(vec![page]));
    assert!(is_zero(page));
    assert!(is_filled_but_for_middle(buffer.range()));
    // Also between the calls.
    fill(page);
    buffer.mark_volatile();
    poison(page);
    assert_eq!(
        buffer.mark_nonvolatile().unwrap(),
        Outcome::Purged(vec![page])
    );
    fill(page);
    buffer.mark_volatile();
    poison(page);
    buffer.purge().unwrap();
    assert_eq!(
        buffer.mark_nonvolatile().unwrap(),
        Outcome::Purged(vec![buffer.range()])
    );
    assert!(is_zero(buffer.range()));
}

fn unmap_poisoned() {
    let memory = poisoned();
    let range = memory.range();
    memory.munmap().unwrap();
    assert!(!is_still_mapped(range));
    let large = large();
    poison(middle(large.range()));
    drop(large);
    drain_pending();
}

fn punch_poisoned() {
    let memory = Mapping::shared_anonymous(PAGES * page_size())
        .map()
        .unwrap();
    let range = memory.range();
    fill(range);
    poison(middle(range));
    match unsafe { range.punch() } {
        // The kernel keeps the broken page in page tables, where a read finds it.
        Ok(()) => assert!(is_zero(pages(range, 0, MIDDLE))),
        Err(error) => println!("{error}"),
    }
}

fn populate_of_poisoned_memory_is_an_error() {
    in_child_ok("populate_poisoned");
}

fn lock_of_poisoned_memory_is_an_error() {
    in_child_ok("lock_poisoned");
}

fn freed_poisoned_memory_is_not_reused() {
    in_child_ok("free_poisoned");
}

fn discard_replaces_poisoned_page() {
    in_child_ok("discard_poisoned");
}

fn poisoned_page_of_buffer_is_purged() -> Completion {
    if tenure::Features::get().userfaultfd.is_err() {
        return skip("no userfaultfd here");
    }
    in_child_ok("mark_poisoned");
    Completion::Completed
}

fn munmap_of_poisoned_memory_unmaps_it() {
    in_child_ok("unmap_poisoned");
}

fn punch_of_poisoned_shared_memory_is_no_signal() {
    in_child_ok("punch_poisoned");
}
