//! volatile: marking, offering, purging and unmarking. Nothing is Intact that is not,
//! nothing is lost that nobody took, and a lost page is told of.

use std::time::{Duration, Instant};

use tenure::{Error, Outcome, PageRange, Priority, Result, VolatileArena, VolatileBuffer};

use super::super::case::{Case, again};
use super::super::common::{fill, is_filled, is_zero, pages};
use super::{Between, Group};

pub const ALL: Group = &[
    ("mark_volatile", mark),
    ("mark_volatile_now", mark_now),
    ("mark_nonvolatile", unmark_offered),
    ("mark_nonvolatile_lost", unmark_lost),
    ("purge", purge),
    ("purge_marked", purge_marked),
    ("purge_all", purge_all),
    ("keeper_offers", keeper_offers),
    ("munmap_volatile", munmap_volatile),
    ("volatile_buffer", buffer),
    ("volatile_buffer_in_arena", buffer_in_arena),
];

const PAGES: usize = 24;

fn memory() -> Between {
    tenure::set_hand_over_delay(Duration::from_secs(3600));
    Between::new(PAGES)
}

/// Unmarks until that succeeds, and compares what is told with what is there.
fn unmark(range: PageRange) -> Vec<PageRange> {
    let outcome = again(unsafe { range.mark_nonvolatile() });
    check(range, outcome)
}

fn check(range: PageRange, outcome: Outcome) -> Vec<PageRange> {
    let lost = match outcome {
        Outcome::Intact => Vec::new(),
        Outcome::Purged(lost) => lost,
    };
    for page in (0..range.pages()).map(|page| pages(range, page, 1)) {
        match lost.iter().any(|lost| lost.contains(page)) {
            true => assert!(is_zero(page), "{page} is told to be lost, and is not zeros"),
            false => assert!(is_filled(page), "{page} is told to be whole, and is not"),
        }
    }
    lost
}

fn mark(case: &Case) {
    let memory = memory();
    let range = memory.range;
    let _ = case.attempt(|| unsafe { range.mark_volatile() });
    assert!(memory.is_whole());
    again(unsafe { range.mark_volatile() });
    assert_eq!(unmark(range), []);
    assert!(memory.neighbours_are_whole());
}

fn mark_now(case: &Case) {
    let memory = memory();
    let range = memory.range;
    let _ = case.attempt(|| unsafe { range.mark_volatile_now(Priority::default()) });
    again(unsafe { range.mark_volatile_now(Priority::default()) });
    assert_eq!(unmark(range), []);
    assert!(memory.neighbours_are_whole());
}

fn unmark_offered(case: &Case) {
    let memory = memory();
    let range = memory.range;
    again(unsafe { range.mark_volatile_now(Priority::default()) });
    let lost = match case.attempt(|| unsafe { range.mark_nonvolatile() }) {
        Ok(outcome) => check(range, outcome),
        Err(_) => unmark(range),
    };
    assert_eq!(lost, []);
    assert!(memory.neighbours_are_whole());
}

fn unmark_lost(case: &Case) {
    let memory = memory();
    let range = memory.range;
    again(unsafe { range.mark_volatile_now(Priority::default()) });
    let gone = pages(range, 5, 3);
    again(unsafe { gone.purge() });
    let lost = match case.attempt(|| unsafe { range.mark_nonvolatile() }) {
        Ok(outcome) => check(range, outcome),
        Err(_) => unmark(range),
    };
    assert_eq!(lost, [gone]);
    assert!(memory.neighbours_are_whole());
}

fn purge_range(case: &Case, offered: bool) {
    let memory = memory();
    let range = memory.range;
    again(unsafe {
        match offered {
            true => range.mark_volatile_now(Priority::default()),
            false => range.mark_volatile(),
        }
    });
    let purge = || unsafe { range.purge() };
    if case.attempt(purge).is_err() {
        again(purge());
    }
    assert_eq!(unmark(range), [range]);
    assert!(memory.neighbours_are_whole());
    fill(range);
    assert!(memory.is_whole());
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
    if case.attempt(tenure::purge_all).is_err() {
        again(tenure::purge_all());
    }
    for part in parts {
        assert_eq!(unmark(part), [part]);
        fill(part);
    }
    assert!(memory.is_whole());
}

/// The keeper's calls fail. What it could not offer it offers later, or it stays.
fn keeper_offers(case: &Case) {
    let memory = memory();
    let range = memory.range;
    let before = tenure::stats();
    tenure::set_hand_over_delay(Duration::from_micros(500));
    let marked = case.armed(|| {
        let marked = unsafe { range.mark_volatile() };
        let start = Instant::now();
        let is_done = || {
            let stats = tenure::stats();
            stats.offered_bytes >= range.len() as u64
                || stats.not_offered_bytes > before.not_offered_bytes
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
    assert!(memory.neighbours_are_whole());
}

/// Its volatility ends with it.
fn munmap_volatile(case: &Case) {
    let memory = memory();
    let range = memory.range;
    again(unsafe { range.mark_volatile_now(Priority::default()) });
    let unmap = || unsafe { range.munmap() };
    if case.attempt(unmap).is_err() {
        again(unmap());
    }
    assert!(memory.neighbours_are_whole());
    // Too short for a thread's stack to be there by now.
    super::super::common::raw_map_over(range);
    fill(range);
    again(unsafe { range.mark_volatile_now(Priority::default()) });
    assert_eq!(unmark(range), []);
}

const LEN: usize = 64 << 10;

fn use_buffer(case: &Case, mut buffer: VolatileBuffer) {
    let bytes: Vec<u8> = (0..LEN).map(|index| (index % 250) as u8 + 1).collect();
    buffer.as_mut_slice().unwrap().copy_from_slice(&bytes);
    tenure::set_hand_over_delay(Duration::ZERO);
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
    let is_whole = case.attempt_twice(|| buffer.is_whole());
    assert!(is_whole);
    let outcome = case.attempt_twice(|| buffer.mark_nonvolatile());
    assert_eq!(outcome, Outcome::Intact);
    assert!(buffer.as_slice().unwrap() == bytes);

    case.armed(|| buffer.mark_volatile());
    case.attempt_twice(|| buffer.purge());
    let is_gone = |read: Result<()>| matches!(read, Err(Error::Purged { .. }));
    assert!(is_gone(buffer.read_volatile_into(0, &mut copy)));
    let Outcome::Purged(lost) = case.attempt_twice(|| buffer.mark_nonvolatile()) else {
        panic!("what was purged is told to be whole");
    };
    assert_eq!(lost, [buffer.range()]);
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
