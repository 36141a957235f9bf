//! `LockedFile`: what is locked, what the budget lets go, and that no byte is
//! ever wrong.

#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "tests use files that they have made themselves"
)]

mod common;

use std::fs::{self, File};
use std::hint::black_box;
use std::io::{BufWriter, Write};
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use common::cgroup::{Group, enter_group};
use common::*;
use libtest_mimic::Completion;
use rustix::fs::Advice as FileAdvice;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tenure::{Access, Error, LockMode, LockedFile, Mapping, PageRange, page_size};

tests!(
    nothing_is_locked_at_first,
    what_is_touched_is_locked_with_its_neighbours,
    resident_is_what_the_page_cache_has,
    what_is_locked_outlives_what_evicts_the_rest,
    what_is_locked_outlives_a_lack_of_memory,
    the_thread_keeps_the_budget,
    a_large_budget_is_kept,
    the_oldest_goes_first,
    a_hot_set_stays,
    contents_are_right_while_trimming,
    one_mapping_it_stays,
    dropping_ends_the_thread,
    without_a_budget_nothing_is_let_go,
    a_child_reads_and_has_no_locks,
    a_shortened_file_can_be_trimmed,
    what_cannot_be_mapped_is_an_error,
    over_the_limit_nothing_stays_mapped,
    hugetlb_files_are_refused,
    others_are_not_told_what_is_resident,
    older_kernels_let_go_too;
    children:
    run_out_of_memory,
    lock_past_the_limit,
    look_at_the_file_of_another,
    keep_the_budget,
    lose_and_find_a_lock,
);

const KIB: usize = 1 << 10;

/// Less than `RLIMIT_MEMLOCK` is by default (8 MiB), for unprivileged runs.
const FILE_BYTES: usize = 6 << 20;
const BUDGET: usize = 2 << 20;

/// The budget is let go in pieces of a sixteenth: whole numbers of them come and
/// go together.
const PIECE: usize = BUDGET / 8;

fn byte_at(index: usize) -> u8 {
    (index % 251) as u8
}

/// A file of base pages: what is written in larger pieces may get large folios,
/// which come in as a whole.
fn model(len: usize) -> File {
    let file = tempfile::tempfile().unwrap();
    let bytes: Vec<u8> = (0..len).map(byte_at).collect();
    let mut writer = BufWriter::with_capacity(page_size(), file);
    for page in bytes.chunks(page_size()) {
        writer.write_all(page).unwrap();
    }
    let file = writer.into_inner().unwrap();
    // What is dirty cannot leave the page cache.
    file.sync_all().unwrap();
    file
}

fn map(file: &File) -> LockedFile {
    unsafe { LockedFile::map(file) }.unwrap()
}

fn with_budget(file: &File, budget_bytes: usize) -> LockedFile {
    unsafe { LockedFile::with_budget(file, budget_bytes) }.unwrap()
}

fn touch(locked: &LockedFile, bytes: Range<usize>) {
    for at in bytes.step_by(page_size()) {
        assert_eq!(black_box(locked.as_slice()[at]), byte_at(at));
    }
}

fn part(locked: &LockedFile, bytes: Range<usize>) -> PageRange {
    PageRange::new(locked.range().start() + bytes.start, bytes.len()).unwrap()
}

fn present_bytes(locked: &LockedFile, bytes: Range<usize>) -> usize {
    count_present(part(locked, bytes)) * page_size()
}

/// How many whole pieces a file has, wherever it is mapped.
const PIECES: usize = FILE_BYTES / PIECE - 1;

/// Bytes of the file that begin and end where pieces do. A touch brings nothing
/// in behind them.
fn pieces(locked: &LockedFile, indices: Range<usize>) -> Range<usize> {
    let start = locked.range().start();
    let first = start.next_multiple_of(PIECE) - start;
    first + indices.start * PIECE..first + indices.end * PIECE
}

fn piece(locked: &LockedFile, index: usize) -> Range<usize> {
    pieces(locked, index..index + 1)
}

