//! The offer thread of volatile memory: when it runs, and what it offers.

#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "tests use memory that they have mapped themselves"
)]

mod common;

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use common::cgroup::{Group, enter_group};
use common::volatile::{PurgeWatch, matches_outcome, was_under_pressure, watch_pressure};
use common::*;
use libtest_mimic::Completion;
use tenure::{
    Features, Headroom, Mapping, Outcome, PageRange, VolatileBuffer, page_size,
    pressure::{self, Level},
    volatile::{Priority, VolatileOptions},
};

const DELAY: Duration = Duration::from_millis(50);
const LONG: Duration = Duration::from_secs(3600);

/// Returns the reason why nothing can be offered here.
fn missing() -> Option<&'static str> {
    watch_pressure();
    tenure::volatile::set_offer_delay(DELAY);
    let offers = Features::get().sigbus_on_missing() && Features::get().madv_populate.is_ok();
    (!offers).then_some("needs userfaultfd and MADV_POPULATE_WRITE")
}

tests!(
    unless: missing;
    buffer_volatile_past_offer_delay_is_offered,
    plain_range_volatile_past_offer_delay_is_offered,
    adjacent_ranges_are_offered_as_one_mapping,
    one_unofferable_range_does_not_block_the_batch,
    buffer_unlocked_again_is_offered,
    replaced_mapping_is_not_offered,
    forked_child_starts_its_own_offer_thread,
    child_forked_within_offer_delay_offers_after_its_next_call,
    closed_userfaultfd_is_replaced_by_offer_thread,
    offer_thread_restarts_after_idle_exit,
    partially_purged_object_under_pressure_is_purged_whole,
    some_pressure_purges_only_the_rest_of_partially_purged_objects,
    pressure_purges_lowest_priority_then_oldest,
    pressure_purges_plain_ranges_by_priority_and_last_mark;
    children:
    close_userfaultfd_of_buffer,
    mark_and_idle_twice,
    run_short_of_memory,
    run_short_of_memory_with_plain_ranges,
    purge_partly_then_run_short_of_memory,
    purge_partly_under_some_pressure,
);

/// Waits for something that the offer thread does eventually.
fn wait_for(what: &str, is_so: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < end, "{what}: not within a minute");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn is_offered(range: PageRange) -> bool {
    has_vm_flag(range, "um")
}

fn wait_until_offered(range: PageRange) {
    wait_for("offered", || is_offered(range));
}

fn buffer(page_count: usize) -> VolatileBuffer {
    let buffer = VolatileBuffer::from_mapping(anonymous(page_count)).unwrap();
    fill(buffer.range());
    buffer
}

/// Counts the threads with the offer thread's name. (A thread that the offer thread starts
/// has that name as well, until it sets its own.)
fn offer_threads() -> usize {
    threads_named("tenure-offer\n")
}

fn threads_named(wanted: &str) -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let names =
        tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.filter(|name| name == wanted).count()
}

fn buffer_volatile_past_offer_delay_is_offered() {
    let watch = PurgeWatch::now();
    let mut buffer = buffer(64);
    buffer.mark_volatile();
    wait_until_offered(buffer.range());
    wait_for("one offer thread", || offer_threads() == 1);
    page_out_all(pages(buffer.range(), 3, 2));
    let outcome = buffer.mark_nonvolatile().unwrap();
    watch.assert_purged(buffer.range(), &outcome, &[pages(buffer.range(), 3, 2)]);
    assert!(!is_offered(buffer.range()));
}

fn plain_range_volatile_past_offer_delay_is_offered() {
    let memory = anonymous(64);
    fill(memory.range());
    let before = Instant::now();
    unsafe { memory.range().mark_volatile() }.unwrap();
    let at_once = is_offered(memory.range());
    assert!(!at_once || before.elapsed() >= DELAY || was_under_pressure());
    wait_until_offered(memory.range());
    // Marking again offers the pages written since.
    fill(pages(memory.range(), 0, 64));
    unsafe { memory.range().mark_volatile() }.unwrap();
    let marked = Cell::new(Instant::now());
    wait_for("purged", || {
        // Pages that the kernel skipped, because the offer thread moved to another CPU, are
        // offered again.
        if marked.get().elapsed() > 20 * DELAY {
            unsafe { memory.range().mark_volatile() }.unwrap();
            marked.set(Instant::now());
        }
        page_out(memory.range());
        absent(memory.range()).iter().all(|&is| is)
    });
    let outcome = unsafe { memory.range().mark_nonvolatile() }.unwrap();
    assert_eq!(outcome, Outcome::Purged(vec![memory.range()]));
}

