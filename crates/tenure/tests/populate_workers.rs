//! populate with several workers: strategies, progress, cancelling, and other threads that
//! write concurrently.

#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "tests use memory that they have mapped themselves"
)]

mod common;

use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use common::missing::Missing;
use common::*;
use libtest_mimic::Completion;
use proptest::prelude::{Just, ProptestConfig, prop_assert, proptest};
use proptest::strategy::Strategy as _;
use tenure::{
    Access, Error, Features, Mapping, MappingBuilder, MemfdPages, MemoryKind, page_size,
    populate::{CancelToken, PopulateOptions, Progress, Strategy},
};

tests!(
    every_strategy_populates_every_page,
    inapplicable_strategy_is_rejected,
    populate_without_madv_populate_touches_pages,
    touch_past_end_of_file_is_no_backing,
    allocate_strategy_does_not_extend_file,
    populate_read_of_sparse_file_allocates_no_blocks,
    file_with_random_advice_is_read_whole,
    [exclusive] hugetlb_memory_is_populated,
    thread_count_starts_that_many_workers,
    worker_that_cannot_start_leaves_no_page_absent,
    progress_is_reported_on_calling_thread,
    cancel_before_start_populates_nothing,
    cancel_midway_reports_bytes_done,
    panic_in_progress_callback_stops_all_workers,
    failure_of_one_worker_is_returned,
    populate_loses_no_concurrent_write,
    populate_with_random_options_keeps_contents,
    [exclusive] populate_beyond_hugetlb_pool_is_rejected,
    populate_beyond_memory_reports_need_and_headroom;
    children:
    populate_without_threads,
    populate_by_touching,
);

const MIB: usize = 1 << 20;

fn options(access: Access, strategy: Strategy) -> PopulateOptions {
    PopulateOptions::new(access).strategy(strategy)
}

const STRATEGIES: [Strategy; 6] = [
    Strategy::Auto,
    Strategy::Populate,
    Strategy::Touch,
    Strategy::ReadThenWrite,
    Strategy::AllocateThenPopulate,
    Strategy::ReadAheadThenPopulate,
];

/// A kind of memory, and a function that maps some of it.
struct Kind {
    name: &'static str,
    make: fn(usize) -> Mapping,
}

/// The kinds of memory that need no hugetlb pool.
const KINDS: [Kind; 8] = [
    Kind {
        name: "private anonymous",
        make: |len| made(Mapping::anonymous(len).huge_pages(tenure::HugePages::Never)),
    },
    Kind {
        name: "private huge pages",
        make: |len| made(Mapping::anonymous(len).huge_pages(tenure::HugePages::Always)),
    },
    Kind {
        name: "shared anonymous",
        make: |len| made(Mapping::shared_anonymous(len)),
    },
    Kind {
        name: "shared memfd",
        make: |len| made(Mapping::memfd(len, MemfdPages::Base)),
    },
    Kind {
        name: "private memfd",
        make: |len| made(Mapping::memfd(len, MemfdPages::Base).private()),
    },
    Kind {
        name: "shared file",
        make: |len| {
            let file = file(len);
            made(unsafe { Mapping::file(&file) }.read_write())
        },
    },
    Kind {
        name: "private file",
        make: |len| {
            let file = file(len);
            made(unsafe { Mapping::file(&file) }.private().read_write())
        },
    },
    Kind {
        name: "file with holes",
        make: |len| {
            let file = holes(len);
            made(unsafe { Mapping::file(&file) }.read_write())
        },
    },
];

fn made(builder: MappingBuilder<'_>) -> Mapping {
    builder.map().unwrap()
}

/// Creates a file in which every other 64 KiB are a hole.
fn holes(len: usize) -> std::fs::File {
    let file = tempfile::tempfile().unwrap();
    file.set_len(len as u64).unwrap();
    for at in (0..len).step_by(128 << 10) {
        let part = vec![0x5a; (64 << 10).min(len - at)];
        file.write_all_at(&part, at as u64).unwrap();
    }
    file
}