/// Waits for what other threads do, as long as it may take on a busy machine.
fn settle(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < Duration::from_secs(30), "{what}");
        thread::sleep(Duration::from_millis(2));
    }
}

/// Has the kernel drop what it may of the file from the page cache.
fn evict(file: &File) {
    rustix::fs::fadvise(file, 0, None, FileAdvice::DontNeed).unwrap();
}

/// Why a file's pages cannot be evicted here, if so.
fn unevictable(file: &File) -> Option<&'static str> {
    let kind = rustix::fs::fstatfs(file).unwrap().f_type;
    (kind == libc::TMPFS_MAGIC).then_some("TMPDIR is on tmpfs, whose pages cannot be evicted")
}

fn mapping_count(range: PageRange) -> usize {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let overlaps = |line: &&str| {
        let (start, end) = line.split_once(' ').unwrap().0.split_once('-').unwrap();
        let [start, end] = [start, end].map(|hex| usize::from_str_radix(hex, 16).unwrap());
        start < range.end() && range.start() < end
    };
    maps.lines().filter(overlaps).count()
}

fn budget_threads() -> usize {
    let tasks = fs::read_dir("/proc/self/task").unwrap();
    // A thread that ends meanwhile has no name.
    let names = tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.filter(|name| name.trim() == "tenure-budget").count()
}

fn nothing_is_locked_at_first() {
    let file = model(FILE_BYTES);
    let before = status_kib("VmLck");
    let locked = map(&file);
    assert_eq!(locked.len(), FILE_BYTES);
    assert_eq!(locked.budget_bytes(), None);
    assert!(is_locked_on_fault(locked.range()));
    assert_eq!(status_kib("VmLck") - before, (FILE_BYTES / KIB) as u64);
    assert_eq!(locked.locked_bytes(), Ok(0));
    assert_eq!(count_present(locked.range()), 0);
    drop(locked);
    assert_eq!(status_kib("VmLck"), before);
    assert_eq!(with_budget(&file, BUDGET).budget_bytes(), Some(BUDGET));
}

fn what_is_touched_is_locked_with_its_neighbours() {
    let file = model(FILE_BYTES);
    let locked = map(&file);
    touch(&locked, 1 << 20..(1 << 20) + 1);
    let after_one = locked.locked_bytes().unwrap();
    assert_eq!(after_one, present_bytes(&locked, 0..FILE_BYTES));
    assert!(after_one >= page_size() && after_one < FILE_BYTES / 2);
    assert_eq!(smaps_bytes(locked.range(), "Locked"), after_one as u64);
    touch(&locked, 0..FILE_BYTES);
    assert_eq!(locked.locked_bytes(), Ok(FILE_BYTES));
    // The last page counts whole.
    let file = model(3 * page_size() + 1);
    let locked = map(&file);
    assert_eq!(locked.len(), 3 * page_size() + 1);
    touch(&locked, 0..locked.len());
    assert_eq!(locked.locked_bytes(), Ok(4 * page_size()));
    assert_eq!(locked.resident_bytes(), Ok(4 * page_size()));
}

fn resident_is_what_the_page_cache_has() -> Completion {
    let file = model(FILE_BYTES);
    if let Some(reason) = unevictable(&file) {
        return skip(reason);
    }
    let locked = map(&file);
    settle("evicting the file", || {
        evict(&file);
        locked.resident_bytes() == Ok(0)
    });
    touch(&locked, 0..1);
    let held = locked.locked_bytes().unwrap();
    assert!(held >= page_size());
    assert!(locked.resident_bytes().unwrap() >= held);
    // Others bring in what is not locked here.
    let mut buffer = vec![0; FILE_BYTES];
    file.read_exact_at(&mut buffer, 0).unwrap();
    assert_eq!(locked.resident_bytes(), Ok(FILE_BYTES));
    assert_eq!(locked.locked_bytes(), Ok(held));
    Completion::Completed
}

