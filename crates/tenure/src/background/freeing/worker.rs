//! The worker threads that free memory.

use std::thread;
use std::time::{Duration, Instant};

use super::calls::CALLS;
use super::headroom::{Known, is_short};
use super::limits::max_active;
use super::queue::{Destination, FREED, Job, QUEUE, WORK_ARRIVED};
use crate::background::chunk_sizer::{ChunkSizer, ChunkTarget};
use crate::background::pool;
use crate::ground::range::PageRange;
use crate::ground::sys::advise::{DestructiveAdvice, advise_destructive};
use crate::ground::sys::numa::{self, NearMemory};
use crate::ground::sys::thread::Thread;
use crate::ground::sys::{empty_table, map, process};
use crate::observation::stats;

/// The chunks that one call frees: the next release, and another thread's `mmap`,
/// may have to wait for that long. (Since about Linux 6.17 the latter does not,
/// within one mapping.)
const CHUNKS: ChunkTarget = ChunkTarget {
    duration: Duration::from_micros(200),
    initial_bytes: 2 << 20,
    min_bytes: 2 << 20,
    max_bytes: 1 << 30,
};

/// The chunks while freeing is urgent.
const URGENT_CHUNKS: ChunkTarget = ChunkTarget {
    duration: Duration::from_millis(1),
    initial_bytes: 16 << 20,
    min_bytes: 1 << 20,
    max_bytes: 1 << 30,
};

/// The bytes that a worker hands to the page pool at a time. No call takes long there: each
/// moves 2 MiB at most.
const RECYCLED_BYTES: usize = 16 << 20;

/// The bytes that one call unmaps after their pages are free: before Linux 6.14
/// there are still 2 MiB of page tables for each GiB.
const UNMAP_BYTES: usize = 1 << 30;

/// How long an idle worker waits for work before it ends. Starting one takes
/// the caller some 70 µs, as long as the rest of a release.
const IDLE_TIMEOUT: Duration = Duration::from_secs(10);

/// Starts the first worker, which is counted already. If no thread can be
/// created, the caller works for as long as there is work.
pub(super) fn start_first() {
    if start() {
        return;
    }
    let mut urgency = Urgency::new(false);
    loop {
        free_all(&mut urgency, &mut false);
        retry_failed_unmaps();
        let mut queue = QUEUE.lock();
        if !queue.has_more() {
            queue.workers -= 1;
            return;
        }
    }
}

/// Starts workers that are counted already, as far as threads can be created.
pub(super) fn start_others(count: usize) {
    for _ in 0..count {
        if !start() {
            QUEUE.lock().workers -= 1;
        }
    }
}

fn start() -> bool {
    let is_started = Thread::start_background(c"tenure-free", work).is_ok();
    stats::WORKERS_STARTED.add(usize::from(is_started));
    is_started
}

/// The body of a worker: frees what arrives, and ends when nothing has arrived
/// for a while, or when fewer workers are faster.
fn work() {
    numa::look_up_nodes();
    let mut urgency = Urgency::new(true);
    let mut wants_own_table = true;
    loop {
        free_all(&mut urgency, &mut wants_own_table);
        retry_failed_unmaps();
        urgency.end();
        let mut queue = QUEUE.lock();
        queue.idle_workers += 1;
        let (mut queue, waited) = queue.wait(|queue| {
            WORK_ARRIVED.wait_timeout_while(queue, IDLE_TIMEOUT, |queue| {
                !queue.has_more() && queue.workers <= queue.worker_scaling.wanted()
            })
        });
        queue.idle_workers -= 1;
        let too_many = queue.workers > queue.worker_scaling.wanted();
        if too_many || waited.timed_out() && !queue.has_more() {
            queue.workers -= 1;
            if queue.has_more() {
                // A release may have woken this worker alone.
                WORK_ARRIVED.notify_one();
            }
            return;
        }
    }
}

/// Frees chunk after chunk until none is left, or until this worker is surplus. Before it
/// recycles the first one, a thread that `wants_own_table` gets a descriptor table of its own:
/// the program could close a userfaultfd in its table. A worker thread runs on the memory's
/// nodes meanwhile.
fn free_all(urgency: &mut Urgency, wants_own_table: &mut bool) {
    let mut calm_sizer = ChunkSizer::new(CHUNKS, None);
    let mut urgent_sizer = ChunkSizer::new(URGENT_CHUNKS, None);
    let mut near_memory = NearMemory::new();
    // By affinity and by the cgroup's quota. Read from files, so outside the
    // queue's lock, for which callers wait.
    let cpus = thread::available_parallelism().map_or(1, usize::from);
    loop {
        urgency.update(cpus);
        let chunk_sizer = match urgency.is_urgent {
            true => &mut urgent_sizer,
            false => &mut calm_sizer,
        };
        let mut queue = QUEUE.lock();
        if queue.workers > queue.worker_scaling.wanted() {
            return;
        }
        let keeps = !urgency.is_memory_short && pool::is_recycling();
        let recycles = |destination| keeps && destination == Destination::Pool;
        let chunk_bytes = chunk_sizer.chunk_bytes();
        let chunk = queue.next_chunk(|destination| match recycles(destination) {
            true => chunk_bytes.max(RECYCLED_BYTES),
            false => chunk_bytes,
        });
        let Some(chunk) = chunk else {
            return;
        };
        let recycles = recycles(chunk.destination);
        // A release wakes one worker only.
        let wakes_another = queue.idle_workers > 0 && queue.has_more();
        let starts_another = queue.wants_worker();
        if starts_another {
            queue.workers += 1;
        }
        let call = (!recycles).then(|| CALLS.begin());
        drop(queue);
        if wakes_another {
            WORK_ARRIVED.notify_one();
        }
        start_others(usize::from(starts_another));
        if urgency.is_worker_thread {
            near_memory.follow(chunk.range);
        }
        if recycles {
            if std::mem::take(wants_own_table) {
                // Without one (before Linux 5.9) the program's is as good, unless it is closed.
                let _ = empty_table::enter();
            }
            recycle(chunk.range);
        } else {
            let before = Instant::now();
            // SAFETY: the chunk is this thread's own, and no other code knows the
            // addresses. (If the call fails, unmapping frees the pages.)
            let _ = unsafe { advise_destructive(chunk.range, DestructiveAdvice::DontNeed) };
            drop(call);
            chunk_sizer.record(chunk.range.len(), before.elapsed());
        }

        let mut queue = QUEUE.lock();
        queue.record(chunk.range.len(), max_active(cpus));
        if let Some(job) = queue.complete(chunk) {
            drop(queue);
            unmap(&job);
        }
    }
}