fn every_strategy_populates_every_page() {
    let len = 4 * MIB;
    for kind in &KINDS {
        for access in [Access::Read, Access::Write] {
            let mut served = 0;
            for strategy in STRATEGIES {
                let memory = (kind.make)(len);
                let case = format!("{}, {access:?}, {strategy:?}", kind.name);
                match memory.populate_with(.., &options(access, strategy)) {
                    Ok(()) => {
                        let again = || {
                            let options = options(access, strategy);
                            memory.populate_with(.., &options).unwrap();
                        };
                        assert!(is_populated(memory.range(), again), "{case}");
                        served += 1;
                    }
                    Err(Error::WrongKind { .. } | Error::Unsupported { .. }) => {
                        assert_eq!(count_present(memory.range()), 0, "{case}");
                    }
                    Err(error) => panic!("{case}: {error}"),
                }
            }
            assert!(served >= 2, "{}, {access:?}", kind.name);
        }
    }
}

fn inapplicable_strategy_is_rejected() -> Completion {
    if Features::get().madv_populate.is_err() {
        return skip("needs MADV_POPULATE (Linux 5.14)");
    }
    let memory = anonymous(64);
    for (access, strategy) in [
        (Access::Read, Strategy::ReadThenWrite),
        (Access::Write, Strategy::AllocateThenPopulate),
        (Access::Read, Strategy::ReadAheadThenPopulate),
    ] {
        let error = memory
            .populate_with(.., &options(access, strategy))
            .unwrap_err();
        assert!(
            matches!(
                error,
                Error::WrongKind {
                    found: MemoryKind::PrivateAnonymous,
                    ..
                }
            ),
            "{error}"
        );
    }
    assert_eq!(count_present(memory.range()), 0);
    Completion::Completed
}

fn populate_without_madv_populate_touches_pages() {
    in_child_without("madv_populate", "populate_by_touching");
}

fn populate_by_touching() {
    assert!(Features::get().madv_populate.is_err());
    let memory = anonymous(64);
    let error = memory
        .populate_with(.., &options(Access::Write, Strategy::Populate))
        .unwrap_err();
    assert!(matches!(error, Error::Unsupported { .. }), "{error}");
    memory.populate(.., Access::Write).unwrap();
    assert_eq!(count_present(memory.range()), 64);
}

fn touch_past_end_of_file_is_no_backing() {
    let file = file(4 * page_size());
    for access in [Access::Read, Access::Write] {
        for strategy in [Strategy::Touch, Strategy::Auto] {
            let memory = made(
                unsafe { Mapping::file(&file) }
                    .read_write()
                    .len(8 * page_size()),
            );
            let error = memory
                .populate_with(.., &options(access, strategy))
                .unwrap_err();
            assert!(
                matches!(error, Error::NoBacking { .. }),
                "{access:?} {strategy:?}: {error}"
            );
            assert_eq!(count_present(memory.range()), 4);
        }
    }
}

fn allocate_strategy_does_not_extend_file() -> Completion {
    if Features::get().madv_populate.is_err() {
        return skip("needs MADV_POPULATE (Linux 5.14)");
    }
    let file = holes(4 * MIB);
    let before = file.metadata().unwrap();
    let memory = made(unsafe { Mapping::file(&file) }.read_write().len(5 * MIB));
    let error = memory
        .populate_with(.., &options(Access::Write, Strategy::AllocateThenPopulate))
        .unwrap_err();
    assert!(matches!(error, Error::NoBacking { .. }), "{error}");
    let after = file.metadata().unwrap();
    assert_eq!(after.len(), before.len());
    assert!(
        after.blocks() >= (4 * MIB / 512) as u64,
        "{} blocks",
        after.blocks()
    );
    Completion::Completed
}

