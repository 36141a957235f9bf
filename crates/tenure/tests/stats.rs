//! stats: each figure changes by what was done, and other processes can read it.

#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "tests use memory that they have mapped themselves"
)]

mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::*;
use libtest_mimic::Completion;
use tenure::{
    Access, Count, Error, Features, LockMode, Mapping, MemfdPages, Outcome, Stats, VolatileBuffer,
    lazy_free::FreePolicy,
    lock::{LockFlags, LockScope},
    page_size,
    populate::{CancelToken, PopulateOptions},
    stats,
};

tests!(
    populate_counts_calls_and_bytes,
    lock_and_unlock_count_calls_and_bytes,
    lock_all_and_unlock_all_count_calls,
    lazy_free_and_reuse_count_calls_and_bytes,
    free_counts_by_effective_policy,
    volatile_marks_count_calls_and_current_bytes,
    many_marks_unmarked_in_parts_count_one_call,
    buffer_local_counts_reach_other_processes,
    purged_pages_count_by_cause,
    lost_protection_counts_as_unprotected,
    unofferable_memory_is_counted,
    munmap_counts_calls_and_bytes,
    discard_and_punch_count_calls_and_bytes,
    failed_calls_are_not_counted,
    concurrent_calls_are_all_counted,
    pending_bytes_match_drain,
    lookups_and_values_of_caches_are_counted,
    forked_child_counts_from_zero,
    forked_child_counts_inherited_volatile_bytes,
    counters_without_mappable_page_still_count,
    stats_of_other_process_are_read,
    stats_of_process_without_first_thread_are_read,
    several_counter_pages_are_summed,
    process_without_tenure_has_no_stats,
    unknown_counter_layout_is_incompatible,
    stats_of_foreign_process_are_permission_denied;
    children:
    count_lock_all,
    count_without_counter_page,
    lose_protection,
    mark_unofferable_memory,
    mark_before_any_other_call,
    count_buffer_marks,
    serve_counters,
    serve_counters_without_first_thread,
    serve_several_counter_pages,
    serve_unknown_layout,
    read_stats_of_foreign_process,
);

const MIB: usize = 1 << 20;

/// Counters since a moment.
struct Since(Stats);

impl Since {
    fn now() -> Self {
        drain_pending();
        Self(stats())
    }

    /// Asserts how much these figures have grown; all others must be unchanged.
    fn assert(&self, expected: &[(&str, usize)]) {
        drain_pending();
        let (before, after) = (figures(&self.0), figures(&stats()));
        for ((name, before), (_, after)) in before.into_iter().zip(after) {
            // A worker of an earlier release may still be running.
            if name == "workers_started" {
                continue;
            }
            let grown = expected.iter().find(|expected| expected.0 == name);
            let grown = grown.map_or(0, |expected| expected.1 as u64);
            assert_eq!(after - before, grown, "{name}");
        }
    }
}

fn figures(stats: &Stats) -> Vec<(String, u64)> {
    let count = |name: &str, count: Count| {
        [
            (format!("{name}.calls"), count.calls),
            (format!("{name}.bytes"), count.bytes),
        ]
    };
    let mut figures = Vec::new();
    for (name, verb) in [
        ("populate", stats.populate),
        ("lock", stats.lock),
        ("unlock", stats.unlock),
        ("lazy_free", stats.lazy_free),
        ("mark_volatile", stats.mark_volatile),
        ("mark_nonvolatile", stats.mark_nonvolatile),
        ("munmap", stats.munmap),
        ("discard", stats.discard),
        ("punch", stats.punch),
        ("deferred_free", stats.deferred_free),
        ("eager_free", stats.eager_free),
        ("freed_under_pressure", stats.freed_under_pressure),
        ("cache_evicted", stats.cache_evicted),
        ("cache_purged", stats.cache_purged),
        ("sqlite_purged", stats.sqlite_purged),
        ("shared_allocated", stats.shared_allocated),
        ("shared_purged", stats.shared_purged),
    ] {
        figures.extend(count(name, verb));
    }
    for (name, figure) in [
        ("lock_all_calls", stats.lock_all_calls),
        ("unlock_all_calls", stats.unlock_all_calls),
        ("purged_by_kernel_bytes", stats.purged_by_kernel_bytes),
        ("purged_on_request_bytes", stats.purged_on_request_bytes),
        ("unprotected_bytes", stats.unprotected_bytes),
        ("volatile_bytes", stats.volatile_bytes),
        ("unofferable_bytes", stats.unofferable_bytes),
        ("freed_by_caller_bytes", stats.freed_by_caller_bytes),
        ("workers_started", stats.workers_started),
        ("pending_release_bytes", stats.pending_release_bytes),
        ("cache_hits", stats.cache_hits),
        ("cache_misses", stats.cache_misses),
        ("cache_bytes", stats.cache_bytes),
        ("sqlite_pages", stats.sqlite_pages),
        ("sqlite_offered_hits", stats.sqlite_offered_hits),
    ] {
        figures.push((name.to_owned(), figure));
    }
    figures
}