/// Has the page pool take what fits, and frees the rest.
fn recycle(chunk: PageRange) {
    // SAFETY: the chunk is the calling worker's own, and no other code knows the addresses.
    for part in unsafe { pool::recycle(chunk) } {
        let queue = QUEUE.lock();
        let call = CALLS.begin();
        drop(queue);
        // SAFETY: as above. (If the call fails, unmapping frees the pages.)
        let _ = unsafe { advise_destructive(part, DestructiveAdvice::DontNeed) };
        drop(call);
    }
}

/// The least interval between two of a worker's readings of the headroom, also
/// as a multiple of the time that a reading takes: at most 1 % of its time.
const MIN_READING_INTERVAL: Duration = Duration::from_millis(4);
const READING_INTERVAL_FACTOR: u32 = 100;

/// How long known limits serve workers.
const KNOWN_MAX_AGE: Duration = Duration::from_secs(1);

/// Decides whether freeing is urgent: a thread waits for the memory, or the
/// headroom is little beside the pending bytes, so that the program could hit a
/// limit because of memory that it has released.
struct Urgency {
    /// Whether this is a worker thread; the scheduling of a caller's thread
    /// stays unchanged.
    is_worker_thread: bool,
    is_urgent: bool,
    is_memory_short: bool,
    next_reading: Instant,
}

impl Urgency {
    fn new(is_worker_thread: bool) -> Self {
        Self {
            is_worker_thread,
            is_urgent: false,
            is_memory_short: false,
            next_reading: Instant::now(),
        }
    }

    /// Decides anew.
    fn update(&mut self, cpus: usize) {
        let before = Instant::now();
        let found = (before >= self.next_reading).then(|| {
            let headroom_bytes = read_headroom();
            let now = Instant::now();
            let interval = (now - before) * READING_INTERVAL_FACTOR;
            self.next_reading = now + interval.max(MIN_READING_INTERVAL);
            headroom_bytes
        });
        let mut queue = QUEUE.lock();
        if let Some(headroom_bytes) = found {
            queue.is_memory_short = is_short(headroom_bytes, queue.pending_bytes);
        }
        self.is_memory_short = queue.is_memory_short;
        queue.worker_cpus = cpus;
        let urgent_workers = queue.urgent_workers(cpus);
        queue.worker_scaling.set_urgent(urgent_workers);
        drop(queue);
        self.set(urgent_workers.is_some());
    }

    /// Ends the urgency, because nothing is left to free: a release must not be
    /// preempted by the worker that it wakes.
    fn end(&mut self) {
        self.set(false);
    }

    fn set(&mut self, is_urgent: bool) {
        if self.is_worker_thread && is_urgent != self.is_urgent {
            process::set_batch_scheduling(!is_urgent);
        }
        self.is_urgent = is_urgent;
    }
}

/// Reads the headroom from files, so outside the queue's lock, for which callers
/// wait. Callers use the reading, and the limits if they had to be looked up.
fn read_headroom() -> usize {
    let queue = QUEUE.lock();
    let (known, pending_bytes) = (queue.headroom.known.clone(), queue.pending_bytes);
    drop(queue);
    let fresh = known.filter(|known| known.holds_for(KNOWN_MAX_AGE, Duration::ZERO));
    let known = fresh.or_else(|| {
        let found = Known::find();
        QUEUE.lock().headroom.known.clone_from(&found);
        found
    });
    let Some(known) = known else { return 0 };
    let reading = known.read_beside(pending_bytes);
    QUEUE.lock().headroom.record(reading);
    reading.headroom_bytes
}

fn unmap(job: &Job) {
    for part in job.reservation.chunks(UNMAP_BYTES) {
        let queue = QUEUE.lock();
        let call = CALLS.begin();
        drop(queue);
        unmap_part(part);
        drop(call);
    }
    QUEUE.lock().subtract_pending(job);
    FREED.notify_all();
}

/// Unmaps a part of a job whose pages are all free.
fn unmap_part(part: PageRange) {
    // SAFETY: it is part of a completed job, whose addresses no other code
    // knows.
    if unsafe { map::unmap(part) }.is_err() {
        QUEUE.lock().unmap_failed.push(part);
    }
}

/// Retries the unmaps that failed, which happens at vm.max_map_count where a
/// job has merged with a neighbour: the addresses would stay reserved, and
/// under strict overcommit charged.
fn retry_failed_unmaps() {
    let failed = std::mem::take(&mut QUEUE.lock().unmap_failed);
    failed.into_iter().for_each(unmap_part);
}