fn mapping_count() -> usize {
    std::fs::read_to_string("/proc/self/maps")
        .unwrap()
        .lines()
        .count()
}

fn adjacent_ranges_are_offered_as_one_mapping() {
    let watch = PurgeWatch::now();
    const COUNT: usize = 500;
    let memory = anonymous(COUNT * 4);
    fill(memory.range());
    let part = |index: usize| pages(memory.range(), index * 4, 4);
    let before = mapping_count();
    for index in 0..COUNT {
        unsafe { part(index).mark_volatile() }.unwrap();
    }
    wait_for("all offered", || {
        (0..COUNT).step_by(50).all(|index| is_offered(part(index)))
    });
    wait_until_offered(part(COUNT - 1));
    assert!(
        mapping_count() < before + 20,
        "{} from {before}",
        mapping_count()
    );
    for index in 0..COUNT {
        let outcome = unsafe { part(index).mark_nonvolatile() }.unwrap();
        watch.assert_purged(part(index), &outcome, &[]);
    }
}

fn one_unofferable_range_does_not_block_the_batch() {
    let memory = anonymous(12);
    fill(memory.range());
    let part = |index: usize| pages(memory.range(), index * 4, 4);
    tenure::volatile::set_offer_delay(LONG);
    for index in 0..3 {
        unsafe { part(index).mark_volatile() }.unwrap();
    }
    // The range is locked without tenure after it was marked.
    let before_bytes = tenure::stats().offer_failed_bytes;
    raw_lock_on_fault(part(1));
    tenure::volatile::set_offer_delay(DELAY);
    wait_until_offered(part(0));
    wait_until_offered(part(2));
    // (Under pressure all ranges may have been offered before the lock.)
    assert!(!is_offered(part(1)) || was_under_pressure());
    let failed_bytes = || (tenure::stats().offer_failed_bytes - before_bytes) as usize;
    wait_for("counted", || {
        failed_bytes() == part(1).len() || was_under_pressure()
    });
    let outcome = unsafe { memory.range().mark_nonvolatile() }.unwrap();
    assert!(matches_outcome(memory.range(), &outcome));
    assert!(is_filled(part(1)));
}

fn buffer_unlocked_again_is_offered() {
    let mut buffer = buffer(4);
    let range = buffer.range();
    tenure::volatile::set_offer_delay(LONG);
    buffer.mark_volatile();
    let before_bytes = tenure::stats().offer_failed_bytes;
    raw_lock_on_fault(range);
    tenure::volatile::set_offer_delay(DELAY);
    wait_for("a failed offer", || {
        tenure::stats().offer_failed_bytes > before_bytes || was_under_pressure()
    });
    unsafe { rustix::mm::munlock(range.as_ptr().cast(), range.len()) }.unwrap();
    wait_until_offered(range);
    let outcome = buffer.mark_nonvolatile().unwrap();
    assert!(matches_outcome(range, &outcome));
}

fn replaced_mapping_is_not_offered() {
    let memory = anonymous(8);
    let marker = anonymous(4);
    let before_bytes = tenure::stats().offer_failed_bytes;
    fill(memory.range());
    fill(marker.range());
    tenure::volatile::set_offer_delay(LONG);
    unsafe { memory.range().mark_volatile() }.unwrap();
    let file = file(8 * page_size());
    let other = unsafe { Mapping::file(&file) }.read_write().map().unwrap();
    let part = pages(memory.range(), 0, 4);
    // A file's pages replace the first half.
    let moved = unsafe {
        libc::mremap(
            other.as_ptr().cast(),
            part.len(),
            part.len(),
            libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED,
            part.as_ptr(),
        )
    };
    assert_eq!(moved.cast(), part.as_ptr());
    fill(part);
    tenure::volatile::set_offer_delay(DELAY);
    unsafe { marker.range().mark_volatile() }.unwrap();
    wait_until_offered(marker.range());
    assert!(!is_offered(part));
    assert!(tenure::stats().offer_failed_bytes > before_bytes || was_under_pressure());
    page_out(part);
    assert!(is_filled(part));
    std::mem::forget(other);
}