fn populate_counts_calls_and_bytes() {
    let memory = anonymous(64);
    let since = Since::now();
    memory.populate(.., Access::Write).unwrap();
    memory.populate(..1, Access::Read).unwrap();
    memory.populate(..0, Access::Read).unwrap();
    since.assert(&[("populate.calls", 2), ("populate.bytes", 65 * page_size())]);
}

fn lock_and_unlock_count_calls_and_bytes() {
    let page = page_size();
    let memory = anonymous(8);
    let since = Since::now();
    memory.lock(.., LockMode::OnFault).unwrap();
    memory.lock(2 * page..4 * page, LockMode::Now).unwrap();
    // Two pages only have the named mode.
    memory.unlock(.., LockFlags::NOW).unwrap();
    memory.unlock(.., LockFlags::ALL).unwrap();
    since.assert(&[
        ("lock.calls", 2),
        ("lock.bytes", 10 * page),
        ("unlock.calls", 2),
        ("unlock.bytes", 10 * page),
    ]);
}

fn lock_all_and_unlock_all_count_calls() -> Completion {
    in_child_if_unlimited("count_lock_all")
}

fn count_lock_all() {
    let since = Since::now();
    tenure::lock::lock_all(LockScope::CurrentAndFuture, LockMode::OnFault).unwrap();
    tenure::lock::unlock_all(LockFlags::NOW).unwrap();
    tenure::lock::unlock_all(LockFlags::ALL).unwrap();
    since.assert(&[("lock_all_calls", 1), ("unlock_all_calls", 2)]);
}

fn lazy_free_and_reuse_count_calls_and_bytes() {
    let memory = anonymous(64);
    fill(memory.range());
    let since = Since::now();
    let idle = memory.lazy_free().unwrap();
    let _memory = idle.reuse().unwrap();
    let bytes = 64 * page_size();
    since.assert(&[
        ("lazy_free.calls", 1),
        ("lazy_free.bytes", bytes),
        ("populate.calls", 1),
        ("populate.bytes", bytes),
    ]);
}

fn free_counts_by_effective_policy() {
    let memory = anonymous(64);
    let bytes = 64 * page_size();
    let since = Since::now();
    unsafe { memory.range().free(FreePolicy::Eager) }.unwrap();
    since.assert(&[("eager_free.calls", 1), ("eager_free.bytes", bytes)]);
    let since = Since::now();
    unsafe { memory.range().free(FreePolicy::Lazy) }.unwrap();
    since.assert(&[("lazy_free.calls", 1), ("lazy_free.bytes", bytes)]);
    // The second time the range is known.
    for _ in 0..2 {
        let before = stats();
        unsafe { memory.range().free(FreePolicy::Adaptive) }.unwrap();
        let after = stats();
        let freed = |stats: &Stats| stats.eager_free.bytes + stats.lazy_free.bytes;
        assert_eq!(freed(&after) - freed(&before), bytes as u64);
    }
}