fn what_is_locked_outlives_what_evicts_the_rest() -> Completion {
    let file = model(FILE_BYTES);
    if let Some(reason) = unevictable(&file) {
        return skip(reason);
    }
    let locked = with_budget(&file, BUDGET);
    let first = pieces(&locked, 0..BUDGET / PIECE);
    let second = pieces(&locked, BUDGET / PIECE..2 * BUDGET / PIECE);
    touch(&locked, first.clone());
    let advice = rustix::mm::Advice::LinuxPageOut;
    let range = locked.range();
    let answer = unsafe { rustix::mm::madvise(range.as_ptr().cast(), range.len(), advice) };
    assert_eq!(answer, Err(rustix::io::Errno::INVAL));
    settle("evicting what is not locked", || {
        evict(&file);
        locked.resident_bytes() == Ok(BUDGET)
    });
    assert_eq!(locked.locked_bytes(), Ok(BUDGET));
    // What is let go is evictable from then on.
    touch(&locked, second.clone());
    settle("the budget", || locked.locked_bytes().unwrap() <= BUDGET);
    settle("evicting what was let go", || {
        evict(&file);
        locked.resident_bytes().unwrap() <= BUDGET
    });
    assert_eq!(present_bytes(&locked, first), 0);
    assert_eq!(present_bytes(&locked, second), BUDGET);
    Completion::Completed
}

fn what_is_locked_outlives_a_lack_of_memory() -> Completion {
    if let Some(reason) = unevictable(&model(1)) {
        return skip(reason);
    }
    let group = match Group::with_limit(64 << 20) {
        Ok(group) => group,
        Err(why) => return skip(&why),
    };
    group.run("run_out_of_memory");
    Completion::Completed
}

fn run_out_of_memory() {
    const OTHERS: usize = 24 << 20;
    enter_group();
    let (file, other) = (model(FILE_BYTES), model(OTHERS));
    let locked = map(&file);
    touch(&locked, 0..FILE_BYTES);
    let plain = unsafe { Mapping::file(&other) }.map().unwrap();
    plain.populate(.., Access::Read).unwrap();
    assert_eq!(count_present(plain.range()) * page_size(), OTHERS);
    // Memory that cannot leave by way of swap either.
    let memory = anonymous((42 << 20) / page_size());
    memory.lock(.., LockMode::Now).unwrap();
    assert!(count_present(plain.range()) * page_size() < OTHERS);
    assert_eq!(locked.locked_bytes(), Ok(FILE_BYTES));
    assert_eq!(locked.resident_bytes(), Ok(FILE_BYTES));
}

/// Three times, for what is not locked the kernel may evict by itself, but not each time.
fn let_go_not_evicted(file_bytes: usize, mut use_all: impl FnMut() -> usize) {
    let resident: Vec<_> = (0..3).map(|_| use_all()).collect();
    assert!(
        resident.contains(&file_bytes),
        "{resident:?} bytes are left"
    );
}

fn the_thread_keeps_the_budget() {
    let file = model(FILE_BYTES);
    let locked = with_budget(&file, BUDGET);
    let_go_not_evicted(FILE_BYTES, || {
        touch(&locked, 0..FILE_BYTES);
        settle("the budget", || locked.locked_bytes().unwrap() <= BUDGET);
        // Not more is let go than must be.
        assert!(locked.locked_bytes().unwrap() > BUDGET - PIECE);
        locked.resident_bytes().unwrap()
    });
}

/// From 32 MiB on, chunks are as large as folios can be, and full ones are not
/// looked at again.
fn a_large_budget_is_kept() -> Completion {
    const FILE: usize = 40 << 20;
    const LARGE: usize = 32 << 20;
    let limit = getrlimit(Resource::Memlock).current;
    if !is_root() && limit.is_some_and(|limit| limit < FILE as u64) {
        return skip("RLIMIT_MEMLOCK is less than 40 MiB");
    }
    let file = model(FILE);
    let locked = with_budget(&file, LARGE);
    let_go_not_evicted(FILE, || {
        touch(&locked, 0..FILE);
        settle("the budget", || locked.locked_bytes().unwrap() <= LARGE);
        assert!(locked.locked_bytes().unwrap() >= LARGE - (2 << 20));
        locked.resident_bytes().unwrap()
    });
    assert_eq!(locked.as_slice()[FILE - 1], byte_at(FILE - 1));
    Completion::Completed
}

