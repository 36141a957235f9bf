//! `LockedFile`: which pages are locked, which ones the budget unlocks, and that no byte is
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
use tenure::{
    Access, Error, LockMode, LockedFile, Mapping, PageRange,
    lock::{LockFlags, LockScope, lock_all, unlock_all},
    page_size,
};

tests!(
    untouched_file_has_no_locked_bytes,
    touched_page_is_locked_with_fault_around_pages,
    resident_bytes_match_page_cache,
    locked_pages_survive_eviction,
    locked_pages_survive_memory_shortage,
    budget_thread_trims_to_budget,
    large_budget_is_kept,
    trim_unlocks_oldest_piece_first,
    hot_set_under_scan_stays_locked,
    contents_read_during_trim_are_correct,
    trimmed_file_stays_one_mapping,
    dropped_file_ends_budget_thread,
    file_without_budget_is_not_trimmed,
    forked_child_reads_file_without_locks,
    truncated_file_is_trimmed,
    unmappable_file_is_an_error,
    file_over_memlock_limit_leaves_nothing_mapped,
    [exclusive] hugetlb_file_is_rejected,
    resident_bytes_of_foreign_file_is_unsupported,
    budget_holds_on_older_kernels,
    file_mapped_without_descriptors_is_locked,
    budget_holds_beside_unlock_all;
    children:
    exhaust_cgroup_memory,
    map_over_memlock_limit,
    query_foreign_file,
    check_budget,
    restore_missing_lock,
    map_without_descriptors,
    unlock_all_beside_evictor,
);

const KIB: usize = 1 << 10;

/// Less than `RLIMIT_MEMLOCK` is by default (8 MiB), for unprivileged runs.
const FILE_BYTES: usize = 6 << 20;
const BUDGET: usize = 2 << 20;

/// A sixteenth of the budget is unlocked at a time: whole pieces of this size are locked
/// and unlocked together.
const PIECE: usize = BUDGET / 8;

fn byte_at(index: usize) -> u8 {
    (index % 251) as u8
}

/// Creates a file of base pages: larger writes may create large folios, which become
/// resident as a whole.
fn patterned_file(len: usize) -> File {
    let file = tempfile::tempfile().unwrap();
    let bytes: Vec<u8> = (0..len).map(byte_at).collect();
    let mut writer = BufWriter::with_capacity(page_size(), file);
    for page in bytes.chunks(page_size()) {
        writer.write_all(page).unwrap();
    }
    let file = writer.into_inner().unwrap();
    // Dirty pages cannot leave the page cache.
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

/// The number of whole pieces in a file, wherever it is mapped.
const PIECES: usize = FILE_BYTES / PIECE - 1;

/// Returns the bytes of the file between two piece boundaries. A touch maps nothing behind
/// them.
fn pieces(locked: &LockedFile, indices: Range<usize>) -> Range<usize> {
    let start = locked.range().start();
    let first = start.next_multiple_of(PIECE) - start;
    first + indices.start * PIECE..first + indices.end * PIECE
}

fn piece(locked: &LockedFile, index: usize) -> Range<usize> {
    pieces(locked, index..index + 1)
}

/// Waits for other threads, as long as a busy machine may need.
fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < Duration::from_secs(30), "{what}");
        thread::sleep(Duration::from_millis(2));
    }
}

/// Makes the kernel drop what it may of the file from the page cache.
fn evict(file: &File) {
    rustix::fs::fadvise(file, 0, None, FileAdvice::DontNeed).unwrap();
}

/// Returns the reason why the file's pages cannot be evicted here, if there is one.
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
    // A thread that ends concurrently has no name.
    let names = tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.filter(|name| name.trim() == "tenure-evictor").count()
}