fn forked_child_starts_its_own_offer_thread() {
    let mut inherited = buffer(8);
    inherited.mark_volatile();
    wait_until_offered(inherited.range());
    let status = fork(|| {
        assert_eq!(offer_threads(), 0);
        let mut own = buffer(8);
        own.mark_volatile();
        wait_until_offered(own.range());
        wait_for("one offer thread", || offer_threads() == 1);
        page_out_all(own.range());
        assert!(own.mark_nonvolatile().unwrap() != Outcome::Intact);
        let outcome = inherited.mark_nonvolatile().unwrap();
        i32::from(!matches_outcome(inherited.range(), &outcome))
    });
    assert_eq!(status, 0);
    let outcome = inherited.mark_nonvolatile().unwrap();
    assert!(matches_outcome(inherited.range(), &outcome));
}

fn child_forked_within_offer_delay_offers_after_its_next_call() {
    tenure::volatile::set_offer_delay(LONG);
    let mut marked = buffer(8);
    let memory = anonymous(8);
    fill(memory.range());
    marked.mark_volatile();
    unsafe { memory.range().mark_volatile() }.unwrap();
    for call in [0, 1, 2] {
        let status = fork(|| {
            tenure::volatile::set_offer_delay(DELAY);
            assert_eq!(offer_threads(), 0);
            // None of these calls marks anything.
            match call {
                0 => assert!(marked.is_intact().unwrap()),
                1 => marked.read_volatile_into(0, &mut [0]).unwrap(),
                _ => {
                    let page = pages(memory.range(), 0, 1);
                    let _ = unsafe { page.mark_nonvolatile() }.unwrap();
                }
            }
            wait_until_offered(marked.range());
            wait_until_offered(pages(memory.range(), 1, 7));
            let outcome = marked.mark_nonvolatile().unwrap();
            i32::from(!matches_outcome(marked.range(), &outcome))
        });
        assert_eq!(status, 0);
    }
    tenure::volatile::set_offer_delay(DELAY);
    let outcome = unsafe { memory.range().mark_nonvolatile() }.unwrap();
    assert!(matches_outcome(memory.range(), &outcome));
}

fn close_userfaultfd_of_buffer() {
    without_files_thread();
    tenure::volatile::set_offer_delay(DELAY);
    let mut buffer = buffer(8);
    buffer.mark_volatile();
    wait_until_offered(buffer.range());
    close_userfaultfd();
    assert!(!is_offered(buffer.range()));
    wait_until_offered(buffer.range());
    // Pages that may have been purged without protection must not read as zeros.
    assert!(buffer.read_volatile_into(0, &mut [0]).is_err());
    let outcome = buffer.mark_nonvolatile().unwrap();
    assert_eq!(outcome, Outcome::Purged(vec![buffer.range()]));
}

fn closed_userfaultfd_is_replaced_by_offer_thread() {
    in_child_ok("close_userfaultfd_of_buffer");
}

fn mark_and_idle_twice() {
    tenure::volatile::set_offer_delay(DELAY);
    assert_eq!(offer_threads(), 0);
    for _ in 0..2 {
        let mut buffer = buffer(8);
        buffer.mark_volatile();
        wait_until_offered(buffer.range());
        drop(buffer);
        wait_for("one offer thread", || offer_threads() == 1);
        wait_for("no offer thread", || offer_threads() == 0);
        wait_for("no tenure-files", || threads_named("tenure-files\n") == 0);
        assert!(userfaultfds().is_empty());
    }
}

fn offer_thread_restarts_after_idle_exit() -> Completion {
    in_child_ok("mark_and_idle_twice");
    Completion::Completed
}

const MIB: usize = 1 << 20;
const LIMIT: usize = 256 * MIB;

