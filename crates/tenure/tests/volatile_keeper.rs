//! The keeper of volatile memory: when it is there, and what it hands over.

#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "tests use memory that they have mapped themselves"
)]

mod common;

use std::cell::Cell;
use std::time::{Duration, Instant};

use common::cgroup::{Group, enter_group};
use common::volatile::{Watch, is_as_told, memory_was_short, watch_pressure};
use common::*;
use libtest_mimic::Completion;
use tenure::{Features, Mapping, Outcome, PageRange, Priority, Room, VolatileBuffer, page_size};

const DELAY: Duration = Duration::from_millis(50);
const LONG: Duration = Duration::from_secs(3600);

/// Why there is nothing to hand over here.
fn missing() -> Option<&'static str> {
    watch_pressure();
    tenure::set_hand_over_delay(DELAY);
    let offers = Features::get().sigbus_on_missing() && Features::get().madv_populate.is_ok();
    (!offers).then_some("needs userfaultfd and MADV_POPULATE_WRITE")
}

tests!(
    unless: missing;
    what_stays_volatile_is_handed_over,
    plain_ranges_are_handed_over_too,
    neighbours_are_handed_over_together,
    what_is_not_fit_keeps_no_others,
    a_buffer_that_was_locked_for_a_while_is_handed_over_after_that,
    what_is_replaced_behind_our_back_is_left_alone,
    a_child_has_a_keeper_of_its_own,
    a_closed_descriptor_is_noticed,
    a_keeper_that_has_gone_comes_again,
    what_the_kernel_has_begun_is_finished_under_pressure,
    under_pressure_the_lowest_and_oldest_go_first;
    children:
    close_the_descriptor,
    come_and_go,
    become_short_of_memory,
    lose_pages_under_pressure,
);

/// Waits for something that the keeper does sooner or later.
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

/// How many threads there are with the keeper's name. (One that the keeper starts
/// has it as well, until it gives itself its own.)
fn keepers() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let names =
        tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.filter(|name| name == "tenure-keeper\n").count()
}

fn what_stays_volatile_is_handed_over() {
    let watch = Watch::now();
    let mut buffer = buffer(64);
    buffer.mark_volatile();
    wait_until_offered(buffer.range());
    wait_for("one keeper", || keepers() == 1);
    page_out_all(pages(buffer.range(), 3, 2));
    let outcome = buffer.mark_nonvolatile().unwrap();
    watch.assert_lost(buffer.range(), &outcome, &[pages(buffer.range(), 3, 2)]);
    assert!(!is_offered(buffer.range()));
}

