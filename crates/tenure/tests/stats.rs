//! stats: each figure moves by what was done, and others can read it.

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
    Access, CancelToken, Count, Error, Features, FreePolicy, LockAll, LockMode, LockModes, Mapping,
    MemfdPages, Outcome, PopulateOptions, Stats, VolatileBuffer, page_size, stats,
};

tests!(
    populate_counts,
    lock_and_unlock_count,
    locking_all_counts,
    lazy_free_counts,
    freeing_by_policy_counts_as_what_it_does,
    volatile_counts,
    handles_count_and_others_see_it,
    purged_pages_have_their_cause,
    lost_protection_is_a_cause_of_its_own,
    what_cannot_be_offered_is_told,
    munmap_counts,
    discard_and_punch_count,
    failures_do_not_count,
    threads_lose_no_count,
    pending_bytes_are_what_a_drain_waits_for,
    a_child_counts_from_zero,
    a_child_knows_what_is_volatile_in_it,
    without_room_for_a_page_they_count_all_the_same,
    another_process_can_be_read,
    several_pages_are_added_up,
    a_process_without_tenure_has_none,
    an_unknown_layout_is_refused,
    who_may_not_look_is_told_so;
    children:
    locking_all,
    counting_without_a_page,
    losing_protection,
    keeping_from_the_kernel,
    marking_first_of_all,
    counting_handles,
    serving,
    two_pages,
    unknown_layout,
    looking_at_a_stranger,
);

const MIB: usize = 1 << 20;

/// What has been counted since.
struct Since(Stats);

impl Since {
    fn now() -> Self {
        settle();
        Self(stats())
    }

