//! The ledger of admitted memory, in cgroups whose limit kills.

#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "tests use memory that they have mapped themselves"
)]

mod common;

use std::fs;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use common::cgroup::{Group, enter_group};
use common::*;
use libtest_mimic::Completion;
use tenure::volatile::Priority;
use tenure::{Error, LockMode, Mapping, VolatileCache, headroom, page_size};

tests!(
    [exclusive] concurrent_inserts_of_128_mib_cgroup_are_never_killed,
    [exclusive thorough] concurrent_inserts_of_larger_cgroups_are_never_killed,
    inserts_without_descriptors_are_never_killed,
    populate_without_descriptors_is_rejected_not_killed,
    concurrent_populates_over_cgroup_limit_are_rejected_not_killed,
    lock_now_over_cgroup_limit_is_rejected_not_killed,
    admitted_bytes_are_no_headroom_for_others,
    admission_dropped_by_panic_is_given_back,
    ledger_of_forked_child_is_empty,
    admission_of_fork_handler_in_child_counts_once,
    cache_beside_child_that_shares_its_pages_is_not_killed,
    value_that_cannot_fit_evicts_none,
    maker_that_forks_leaves_copy_of_cache_alone,
    admissions_after_chroot_do_not_run_out,
    populate_of_present_pages_after_setuid_is_ok;
    children:
    insert_beside_child,
    insert_larger_than_limit,
    admit_after_chroot,
    populate_after_setuid,
    insert_concurrently,
    insert_without_descriptors,
    populate_without_descriptors,
    populate_concurrently,
    lock_over_limit,
    admit_beside_others,
);

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// Names the threads, the length of the values, and for how long they are inserted.
const INSERTS: &str = "TENURE_TEST_INSERTS";

/// For how many seconds each case inserts; without it, until three times the limit is
/// inserted.
const SECONDS: &str = "TENURE_TEST_INSERT_SECONDS";

fn concurrent_inserts_of_128_mib_cgroup_are_never_killed() -> Completion {
    insert_in_cgroup(&[
        (128 * MIB, 1, 4 * KIB),
        (128 * MIB, 16, 4_000_000),
        (128 * MIB, 64, 1_000_000),
        (128 * MIB, 64, 4 * KIB),
    ])
}

fn concurrent_inserts_of_larger_cgroups_are_never_killed() -> Completion {
    insert_in_cgroup(&[
        (128 * MIB, 2, 16 * KIB),
        (128 * MIB, 4, 150_000_000),
        (256 * MIB, 16, 16_000_000),
        (256 * MIB, 64, 64 * KIB),
        (256 * MIB, 1, 1_000_000),
        (512 * MIB, 4, 150_000_000),
        (512 * MIB, 64, 4_000_000),
        (512 * MIB, 8, 16 * KIB),
        (1024 * MIB, 64, 16_000_000),
        (1024 * MIB, 16, 150_000_000),
        (1024 * MIB, 64, 64 * KIB),
        (1024 * MIB, 2, 1_000_000),
    ])
}