fn populate_read_of_sparse_file_allocates_no_blocks() {
    for strategy in STRATEGIES {
        let file = holes(4 * MIB);
        file.sync_all().unwrap();
        let before = file.metadata().unwrap().blocks();
        let memory = made(unsafe { Mapping::file(&file) }.read_write());
        match memory.populate_with(.., &options(Access::Read, strategy)) {
            Ok(()) => {
                let again = || {
                    let options = options(Access::Read, strategy);
                    memory.populate_with(.., &options).unwrap();
                };
                assert!(is_populated(memory.range(), again), "{strategy:?}");
            }
            Err(Error::WrongKind { .. } | Error::Unsupported { .. }) => {}
            Err(error) => panic!("{strategy:?}: {error}"),
        }
        file.sync_all().unwrap();
        assert_eq!(file.metadata().unwrap().blocks(), before, "{strategy:?}");
    }
}

fn file_with_random_advice_is_read_whole() {
    let file = file(16 * MIB);
    file.sync_all().unwrap();
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    let memory = made(unsafe { Mapping::file(&file) });
    unsafe {
        rustix::mm::madvise(
            memory.as_ptr().cast(),
            memory.len(),
            rustix::mm::Advice::Random,
        )
    }
    .unwrap();
    let populate = || memory.populate(.., Access::Read).unwrap();
    populate();
    assert!(is_populated(memory.range(), populate));
    assert!(
        memory
            .as_slice()
            .iter()
            .enumerate()
            .all(|(at, &byte)| byte == (at % 251) as u8)
    );
}

fn hugetlb_memory_is_populated() -> Completion {
    let Some(_pool) = HugePool::of(8) else {
        return skip("needs 8 free huge pages of 2 MiB (vm.nr_hugepages), or root to ask for them");
    };
    for access in [Access::Read, Access::Write] {
        for strategy in [Strategy::Auto, Strategy::Touch] {
            for builder in [
                Mapping::memfd(8 * MIB, MemfdPages::Huge2M),
                Mapping::memfd(8 * MIB, MemfdPages::Huge2M).private(),
            ] {
                let memory = made(builder);
                memory
                    .populate_with(.., &options(access, strategy).threads(3).chunk_bytes(1))
                    .unwrap();
                assert_eq!(
                    count_present(memory.range()),
                    8 * MIB / page_size(),
                    "{access:?} {strategy:?}"
                );
            }
        }
    }
    Completion::Completed
}

fn thread_count_starts_that_many_workers() {
    let mut memory = anonymous(512 * MIB / page_size());
    for threads in [1, 2, 5] {
        memory.discard(..).unwrap();
        tenure::drain(None).unwrap();
        wait_for_end_of_workers();
        let max_threads = Arc::new(AtomicUsize::new(0));
        let seen = Arc::clone(&max_threads);
        let options = PopulateOptions::new(Access::Write)
            .threads(threads)
            .progress(move |_| {
                seen.fetch_max(count_threads(), Ordering::Relaxed);
            });
        memory.populate_with(.., &options).unwrap();
        assert_eq!(count_present(memory.range()), memory.range().pages());
        assert_eq!(max_threads.load(Ordering::Relaxed), threads);
        wait_for_end_of_workers();
    }
}