    /// How much these figures have grown; all others must be as they were.
    fn assert(&self, expected: &[(&str, usize)]) {
        settle();
        let (before, after) = (figures(&self.0), figures(&stats()));
        for ((name, before), (_, after)) in before.into_iter().zip(after) {
            // Whether a worker of an earlier release is still there is chance.
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
        ("carried_off", stats.carried_off),
        ("eager_free", stats.eager_free),
        ("given_back", stats.given_back),
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
        ("kept_from_kernel_bytes", stats.kept_from_kernel_bytes),
        ("freed_by_caller_bytes", stats.freed_by_caller_bytes),
        ("workers_started", stats.workers_started),
        ("pending_release_bytes", stats.pending_release_bytes),
    ] {
        figures.push((name.to_owned(), figure));
    }
    figures
}

fn populate_counts() {
    let memory = anonymous(64);
    let since = Since::now();
    memory.populate(.., Access::Write).unwrap();
    memory.populate(..1, Access::Read).unwrap();
    memory.populate(..0, Access::Read).unwrap();
    since.assert(&[("populate.calls", 2), ("populate.bytes", 65 * page_size())]);
}

fn lock_and_unlock_count() {
    let page = page_size();
    let memory = anonymous(8);
    let since = Since::now();
    memory.lock(.., LockMode::OnFault).unwrap();
    memory.lock(2 * page..4 * page, LockMode::Now).unwrap();
    // Of the named mode there are two pages only.
    memory.unlock(.., LockModes::NOW).unwrap();
    memory.unlock(.., LockModes::ALL).unwrap();
    since.assert(&[
        ("lock.calls", 2),
        ("lock.bytes", 10 * page),
        ("unlock.calls", 2),
        ("unlock.bytes", 10 * page),
    ]);
}

fn locking_all_counts() -> Completion {
    without_limit_in_child("locking_all")
}

fn locking_all() {
    let since = Since::now();
    tenure::lock_all(LockAll::CurrentAndFuture, LockMode::OnFault).unwrap();
    tenure::unlock_all(LockModes::NOW).unwrap();
    tenure::unlock_all(LockModes::ALL).unwrap();
    since.assert(&[("lock_all_calls", 1), ("unlock_all_calls", 2)]);
}

fn lazy_free_counts() {
    let memory = anonymous(64);
    fill(memory.range());
    let since = Since::now();
    let idle = memory.lazy_free().unwrap();
    let _memory = idle.take_back().unwrap();
    let bytes = 64 * page_size();
    since.assert(&[
        ("lazy_free.calls", 1),
        ("lazy_free.bytes", bytes),
        ("populate.calls", 1),
        ("populate.bytes", bytes),
    ]);
}

fn freeing_by_policy_counts_as_what_it_does() {
    let memory = anonymous(64);
    let bytes = 64 * page_size();
    let since = Since::now();
    unsafe { memory.range().free(FreePolicy::Eager) }.unwrap();
    since.assert(&[("eager_free.calls", 1), ("eager_free.bytes", bytes)]);
    let since = Since::now();
    unsafe { memory.range().free(FreePolicy::Lazy) }.unwrap();
    since.assert(&[("lazy_free.calls", 1), ("lazy_free.bytes", bytes)]);
    // The second time it is not looked at again.
    for _ in 0..2 {
        let before = stats();
        unsafe { memory.range().free(FreePolicy::Adaptive) }.unwrap();
        let after = stats();
        let freed = |stats: &Stats| stats.eager_free.bytes + stats.lazy_free.bytes;
        assert_eq!(freed(&after) - freed(&before), bytes as u64);
    }
}

fn volatile_counts() -> Completion {
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
    // What is unmapped is not volatile any more.
    unsafe { all.mark_volatile() }.unwrap();
    assert_eq!(
        stats().volatile_bytes - since.0.volatile_bytes,
        64 * page as u64
    );
    drop(memory);
    assert_eq!(stats().volatile_bytes, since.0.volatile_bytes);
    Completion::Completed
}

fn purged_pages_have_their_cause() -> Completion {
    if !Features::get().sigbus_on_missing() {
        return skip("no userfaultfd");
    }
    let page = page_size();
    let memory = anonymous(512);
    fill(memory.range());
    let range = memory.range();
    let since = Since::now();
    tenure::set_hand_over_delay(Duration::ZERO);
    unsafe { range.mark_volatile() }.unwrap();
    tenure::set_hand_over_delay(Duration::from_millis(100));
    unsafe { pages(range, 0, 10).purge() }.unwrap();
    unsafe { pages(range, 5, 10).purge() }.unwrap();
    page_out_all(pages(range, 100, 200));
    // It is told once, and counted once, whoever asks first.
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

fn lost_protection_is_a_cause_of_its_own() -> Completion {
    if !Features::get().sigbus_on_missing() {
        return skip("no userfaultfd");
    }
    in_child_ok("losing_protection");
    Completion::Completed
}

fn what_cannot_be_offered_is_told() {
    for features in ["userfaultfd", "madv_populate"] {
        in_child_without(features, "keeping_from_the_kernel");
    }
}

fn keeping_from_the_kernel() {
    let memory = anonymous(16);
    let mut buffer = VolatileBuffer::new(8 * page_size()).unwrap();
    let since = Since::now();
    unsafe { memory.range().mark_volatile() }.unwrap();
    buffer.mark_volatile();
    since.assert(&[
        ("mark_volatile.calls", 2),
        ("mark_volatile.bytes", 24 * page_size()),
        ("volatile_bytes", 24 * page_size()),
        ("kept_from_kernel_bytes", 24 * page_size()),
    ]);
    assert_eq!(fork(|| i32::from(stats().kept_from_kernel_bytes == 0)), 0);
    drop(buffer);
    assert_eq!(
        unsafe { memory.range().mark_nonvolatile() }.unwrap(),
        Outcome::Intact
    );
    assert_eq!(stats().kept_from_kernel_bytes, 0);
}

fn losing_protection() {
    // What is not offered needs no protection.
    tenure::set_hand_over_delay(Duration::ZERO);
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
    // Marking again finds out as well.
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
}

fn munmap_counts() {
    let (small, moved, plain) = (anonymous(16), large(), large());
    let lens = [&small, &moved, &plain].map(|memory| memory.range().len());
    let since = Since::now();
    drop(small);
    moved.munmap().unwrap();
    plain.release_now().unwrap();
    since.assert(&[
        ("munmap.calls", 3),
        ("munmap.bytes", lens.iter().sum()),
        ("carried_off.calls", 1),
        ("carried_off.bytes", lens[1]),
        ("freed_by_caller_bytes", lens[0] + lens[2]),
    ]);
    assert!(stats().workers_started > 0);
}

fn discard_and_punch_count() {
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
        ("carried_off.calls", usize::from(is_moved)),
        ("carried_off.bytes", moved_len - plain_len),
        ("freed_by_caller_bytes", small_len + plain_len),
        ("punch.calls", 1),
        ("punch.bytes", MIB - page_size()),
    ]);
}