/// Inserts in cgroups with a limit, from so many threads, values of a length.
fn insert_in_cgroup(cases: &[(usize, usize, usize)]) -> Completion {
    for &(limit_bytes, threads, len) in cases {
        // Where memory and swap have one limit, the kernel does not count hits (Linux 6.18).
        let group = match Group::with_limit(limit_bytes) {
            Ok(group) => group,
            Err(reason) => return skip(&reason),
        };
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--child", "insert_concurrently"]);
        command.env(INSERTS, format!("{limit_bytes} {threads} {len}"));
        group.tell(&mut command);
        let output = command.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        print!(
            "{} MiB, {threads} threads, {len} bytes: {text}",
            limit_bytes / MIB
        );
        assert!(
            output.status.success(),
            "{limit_bytes} {threads} {len}: {}\n{}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Completion::Completed
}

fn read_event(group: &std::path::Path, name: &str) -> Option<usize> {
    let text = fs::read_to_string(group.join("memory.events")).ok()?;
    let mut events = text.lines().filter_map(|line| line.split_once(' '));
    events.find(|event| event.0 == name)?.1.parse().ok()
}

fn insert_concurrently() {
    let group = enter_group();
    let read = |file: &str| {
        let text = fs::read_to_string(group.join(file)).ok()?;
        text.trim().parse::<usize>().ok()
    };
    let usage_bytes = || {
        read("memory.usage_in_bytes")
            .or_else(|| read("memory.current"))
            .unwrap()
    };
    let hits = || {
        read("memory.failcnt")
            .or_else(|| read_event(&group, "max"))
            .unwrap_or(0)
    };
    let max_bytes = || read("memory.max_usage_in_bytes").or_else(|| read("memory.peak"));
    let numbers = std::env::var(INSERTS).unwrap();
    let numbers: Vec<usize> = numbers
        .split(' ')
        .map(|number| number.parse().unwrap())
        .collect();
    let [limit_bytes, threads, len] = numbers[..] else {
        panic!("{numbers:?}")
    };
    let seconds = std::env::var(SECONDS)
        .ok()
        .map(|seconds| seconds.parse().unwrap());
    let deadline = seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds));

    let before_bytes = usage_bytes();
    let hits_before = hits();
    let cache = VolatileCache::new();
    let inserted_bytes = AtomicUsize::new(0);
    let is_done = AtomicBool::new(false);
    let mut used = Vec::new();
    std::thread::scope(|scope| {
        let insert = |thread: usize| {
            let cache = &cache;
            let (inserted_bytes, is_done) = (&inserted_bytes, &is_done);
            move || {
                let mut number = 0;
                while !is_done.load(Ordering::Relaxed) {
                    let key = (thread, number);
                    let byte = (thread + number) as u8 | 1;
                    let fill = |value: &mut [u8]| value.fill(byte);
                    cache
                        .insert_with(key, len, Priority::default(), fill)
                        .unwrap();
                    if let Some(value) = cache.get(&(thread, number / 2)) {
                        let byte = (thread + number / 2) as u8 | 1;
                        assert!(value[0] == byte && value[len - 1] == byte);
                    }
                    number += 1;
                    let inserted_bytes = inserted_bytes.fetch_add(len, Ordering::Relaxed);
                    let is_last = match deadline {
                        Some(deadline) => Instant::now() >= deadline,
                        None => inserted_bytes >= 3 * limit_bytes,
                    };
                    if is_last {
                        is_done.store(true, Ordering::Relaxed);
                    }
                }
            }
        };
        let threads: Vec<_> = (0..threads)
            .map(|thread| scope.spawn(insert(thread)))
            .collect();
        while !is_done.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(5));
            used.push(usage_bytes());
        }
        threads
            .into_iter()
            .for_each(|thread| thread.join().unwrap());
    });
    used.push(usage_bytes());
    used.sort_unstable();
    // What was evicted for values that were in flight is filled by one thread, after a
    // reading of the limits.
    std::thread::sleep(Duration::from_millis(150));
    for number in 0..=limit_bytes / 2 / len {
        let key = (usize::MAX, number);
        let fill = |value: &mut [u8]| value.fill(1);
        cache
            .insert_with(key, len, Priority::default(), fill)
            .unwrap();
    }
    // The cache leaves an eighth of the limit. Whole values fit into the rest.
    let usable_bytes = limit_bytes - limit_bytes / 8 - before_bytes;
    let memory_bytes = len.next_multiple_of(page_size());
    let fit_bytes = before_bytes + usable_bytes / memory_bytes * memory_bytes;
    let percent = |bytes: usize| bytes as f64 * 100.0 / fit_bytes as f64;
    let (stats, used_bytes) = (cache.stats(), usage_bytes());
    println!(
        "{:.1} % of the {} MiB that fit are used at the end, {:.1} % meanwhile (median), by values {} MiB; {} inserted, {} refused, the limit was hit {} times",
        percent(used_bytes),
        fit_bytes / MIB,
        percent(used[used.len() / 2]),
        stats.bytes / MIB as u64,
        stats.insertions,
        stats.refused,
        hits() - hits_before,
    );
    assert_eq!(hits(), hits_before, "the limit was hit");
    assert!(max_bytes().is_none_or(|bytes| bytes < limit_bytes));
    assert!(
        percent(used_bytes) >= 95.0 || usable_bytes < memory_bytes,
        "{used_bytes} of {fit_bytes}"
    );
}