fn the_oldest_goes_first() {
    let file = model(FILE_BYTES);
    let locked = with_budget(&file, BUDGET);
    let order = [5, 2, 11, 0, 7, 3, 20, 9];
    for index in order {
        touch(&locked, piece(&locked, index));
        // Looks, and so notes the order.
        assert_eq!(locked.trim(), Ok(0));
    }
    assert_eq!(locked.locked_bytes(), Ok(BUDGET));
    for (gone, new) in [14, 1, 22].into_iter().enumerate() {
        touch(&locked, piece(&locked, new));
        // The thread may have been faster.
        assert!(locked.trim().unwrap() <= PIECE);
        assert_eq!(locked.locked_bytes(), Ok(BUDGET));
        assert_eq!(present_bytes(&locked, piece(&locked, new)), PIECE);
        for (place, index) in order.into_iter().enumerate() {
            let expected = if place <= gone { 0 } else { PIECE };
            assert_eq!(
                present_bytes(&locked, piece(&locked, index)),
                expected,
                "{index} after {new}"
            );
        }
    }
}

fn a_hot_set_stays() {
    const HOT: usize = BUDGET / 4 * 3;
    let file = model(FILE_BYTES);
    let locked = with_budget(&file, BUDGET);
    let hot = pieces(&locked, 0..HOT / PIECE);
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                touch(&locked, hot.clone());
                thread::sleep(Duration::from_micros(200));
            }
        });
        // Should the scan below fail, the thread above must end all the same.
        let _ends = EndsWhenDropped(&done);
        for _ in 0..10 {
            for index in HOT / PIECE..PIECES {
                touch(&locked, piece(&locked, index));
                thread::sleep(Duration::from_millis(2));
            }
        }
        settle("the hot set within the budget", || {
            let held = present_bytes(&locked, hot.clone());
            locked.locked_bytes().unwrap() <= BUDGET && held > HOT / 100 * 95
        });
    });
}

struct EndsWhenDropped<'a>(&'a AtomicBool);

impl Drop for EndsWhenDropped<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn contents_are_right_while_trimming() {
    let file = model(FILE_BYTES);
    let locked = with_budget(&file, 128 * KIB);
    let let_go = AtomicUsize::new(0);
    let expected: Vec<u8> = (0..FILE_BYTES).map(byte_at).collect();
    let begin = Instant::now();
    // Until more has been let go than there is, however slow the machine is.
    let is_enough = || let_go.load(Ordering::Relaxed) > FILE_BYTES;
    let read = || {
        let mut rounds = 0;
        while rounds < 20 || !is_enough() {
            assert!(begin.elapsed() < Duration::from_secs(60), "{let_go:?}");
            assert!(locked.as_slice() == expected);
            rounds += 1;
        }
    };
    thread::scope(|scope| {
        let readers = [(); 2].map(|()| scope.spawn(read));
        while !readers.iter().all(ScopedJoinHandle::is_finished) {
            let_go.fetch_add(locked.trim().unwrap(), Ordering::Relaxed);
        }
    });
    assert!(is_enough(), "{let_go:?}");
    assert_eq!(locked.as_slice(), expected);
}

fn one_mapping_it_stays() {
    let file = model(FILE_BYTES);
    let locked = with_budget(&file, BUDGET);
    for index in 0..PIECES {
        // Every other one, so that the parts let go would be many.
        touch(&locked, piece(&locked, index * 7 % PIECES));
        locked.trim().unwrap();
    }
    settle("one mapping", || mapping_count(locked.range()) == 1);
    assert!(is_locked_on_fault(locked.range()));
}