fn failures_do_not_count() {
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
        range.unlock(LockModes::ALL).unwrap_err();
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

fn threads_lose_no_count() {
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

/// A page that is mapped for good.
fn page_of_static() -> tenure::PageRange {
    static BYTE: u8 = 0;
    let at = (&raw const BYTE).expose_provenance() / page_size() * page_size();
    tenure::PageRange::covering(at, 1).unwrap()
}

fn pending_bytes_are_what_a_drain_waits_for() {
    settle();
    assert_eq!(stats().pending_release_bytes, 0);
    let memory = anonymous(512 * MIB / page_size());
    memory.populate(.., Access::Write).unwrap();
    memory.munmap().unwrap();
    // It may be free already, but never is there more than was released.
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
    settle();
    assert_eq!(stats().pending_release_bytes, 0);
}

fn a_child_counts_from_zero() {
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
            // It is in the child, too.
            expected.volatile_bytes = 64 * page_size() as u64;
        }
        assert_eq!(stats(), expected);
        anonymous(4).populate(.., Access::Write).unwrap();
        assert_eq!(stats().populate.calls, 1);
        assert_eq!(stats().munmap.calls, 1);
        0
    });
    assert_eq!(status, 0);
    settle();
    assert_eq!(stats().populate, before.populate, "the parent's");
    assert_eq!(stats().munmap.calls, before.munmap.calls + 1);
}

fn a_child_knows_what_is_volatile_in_it() -> Completion {
    if !Features::get().sigbus_on_missing() {
        return skip("no userfaultfd");
    }
    in_child_ok("marking_first_of_all");
    Completion::Completed
}

/// The first that this process does with tenure: handlers of forks are called in
/// the order in which they were registered.
fn marking_first_of_all() {
    let memory = anonymous(64);
    unsafe { memory.range().mark_volatile() }.unwrap();
    let bytes = 64 * page_size() as u64;
    let status = fork(|| i32::from(stats().volatile_bytes != bytes));
    assert_eq!(status, 0);
}

fn without_room_for_a_page_they_count_all_the_same() {
    in_child_ok("counting_without_a_page");
}

fn counting_without_a_page() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let range = page_of_static();
    // Asks all that is asked once, without counting anything.
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
    assert_eq!(status, 0, "a child counts from zero");
}

/// A child that says when it is ready and ends when it is told to.
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

/// Handles count beside the figures: they have to come together.
fn counting_handles() {
    let page = page_size() as u64;
    // So that nothing is offered meanwhile.
    tenure::set_hand_over_delay(Duration::from_secs(3600));
    let mut buffer = VolatileBuffer::new(4 * page_size()).unwrap();
    for _ in 0..3 {
        buffer.mark_volatile();
        let _ = buffer.mark_nonvolatile().unwrap();
    }
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
            "what the parent has done is not the child's"
        );
        0
    });
    assert_eq!(status, 0);
    let _ = buffer.mark_nonvolatile().unwrap();
    serve();
    // What is gone has counted.
    drop(buffer);
    assert_eq!(stats().mark_volatile.calls, 6);
}