/// Takes all descriptors of this process, up to a low limit.
fn take_descriptors() -> Vec<fs::File> {
    rustix::process::setrlimit(
        rustix::process::Resource::Nofile,
        rustix::process::Rlimit {
            current: Some(64),
            maximum: Some(64),
        },
    )
    .unwrap();
    let taken = std::iter::from_fn(|| fs::File::open("/dev/null").ok()).collect();
    assert!(fs::File::open("/dev/null").is_err());
    taken
}

fn in_cgroup_of(limit_bytes: usize, child: &str) -> Completion {
    match Group::with_limit(limit_bytes).and_then(Group::without_swap) {
        Ok(group) => group.run(child),
        Err(reason) => return skip(&reason),
    }
    Completion::Completed
}

fn inserts_without_descriptors_are_never_killed() -> Completion {
    in_cgroup_of(128 * MIB, "insert_without_descriptors")
}

fn insert_without_descriptors() {
    enter_group();
    let taken = take_descriptors();
    let cache = VolatileCache::new();
    for key in 0..400 {
        let fill = |value: &mut [u8]| value.fill(7);
        cache
            .insert_with(key, MIB, Priority::default(), fill)
            .unwrap();
    }
    let stats = cache.stats();
    assert!(stats.bytes as usize > 90 * MIB, "{stats:?}");
    assert!(stats.evicted > 250, "{stats:?}");
    drop(taken);
}

fn populate_without_descriptors_is_rejected_not_killed() -> Completion {
    in_cgroup_of(128 * MIB, "populate_without_descriptors")
}

fn populate_without_descriptors() {
    enter_group();
    let _taken = take_descriptors();
    let memory = Mapping::anonymous(200 * MIB).map().unwrap();
    assert!(memory.populate(.., tenure::Access::Write).is_err());
    let error = headroom::admit(200 * MIB).unwrap_err();
    assert!(matches!(error, Error::NotAdmitted { .. }), "{error}");
    assert_eq!(headroom::admit(64 * MIB).unwrap().bytes(), 64 * MIB);
}

fn concurrent_populates_over_cgroup_limit_are_rejected_not_killed() -> Completion {
    in_cgroup_of(100 * MIB, "populate_concurrently")
}

fn populate_concurrently() {
    enter_group();
    for round in 0..20 {
        let populate = || {
            let memory = Mapping::anonymous(70 * MIB).map().unwrap();
            let result = memory.populate(.., tenure::Access::Write);
            (memory, result)
        };
        let both = std::thread::scope(|scope| {
            [(); 2]
                .map(|()| scope.spawn(populate))
                .map(|thread| thread.join().unwrap())
        });
        let refused = both.iter().filter_map(|(_, result)| result.as_ref().err());
        let refused: Vec<_> = refused.collect();
        assert!(
            matches!(refused[..], [Error::NoMemory { .. }]),
            "{round}: {refused:?}"
        );
        for (memory, _) in both {
            memory.munmap_sync().unwrap();
        }
    }
}

fn lock_now_over_cgroup_limit_is_rejected_not_killed() -> Completion {
    in_cgroup_of(100 * MIB, "lock_over_limit")
}

