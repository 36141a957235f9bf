//! The threads that free memory.

use std::sync::PoisonError;
use std::time::{Duration, Instant};

use super::limits::max_active;
use super::queue::{ARRIVED, FREED, Load, QUEUE};
use crate::background::pace::{Pace, Wish};
use crate::ground::range::PageRange;
use crate::ground::sys::advise::{Losing, advise_losing};
use crate::ground::sys::{map, process};

/// What is freed in one call: for as long another thread's `mmap` may have to
/// wait for it. (Since Linux 6.17 or so it does not, within one mapping.)
const CHUNKS: Wish = Wish {
    takes: Duration::from_millis(1),
    first_bytes: 16 << 20,
    least_bytes: 1 << 20,
    most_bytes: 1 << 30,
};

/// What is unmapped in one call, when its pages are gone: there are still 2 MiB
/// of page tables for each GiB.
const UNMAP_BYTES: usize = 4 << 30;

/// How long a worker waits for more work before it ends. To start one takes the
/// caller some 70 µs, as long as the rest of a release.
const LINGER: Duration = Duration::from_secs(10);

/// Has the first worker begin, which is counted already. Without a thread to be
/// had, the caller is the worker for as long as there is work.
pub(super) fn start_first() {
    if start() {
        return;
    }
    loop {
        free_all();
        let mut queue = QUEUE.lock();
        if !queue.has_more() {
            queue.workers -= 1;
            return;
        }
    }
}

fn start() -> bool {
    process::spawn_quiet("tenure-free", work).is_ok()
}

/// The worker: frees what comes, and ends when nothing has come for a while, or
/// when fewer are faster.
fn work() {
    loop {
        free_all();
        let queue = QUEUE.lock();
        let (mut queue, waited) = ARRIVED
            .wait_timeout_while(queue, LINGER, |queue| {
                !queue.has_more() && queue.workers <= queue.tempo.wanted()
            })
            .unwrap_or_else(PoisonError::into_inner);
        let too_many = queue.workers > queue.tempo.wanted();
        if too_many || waited.timed_out() && !queue.has_more() {
            queue.workers -= 1;
            return;
        }
    }
}

/// Frees chunk after chunk until there is none, or until this worker is one too
/// many.
fn free_all() {
    let mut pace = Pace::new(CHUNKS, None);
    loop {
        let mut queue = QUEUE.lock();
        if queue.workers > queue.tempo.wanted() {
            return;
        }
        let Some(chunk) = queue.take(pace.chunk_bytes()) else {
            return;
        };
        let starts_another = queue.wants_worker();
        if starts_another {
            queue.workers += 1;
        }
        drop(queue);
        if starts_another && !start() {
            QUEUE.lock().workers -= 1;
        }
        let before = Instant::now();
        // SAFETY: the chunk is this thread's own; nobody else knows the
        // addresses. A refusal leaves the work to the unmapping.
        let _ = unsafe { advise_losing(chunk.range, Losing::DontNeed) };
        pace.learn(chunk.range.len(), before.elapsed());

        let mut queue = QUEUE.lock();
        queue.learn(chunk.range.len(), max_active());
        if let Some(load) = queue.done(chunk) {
            drop(queue);
            unmap(&load);
        }
    }
}

fn unmap(load: &Load) {
    for part in load.reservation.chunks(UNMAP_BYTES) {
        unmap_part(part);
    }
    QUEUE.lock().forget(load);
    FREED.notify_all();
}

fn unmap_part(part: PageRange) {
    // SAFETY: a part of a load that is all free, and that nobody knows. If it
    // fails (no room to split a mapping that has merged with a neighbour),
    // addresses stay reserved, no memory.
    let _ = unsafe { map::unmap(part) };
}