fn volatile_marks_count_calls_and_current_bytes() -> Completion {
    if !Features::get().sigbus_on_missing() {
        return skip("no userfaultfd");
    }
    let page = page_size();
    let memory = anonymous(64);
    fill(memory.range());
    let since = Since::now();
    let (front, all) = (pages(memory.range(), 0, 16), memory.range());
    unsafe { front.mark_volatile() }.unwrap();
    unsafe { all.mark_volatile() }.unwrap();
    let marked = [
        ("mark_volatile.calls", 2),
        ("mark_volatile.bytes", 80 * page),
    ];
    since.assert(&[marked[0], marked[1], ("volatile_bytes", 64 * page)]);
    let _ = unsafe { front.mark_nonvolatile() }.unwrap();
    let _ = unsafe { all.mark_nonvolatile() }.unwrap();
    let unmarked = [
        ("mark_nonvolatile.calls", 2),
        ("mark_nonvolatile.bytes", 64 * page),
    ];
    since.assert(&[marked[0], marked[1], unmarked[0], unmarked[1]]);
    // Unmapped memory is no longer counted as volatile.
    unsafe { all.mark_volatile() }.unwrap();
    assert_eq!(
        stats().volatile_bytes - since.0.volatile_bytes,
        64 * page as u64
    );
    drop(memory);
    assert_eq!(stats().volatile_bytes, since.0.volatile_bytes);
    Completion::Completed
}

fn many_marks_unmarked_in_parts_count_one_call() -> Completion {
    if !Features::get().sigbus_on_missing() {
        return skip("no userfaultfd");
    }
    let (page, count) = (page_size(), 3000);
    let memory = anonymous(2 * count);
    let all = memory.range();
    let since = Since::now();
    for index in 0..count {
        unsafe { pages(all, 2 * index, 1).mark_volatile() }.unwrap();
    }
    unsafe { pages(all, 0, 2 * count - 1).mark_volatile() }.unwrap();
    since.assert(&[
        ("mark_volatile.calls", count + 1),
        ("mark_volatile.bytes", (3 * count - 1) * page),
        ("volatile_bytes", (2 * count - 1) * page),
    ]);
    for index in 0..count {
        let _ = unsafe { pages(all, 2 * index + 1, 1).mark_nonvolatile() }.unwrap();
    }
    let since = Since::now();
    assert_eq!(unsafe { all.mark_nonvolatile() }, Ok(Outcome::Intact));
    let now = stats();
    assert_eq!(
        now.volatile_bytes + (count * page) as u64,
        since.0.volatile_bytes
    );
    assert_eq!(
        now.mark_nonvolatile.calls,
        since.0.mark_nonvolatile.calls + 1
    );
    let unmarked_bytes = now.mark_nonvolatile.bytes - since.0.mark_nonvolatile.bytes;
    assert_eq!(unmarked_bytes, (count * page) as u64);
    Completion::Completed
}

fn purged_pages_count_by_cause() -> Completion {
    if !Features::get().sigbus_on_missing() {
        return skip("no userfaultfd");
    }
    let page = page_size();
    let memory = anonymous(512);
    fill(memory.range());
    let range = memory.range();
    let since = Since::now();
    tenure::volatile::set_offer_delay(Duration::ZERO);
    unsafe { range.mark_volatile() }.unwrap();
    tenure::volatile::set_offer_delay(Duration::from_millis(100));
    unsafe { pages(range, 0, 10).purge() }.unwrap();
    unsafe { pages(range, 5, 10).purge() }.unwrap();
    page_out_all(pages(range, 100, 200));
    // A purge is reported once, and counted once, whichever call reports it.
    let outcome = unsafe { pages(range, 0, 256).mark_nonvolatile() }.unwrap();
    assert_eq!(
        outcome,
        Outcome::Purged(vec![pages(range, 0, 15), pages(range, 100, 156)])
    );
    let outcome = unsafe { range.mark_nonvolatile() }.unwrap();
    assert!(matches!(outcome, Outcome::Purged(_)));
    since.assert(&[
        ("mark_volatile.calls", 1),
        ("mark_volatile.bytes", 512 * page),
        ("mark_nonvolatile.calls", 2),
        ("mark_nonvolatile.bytes", 512 * page),
        ("purged_on_request_bytes", 15 * page),
        ("purged_by_kernel_bytes", 200 * page),
    ]);
    Completion::Completed
}

fn lost_protection_counts_as_unprotected() -> Completion {
    if !Features::get().sigbus_on_missing() {
        return skip("no userfaultfd");
    }
    in_child_ok("lose_protection");
    Completion::Completed
}

fn unofferable_memory_is_counted() {
    for features in ["userfaultfd", "madv_populate"] {
        in_child_without(features, "mark_unofferable_memory");
    }
}