fn lock_over_limit() {
    enter_group();
    let memory = Mapping::anonymous(200 * MIB).map().unwrap();
    let is_refused = |result: Result<(), Error>| {
        let is_refused = matches!(result, Err(Error::NoMemory { verb: "lock", .. }));
        assert!(is_refused, "{result:?}");
    };
    is_refused(memory.lock(.., LockMode::Now));
    let locked = Mapping::anonymous(200 * MIB).map_locked(LockMode::Now);
    is_refused(locked.map(drop));
    assert_eq!(count_present(memory.range()), 0);
    // Small pieces are refused at the limit, too.
    let pieces = (0..200 * MIB).step_by(MIB / 2);
    let refused = pieces
        .map(|at| memory.lock(at..at + MIB / 2, LockMode::Now))
        .find(Result::is_err);
    is_refused(refused.unwrap_or(Ok(())));
    let present_bytes = count_present(memory.range()) * page_size();
    assert!(present_bytes > 80 * MIB, "{present_bytes}");
}

fn admitted_bytes_are_no_headroom_for_others() -> Completion {
    in_cgroup_of(256 * MIB, "admit_beside_others")
}

fn admit_beside_others() {
    enter_group();
    let before = headroom::Headroom::now().unwrap().bytes;
    let admission = headroom::admit(200 * MIB).unwrap();
    let left = headroom::Headroom::now().unwrap().bytes;
    assert!(
        before.abs_diff(left + 200 * MIB) < 4 * MIB,
        "{before} {left}"
    );
    let memory = Mapping::anonymous(100 * MIB).map().unwrap();
    let refused = memory.populate(.., tenure::Access::Write);
    assert!(
        matches!(refused, Err(Error::NoMemory { .. })),
        "{refused:?}"
    );
    assert!(headroom::admit(100 * MIB).is_err());
    // Half of it is taken, and the other half given back.
    let taken = anonymous(100 * MIB / page_size());
    fill(taken.range());
    admission.mark_resident(100 * MIB);
    assert_eq!(admission.bytes(), 100 * MIB);
    drop(admission);
    memory.populate(.., tenure::Access::Write).unwrap();
    assert!(headroom::admit(100 * MIB).is_err());
    drop((memory, taken));
    tenure::drain(None).unwrap();
    assert!(headroom::admit(200 * MIB).is_ok());
}

fn admission_dropped_by_panic_is_given_back() {
    let most = headroom::Headroom::now().unwrap().bytes / 2;
    let panic = std::panic::catch_unwind(|| {
        let _admission = headroom::admit(most).unwrap();
        assert!(headroom::admit(most * 3 / 2).is_err());
        std::panic::resume_unwind(Box::new(()));
    });
    assert!(panic.is_err());
    drop(headroom::admit(most * 3 / 2).unwrap());
}

fn ledger_of_forked_child_is_empty() {
    let most = headroom::Headroom::now().unwrap().bytes / 2;
    let admission = headroom::admit(most).unwrap();
    assert!(headroom::admit(most * 3 / 2).is_err());
    let code = fork(|| {
        let is_admitted = headroom::admit(most * 3 / 2).is_ok();
        // The parent's admission changes nothing here.
        drop(admission);
        i32::from(!is_admitted || headroom::admit(most * 4).is_ok())
    });
    assert_eq!(code, 0);
}

/// The admission of a fork handler of the child that was registered before tenure's.
static KEPT: Mutex<Option<headroom::Admission>> = Mutex::new(None);
static ADMITS_IN_CHILD: AtomicBool = AtomicBool::new(false);
const KEPT_BYTES: usize = 8 * MIB;

extern "C" fn admit_in_child() {
    if ADMITS_IN_CHILD.load(Ordering::Relaxed) {
        *KEPT.lock().unwrap() = headroom::admit(KEPT_BYTES).ok();
    }
}

/// Runs before tenure registers its handlers (`.init_array`).
extern "C" fn register_early() {
    unsafe { libc::pthread_atfork(None, None, Some(admit_in_child)) };
}

#[used]
#[unsafe(link_section = ".preinit_array")]
static REGISTER: extern "C" fn() = register_early;