fn untouched_file_has_no_locked_bytes() {
    let file = patterned_file(FILE_BYTES);
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

fn touched_page_is_locked_with_fault_around_pages() {
    let file = patterned_file(FILE_BYTES);
    let locked = map(&file);
    touch(&locked, 1 << 20..(1 << 20) + 1);
    let after_one = locked.locked_bytes().unwrap();
    assert_eq!(after_one, present_bytes(&locked, 0..FILE_BYTES));
    assert!(after_one >= page_size() && after_one < FILE_BYTES / 2);
    assert_eq!(smaps_bytes(locked.range(), "Locked"), after_one as u64);
    touch(&locked, 0..FILE_BYTES);
    assert_eq!(locked.locked_bytes(), Ok(FILE_BYTES));
    // The last page counts whole.
    let file = patterned_file(3 * page_size() + 1);
    let locked = map(&file);
    assert_eq!(locked.len(), 3 * page_size() + 1);
    touch(&locked, 0..locked.len());
    assert_eq!(locked.locked_bytes(), Ok(4 * page_size()));
    assert_eq!(locked.resident_bytes(), Ok(4 * page_size()));
}

fn resident_bytes_match_page_cache() -> Completion {
    let file = patterned_file(FILE_BYTES);
    if let Some(reason) = unevictable(&file) {
        return skip(reason);
    }
    let locked = map(&file);
    wait_until("the file is evicted", || {
        evict(&file);
        locked.resident_bytes() == Ok(0)
    });
    touch(&locked, 0..1);
    let held = locked.locked_bytes().unwrap();
    assert!(held >= page_size());
    assert!(locked.resident_bytes().unwrap() >= held);
    // A read makes pages resident without locking them here.
    let mut buffer = vec![0; FILE_BYTES];
    file.read_exact_at(&mut buffer, 0).unwrap();
    assert_eq!(locked.resident_bytes(), Ok(FILE_BYTES));
    assert_eq!(locked.locked_bytes(), Ok(held));
    Completion::Completed
}

fn locked_pages_survive_eviction() -> Completion {
    let file = patterned_file(FILE_BYTES);
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
    wait_until("pages that are not locked are evicted", || {
        evict(&file);
        locked.resident_bytes() == Ok(BUDGET)
    });
    assert_eq!(locked.locked_bytes(), Ok(BUDGET));
    // Unlocked pages are evictable from then on.
    touch(&locked, second.clone());
    wait_until("the budget is kept", || {
        locked.locked_bytes().unwrap() <= BUDGET
    });
    wait_until("the unlocked pages are evicted", || {
        evict(&file);
        locked.resident_bytes().unwrap() <= BUDGET
    });
    assert_eq!(present_bytes(&locked, first), 0);
    assert_eq!(present_bytes(&locked, second), BUDGET);
    Completion::Completed
}

fn locked_pages_survive_memory_shortage() -> Completion {
    if let Some(reason) = unevictable(&patterned_file(1)) {
        return skip(reason);
    }
    let group = match Group::with_limit(64 << 20) {
        Ok(group) => group,
        Err(why) => return skip(&why),
    };
    group.run("exhaust_cgroup_memory");
    Completion::Completed
}

fn exhaust_cgroup_memory() {
    const OTHERS: usize = 24 << 20;
    enter_group();
    let (file, other) = (patterned_file(FILE_BYTES), patterned_file(OTHERS));
    let locked = map(&file);
    touch(&locked, 0..FILE_BYTES);
    let plain = unsafe { Mapping::file(&other) }.map().unwrap();
    plain.populate(.., Access::Read).unwrap();
    assert_eq!(count_present(plain.range()) * page_size(), OTHERS);
    // This memory cannot leave by way of swap either.
    let memory = anonymous((42 << 20) / page_size());
    memory.lock(.., LockMode::Now).unwrap();
    assert!(count_present(plain.range()) * page_size() < OTHERS);
    assert_eq!(locked.locked_bytes(), Ok(FILE_BYTES));
    assert_eq!(locked.resident_bytes(), Ok(FILE_BYTES));
}

/// Asserts that trimming leaves the pages in the page cache. It tries three times, because
/// the kernel may evict unlocked pages by itself, but not each time.
fn assert_trimmed_not_evicted(file_bytes: usize, mut use_all: impl FnMut() -> usize) {
    let resident: Vec<_> = (0..3).map(|_| use_all()).collect();
    assert!(
        resident.contains(&file_bytes),
        "only {resident:?} bytes are resident"
    );
}

fn budget_thread_trims_to_budget() {
    let file = patterned_file(FILE_BYTES);
    let locked = with_budget(&file, BUDGET);
    assert_trimmed_not_evicted(FILE_BYTES, || {
        touch(&locked, 0..FILE_BYTES);
        wait_until("the budget is kept", || {
            locked.locked_bytes().unwrap() <= BUDGET
        });
        // No more is unlocked than necessary.
        assert!(locked.locked_bytes().unwrap() > BUDGET - PIECE);
        locked.resident_bytes().unwrap()
    });
}

/// From 32 MiB on, chunks are as large as folios can be, and full chunks are not looked at
/// again.
fn large_budget_is_kept() -> Completion {
    const FILE: usize = 40 << 20;
    const LARGE: usize = 32 << 20;
    let limit = getrlimit(Resource::Memlock).current;
    if !is_root() && limit.is_some_and(|limit| limit < FILE as u64) {
        return skip("RLIMIT_MEMLOCK is less than 40 MiB");
    }
    let file = patterned_file(FILE);
    let locked = with_budget(&file, LARGE);
    assert_trimmed_not_evicted(FILE, || {
        touch(&locked, 0..FILE);
        wait_until("the budget is kept", || {
            locked.locked_bytes().unwrap() <= LARGE
        });
        assert!(locked.locked_bytes().unwrap() >= LARGE - (2 << 20));
        locked.resident_bytes().unwrap()
    });
    assert_eq!(locked.as_slice()[FILE - 1], byte_at(FILE - 1));
    Completion::Completed
}

fn trim_unlocks_oldest_piece_first() {
    let file = patterned_file(FILE_BYTES);
    let locked = with_budget(&file, BUDGET);
    let order = [5, 2, 11, 0, 7, 3, 20, 9];
    for index in order {
        touch(&locked, piece(&locked, index));
        // Trimming scans the chunks, and so records the order.
        assert_eq!(locked.trim(), Ok(0));
    }
    assert_eq!(locked.locked_bytes(), Ok(BUDGET));
    for (nth, new) in [14, 1, 22].into_iter().enumerate() {
        touch(&locked, piece(&locked, new));
        // The thread may have trimmed first.
        assert!(locked.trim().unwrap() <= PIECE);
        assert_eq!(locked.locked_bytes(), Ok(BUDGET));
        assert_eq!(present_bytes(&locked, piece(&locked, new)), PIECE);
        for (place, index) in order.into_iter().enumerate() {
            let expected = if place <= nth { 0 } else { PIECE };
            assert_eq!(
                present_bytes(&locked, piece(&locked, index)),
                expected,
                "{index} after {new}"
            );
        }
    }
}

fn hot_set_under_scan_stays_locked() {
    const HOT: usize = BUDGET / 4 * 3;
    let file = patterned_file(FILE_BYTES);
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
        // If the scan below fails, the thread above must end all the same.
        let _ends = SetOnDrop(&done);
        for _ in 0..10 {
            for index in HOT / PIECE..PIECES {
                touch(&locked, piece(&locked, index));
                thread::sleep(Duration::from_millis(2));
            }
        }
        wait_until("the hot set stays within the budget", || {
            let held = present_bytes(&locked, hot.clone());
            locked.locked_bytes().unwrap() <= BUDGET && held > HOT / 100 * 95
        });
    });
}

struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn contents_read_during_trim_are_correct() {
    let file = patterned_file(FILE_BYTES);
    let locked = with_budget(&file, 128 * KIB);
    let trimmed_bytes = AtomicUsize::new(0);
    let expected: Vec<u8> = (0..FILE_BYTES).map(byte_at).collect();
    let begin = Instant::now();
    // Until more has been trimmed than the file holds, however slow the machine is.
    let is_enough = || trimmed_bytes.load(Ordering::Relaxed) > FILE_BYTES;
    let read = || {
        let mut rounds = 0;
        while rounds < 20 || !is_enough() {
            assert!(
                begin.elapsed() < Duration::from_secs(60),
                "{trimmed_bytes:?}"
            );
            assert!(locked.as_slice() == expected);
            rounds += 1;
        }
    };
    thread::scope(|scope| {
        let readers = [(); 2].map(|()| scope.spawn(read));
        while !readers.iter().all(ScopedJoinHandle::is_finished) {
            trimmed_bytes.fetch_add(locked.trim().unwrap(), Ordering::Relaxed);
        }
    });
    assert!(is_enough(), "{trimmed_bytes:?}");
    assert_eq!(locked.as_slice(), expected);
}

fn trimmed_file_stays_one_mapping() {
    let file = patterned_file(FILE_BYTES);
    let locked = with_budget(&file, BUDGET);
    for index in 0..PIECES {
        // Every seventh piece, so that the trimmed parts would split the mapping often.
        touch(&locked, piece(&locked, index * 7 % PIECES));
        locked.trim().unwrap();
    }
    wait_until("the file is one mapping", || {
        mapping_count(locked.range()) == 1
    });
    assert!(is_locked_on_fault(locked.range()));
}

