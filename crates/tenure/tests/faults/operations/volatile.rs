//! volatile: marking, offering, purging and unmarking. Every page reported intact is
//! intact, no page is purged without a cause, and every purged page is reported.

use std::time::{Duration, Instant};

use tenure::{
    Error, Outcome, PageRange, Result, VolatileArena, VolatileBuffer, page_size,
    volatile::VolatileOptions,
};

use super::super::case::{Case, again};
use super::super::common::{fill, is_filled, is_zero, page_out_all, pages};
use super::{Between, Group};

pub const ALL: Group = &[
    ("mark_volatile", mark),
    ("mark_volatile_offer_now", mark_offer_now),
    ("mark_nonvolatile", unmark_offered),
    ("mark_nonvolatile_purged", unmark_purged),
    ("purge", purge),
    ("purge_marked", purge_marked),
    ("purge_all", purge_all),
    ("offer_thread_offers", offer_thread_offers),
    ("munmap_volatile", munmap_volatile),
    ("volatile_buffer", buffer),
    ("volatile_buffer_in_arena", buffer_in_arena),
    ("volatile_buffers_offered_together", offered_together),
    ("volatile_buffers_dropped_together", dropped_together),
];

const PAGES: usize = 24;

fn memory() -> Between {
    tenure::volatile::set_offer_delay(Duration::from_secs(3600));
    Between::new(PAGES)
}

/// Unmarks until that succeeds, and compares the report with the contents.
fn unmark(range: PageRange) -> Vec<PageRange> {
    let outcome = again(unsafe { range.mark_nonvolatile() });
    check(range, outcome)
}

fn check(range: PageRange, outcome: Outcome) -> Vec<PageRange> {
    let purged = match outcome {
        Outcome::Intact => Vec::new(),
        Outcome::Purged(purged) => purged,
    };
    for page in (0..range.pages()).map(|page| pages(range, page, 1)) {
        match purged.iter().any(|purged| purged.contains(page)) {
            true => assert!(is_zero(page), "{page} is reported purged, and is not zeros"),
            false => assert!(is_filled(page), "{page} is reported intact, and is not"),
        }
    }
    purged
}

fn mark(case: &Case) {
    let memory = memory();
    let range = memory.range;
    let _ = case.attempt(|| unsafe { range.mark_volatile() });
    assert!(memory.is_intact());
    again(unsafe { range.mark_volatile() });
    assert_eq!(unmark(range), []);
    assert!(memory.neighbours_are_intact());
}

fn mark_offer_now(case: &Case) {
    let memory = memory();
    let range = memory.range;
    let _ =
        case.attempt(|| unsafe { range.mark_volatile_with(VolatileOptions::new().offer_now()) });
    again(unsafe { range.mark_volatile_with(VolatileOptions::new().offer_now()) });
    assert_eq!(unmark(range), []);
    assert!(memory.neighbours_are_intact());
}

fn unmark_offered(case: &Case) {
    let memory = memory();
    let range = memory.range;
    again(unsafe { range.mark_volatile_with(VolatileOptions::new().offer_now()) });
    let purged = match case.attempt(|| unsafe { range.mark_nonvolatile() }) {
        Ok(outcome) => check(range, outcome),
        Err(_) => unmark(range),
    };
    assert_eq!(purged, []);
    assert!(memory.neighbours_are_intact());
}

fn unmark_purged(case: &Case) {
    let memory = memory();
    let range = memory.range;
    again(unsafe { range.mark_volatile_with(VolatileOptions::new().offer_now()) });
    let part = pages(range, 5, 3);
    again(unsafe { part.purge() });
    let purged = match case.attempt(|| unsafe { range.mark_nonvolatile() }) {
        Ok(outcome) => check(range, outcome),
        Err(_) => unmark(range),
    };
    assert_eq!(purged, [part]);
    assert!(memory.neighbours_are_intact());
}