fn mark_unofferable_memory() {
    let memory = anonymous(16);
    let mut buffer = VolatileBuffer::new(8 * page_size()).unwrap();
    let since = Since::now();
    unsafe { memory.range().mark_volatile() }.unwrap();
    buffer.mark_volatile();
    since.assert(&[
        ("mark_volatile.calls", 2),
        ("mark_volatile.bytes", 24 * page_size()),
        ("volatile_bytes", 24 * page_size()),
        ("unofferable_bytes", 24 * page_size()),
    ]);
    assert_eq!(fork(|| i32::from(stats().unofferable_bytes == 0)), 0);
    drop(buffer);
    assert_eq!(
        unsafe { memory.range().mark_nonvolatile() }.unwrap(),
        Outcome::Intact
    );
    assert_eq!(stats().unofferable_bytes, 0);
}

fn lose_protection() {
    without_files_thread();
    // Memory that is not offered needs no protection.
    tenure::volatile::set_offer_delay(Duration::ZERO);
    let memory = anonymous(64);
    fill(memory.range());
    let since = Since::now();
    unsafe { memory.range().mark_volatile() }.unwrap();
    close_userfaultfd();
    let outcome = unsafe { memory.range().mark_nonvolatile() }.unwrap();
    assert_eq!(outcome, Outcome::Purged(vec![memory.range()]));
    let bytes = 64 * page_size();
    since.assert(&[
        ("mark_volatile.calls", 1),
        ("mark_volatile.bytes", bytes),
        ("mark_nonvolatile.calls", 1),
        ("mark_nonvolatile.bytes", bytes),
        ("unprotected_bytes", bytes),
    ]);
    // Marking again discovers the lost protection as well.
    let since = Since::now();
    unsafe { memory.range().mark_volatile() }.unwrap();
    close_userfaultfd();
    unsafe { memory.range().mark_volatile() }.unwrap();
    since.assert(&[
        ("mark_volatile.calls", 2),
        ("mark_volatile.bytes", 2 * bytes),
        ("unprotected_bytes", bytes),
        ("volatile_bytes", bytes),
    ]);
    // A buffer that has lost its protection is not intact, although every page can be read.
    let mut buffer = VolatileBuffer::new(bytes).unwrap();
    buffer.as_mut_slice().unwrap().fill(7);
    buffer.mark_volatile();
    close_userfaultfd();
    assert!(!buffer.is_intact().unwrap());
    // Memory that is locked after it was validated cannot be offered.
    let locked = anonymous(4);
    fill(locked.range());
    unsafe { locked.range().mark_volatile() }.unwrap();
    let outcome = unsafe { locked.range().mark_nonvolatile() }.unwrap();
    assert_eq!(outcome, Outcome::Intact);
    locked.lock(.., LockMode::Now).unwrap();
    let before_bytes = stats().offer_failed_bytes;
    unsafe { locked.range().mark_volatile() }.unwrap();
    assert_eq!(
        stats().offer_failed_bytes - before_bytes,
        locked.range().len() as u64
    );
}

fn munmap_counts_calls_and_bytes() {
    let (small, moved, plain) = (anonymous(16), large(), large());
    let lens = [&small, &moved, &plain].map(|memory| memory.range().len());
    let since = Since::now();
    drop(small);
    moved.munmap().unwrap();
    plain.munmap_sync().unwrap();
    since.assert(&[
        ("munmap.calls", 3),
        ("munmap.bytes", lens.iter().sum()),
        ("deferred_free.calls", 1),
        ("deferred_free.bytes", lens[1]),
        ("freed_by_caller_bytes", lens[0] + lens[2]),
    ]);
    assert!(stats().workers_started > 0);
}

fn discard_and_punch_count_calls_and_bytes() {
    let (mut small, mut moved) = (anonymous(16), large());
    let mut shared = Mapping::memfd(MIB, MemfdPages::Base).map().unwrap();
    let (small_len, moved_len) = (small.len(), moved.len());
    let since = Since::now();
    small.discard(..).unwrap();
    moved.discard(..).unwrap();
    shared.punch(page_size()..).unwrap();
    let is_moved = Features::get().mremap_dontunmap.is_ok();
    let plain_len = if is_moved { 0 } else { moved_len };
    since.assert(&[
        ("discard.calls", 2),
        ("discard.bytes", small_len + moved_len),
        ("deferred_free.calls", usize::from(is_moved)),
        ("deferred_free.bytes", moved_len - plain_len),
        ("freed_by_caller_bytes", small_len + plain_len),
        ("punch.calls", 1),
        ("punch.bytes", MIB - page_size()),
    ]);
}