/// Allocates more and more memory until the condition holds.
fn allocate_until(is_so: impl Fn() -> bool) -> Vec<Mapping> {
    let mut allocated = Vec::new();
    while !is_so() {
        assert!(allocated.len() < 300, "more memory than the limit allows");
        let mut memory = Mapping::anonymous(MIB).map().unwrap();
        memory.as_mut_slice().unwrap().fill(1);
        allocated.push(memory);
        // Slowly at the end: past the limit the kernel kills, and on a busy machine the
        // offer thread needs a while until it has looked.
        let is_near = Headroom::now().unwrap().bytes < LIMIT / 6;
        std::thread::sleep(Duration::from_millis(if is_near { 300 } else { 20 }));
    }
    allocated
}

/// In the order of marking.
const PRIORITIES: [Priority; 4] = [
    Priority::High,
    Priority::Lowest,
    Priority::Normal,
    Priority::Low,
];

/// Runs in the cgroup of a test and without userfaultfd, so that the kernel purges nothing
/// by itself.
fn run_short_of_memory() {
    enter_group();
    let mut order = Vec::new();
    let mut buffers: Vec<(Priority, VolatileBuffer)> = Vec::new();
    for priority in PRIORITIES {
        for _ in 0..3 {
            buffers.push((priority, buffer(16 * MIB / page_size())));
        }
    }
    for (priority, buffer) in &mut buffers {
        buffer.mark_volatile_with(VolatileOptions::new().priority(*priority));
        order.push(buffer.range());
    }
    // Marking it again makes it the youngest of the lowest priority.
    buffers[3]
        .1
        .mark_volatile_with(VolatileOptions::new().priority(Priority::Lowest));
    order[3..6].rotate_left(1);
    // The purge order: lowest, low and normal priority, each from the first marked on.
    let order = [&order[3..6], &order[9..12], &order[6..9], &order[..3]].concat();
    assert_purged_in(&order);
    for (_, buffer) in &mut buffers {
        let outcome = buffer.mark_nonvolatile().unwrap();
        assert!(matches_outcome(buffer.range(), &outcome));
    }
}

/// As [`run_short_of_memory`], with ranges that have no word of their own.
fn run_short_of_memory_with_plain_ranges() {
    enter_group();
    let memory: Vec<Mapping> = (0..12).map(|_| anonymous(16 * MIB / page_size())).collect();
    let mark = |index: usize, priority| {
        let options = VolatileOptions::new().priority(priority);
        unsafe { memory[index].range().mark_volatile_with(options) }.unwrap();
    };
    for (index, memory) in memory.iter().enumerate() {
        fill(memory.range());
        mark(index, PRIORITIES[index / 3]);
    }
    // Marking it again makes it the youngest of the lowest priority.
    mark(0, Priority::Lowest);
    let order = [3, 4, 5, 0, 9, 10, 11, 6, 7, 8, 1, 2].map(|index: usize| memory[index].range());
    assert_purged_in(&order);
    for range in order {
        let outcome = unsafe { range.mark_nonvolatile() }.unwrap();
        assert!(matches_outcome(range, &outcome));
    }
}

/// Takes memory until tenure purges, and asserts that it purges in this order.
fn assert_purged_in(order: &[PageRange]) {
    let allocated = allocate_until(|| is_efault(order[4]));
    let purged: Vec<bool> = order.iter().map(|&range| is_efault(range)).collect();
    let first_left = purged.iter().position(|purged| !purged).expect("not all");
    assert!(
        purged[first_left..].iter().all(|purged| !purged),
        "{purged:?}"
    );
    drop(allocated);
    let stats = tenure::stats();
    assert!(stats.purged_under_pressure_bytes >= 5 * 16 * MIB as u64);
    assert_eq!(
        stats.purged_by_kernel_bytes + stats.purged_on_request_bytes,
        0
    );
}

fn is_efault(range: PageRange) -> bool {
    use std::os::fd::AsRawFd;
    let (_read, write) = std::io::pipe().unwrap();
    unsafe { libc::write(write.as_raw_fd(), range.as_ptr().cast(), 1) < 0 }
}

fn pressure_purges_lowest_priority_then_oldest() -> Completion {
    match Group::with_limit(LIMIT) {
        Ok(group) => group.run_without("userfaultfd", "run_short_of_memory"),
        Err(reason) => return skip(&reason),
    }
    Completion::Completed
}