fn dropping_ends_the_thread() {
    let file = model(FILE_BYTES);
    assert_eq!(budget_threads(), 0);
    for _ in 0..20 {
        let locked = with_budget(&file, BUDGET);
        settle("the thread", || budget_threads() == 1);
        touch(&locked, 0..FILE_BYTES);
        let range = locked.range();
        drop(locked);
        // It was joined; its entry goes a moment later.
        settle("the thread's end", || budget_threads() == 0);
        assert_eq!(mapping_count(range), 0);
    }
}

fn without_a_budget_nothing_is_let_go() {
    let file = model(FILE_BYTES);
    let locked = map(&file);
    touch(&locked, 0..FILE_BYTES);
    assert_eq!(budget_threads(), 0);
    assert_eq!(locked.trim(), Ok(0));
    assert_eq!(locked.locked_bytes(), Ok(FILE_BYTES));
}

fn a_child_reads_and_has_no_locks() {
    let file = model(FILE_BYTES);
    let mut locked = Some(with_budget(&file, 128 * KIB));
    // The thread is in the middle of its work when the children are forked.
    for _ in 0..30 {
        touch(locked.as_ref().unwrap(), 0..FILE_BYTES);
        let status = fork(|| {
            // Hanging ends with a signal.
            unsafe { libc::alarm(30) };
            let locked = locked.take().unwrap();
            touch(&locked, 0..FILE_BYTES);
            assert_eq!(locked.locked_bytes(), Ok(0));
            assert_eq!(locked.resident_bytes(), Ok(FILE_BYTES));
            assert_eq!(locked.trim(), Ok(0));
            assert_eq!(present_bytes(&locked, 0..FILE_BYTES), FILE_BYTES);
            assert_eq!(budget_threads(), 0);
            let range = locked.range();
            drop(locked);
            assert_eq!(mapping_count(range), 0);
            // The child can have its own.
            let own = with_budget(&file, BUDGET);
            touch(&own, 0..FILE_BYTES);
            settle("the child's budget", || {
                own.locked_bytes().unwrap() <= BUDGET
            });
            0
        });
        assert_eq!(status, 0);
    }
    let locked = locked.unwrap();
    settle("the budget", || locked.locked_bytes().unwrap() <= 128 * KIB);
    assert!(has_vm_flag(locked.range(), "lo"));
}

fn a_shortened_file_can_be_trimmed() {
    let file = model(FILE_BYTES);
    let locked = with_budget(&file, BUDGET);
    touch(&locked, 0..BUDGET + PIECE);
    file.set_len(page_size() as u64).unwrap();
    locked.trim().unwrap();
    settle("the cut", || locked.locked_bytes().unwrap() <= page_size());
    assert_eq!(locked.resident_bytes(), Ok(page_size()));
    assert_eq!(locked.len(), FILE_BYTES);
    file.set_len(0).unwrap();
    assert_eq!(locked.trim(), Ok(0));
    assert_eq!(locked.locked_bytes(), Ok(0));
}

fn what_cannot_be_mapped_is_an_error() {
    let refused = |file: &File| unsafe { LockedFile::with_budget(file, BUDGET) }.unwrap_err();
    let empty = tempfile::tempfile().unwrap();
    assert_eq!(refused(&empty), Error::EmptyMapping);
    let folder = tempfile::tempdir().unwrap();
    let error = refused(&File::open(folder.path()).unwrap());
    assert_eq!(error.errno(), libc::ENODEV, "{error}");
    let write_only = File::create(folder.path().join("file")).unwrap();
    write_only.set_len(page_size() as u64).unwrap();
    let error = refused(&write_only);
    assert_eq!(error.errno(), libc::EACCES, "{error}");
    assert_eq!(budget_threads(), 0);
}

/// Sets the soft limit that the process has from now on.
fn limit_memlock(bytes: usize) {
    let maximum = getrlimit(Resource::Memlock).maximum;
    let current = Some(bytes as u64);
    setrlimit(Resource::Memlock, Rlimit { current, maximum }).unwrap();
}

