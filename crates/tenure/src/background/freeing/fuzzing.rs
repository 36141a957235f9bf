//! The queue of what waits to be freed, beside a list of what was pushed.

use super::queue::{Chunk, Queue};
use crate::fuzzing::{range, steps};
use crate::ground::range::PageRange;
use crate::page_size;

/// A load, as it was pushed.
struct Pushed {
    reservation: PageRange,
    moved_bytes: usize,
    /// What of its pages is not free yet, taken or not.
    left: usize,
}

pub(crate) fn queue(data: &[u8]) {
    let mut queue = Queue::EMPTY;
    let mut pushed: Vec<Pushed> = Vec::new();
    let mut in_hand: Vec<Chunk> = Vec::new();
    // Reservations never overlap: each has a place of its own.
    let mut place = 0;
    for step in steps(data) {
        match step.what % 3 {
            0 => {
                let whole = range(place, place + 64);
                place += 64;
                let pages = range(place - 64 + step.from, place - 64 + step.to);
                let moved_bytes = usize::from(step.more) % (pages.pages() + 1) * page_size();
                assert!(queue.has_places(1));
                queue.push(whole, pages, moved_bytes);
                pushed.push(Pushed {
                    reservation: whole,
                    moved_bytes,
                    left: pages.len(),
                });
            }
            1 => {
                let most = (1 + usize::from(step.more) % 8) * page_size();
                let has_more = queue.has_more();
                let chunk = queue.take(most);
                assert_eq!(chunk.is_some(), has_more);
                if let Some(chunk) = chunk {
                    assert!((1..=most).contains(&chunk.range.len()));
                    let both = |other: &Chunk| other.range.intersection(chunk.range).is_some();
                    assert!(!in_hand.iter().any(both), "{chunk:?} is in another's hand");
                    in_hand.push(chunk);
                }
            }
            _ if in_hand.is_empty() => {}
            _ => {
                let chunk = in_hand.swap_remove(step.from % in_hand.len());
                done(&mut queue, &mut pushed, chunk);
            }
        }
        let pending: usize = pushed.iter().map(|load| load.moved_bytes).sum();
        assert_eq!(queue.pending_bytes, pending);
    }
    // Workers go on until there is nothing.
    while let Some(chunk) = queue.take(usize::MAX).or_else(|| in_hand.pop()) {
        done(&mut queue, &mut pushed, chunk);
    }
    assert!(pushed.is_empty() && queue.pending_bytes == 0);
}

/// A load comes back with its last chunk, and not before.
fn done(queue: &mut Queue, pushed: &mut Vec<Pushed>, chunk: Chunk) {
    let of_chunk = |load: &Pushed| load.reservation.contains(chunk.range);
    let index = pushed.iter().position(of_chunk).expect("freed twice");
    pushed[index].left -= chunk.range.len();
    let load = queue.done(chunk);
    assert_eq!(load.is_some(), pushed[index].left == 0, "{chunk:?}");
    if let Some(load) = load {
        assert_eq!(load.reservation, pushed[index].reservation);
        pushed.swap_remove(index);
        queue.forget(&load);
    }
}