fn dropped_file_ends_budget_thread() {
    let file = patterned_file(FILE_BYTES);
    assert_eq!(budget_threads(), 0);
    for _ in 0..20 {
        let locked = with_budget(&file, BUDGET);
        wait_until("the budget thread runs", || budget_threads() == 1);
        touch(&locked, 0..FILE_BYTES);
        let range = locked.range();
        drop(locked);
        // The thread was joined; its entry in /proc disappears a moment later.
        wait_until("the budget thread has ended", || budget_threads() == 0);
        assert_eq!(mapping_count(range), 0);
    }
}

fn file_without_budget_is_not_trimmed() {
    let file = patterned_file(FILE_BYTES);
    let locked = map(&file);
    touch(&locked, 0..FILE_BYTES);
    assert_eq!(budget_threads(), 0);
    assert_eq!(locked.trim(), Ok(0));
    assert_eq!(locked.locked_bytes(), Ok(FILE_BYTES));
}

fn forked_child_reads_file_without_locks() {
    let file = patterned_file(FILE_BYTES);
    let mut locked = Some(with_budget(&file, 128 * KIB));
    // The thread is in the middle of its work when the children are forked.
    for _ in 0..30 {
        touch(locked.as_ref().unwrap(), 0..FILE_BYTES);
        let status = fork(|| {
            // A child that hangs is ended by a signal.
            unsafe { libc::alarm(30) };
            let locked = locked.take().unwrap();
            wait_until("the whole file stays resident", || {
                // The kernel may reclaim pages that are not locked.
                touch(&locked, 0..FILE_BYTES);
                assert_eq!(locked.locked_bytes(), Ok(0));
                let resident = locked.resident_bytes();
                assert_eq!(locked.trim(), Ok(0));
                let present = present_bytes(&locked, 0..FILE_BYTES);
                (resident, present) == (Ok(FILE_BYTES), FILE_BYTES)
            });
            assert_eq!(budget_threads(), 0);
            let range = locked.range();
            drop(locked);
            assert_eq!(mapping_count(range), 0);
            // The child can lock the file itself.
            let own = with_budget(&file, BUDGET);
            touch(&own, 0..FILE_BYTES);
            wait_until("the child's budget is kept", || {
                own.locked_bytes().unwrap() <= BUDGET
            });
            0
        });
        assert_eq!(status, 0);
    }
    let locked = locked.unwrap();
    wait_until("the budget is kept", || {
        locked.locked_bytes().unwrap() <= 128 * KIB
    });
    assert!(has_vm_flag(locked.range(), "lo"));
}

fn truncated_file_is_trimmed() {
    let file = patterned_file(FILE_BYTES);
    let locked = with_budget(&file, BUDGET);
    touch(&locked, 0..BUDGET + PIECE);
    file.set_len(page_size() as u64).unwrap();
    locked.trim().unwrap();
    wait_until("the truncated part is gone", || {
        locked.locked_bytes().unwrap() <= page_size()
    });
    assert_eq!(locked.resident_bytes(), Ok(page_size()));
    assert_eq!(locked.len(), FILE_BYTES);
    file.set_len(0).unwrap();
    assert_eq!(locked.trim(), Ok(0));
    assert_eq!(locked.locked_bytes(), Ok(0));
}