fn handles_count_and_others_see_it() -> Completion {
    if !Features::get().sigbus_on_missing() {
        return skip("no userfaultfd");
    }
    let server = Server::start("counting_handles");
    let theirs = || Stats::of_process(server.pid()).unwrap().unwrap();
    // Within a second, if the other process gets to run.
    let start = Instant::now();
    while (theirs().mark_nonvolatile.calls, theirs().volatile_bytes) != (4, 0) {
        assert!(start.elapsed() < Duration::from_secs(60), "{:?}", theirs());
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(theirs().mark_volatile.bytes, 24 * page_size() as u64);
    server.end();
    Completion::Completed
}

fn serving() {
    let memory = anonymous(64);
    memory.populate(.., Access::Write).unwrap();
    memory.populate(.., Access::Read).unwrap();
    serve();
}

fn another_process_can_be_read() {
    let own = Stats::of_process(std::process::id()).unwrap();
    assert_eq!(own, Some(stats()));
    let server = Server::start("serving");
    let theirs = Stats::of_process(server.pid()).unwrap().unwrap();
    let mut expected = Stats::default();
    expected.populate.calls = 2;
    expected.populate.bytes = 128 * page_size() as u64;
    assert_eq!(theirs, expected);
    let pid = server.end();
    let gone = Stats::of_process(pid).unwrap_err();
    assert_eq!(gone, Error::NoProcess { pid });
    assert_eq!(gone.errno(), libc::ESRCH);
}

/// Makes a page like those that tenure counts in.
fn named_page(name: &std::ffi::CStr, first: u64) {
    let memfd = rustix::fs::memfd_create(name, rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&memfd, page_size() as u64).unwrap();
    let file = std::fs::File::from(memfd);
    let page = unsafe { Mapping::file(&file) }.private().read_write();
    let page = page.map().unwrap();
    unsafe { page.as_ptr().cast::<u64>().write(first) };
    std::mem::forget(page);
}

fn two_pages() {
    let memory = anonymous(1);
    memory.populate(.., Access::Write).unwrap();
    named_page(c"tenure-stats-1", 40);
    named_page(c"tenure-stats-1", 500);
    serve();
}

fn several_pages_are_added_up() {
    let server = Server::start("two_pages");
    let theirs = Stats::of_process(server.pid()).unwrap().unwrap();
    assert_eq!(theirs.populate.calls, 541);
    server.end();
}

fn a_process_without_tenure_has_none() {
    let mut sleeper = Command::new("sleep").arg("60").spawn().unwrap();
    let answer = Stats::of_process(sleeper.id());
    sleeper.kill().unwrap();
    sleeper.wait().unwrap();
    assert_eq!(answer, Ok(None));
}

fn unknown_layout() {
    named_page(c"tenure-stats-99", 1);
    serve();
}

fn an_unknown_layout_is_refused() {
    let server = Server::start("unknown_layout");
    let pid = server.pid();
    let refused = Stats::of_process(pid).unwrap_err();
    assert!(
        matches!(&refused, Error::OtherLayout { layout, .. } if layout.contains("stats-99")),
        "{refused}"
    );
    server.end();
}

fn who_may_not_look_is_told_so() -> Completion {
    use std::os::unix::fs::MetadataExt;
    let owner = std::fs::metadata("/proc/1").unwrap().uid();
    if !is_root() && owner == rustix::process::geteuid().as_raw() {
        return skip("process 1 is our own");
    }
    in_child_ok("looking_at_a_stranger");
    Completion::Completed
}

fn looking_at_a_stranger() {
    give_up_privileges();
    let refused = Stats::of_process(1).unwrap_err();
    assert!(
        matches!(refused, Error::MayNotLook { pid: 1, .. }),
        "{refused}"
    );
    assert!(refused.to_string().contains("ptrace"), "{refused}");
}
