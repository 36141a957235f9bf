//! Fuzzing of the queue of deferred frees, beside a list of the pushed jobs.

use super::queue::{Chunk, Destination, Queue};
use crate::fuzzing::{range, steps};
use crate::ground::range::PageRange;
use crate::page_size;

/// A job, as it was pushed.
struct Pushed {
    reservation: PageRange,
    moved_bytes: usize,
    /// The bytes of its pages that are not free yet, whether a worker has taken
    /// them or not.
    remaining_bytes: usize,
}

pub(crate) fn queue(data: &[u8]) {
    let mut queue = Queue::EMPTY;
    let mut pushed: Vec<Pushed> = Vec::new();
    let mut in_flight: Vec<Chunk> = Vec::new();
    // Reservations never overlap, so each has a place of its own.
    let mut place = 0;
    for step in steps(data) {
        match step.what % 3 {
            0 => {
                let whole = range(place, place + 64);
                place += 64;
                let pages = range(place - 64 + step.from, place - 64 + step.to);
                let moved_bytes = usize::from(step.more) % (pages.pages() + 1) * page_size();
                assert!(queue.try_reserve(1));
                queue.push(whole, pages, moved_bytes, Destination::Kernel);
                pushed.push(Pushed {
                    reservation: whole,
                    moved_bytes,
                    remaining_bytes: pages.len(),
                });
            }
            1 => {
                let max_bytes = (1 + usize::from(step.more) % 8) * page_size();
                let has_more = queue.has_more();
                let chunk = queue.next_chunk(|_| max_bytes);
                assert_eq!(chunk.is_some(), has_more);
                if let Some(chunk) = chunk {
                    assert!((1..=max_bytes).contains(&chunk.range.len()));
                    let both = |other: &Chunk| other.range.intersection(chunk.range).is_some();
                    assert!(
                        !in_flight.iter().any(both),
                        "{chunk:?} is in flight already"
                    );
                    in_flight.push(chunk);
                }
            }
            _ if in_flight.is_empty() => {}
            _ => {
                let chunk = in_flight.swap_remove(step.from % in_flight.len());
                complete(&mut queue, &mut pushed, chunk);
            }
        }
        let pending: usize = pushed.iter().map(|job| job.moved_bytes).sum();
        assert_eq!(queue.pending_bytes, pending);
    }
    // Workers continue until the queue is empty.
    while let Some(chunk) = queue.next_chunk(|_| usize::MAX).or_else(|| in_flight.pop()) {
        complete(&mut queue, &mut pushed, chunk);
    }
    assert!(pushed.is_empty() && queue.pending_bytes == 0);
}

/// Completes a chunk: its job is returned with its last chunk, and not before.
fn complete(queue: &mut Queue, pushed: &mut Vec<Pushed>, chunk: Chunk) {
    let of_chunk = |job: &Pushed| job.reservation.contains(chunk.range);
    let index = pushed.iter().position(of_chunk).expect("freed twice");
    pushed[index].remaining_bytes -= chunk.range.len();
    let job = queue.complete(chunk);
    assert_eq!(
        job.is_some(),
        pushed[index].remaining_bytes == 0,
        "{chunk:?}"
    );
    if let Some(job) = job {
        assert_eq!(job.reservation, pushed[index].reservation);
        pushed.swap_remove(index);
        queue.subtract_pending(&job);
    }
}