fn failed_calls_are_not_counted() {
    let memory = anonymous(64);
    let hole = pages(memory.range(), 30, 1);
    raw_unmap(hole);
    let locked = anonymous(8);
    locked.lock(.., LockMode::OnFault).unwrap();
    let cancelled = CancelToken::new();
    cancelled.cancel();
    let since = Since::now();
    let range = memory.range();
    unsafe {
        range.populate(Access::Write).unwrap_err();
        range.lock(LockMode::OnFault).unwrap_err();
        range.unlock(LockFlags::ALL).unwrap_err();
        range.lazy_free().unwrap_err();
        range.mark_volatile().unwrap_err();
        range.mark_nonvolatile().unwrap_err();
        range.purge().unwrap_err();
        range.discard().unwrap_err();
        range.punch().unwrap_err();
        locked.range().discard().unwrap_err();
        locked.range().lazy_free().unwrap_err();
    }
    let options = PopulateOptions::new(Access::Write).cancel(&cancelled);
    locked.populate_with(.., &options).unwrap_err();
    since.assert(&[]);
}

fn concurrent_calls_are_all_counted() {
    const CALLS: usize = 1000;
    let since = Since::now();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let range = page_of_static();
                for _ in 0..CALLS {
                    unsafe { range.populate(Access::Read) }.unwrap();
                }
            });
        }
    });
    since.assert(&[
        ("populate.calls", 4 * CALLS),
        ("populate.bytes", 4 * CALLS * page_size()),
    ]);
}

/// Returns a page that stays mapped.
fn page_of_static() -> tenure::PageRange {
    static BYTE: u8 = 0;
    let at = (&raw const BYTE).expose_provenance() / page_size() * page_size();
    tenure::PageRange::covering(at, 1).unwrap()
}

fn pending_bytes_match_drain() {
    drain_pending();
    assert_eq!(stats().pending_release_bytes, 0);
    let memory = anonymous(512 * MIB / page_size());
    memory.populate(.., Access::Write).unwrap();
    memory.munmap().unwrap();
    // It may be freed already, but never more is pending than was released.
    let pending_bytes = stats().pending_release_bytes;
    match tenure::drain(Some(std::time::Duration::ZERO)) {
        Ok(()) => {}
        Err(Error::TimedOut {
            pending_bytes: left,
        }) => {
            assert!(left as u64 <= pending_bytes);
            assert_eq!(left, 512 * MIB);
        }
        Err(error) => panic!("{error}"),
    }
    drain_pending();
    assert_eq!(stats().pending_release_bytes, 0);
}

/// Whatever pressure does meanwhile, the figures of the process are those of its caches.
fn lookups_and_values_of_caches_are_counted() {
    let before = stats();
    let caches = [tenure::VolatileCache::new(), tenure::VolatileCache::new()];
    for key in 0..10 {
        caches[key % 2].insert(key, &[1; 10_000]).unwrap();
    }
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for key in 0..20 {
                    drop(caches[key % 2].get(&key));
                }
            });
        }
    });
    caches[0].remove(&2);
    let [one, other] = caches.each_ref().map(|cache| cache.stats());
    let after = stats();
    assert_eq!(one.hits + one.misses + other.hits + other.misses, 80);
    assert!(one.misses + other.misses >= 40);
    assert_eq!(after.cache_hits - before.cache_hits, one.hits + other.hits);
    assert_eq!(
        after.cache_misses - before.cache_misses,
        one.misses + other.misses
    );
    assert_eq!(
        after.cache_evicted.calls - before.cache_evicted.calls,
        one.evicted + other.evicted
    );
    assert_eq!(
        after.cache_purged.calls - before.cache_purged.calls,
        one.purged + other.purged
    );
    assert_eq!(
        after.cache_bytes - before.cache_bytes,
        one.bytes + other.bytes
    );
    caches[0].clear();
    drop(caches);
    assert_eq!(stats().cache_bytes, before.cache_bytes);
}