fn purge_range(case: &Case, offered: bool) {
    let memory = memory();
    let range = memory.range;
    again(unsafe {
        match offered {
            true => range.mark_volatile_with(VolatileOptions::new().offer_now()),
            false => range.mark_volatile(),
        }
    });
    let purge = || unsafe { range.purge() };
    if case.attempt(purge).is_err() {
        again(purge());
    }
    assert_eq!(unmark(range), [range]);
    assert!(memory.neighbours_are_intact());
    fill(range);
    assert!(memory.is_intact());
}

fn purge(case: &Case) {
    purge_range(case, true);
}

fn purge_marked(case: &Case) {
    purge_range(case, false);
}

fn purge_all(case: &Case) {
    let memory = memory();
    let parts = [pages(memory.range, 0, 4), pages(memory.range, 10, 4)];
    for part in parts {
        again(unsafe { part.mark_volatile() });
    }
    if case.attempt(tenure::volatile::purge_all).is_err() {
        again(tenure::volatile::purge_all());
    }
    for part in parts {
        assert_eq!(unmark(part), [part]);
        fill(part);
    }
    assert!(memory.is_intact());
}

/// The offer thread's calls fail. It offers the memory later, or the memory stays.
fn offer_thread_offers(case: &Case) {
    let memory = memory();
    let range = memory.range;
    let before = tenure::stats();
    tenure::volatile::set_offer_delay(Duration::from_micros(500));
    let marked = case.armed(|| {
        let marked = unsafe { range.mark_volatile() };
        let start = Instant::now();
        let is_done = || {
            let stats = tenure::stats();
            stats.offered_bytes >= range.len() as u64
                || stats.offer_failed_bytes > before.offer_failed_bytes
        };
        while marked.is_ok() && !is_done() && start.elapsed() < Duration::from_secs(5) {
            std::thread::sleep(Duration::from_millis(1));
        }
        marked
    });
    if let Err(error) = marked {
        case.check(&error);
        again(unsafe { range.mark_volatile() });
    }
    assert_eq!(unmark(range), []);
    assert!(memory.neighbours_are_intact());
}

/// Checks that munmap ends the volatility.
fn munmap_volatile(case: &Case) {
    let memory = memory();
    let range = memory.range;
    again(unsafe { range.mark_volatile_with(VolatileOptions::new().offer_now()) });
    let unmap = || unsafe { range.munmap() };
    if case.attempt(unmap).is_err() {
        again(unmap());
    }
    assert!(memory.neighbours_are_intact());
    // The range is too short for a thread's stack to be there by now.
    super::super::common::raw_map_over(range);
    fill(range);
    again(unsafe { range.mark_volatile_with(VolatileOptions::new().offer_now()) });
    assert_eq!(unmark(range), []);
}

const LEN: usize = 64 << 10;

fn use_buffer(case: &Case, mut buffer: VolatileBuffer) {
    let bytes: Vec<u8> = (0..LEN).map(|index| (index % 250) as u8 + 1).collect();
    buffer.as_mut_slice().unwrap().copy_from_slice(&bytes);
    tenure::volatile::set_offer_delay(Duration::ZERO);
    case.armed(|| buffer.mark_volatile());
    assert!(buffer.is_volatile());
    let mut copy = vec![0; LEN];
    if case
        .attempt(|| buffer.read_volatile_into(0, &mut copy))
        .is_err()
    {
        again(buffer.read_volatile_into(0, &mut copy));
    }
    assert!(copy == bytes);
    let is_intact = case.attempt_twice(|| buffer.is_intact());
    assert!(is_intact);
    let outcome = case.attempt_twice(|| buffer.mark_nonvolatile());
    assert_eq!(outcome, Outcome::Intact);
    assert!(buffer.as_slice().unwrap() == bytes);

    case.armed(|| buffer.mark_volatile());
    case.attempt_twice(|| buffer.purge());
    let is_purged = |read: Result<()>| matches!(read, Err(Error::Purged { .. }));
    assert!(is_purged(buffer.read_volatile_into(0, &mut copy)));
    let Outcome::Purged(purged) = case.attempt_twice(|| buffer.mark_nonvolatile()) else {
        panic!("purged memory is reported intact");
    };
    assert_eq!(purged, [buffer.range()]);
    assert!(is_zero(buffer.range()));
    case.armed(|| drop(buffer));
}