fn lock_past_the_limit() {
    let file = model(FILE_BYTES);
    limit_memlock(FILE_BYTES - page_size());
    give_up_privileges();
    let count = || {
        fs::read_to_string("/proc/self/maps")
            .unwrap()
            .lines()
            .count()
    };
    // The page of counters, which comes with the first verb, is there to stay.
    tenure::stats();
    let before = count();
    for _ in 0..3 {
        let error = unsafe { LockedFile::with_budget(&file, BUDGET) }.unwrap_err();
        assert!(
            matches!(error, Error::LockLimit { limit_bytes, used_bytes: 0, .. }
                if limit_bytes == FILE_BYTES - page_size()),
            "{error}"
        );
    }
    assert_eq!(count(), before);
    assert_eq!(status_kib("VmLck"), 0);
    // The budget is not what is charged.
    limit_memlock(FILE_BYTES);
    with_budget(&file, BUDGET);
}

fn over_the_limit_nothing_stays_mapped() {
    in_child_ok("lock_past_the_limit");
}

fn hugetlb_files_are_refused() -> Completion {
    let Some(_pool) = HugePool::of(1) else {
        return skip("no huge page to be had");
    };
    let flags = rustix::fs::MemfdFlags::HUGETLB | rustix::fs::MemfdFlags::HUGE_2MB;
    let file = File::from(rustix::fs::memfd_create("huge", flags).unwrap());
    file.set_len(2 << 20).unwrap();
    let error = unsafe { LockedFile::map(&file) }.unwrap_err();
    assert!(matches!(error, Error::WrongKind { .. }), "{error}");
    // Nor was it populated.
    assert_eq!(file.metadata().unwrap().blocks(), 0);
    Completion::Completed
}

fn look_at_the_file_of_another() {
    give_up_privileges();
    let file = File::open("/etc/passwd").unwrap();
    let locked = map(&file);
    let error = locked.resident_bytes().unwrap_err();
    assert!(matches!(error, Error::Unsupported { .. }), "{error}");
    assert!(error.to_string().contains("owns the file"), "{error}");
    assert_eq!(locked.locked_bytes(), Ok(0));
    assert!(!black_box(locked.as_slice()).is_empty());
    black_box(locked.as_slice()[0]);
    assert_eq!(locked.locked_bytes(), Ok(locked.range().len()));
}

fn others_are_not_told_what_is_resident() {
    in_child_ok("look_at_the_file_of_another");
}

fn keep_the_budget() {
    the_thread_keeps_the_budget();
    the_oldest_goes_first();
    a_hot_set_stays();
    contents_are_right_while_trimming();
    one_mapping_it_stays();
}

/// The lock that another lock has taken the room of meanwhile is made again.
fn lose_and_find_a_lock() {
    let file = model(FILE_BYTES);
    give_up_privileges();
    let locked = with_budget(&file, BUDGET);
    limit_memlock(0);
    touch(&locked, 0..BUDGET + PIECE);
    settle("a part unlocked", || mapping_count(locked.range()) > 1);
    touch(&locked, 0..BUDGET + PIECE);
    // What is not locked does not count, though it is there.
    settle("told as it is locked", || {
        let told = locked.locked_bytes().unwrap();
        let pages = present(locked.range()).into_iter();
        let pages: Vec<_> = pages.zip(lock_modes(locked.range())).collect();
        let is_locked = |(is_there, lock): &&(bool, SeenLock)| *is_there && lock.0.is_some();
        let count = pages.iter().filter(is_locked).count();
        let is_unlocked = |(is_there, lock): &(bool, SeenLock)| *is_there && lock.0.is_none();
        pages.iter().any(is_unlocked) && told == count * page_size()
    });
    limit_memlock(FILE_BYTES);
    settle("all locked again", || {
        locked.trim().unwrap();
        mapping_count(locked.range()) == 1
    });
    assert!(is_locked_on_fault(locked.range()));
}

fn older_kernels_let_go_too() {
    let older = "madv_dontneed_locked,pagemap_scan,procmap_query";
    in_child_without(older, "keep_the_budget");
    in_child_without(older, "lose_and_find_a_lock");
}