fn forked_child_counts_from_zero() {
    let released = large();
    let inherited = anonymous(64);
    fill(inherited.range());
    let is_volatile = Features::get().sigbus_on_missing();
    if is_volatile {
        unsafe { inherited.range().mark_volatile() }.unwrap();
    }
    let before = stats();
    released.munmap().unwrap();
    let status = fork(|| {
        let mut expected = Stats::default();
        if is_volatile {
            // The volatile memory is in the child, too.
            expected.volatile_bytes = 64 * page_size() as u64;
        }
        assert_eq!(stats(), expected);
        anonymous(4).populate(.., Access::Write).unwrap();
        assert_eq!(stats().populate.calls, 1);
        assert_eq!(stats().munmap.calls, 1);
        0
    });
    assert_eq!(status, 0);
    drain_pending();
    assert_eq!(
        stats().populate,
        before.populate,
        "the child's calls were counted"
    );
    assert_eq!(stats().munmap.calls, before.munmap.calls + 1);
}

fn forked_child_counts_inherited_volatile_bytes() -> Completion {
    if !Features::get().sigbus_on_missing() {
        return skip("no userfaultfd");
    }
    in_child_ok("mark_before_any_other_call");
    Completion::Completed
}

/// Marks memory in the first call of tenure in this process: fork handlers run in the order
/// of their registration.
fn mark_before_any_other_call() {
    let memory = anonymous(64);
    unsafe { memory.range().mark_volatile() }.unwrap();
    let bytes = 64 * page_size() as u64;
    let status = fork(|| i32::from(stats().volatile_bytes != bytes));
    assert_eq!(status, 0);
}

fn counters_without_mappable_page_still_count() {
    in_child_ok("count_without_counter_page");
}

fn count_without_counter_page() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let range = page_of_static();
    // Probes all features beforehand, which counts nothing.
    Features::get();
    let before = getrlimit(Resource::As);
    let none = Rlimit {
        current: Some(0),
        maximum: before.maximum,
    };
    setrlimit(Resource::As, none).unwrap();
    unsafe { range.lock(LockMode::OnFault) }.unwrap();
    setrlimit(Resource::As, before).unwrap();
    assert_eq!(stats().lock.calls, 1);
    assert_eq!(stats().lock.bytes, page_size() as u64);
    assert_eq!(Stats::of_process(std::process::id()), Ok(None));
    let status = fork(|| i32::from(stats() != Stats::default()));
    assert_eq!(status, 0, "a child does not count from zero");
}

/// A child that reports when it is ready and ends when its input ends.
struct Server(Child);

impl Server {
    fn start(name: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--child", name])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        Self(child)
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }

    fn end(mut self) -> u32 {
        drop(self.0.stdin.take());
        assert!(self.0.wait().unwrap().success());
        self.0.id()
    }
}

fn serve() {
    println!("ready");
    std::io::stdout().flush().unwrap();
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
}

/// Checks that local counts of buffers reach the counters.
fn count_buffer_marks() {
    let page = page_size() as u64;
    // Nothing is offered in the meantime.
    tenure::volatile::set_offer_delay(Duration::from_secs(3600));
    let mut buffer = VolatileBuffer::new(4 * page_size()).unwrap();
    for _ in 0..3 {
        buffer.mark_volatile();
        let _ = buffer.mark_nonvolatile().unwrap();
    }
    // It is nonvolatile already: none of its bytes were volatile.
    let _ = buffer.mark_nonvolatile().unwrap();
    assert_eq!(stats().mark_nonvolatile.bytes, 12 * page);
    buffer.mark_volatile();
    buffer.mark_volatile();
    let mut expected = Stats::default();
    expected.mark_volatile.calls = 5;
    expected.mark_volatile.bytes = 20 * page;
    expected.mark_nonvolatile.calls = 3;
    expected.mark_nonvolatile.bytes = 12 * page;
    expected.volatile_bytes = 4 * page;
    assert_eq!(stats(), expected);
    buffer.mark_volatile();
    let status = fork(|| {
        let mut expected = Stats::default();
        expected.volatile_bytes = 4 * page;
        assert_eq!(
            stats(),
            expected,
            "the parent's calls are counted in the child"
        );
        0
    });
    assert_eq!(status, 0);
    let _ = buffer.mark_nonvolatile().unwrap();
    serve();
    // A dropped buffer has been counted.
    drop(buffer);
    assert_eq!(stats().mark_volatile.calls, 6);
}