fn admission_of_fork_handler_in_child_counts_once() {
    drop(headroom::admit(MIB).unwrap());
    ADMITS_IN_CHILD.store(true, Ordering::Relaxed);
    let code = fork(|| {
        let kept = KEPT.lock().unwrap().take();
        let kept_bytes = kept.as_ref().map(headroom::Admission::bytes);
        let with_kept = headroom::outstanding_bytes();
        drop(kept);
        let is_counted = with_kept == KEPT_BYTES && headroom::outstanding_bytes() == 0;
        i32::from(kept_bytes != Some(KEPT_BYTES)) + 2 * i32::from(!is_counted)
    });
    ADMITS_IN_CHILD.store(false, Ordering::Relaxed);
    assert_eq!(code, 0);
}

fn cache_beside_child_that_shares_its_pages_is_not_killed() -> Completion {
    in_cgroup_of(128 * MIB, "insert_beside_child")
}

fn insert_beside_child() {
    enter_group();
    const LEN: usize = 64 * KIB;
    let cache = VolatileCache::new();
    let insert = |keys: std::ops::Range<usize>| {
        for key in keys {
            cache.insert(key, &[7; LEN]).unwrap();
        }
    };
    insert(0..3000);
    let child = unsafe { libc::fork() };
    if child == 0 {
        unsafe { libc::pause() };
    }
    // What the parent evicts now stays with the child.
    insert(3000..9000);
    unsafe { libc::kill(child, libc::SIGKILL) };
    unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
}

fn value_that_cannot_fit_evicts_none() -> Completion {
    in_cgroup_of(128 * MIB, "insert_larger_than_limit")
}

fn insert_larger_than_limit() {
    enter_group();
    let cache = VolatileCache::new();
    for key in 0..1000 {
        cache.insert(key, &[7; 64 * KIB]).unwrap();
    }
    let fill = |_: &mut [u8]| panic!("it does not fit");
    cache
        .insert_with(1000, 300 * MIB, Priority::High, fill)
        .unwrap();
    let stats = cache.stats();
    assert_eq!((stats.evicted, stats.refused), (0, 1), "{stats:?}");
}

fn maker_that_forks_leaves_copy_of_cache_alone() {
    let cache = VolatileCache::new();
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // Holds the mutexes of the shards now and then.
        scope.spawn(|| {
            for key in (0..100_000).cycle() {
                cache.insert(1 + key % 500, &[7; 4096]).unwrap();
                if is_done.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        for _ in 0..200 {
            let mut child = 0;
            let fill = |_: &mut [u8]| child = unsafe { libc::fork() };
            let inserted = cache.insert_with(0, 4096, Priority::default(), fill);
            if child == 0 {
                unsafe { libc::_exit(i32::from(inserted.is_err() || !cache.is_empty())) };
            }
            let mut status = 0;
            assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
            assert_eq!(status, 0);
        }
        is_done.store(true, Ordering::Relaxed);
    });
}

fn admissions_after_chroot_do_not_run_out() -> Completion {
    match is_root() {
        true => in_child_ok("admit_after_chroot"),
        false => return skip("chroot needs root"),
    }
    Completion::Completed
}

fn admit_after_chroot() {
    let root = tempfile::tempdir().unwrap();
    std::os::unix::fs::chroot(root.path()).unwrap();
    std::env::set_current_dir("/").unwrap();
    // More than the machine has, one after the other.
    for round in 0..2000 {
        let admission = headroom::admit(64 * MIB);
        let admission = admission.unwrap_or_else(|error| panic!("{round}: {error}"));
        admission.mark_resident(64 * MIB);
        if round % 50 == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

fn populate_of_present_pages_after_setuid_is_ok() -> Completion {
    match is_root() {
        true => in_cgroup_of(128 * MIB, "populate_after_setuid"),
        false => skip("changing the user needs root"),
    }
}

fn populate_after_setuid() {
    enter_group();
    let memory = Mapping::anonymous(90 * MIB).map().unwrap();
    memory.populate(.., tenure::Access::Write).unwrap();
    drop_privileges();
    memory.populate(.., tenure::Access::Write).unwrap();
}