fn unmappable_file_is_an_error() {
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

/// Sets the soft limit of the process from now on, and raises the hard one if necessary, as root:
/// before Linux 5.16 it is 64 KiB by default.
fn set_memlock_soft_limit(bytes: usize) {
    let bytes = bytes as u64;
    let maximum = getrlimit(Resource::Memlock).maximum;
    let maximum = maximum.map(|most| most.max(bytes));
    let current = Some(bytes);
    setrlimit(Resource::Memlock, Rlimit { current, maximum }).unwrap();
}

fn map_over_memlock_limit() {
    let file = patterned_file(FILE_BYTES);
    // The hard limit first, which root alone can raise.
    set_memlock_soft_limit(FILE_BYTES);
    set_memlock_soft_limit(FILE_BYTES - page_size());
    drop_privileges();
    let count = || {
        fs::read_to_string("/proc/self/maps")
            .unwrap()
            .lines()
            .count()
    };
    // The first verb maps the page of counters, which stays mapped.
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
    // The length of the file is charged, not the budget.
    set_memlock_soft_limit(FILE_BYTES);
    with_budget(&file, BUDGET);
}

fn file_over_memlock_limit_leaves_nothing_mapped() {
    in_child_ok("map_over_memlock_limit");
}

fn hugetlb_file_is_rejected() -> Completion {
    let Some(_pool) = HugePool::of(1) else {
        return skip("no huge page can be allocated");
    };
    let flags = rustix::fs::MemfdFlags::HUGETLB | rustix::fs::MemfdFlags::HUGE_2MB;
    let file = File::from(rustix::fs::memfd_create("huge", flags).unwrap());
    file.set_len(2 << 20).unwrap();
    let error = unsafe { LockedFile::map(&file) }.unwrap_err();
    assert!(matches!(error, Error::WrongKind { .. }), "{error}");
    // The file was not populated either.
    assert_eq!(file.metadata().unwrap().blocks(), 0);
    Completion::Completed
}

fn query_foreign_file() {
    drop_privileges();
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

fn resident_bytes_of_foreign_file_is_unsupported() {
    in_child_ok("query_foreign_file");
}

fn check_budget() {
    budget_thread_trims_to_budget();
    trim_unlocks_oldest_piece_first();
    hot_set_under_scan_stays_locked();
    contents_read_during_trim_are_correct();
    trimmed_file_stays_one_mapping();
}

/// Checks that pages which could not be locked again, because the limit was lowered, are
/// locked once the limit allows it.
fn restore_missing_lock() {
    let file = patterned_file(FILE_BYTES);
    set_memlock_soft_limit(FILE_BYTES);
    drop_privileges();
    let locked = with_budget(&file, BUDGET);
    set_memlock_soft_limit(0);
    touch(&locked, 0..BUDGET + PIECE);
    wait_until("a part is unlocked", || mapping_count(locked.range()) > 1);
    // Pages that are not locked do not count, though they are present.
    wait_until("locked_bytes counts the locked pages only", || {
        // The kernel may reclaim pages that are not locked.
        touch(&locked, 0..BUDGET + PIECE);
        let counted = locked.locked_bytes().unwrap();
        let pages = present(locked.range()).into_iter();
        let pages: Vec<_> = pages.zip(lock_modes(locked.range())).collect();
        let is_locked = |(is_there, lock): &&(bool, SeenLock)| *is_there && lock.0.is_some();
        let count = pages.iter().filter(is_locked).count();
        let is_unlocked = |(is_there, lock): &(bool, SeenLock)| *is_there && lock.0.is_none();
        pages.iter().any(is_unlocked) && counted == count * page_size()
    });
    set_memlock_soft_limit(FILE_BYTES);
    wait_until("all is locked again", || {
        locked.trim().unwrap();
        mapping_count(locked.range()) == 1
    });
    assert!(is_locked_on_fault(locked.range()));
}

fn budget_holds_on_older_kernels() {
    let older = "madv_dontneed_locked,pagemap_scan,procmap_query";
    in_child_without(older, "check_budget");
    in_child_without(older, "restore_missing_lock");
    if may_lock_anything() {
        in_child_without(older, "unlock_all_beside_evictor");
    }
}

fn map_without_descriptors() {
    // It is locked twice, within the default limit.
    let file = patterned_file(1 << 20);
    let taken = take_all_descriptors();
    let locked = map(&file);
    assert!(is_locked_without_proc(locked.range()));
    touch(&locked, 0..1);
    // The budget needs a scan for locked pages.
    let error = unsafe { LockedFile::with_budget(&file, BUDGET) }.unwrap_err();
    assert_eq!(error.errno(), libc::EMFILE, "{error}");
    drop(taken);
    assert!(locked.locked_bytes().unwrap() > 0);
    with_budget(&file, BUDGET);
}

fn file_mapped_without_descriptors_is_locked() {
    in_child_ok("map_without_descriptors");
}

/// Checks that the file stays locked while the evictor unlocks and locks its chunks (before
/// Linux 5.18).
fn unlock_all_beside_evictor() {
    let file = patterned_file(FILE_BYTES);
    let locked = with_budget(&file, BUDGET);
    for (scope, flags) in [
        (LockScope::Current, LockFlags::ALL),
        (LockScope::CurrentAndFuture, LockFlags::ON_FAULT),
    ]
    .repeat(3)
    {
        touch(&locked, 0..FILE_BYTES);
        lock_all(scope, LockMode::OnFault).unwrap();
        touch(&locked, 0..FILE_BYTES);
        unlock_all(flags).unwrap();
        locked.trim().unwrap();
        wait_until("the file is locked, within its budget", || {
            is_locked_on_fault(locked.range()) && locked.locked_bytes().unwrap() <= BUDGET
        });
    }
}

fn budget_holds_beside_unlock_all() -> Completion {
    in_child_if_unlimited("unlock_all_beside_evictor")
}