fn plain_ranges_are_handed_over_too() {
    let memory = anonymous(64);
    fill(memory.range());
    let before = Instant::now();
    unsafe { memory.range().mark_volatile() }.unwrap();
    let at_once = is_offered(memory.range());
    assert!(!at_once || before.elapsed() >= DELAY || memory_was_short());
    wait_until_offered(memory.range());
    // Marked again, what was written since is offered again.
    fill(pages(memory.range(), 0, 64));
    unsafe { memory.range().mark_volatile() }.unwrap();
    let marked = Cell::new(Instant::now());
    wait_for("taken", || {
        // What the kernel has passed over (the keeper was moved to another CPU) is
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

fn neighbours_are_handed_over_together() {
    let watch = Watch::now();
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
        watch.assert_lost(part(index), &outcome, &[]);
    }
}

fn what_is_not_fit_keeps_no_others() {
    let memory = anonymous(12);
    fill(memory.range());
    let part = |index: usize| pages(memory.range(), index * 4, 4);
    tenure::set_hand_over_delay(LONG);
    for index in 0..3 {
        unsafe { part(index).mark_volatile() }.unwrap();
    }
    // Locked behind our back after it was marked.
    let before_bytes = tenure::stats().not_offered_bytes;
    raw_lock_on_fault(part(1));
    tenure::set_hand_over_delay(DELAY);
    wait_until_offered(part(0));
    wait_until_offered(part(2));
    // (Under pressure all may have been offered before it was locked.)
    assert!(!is_offered(part(1)) || memory_was_short());
    let kept_bytes = || (tenure::stats().not_offered_bytes - before_bytes) as usize;
    wait_for("counted", || {
        kept_bytes() == part(1).len() || memory_was_short()
    });
    let outcome = unsafe { memory.range().mark_nonvolatile() }.unwrap();
    assert!(is_as_told(memory.range(), &outcome));
    assert!(is_filled(part(1)));
}

fn a_buffer_that_was_locked_for_a_while_is_handed_over_after_that() {
    let mut buffer = buffer(4);
    let range = buffer.range();
    tenure::set_hand_over_delay(LONG);
    buffer.mark_volatile();
    let before_bytes = tenure::stats().not_offered_bytes;
    raw_lock_on_fault(range);
    tenure::set_hand_over_delay(DELAY);
    wait_for("refused", || {
        tenure::stats().not_offered_bytes > before_bytes || memory_was_short()
    });
    unsafe { rustix::mm::munlock(range.as_ptr().cast(), range.len()) }.unwrap();
    wait_until_offered(range);
    let outcome = buffer.mark_nonvolatile().unwrap();
    assert!(is_as_told(range, &outcome));
}

fn what_is_replaced_behind_our_back_is_left_alone() {
    let memory = anonymous(8);
    let marker = anonymous(4);
    let before_bytes = tenure::stats().not_offered_bytes;
    fill(memory.range());
    tenure::set_hand_over_delay(LONG);
    unsafe { memory.range().mark_volatile() }.unwrap();
    let file = file(8 * page_size());
    let other = unsafe { Mapping::file(&file) }.read_write().map().unwrap();
    let part = pages(memory.range(), 0, 4);
    // A file's pages in the place of the first half.
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
    tenure::set_hand_over_delay(DELAY);
    unsafe { marker.range().mark_volatile() }.unwrap();
    wait_until_offered(marker.range());
    assert!(!is_offered(part));
    assert!(tenure::stats().not_offered_bytes > before_bytes || memory_was_short());
    page_out(part);
    assert!(is_filled(part));
    std::mem::forget(other);
}

fn a_child_has_a_keeper_of_its_own() {
    let mut inherited = buffer(8);
    inherited.mark_volatile();
    wait_until_offered(inherited.range());
    let status = fork(|| {
        assert_eq!(keepers(), 0);
        let mut own = buffer(8);
        own.mark_volatile();
        wait_until_offered(own.range());
        wait_for("one keeper", || keepers() == 1);
        page_out_all(own.range());
        assert!(own.mark_nonvolatile().unwrap() != Outcome::Intact);
        let outcome = inherited.mark_nonvolatile().unwrap();
        i32::from(!is_as_told(inherited.range(), &outcome))
    });
    assert_eq!(status, 0);
    let outcome = inherited.mark_nonvolatile().unwrap();
    assert!(is_as_told(inherited.range(), &outcome));
}

fn close_the_descriptor() {
    tenure::set_hand_over_delay(DELAY);
    let mut buffer = buffer(8);
    buffer.mark_volatile();
    wait_until_offered(buffer.range());
    close_userfaultfd();
    assert!(!is_offered(buffer.range()));
    wait_until_offered(buffer.range());
    // What may have been taken meanwhile is not shown as zeros.
    assert!(buffer.read_volatile_into(0, &mut [0]).is_err());
    let outcome = buffer.mark_nonvolatile().unwrap();
    assert_eq!(outcome, Outcome::Purged(vec![buffer.range()]));
}

fn a_closed_descriptor_is_noticed() {
    in_child_ok("close_the_descriptor");
}

fn come_and_go() {
    tenure::set_hand_over_delay(DELAY);
    assert_eq!(keepers(), 0);
    for _ in 0..2 {
        let mut buffer = buffer(8);
        buffer.mark_volatile();
        wait_until_offered(buffer.range());
        drop(buffer);
        wait_for("one keeper", || keepers() == 1);
        wait_for("gone", || keepers() == 0);
    }
}

fn a_keeper_that_has_gone_comes_again() -> Completion {
    in_child_ok("come_and_go");
    Completion::Completed
}

const MIB: usize = 1 << 20;
const LIMIT: usize = 256 * MIB;

/// Takes more and more memory until it is so.
fn take_memory_until(is_so: impl Fn() -> bool) -> Vec<Mapping> {
    let mut taken = Vec::new();
    while !is_so() {
        assert!(taken.len() < 300, "more than there can be");
        let mut memory = Mapping::anonymous(MIB).map().unwrap();
        memory.as_mut_slice().unwrap().fill(1);
        taken.push(memory);
        // Slowly at the end: past the limit the kernel kills, and on a busy machine
        // it takes a while until the keeper has looked.
        let is_near = Room::now().unwrap().bytes < LIMIT / 6;
        std::thread::sleep(Duration::from_millis(if is_near { 300 } else { 20 }));
    }
    taken
}

/// In the cgroup of a test, and where nothing can be offered: there the kernel
/// takes nothing by itself.
fn become_short_of_memory() {
    enter_group();
    let mut order = Vec::new();
    let mut buffers: Vec<(Priority, VolatileBuffer)> = Vec::new();
    for priority in [
        Priority::High,
        Priority::Lowest,
        Priority::Normal,
        Priority::Low,
    ] {
        for _ in 0..3 {
            buffers.push((priority, buffer(16 * MIB / page_size())));
        }
    }
    for (priority, buffer) in &mut buffers {
        buffer.mark_volatile_with(*priority);
        order.push(buffer.range());
    }
    // Marked again, it is the youngest of the lowest.
    buffers[3].1.mark_volatile_with(Priority::Lowest);
    order[3..6].rotate_left(1);
    // The lowest, the low and the normal ones, each from the first marked on.
    let order = [&order[3..6], &order[9..12], &order[6..9], &order[..3]].concat();
    let is_purged = |range: PageRange| range_is_efault(range);
    let taken = take_memory_until(|| is_purged(order[4]));
    let purged: Vec<bool> = order.iter().map(|&range| is_purged(range)).collect();
    let first_left = purged.iter().position(|purged| !purged).expect("not all");
    assert!(
        purged[first_left..].iter().all(|purged| !purged),
        "{purged:?}"
    );
    drop(taken);
    let stats = tenure::stats();
    assert!(stats.purged_under_pressure_bytes >= 5 * 16 * MIB as u64);
    assert_eq!(
        stats.purged_by_kernel_bytes + stats.purged_on_request_bytes,
        0
    );
    for (_, buffer) in &mut buffers {
        let outcome = buffer.mark_nonvolatile().unwrap();
        assert!(is_as_told(buffer.range(), &outcome));
    }
}

fn range_is_efault(range: PageRange) -> bool {
    use std::os::fd::AsRawFd;
    let (_read, write) = std::io::pipe().unwrap();
    unsafe { libc::write(write.as_raw_fd(), range.as_ptr().cast(), 1) < 0 }
}

fn under_pressure_the_lowest_and_oldest_go_first() -> Completion {
    match Group::with_limit(LIMIT) {
        Ok(group) => group.run_without("userfaultfd", "become_short_of_memory"),
        Err(reason) => return skip(&reason),
    }
    Completion::Completed
}

fn lose_pages_under_pressure() {
    enter_group();
    tenure::set_hand_over_delay(Duration::ZERO);
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
    let last = || range_is_efault(pages(damaged.range(), 63, 1));
    let taken = take_memory_until(last);
    let by_us_bytes = tenure::stats().purged_under_pressure_bytes;
    assert!(
        by_us_bytes >= (63 * page_size()) as u64,
        "the kernel took it"
    );
    drop(taken);
    let outcome = damaged.mark_nonvolatile().unwrap();
    assert_eq!(outcome, Outcome::Purged(vec![damaged.range()]));
    let outcome = whole.mark_nonvolatile().unwrap();
    assert!(is_as_told(whole.range(), &outcome));
    let outcome = unsafe { plain.range().mark_nonvolatile() }.unwrap();
    assert!(is_as_told(plain.range(), &outcome));
}

fn what_the_kernel_has_begun_is_finished_under_pressure() -> Completion {
    match Group::with_limit(LIMIT) {
        Ok(group) => group.run("lose_pages_under_pressure"),
        Err(reason) => return skip(&reason),
    }
    Completion::Completed
}
