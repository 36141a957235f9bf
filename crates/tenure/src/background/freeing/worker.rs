//! The threads that free memory.

use std::sync::PoisonError;
use std::thread;
use std::time::{Duration, Instant};

use super::limits::max_active;
use super::queue::{ARRIVED, FREED, Load, QUEUE};
use crate::background::pace::{Pace, Wish};
use crate::ground::range::PageRange;
use crate::ground::sys::advise::{Losing, advise_losing};
use crate::ground::sys::thread::Thread;
use crate::ground::sys::{map, process};
use crate::observation::pressure::{self, Level};
use crate::observation::room::Room;
use crate::observation::stats;

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
    let mut hurry = Hurry::new(false);
    loop {
        free_all(&mut hurry);
        unmap_refused();
        let mut queue = QUEUE.lock();
        if !queue.has_more() {
            queue.workers -= 1;
            return;
        }
    }
}

fn start() -> bool {
    let is_started = Thread::start_quiet(c"tenure-free", work).is_ok();
    stats::WORKERS_STARTED.add(usize::from(is_started));
    is_started
}

/// The worker: frees what comes, and ends when nothing has come for a while, or
/// when fewer are faster.
fn work() {
    let mut hurry = Hurry::new(true);
    loop {
        free_all(&mut hurry);
        unmap_refused();
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
fn free_all(hurry: &mut Hurry) {
    let mut pace = Pace::new(CHUNKS, None);
    // By affinity and by the cgroup's quota: read from files, so not with the
    // queue in hand, for which callers wait.
    let cpus = thread::available_parallelism().map_or(1, usize::from);
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
        hurry.look(chunk.range.len());

        let mut queue = QUEUE.lock();
        queue.learn(chunk.range.len(), max_active(cpus));
        if let Some(load) = queue.done(chunk) {
            drop(queue);
            unmap(&load);
        }
    }
}

/// What a worker frees before it asks again how much memory there is.
const LOOK_BYTES: usize = 256 << 20;

/// Sees whether there is a hurry: somebody waits for the memory, memory is short,
/// or there is less room than waits to be freed, so that the program could meet a
/// limit for memory that it has given up.
struct Hurry {
    /// Whether this is a thread of ours; others stay as they are.
    is_ours: bool,
    is_urgent: bool,
    freed_bytes: usize,
}

impl Hurry {
    fn new(is_ours: bool) -> Self {
        Self {
            is_ours,
            is_urgent: false,
            freed_bytes: 0,
        }
    }

    fn look(&mut self, freed_bytes: usize) {
        self.freed_bytes += freed_bytes;
        // Read from files, so not with the queue in hand, for which callers wait.
        let looks = self.freed_bytes >= LOOK_BYTES;
        let seen = looks.then(|| (pressure::level(), Room::now()));
        let mut queue = QUEUE.lock();
        if let Some((level, room)) = seen {
            self.freed_bytes = 0;
            queue.is_short =
                level > Level::None || room.is_ok_and(|room| room.bytes < queue.pending_bytes);
        }
        let is_urgent = queue.is_short || queue.waiting > 0;
        queue.tempo.hurry(is_urgent);
        drop(queue);
        if self.is_ours && is_urgent != self.is_urgent {
            process::step_behind(!is_urgent);
        }
        self.is_urgent = is_urgent;
    }
}

fn unmap(load: &Load) {
    for part in load.reservation.chunks(UNMAP_BYTES) {
        unmap_part(part);
    }
    QUEUE.lock().forget(load);
    FREED.notify_all();
}

/// A part of a load that is all free, and that nobody knows.
fn unmap_part(part: PageRange) {
    // SAFETY: nobody uses it, as just said.
    if unsafe { map::unmap(part) }.is_err() {
        QUEUE.lock().refused.push(part);
    }
}

/// Tries once more what the kernel has refused, at vm.max_map_count where a load has
/// merged with a neighbour: addresses would stay taken, and under strict overcommit
/// charged.
fn unmap_refused() {
    let refused = std::mem::take(&mut QUEUE.lock().refused);
    refused.into_iter().for_each(unmap_part);
}