/// Waits until only this thread is left: workers may still be ending.
fn wait_for_end_of_workers() {
    let begun = Instant::now();
    while count_threads() > 1 {
        assert!(begun.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Counts the threads of this process without the worker that frees memory, which comes and
/// goes, and without those that are ending: the kernel lists them for a while after their join.
fn count_threads() -> usize {
    const PF_EXITING: u64 = 4;
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let stat = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("stat")).ok();
    let counts = |stat: &String| {
        let (name, fields) = stat.rsplit_once(") ").unwrap();
        let flags: u64 = fields.split(' ').nth(6).unwrap().parse().unwrap();
        !name.ends_with("(tenure-free") && flags & PF_EXITING == 0
    };
    let stats = tasks.filter_map(|task| stat(task.ok()?));
    stats.filter(counts).count()
}

fn populate_without_threads() {
    let memory = anonymous(256 * MIB / page_size());
    drop_privileges();
    let none = rustix::process::Rlimit {
        current: Some(0),
        maximum: Some(0),
    };
    rustix::process::setrlimit(rustix::process::Resource::Nproc, none).unwrap();
    assert!(
        std::thread::Builder::new().spawn(|| ()).is_err(),
        "threads can still be created"
    );
    memory
        .populate_with(.., &PopulateOptions::new(Access::Write).threads(4))
        .unwrap();
    assert_eq!(count_present(memory.range()), memory.range().pages());
}

fn worker_that_cannot_start_leaves_no_page_absent() {
    in_child_ok("populate_without_threads");
}

fn progress_is_reported_on_calling_thread() {
    let memory = anonymous(256 * MIB / page_size());
    let reports: Arc<Mutex<Vec<(Progress, ThreadId)>>> = Arc::default();
    let recorder = Arc::clone(&reports);
    let options = PopulateOptions::new(Access::Write)
        .threads(2)
        .chunk_bytes(64 << 10)
        .progress(move |now| {
            recorder
                .lock()
                .unwrap()
                .push((now, std::thread::current().id()))
        });
    memory.populate_with(.., &options).unwrap();
    let reports = reports.lock().unwrap();
    let (last, _) = reports.last().expect("at least one report");
    assert_eq!(
        (last.done_bytes, last.total_bytes),
        (memory.len(), memory.len())
    );
    assert!(
        reports
            .iter()
            .all(|(_, thread)| *thread == std::thread::current().id())
    );
    assert!(reports.is_sorted_by_key(|(now, _)| (now.done_bytes, now.elapsed)));
}

fn cancel_before_start_populates_nothing() {
    let memory = anonymous(64);
    let token = CancelToken::new();
    token.cancel();
    let error = memory
        .populate_with(.., &PopulateOptions::new(Access::Write).cancel(&token))
        .unwrap_err();
    assert!(
        matches!(error, Error::Cancelled { done_bytes: 0, .. }),
        "{error}"
    );
    assert_eq!(error.errno(), libc::ECANCELED);
    assert_eq!(count_present(memory.range()), 0);
}

fn cancel_midway_reports_bytes_done() {
    let memory = anonymous(1024 * MIB / page_size());
    let token = CancelToken::new();
    let from_inside = token.clone();
    let options = PopulateOptions::new(Access::Write)
        .chunk_bytes(256 << 10)
        .cancel(&token)
        .progress(move |_| from_inside.cancel());
    let error = memory.populate_with(.., &options).unwrap_err();
    let Error::Cancelled { done_bytes, .. } = error else {
        panic!("{error}")
    };
    assert!(done_bytes > 0 && done_bytes < memory.len(), "{done_bytes}");
    assert_eq!(count_present(memory.range()), done_bytes / page_size());
}

fn panic_in_progress_callback_stops_all_workers() -> Completion {
    if let Err(skipped) = Missing::can_stall_populate() {
        return skipped;
    }
    let populate: fn(&Mapping, &PopulateOptions) -> tenure::Result<()> =
        |memory, options| memory.populate_with(.., options);
    let lock: fn(&Mapping, &PopulateOptions) -> tenure::Result<()> =
        |memory, options| memory.lock_with(.., options);
    for verb in [populate, lock] {
        panic_in_progress_callback(verb);
    }
    Completion::Completed
}

/// Stops the second worker at its first page until the calling thread, which panics at its
/// first page, waits for it.
fn panic_in_progress_callback(verb: fn(&Mapping, &PopulateOptions) -> tenure::Result<()>) {
    let memory = anonymous(4 * MIB / page_size());
    let missing = Missing::register(memory.range()).unwrap();
    let is_panicking = Arc::new(AtomicBool::new(false));
    let panics = Arc::clone(&is_panicking);
    let options = PopulateOptions::new(Access::Write)
        .threads(2)
        .chunk_bytes(1)
        .progress(move |_| {
            panics.store(true, Ordering::Release);
            // Without the message of a panic that a test fails with.
            std::panic::resume_unwind(Box::new("of the callback"));
        });
    let caller = rustix::thread::gettid().as_raw_pid() as u32;
    let caller_waits = || {
        let stat = std::fs::read_to_string(format!("/proc/self/task/{caller}/stat")).unwrap();
        is_panicking.load(Ordering::Acquire) && stat.contains(") S ")
    };
    let is_over = AtomicBool::new(false);
    let answer_faults = || {
        let mut held = None;
        while !is_over.load(Ordering::Relaxed) {
            match missing.next_within(Duration::from_millis(1)) {
                Some(fault) if fault.thread == caller => {
                    std::thread::sleep(tenure::populate::REPORT_INTERVAL);
                    missing.answer(&fault);
                }
                Some(fault) => held = Some(fault),
                None => {}
            }
            if caller_waits() {
                held.take().iter().for_each(|fault| missing.answer(fault));
            }
        }
    };
    let panic = std::thread::scope(|scope| {
        scope.spawn(answer_faults);
        let call = std::panic::AssertUnwindSafe(|| verb(&memory, &options));
        let result = std::panic::catch_unwind(call);
        is_over.store(true, Ordering::Relaxed);
        result.unwrap_err()
    });
    assert_eq!(panic.downcast_ref::<&str>(), Some(&"of the callback"));
    let populated = count_present(memory.range());
    assert!((1..=2).contains(&populated), "{populated} pages");
    assert!(!has_vm_flag(memory.range(), "lo"));
}

fn failure_of_one_worker_is_returned() {
    // The last megabyte lies beyond the end of the file.
    let file = file(63 * MIB);
    let memory = made(unsafe { Mapping::file(&file) }.len(64 * MIB));
    let error = memory
        .populate_with(.., &PopulateOptions::new(Access::Read).threads(4))
        .unwrap_err();
    let Error::NoBacking { range, .. } = error else {
        panic!("{error}")
    };
    assert!(range.end() > memory.range().start() + 63 * MIB);
}

/// Increments bytes all over the memory while it is populated for writing.
fn populate_loses_no_concurrent_write() {
    for kind in &KINDS {
        for strategy in [Strategy::Auto, Strategy::Touch, Strategy::ReadThenWrite] {
            let memory = (kind.make)(8 * MIB);
            let range = memory.range();
            // The first byte of each page, which touching touches, and one more.
            let counters: Vec<usize> = (0..range.pages())
                .step_by(7)
                .flat_map(|page| [page * page_size(), page * page_size() + 100])
                .collect();
            let before: Vec<u8> = counters.iter().map(|&at| memory.as_slice()[at]).collect();
            let counter = |at: usize| unsafe { AtomicU8::from_ptr(range.as_ptr().add(at)) };
            let stop = AtomicBool::new(false);
            let (rounds, answer) = std::thread::scope(|scope| {
                let writer = scope.spawn(|| {
                    let mut rounds = 0_u8;
                    while !stop.load(Ordering::Relaxed) {
                        for &at in &counters {
                            counter(at).fetch_add(1, Ordering::Relaxed);
                        }
                        rounds = rounds.wrapping_add(1);
                    }
                    rounds
                });
                let answer = (0..3).try_for_each(|_| unsafe {
                    range.populate_with(
                        &options(Access::Write, strategy)
                            .threads(2)
                            .chunk_bytes(64 << 10),
                    )
                });
                stop.store(true, Ordering::Relaxed);
                (writer.join().unwrap(), answer)
            });
            match answer {
                Ok(()) | Err(Error::Unsupported { .. }) => {}
                Err(error) => panic!("{}, {strategy:?}: {error}", kind.name),
            }
            for (&at, before) in counters.iter().zip(before) {
                let now = counter(at).load(Ordering::Relaxed);
                assert_eq!(
                    now,
                    before.wrapping_add(rounds),
                    "{}, {strategy:?}",
                    kind.name
                );
            }
        }
    }
}

fn populate_with_random_options_keeps_contents() {
    const PAGES: usize = 700;
    let config = ProptestConfig {
        cases: 60,
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    let part = (0..PAGES).prop_flat_map(|first| (Just(first), 0..=PAGES - first));
    let inputs = (
        0..KINDS.len(),
        proptest::sample::select(&STRATEGIES[..]),
        proptest::bool::ANY,
        1..5_usize,
        proptest::option::of(1..3 * MIB),
        part,
        proptest::collection::vec(0..PAGES, 0..40),
    );
    proptest!(config, |((kind, strategy, write, threads, chunk_bytes, (first, count), written) in inputs)| {
        let memory = (KINDS[kind].make)(PAGES * page_size());
        for &page in &written {
            fill(pages(memory.range(), page, 1));
        }
        let before = expected(kind, &memory, &written);
        let access = if write { Access::Write } else { Access::Read };
        let mut options = options(access, strategy).threads(threads);
        if let Some(bytes) = chunk_bytes {
            options = options.chunk_bytes(bytes);
        }
        let bounds = first * page_size()..(first + count) * page_size();
        match memory.populate_with(bounds.clone(), &options) {
            Ok(()) => {
                let again = || memory.populate_with(bounds.clone(), &options).unwrap();
                prop_assert!(is_populated(pages(memory.range(), first, count), again));
            }
            Err(Error::WrongKind { .. } | Error::Unsupported { .. }) => {}
            Err(error) => prop_assert!(false, "{}", error),
        }
        prop_assert!(memory.as_slice() == before);
    });
}

/// Returns the contents that the memory must have, without reading it, which would populate
/// it.
fn expected(kind: usize, memory: &Mapping, written: &[usize]) -> Vec<u8> {
    let mut bytes = match KINDS[kind].name {
        "shared file" | "private file" => (0..memory.len()).map(|at| (at % 251) as u8).collect(),
        "file with holes" => (0..memory.len())
            .map(|at| if at >> 16 & 1 == 0 { 0x5a } else { 0 })
            .collect(),
        _ => vec![0; memory.len()],
    };
    for &page in written {
        let at = page * page_size();
        bytes[at..at + page_size()].copy_from_slice(pattern(pages(memory.range(), page, 1)));
    }
    bytes
}

/// Reserves addresses without a commitment of memory: there may be more of them than
/// memory.
fn unreserved(len: usize, flags: libc::c_int) -> tenure::PageRange {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = flags | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let addr = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags, -1, 0) };
    assert_ne!(
        addr,
        libc::MAP_FAILED,
        "{}",
        std::io::Error::last_os_error()
    );
    tenure::PageRange::new(addr as usize, len).unwrap()
}

fn populate_beyond_hugetlb_pool_is_rejected() -> Completion {
    let Some(_pool) = HugePool::of(4) else {
        return skip("needs 4 free huge pages of 2 MiB (vm.nr_hugepages), or root to ask for them");
    };
    if Features::get().procmap_query.is_err() {
        return skip("needs PROCMAP_QUERY (Linux 6.11) to tell huge pages from others");
    }
    // No pool is as large.
    let len = 1 << 40;
    let range = unreserved(
        len,
        libc::MAP_PRIVATE | libc::MAP_HUGETLB | libc::MAP_HUGE_2MB,
    );
    let error = unsafe { range.populate(Access::Write) }.unwrap_err();
    assert!(
        matches!(error, Error::NoMemory { need_bytes, .. } if need_bytes == len),
        "{error}"
    );
    // With force, populating reaches the last page of the pool, and fails without a signal.
    let forced = PopulateOptions::new(Access::Write).force();
    let error = unsafe { range.populate_with(&forced) }.unwrap_err();
    assert!(matches!(error, Error::NoBacking { .. }), "{error}");
    raw_unmap(range);
    Completion::Completed
}

fn populate_beyond_memory_reports_need_and_headroom() {
    // Twice the machine's memory, which must never be populated.
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap();
    let total_kib: usize = meminfo.split_whitespace().nth(1).unwrap().parse().unwrap();
    let len = (2 * total_kib * 1024).next_multiple_of(page_size());
    let range = unreserved(len, libc::MAP_SHARED);
    for access in [Access::Read, Access::Write] {
        let error = unsafe { range.populate(access) }.unwrap_err();
        let Error::NoMemory {
            need_bytes,
            headroom_bytes,
            ..
        } = error
        else {
            panic!("{error}")
        };
        assert_eq!(need_bytes, len);
        assert!(headroom_bytes < len);
        assert_eq!(error.errno(), libc::ENOMEM);
        assert_eq!(count_present(pages(range, 0, 1000)), 0);
    }
    raw_unmap(range);
}