fn buffer_local_counts_reach_other_processes() -> Completion {
    if !Features::get().sigbus_on_missing() {
        return skip("no userfaultfd");
    }
    let server = Server::start("count_buffer_marks");
    let theirs = || Stats::of_process(server.pid()).unwrap().unwrap();
    // The counts are flushed within a second, if the other process gets to run.
    let start = Instant::now();
    while (theirs().mark_nonvolatile.calls, theirs().volatile_bytes) != (4, 0) {
        assert!(start.elapsed() < Duration::from_secs(60), "{:?}", theirs());
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(theirs().mark_volatile.bytes, 24 * page_size() as u64);
    server.end();
    Completion::Completed
}

fn serve_counters() {
    let memory = anonymous(64);
    memory.populate(.., Access::Write).unwrap();
    memory.populate(.., Access::Read).unwrap();
    serve();
}

fn stats_of_other_process_are_read() {
    // The page of counters exists from the first call on.
    tenure::prepare();
    let own = Stats::of_process(std::process::id()).unwrap();
    assert_eq!(own, Some(stats()));
    let server = Server::start("serve_counters");
    let theirs = Stats::of_process(server.pid()).unwrap().unwrap();
    let mut expected = Stats::default();
    expected.populate.calls = 2;
    expected.populate.bytes = 128 * page_size() as u64;
    assert_eq!(theirs, expected);
    let pid = server.end();
    let error = Stats::of_process(pid).unwrap_err();
    assert_eq!(error, Error::NoProcess { pid });
    assert_eq!(error.errno(), libc::ESRCH);
}

fn serve_counters_without_first_thread() {
    std::thread::spawn(|| {
        wait_for_end_of_first_thread();
        serve_counters();
        std::process::exit(0);
    });
    // As pthread_exit, which would unwind.
    unsafe { libc::syscall(libc::SYS_exit, 0) };
}

fn stats_of_process_without_first_thread_are_read() {
    let server = Server::start("serve_counters_without_first_thread");
    let theirs = Stats::of_process(server.pid()).unwrap();
    assert_eq!(theirs.map(|stats| stats.populate.calls), Some(2));
    server.end();
}

/// Maps a page like those of tenure's counters.
fn named_page(name: &std::ffi::CStr, first: u64) {
    let memfd = rustix::fs::memfd_create(name, rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&memfd, page_size() as u64).unwrap();
    let file = std::fs::File::from(memfd);
    let page = unsafe { Mapping::file(&file) }.private().read_write();
    let page = page.map().unwrap();
    unsafe { page.as_ptr().cast::<u64>().write(first) };
    std::mem::forget(page);
}

fn serve_several_counter_pages() {
    let memory = anonymous(1);
    memory.populate(.., Access::Write).unwrap();
    named_page(c"tenure-stats-1", 40);
    named_page(c"tenure-stats-1", 500);
    serve();
}

fn several_counter_pages_are_summed() {
    let server = Server::start("serve_several_counter_pages");
    let theirs = Stats::of_process(server.pid()).unwrap().unwrap();
    assert_eq!(theirs.populate.calls, 541);
    server.end();
}

fn process_without_tenure_has_no_stats() {
    let mut sleeper = Command::new("sleep").arg("60").spawn().unwrap();
    let answer = Stats::of_process(sleeper.id());
    sleeper.kill().unwrap();
    sleeper.wait().unwrap();
    assert_eq!(answer, Ok(None));
}

fn serve_unknown_layout() {
    named_page(c"tenure-stats-99", 1);
    serve();
}

fn unknown_counter_layout_is_incompatible() {
    let server = Server::start("serve_unknown_layout");
    let pid = server.pid();
    let refused = Stats::of_process(pid).unwrap_err();
    assert!(
        matches!(&refused, Error::IncompatibleLayout { layout, .. } if layout.contains("stats-99")),
        "{refused}"
    );
    server.end();
}

fn stats_of_foreign_process_are_permission_denied() -> Completion {
    use std::os::unix::fs::MetadataExt;
    let owner = std::fs::metadata("/proc/1").unwrap().uid();
    if !is_root() && owner == rustix::process::geteuid().as_raw() {
        return skip("process 1 is our own");
    }
    in_child_ok("read_stats_of_foreign_process");
    Completion::Completed
}

fn read_stats_of_foreign_process() {
    drop_privileges();
    let refused = Stats::of_process(1).unwrap_err();
    assert!(
        matches!(refused, Error::PermissionDenied { pid: 1, .. }),
        "{refused}"
    );
    assert!(refused.to_string().contains("ptrace"), "{refused}");
}