fn buffer(case: &Case) {
    let buffer = case.attempt_twice(|| VolatileBuffer::new(LEN));
    use_buffer(case, buffer);
}

fn buffer_in_arena(case: &Case) {
    let arena = case.attempt_twice(|| VolatileArena::new(1 << 20));
    let buffer = case.attempt_twice(|| arena.buffer(LEN));
    use_buffer(case, buffer);
    case.armed(|| drop(arena));
}

/// How many buffers of a page fill an arena.
const BUFFERS: usize = 16;

/// Fills an arena with buffers. Returns every second one, no two of which are neighbours: the
/// kernel is told of several ranges; and the others.
fn filled_arena() -> (VolatileArena, [Vec<VolatileBuffer>; 2]) {
    tenure::volatile::set_offer_delay(Duration::from_secs(3600));
    let arena = again(VolatileArena::new(BUFFERS * page_size()));
    let mut halves = [Vec::new(), Vec::new()];
    for nth in 0..BUFFERS {
        let buffer = again(arena.buffer(page_size()));
        fill(buffer.range());
        halves[nth % 2].push(buffer);
    }
    (arena, halves)
}

/// Whatever fails, each buffer is offered or its offer counts as failed.
fn offered_together(case: &Case) {
    let (_arena, [mut buffers, others]) = filled_arena();
    let failed_before = tenure::stats().offer_failed_bytes;
    // Long enough for all marks, so that all are due together.
    tenure::volatile::set_offer_delay(Duration::from_millis(20));
    case.armed(|| {
        buffers.iter_mut().for_each(VolatileBuffer::mark_volatile);
        let failed_bytes = || tenure::stats().offer_failed_bytes - failed_before;
        let offered = || buffers.iter().filter(|buffer| buffer.is_offered()).count();
        let start = Instant::now();
        while offered() < buffers.len() - failed_bytes() as usize / page_size()
            && start.elapsed() < Duration::from_secs(5)
        {
            std::thread::sleep(Duration::from_millis(1));
        }
    });
    for mut buffer in buffers {
        let range = buffer.range();
        // The kernel has got what is said to be offered.
        let expected = match buffer.is_offered() {
            true => vec![range],
            false => Vec::new(),
        };
        if !expected.is_empty() {
            page_out_all(range);
        }
        let outcome = case.attempt_twice(|| buffer.mark_nonvolatile());
        assert_eq!(check(range, outcome), expected);
    }
    assert!(others.iter().all(|buffer| is_filled(buffer.range())));
}

/// Whatever fails, dropped places are zeros when they are taken again, and none is lost but
/// one that MADV_DONTNEED has refused to empty.
fn dropped_together(case: &Case) {
    let (arena, [mut dropped, others]) = filled_arena();
    // In what was offered once a page that is absent is a purged one.
    for buffer in &mut dropped {
        buffer.mark_volatile_with(VolatileOptions::new().offer_now());
        assert_eq!(again(buffer.mark_nonvolatile()), Outcome::Intact);
    }
    let count = dropped.len();
    let mut taken = Vec::new();
    case.armed(|| drop(dropped));
    for _ in 0..count {
        match case.armed(|| arena.buffer(page_size())) {
            Ok(buffer) => taken.push(buffer),
            Err(Error::ArenaFull { .. }) => {}
            Err(error) => {
                case.check(&error);
                taken.push(again(arena.buffer(page_size())));
            }
        }
    }
    assert!(taken.iter().all(|buffer| is_zero(buffer.range())));
    let fault = case.fault.as_ref();
    let may_lose_one = fault.is_some_and(|fault| fault.call.starts_with("madvise(MADV_DONTNEED"));
    assert!(
        taken.len() + usize::from(may_lose_one) >= count,
        "{} of {count} places are left",
        taken.len()
    );
    assert!(others.iter().all(|buffer| is_filled(buffer.range())));
}