fn pressure_purges_plain_ranges_by_priority_and_last_mark() -> Completion {
    match Group::with_limit(LIMIT) {
        Ok(group) => group.run_without("userfaultfd", "run_short_of_memory_with_plain_ranges"),
        Err(reason) => return skip(&reason),
    }
    Completion::Completed
}

fn purge_partly_then_run_short_of_memory() {
    enter_group();
    tenure::volatile::set_offer_delay(Duration::ZERO);
    assert!(
        (0..5).any(|_| is_rest_purged_by_tenure()),
        "the kernel purged the object each time, not tenure"
    );
}

/// Returns whether tenure has purged the rest of a partially purged object. (The kernel
/// may be quicker.)
fn is_rest_purged_by_tenure() -> bool {
    let before_bytes = tenure::stats().purged_under_pressure_bytes;
    let mut damaged = buffer(64);
    let mut whole = buffer(64);
    let plain = anonymous(64);
    fill(plain.range());
    for buffer in [&mut damaged, &mut whole] {
        buffer.mark_volatile();
    }
    unsafe { plain.range().mark_volatile() }.unwrap();
    page_out_all(pages(damaged.range(), 7, 1));
    page_out_all(pages(plain.range(), 7, 1));
    let last = || is_efault(pages(damaged.range(), 63, 1));
    let allocated = allocate_until(last);
    let purged_bytes = tenure::stats().purged_under_pressure_bytes - before_bytes;
    drop(allocated);
    let outcome = damaged.mark_nonvolatile().unwrap();
    let is_by_tenure = purged_bytes >= (63 * page_size()) as u64;
    if is_by_tenure {
        assert_eq!(outcome, Outcome::Purged(vec![damaged.range()]));
    }
    let outcome = whole.mark_nonvolatile().unwrap();
    assert!(matches_outcome(whole.range(), &outcome));
    let outcome = unsafe { plain.range().mark_nonvolatile() }.unwrap();
    assert!(matches_outcome(plain.range(), &outcome));
    is_by_tenure
}

fn partially_purged_object_under_pressure_is_purged_whole() -> Completion {
    match Group::with_limit(LIMIT) {
        Ok(group) => group.run("purge_partly_then_run_short_of_memory"),
        Err(reason) => return skip(&reason),
    }
    Completion::Completed
}

/// Severe pressure purges whole objects by their age, a partially purged one among them.
/// Some pressure does not.
fn purge_partly_under_some_pressure() {
    enter_group();
    let was_severe = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&was_severe);
    let _subscription = pressure::subscribe(move |level| {
        seen.fetch_or(level == Level::Severe, Relaxed);
    });
    tenure::volatile::set_offer_delay(Duration::ZERO);
    let mut damaged = buffer(64);
    let mut whole = buffer(64);
    for buffer in [&mut damaged, &mut whole] {
        buffer.mark_volatile();
    }
    page_out_all(pages(damaged.range(), 7, 1));
    // Less than a tenth of the limit is some pressure, less than a thirty-second severe.
    let rest_bytes = Headroom::now().unwrap().bytes - LIMIT / 14;
    let rest = anonymous(rest_bytes / page_size());
    fill(rest.range());
    wait_for("the rest of the object is purged", || {
        is_efault(pages(damaged.range(), 63, 1))
    });
    let purged_bytes = tenure::stats().purged_under_pressure_bytes;
    // On a machine without memory or with long stalls the pressure is severe all the same.
    if !was_severe.load(Relaxed) {
        assert_eq!(purged_bytes, (63 * page_size()) as u64);
    }
    drop(rest);
    let outcome = damaged.mark_nonvolatile().unwrap();
    assert_eq!(outcome, Outcome::Purged(vec![damaged.range()]));
    let outcome = whole.mark_nonvolatile().unwrap();
    assert!(matches_outcome(whole.range(), &outcome));
}

fn some_pressure_purges_only_the_rest_of_partially_purged_objects() -> Completion {
    match Group::with_limit(LIMIT) {
        Ok(group) => group.run("purge_partly_under_some_pressure"),
        Err(reason) => return skip(&reason),
    }
    Completion::Completed
}
