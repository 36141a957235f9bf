//! Files in the page cache: what is resident, reading what is missing, dropping it.
//! `mincore` and `pread` of the tests themselves are the judge.

#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "tests use files that they have made themselves"
)]
#![allow(
    clippy::single_range_in_vec_init,
    reason = "lists of ranges are what the functions return"
)]

mod common;

use std::fs::{File, OpenOptions};
use std::ops::Range;
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};

use common::cached::*;
use common::cgroup::{Group, enter_group};
use common::*;
use libtest_mimic::Completion;
use tenure::files::{self, FileOutcome, StoppedBy, Wanted, WarmOptions, Warmed};
use tenure::{Error, Mapping, page_size};

tests!(
    residency_follows_the_page_cache,
    dirty_pages_are_counted,
    missing_and_resident_ranges_agree_with_mincore,
    ranges_without_cachestat_agree_with_mincore,
    holes_are_neither_missing_nor_resident,
    file_offset_stays_after_a_look_at_holes,
    residency_of_foreign_file_is_unsupported,
    warm_reads_only_what_is_missing,
    warm_within_budget_reads_the_front,
    warm_of_small_budgets_reads_exactly_that,
    warm_of_part_reads_that_part,
    warm_of_sparse_file_reads_no_holes,
    warm_of_foreign_file_reads_all_of_it,
    warm_of_unreadable_file_goes_on_with_the_others,
    warm_of_shortened_file_is_no_error,
    warm_tells_outcomes_in_order,
    warm_without_threads_reads_all,
    warm_in_cgroup_keeps_the_front_resident,
    evict_drops_clean_and_dirty_pages,
    evict_of_part_leaves_the_rest,
    evict_leaves_mapped_pages_and_counts_them;
    children:
    compare_ranges,
    look_at_foreign_file,
    warm_foreign_file,
    warm_over_cgroup_limit,
    warm_alone,
);

const ALL: Range<u64> = 0..u64::MAX;
const MIB: usize = 1 << 20;
const FILE_BYTES: usize = 6 * MIB;

/// Creates a file, or ends the test with the reason why it cannot run here.
macro_rules! uncached_file {
    ($len:expr) => {
        match uncached_file($len) {
            Ok(file) => file,
            Err(why) => return skip(&why),
        }
    };
}

fn has_cachestat() -> bool {
    tenure::Features::get().cachestat.is_ok()
}

fn again(file: &File) -> File {
    file.try_clone().unwrap()
}

fn warm_all<'a>(
    files: impl IntoIterator<Item = &'a File>,
    options: &WarmOptions,
) -> (Warmed, Vec<FileOutcome>) {
    let mut outcomes = Vec::new();
    let wanted = files.into_iter().enumerate();
    let wanted = wanted.map(|(index, file)| Wanted::whole(index, again(file)));
    let warmed = files::warm(wanted, options, |index, outcome| {
        assert_eq!(index, outcomes.len());
        outcomes.push(outcome);
    });
    (warmed.unwrap(), outcomes)
}

/// Returns the runs of pages for which `wanted` is the state.
fn runs(pages: &[bool], wanted: bool) -> Vec<Range<u64>> {
    let page = page_size() as u64;
    let mut at = 0;
    let mut runs = Vec::new();
    for run in pages.chunk_by(|one, other| one == other) {
        let end = at + run.len() as u64 * page;
        if run[0] == wanted {
            runs.push(at..end);
        }
        at = end;
    }
    runs
}

fn residency_follows_the_page_cache() -> Completion {
    let file = uncached_file!(FILE_BYTES);
    let resident = || files::residency(&file, ALL).unwrap().resident_bytes as usize;
    assert_eq!(resident(), 0);
    despite_reclaim(|| {
        read_exactly(&file, MIB..3 * MIB);
        let (told, found) = (resident(), cached_bytes(&file));
        let is_same = told == found && told == 2 * MIB;
        is_same.then_some(()).ok_or(format!("{told} {found}"))
    });
    let part = files::residency(&file, 0..MIB as u64).unwrap();
    assert_eq!(part.resident_bytes, 0);
    let behind = files::residency(&file, FILE_BYTES as u64..ALL.end).unwrap();
    assert_eq!(behind.resident_bytes, 0);
    Completion::Completed
}

fn dirty_pages_are_counted() -> Completion {
    let file = uncached_file!(FILE_BYTES);
    if !has_cachestat() {
        let found = files::residency(&file, ALL).unwrap();
        assert_eq!(found.dirty_bytes, None);
        return skip("only cachestat (Linux 6.5) counts dirty pages");
    }
    despite_reclaim(|| {
        file.write_all_at(&vec![3; 2 * page_size()], 0).unwrap();
        let found = files::residency(&file, ALL).unwrap();
        let bytes = found.dirty_bytes.unwrap() + found.writeback_bytes.unwrap();
        let is_counted = bytes == 2 * page_size() as u64;
        is_counted.then_some(()).ok_or(format!("{found:?}"))
    });
    Completion::Completed
}

fn missing_and_resident_ranges_agree_with_mincore() -> Completion {
    // More than what is examined at once.
    let file = uncached_file!(70 * MIB + 5000);
    for part in [MIB..2 * MIB, 3 * MIB..3 * MIB + 7, 63 * MIB..66 * MIB] {
        read_exactly(&file, part);
    }
    despite_reclaim(|| {
        let pages = pages_in_cache(&file);
        let missing = files::missing(&file, ALL).unwrap();
        let resident = files::resident(&file, ALL).unwrap();
        let is_same = missing == runs(&pages, false) && resident == runs(&pages, true);
        is_same
            .then_some(())
            .ok_or(format!("{missing:?} {resident:?}"))
    });
    let page = page_size() as u64;
    let part = files::missing(&file, page + 1..page + 2).unwrap();
    assert_eq!(part, [page..2 * page]);
    assert_eq!(files::missing(&file, 7..7).unwrap(), []);
    assert_eq!(files::missing(&file, ALL.end - 1..ALL.end).unwrap(), []);
    Completion::Completed
}

fn ranges_without_cachestat_agree_with_mincore() -> Completion {
    drop(uncached_file!(page_size()));
    in_child_without("cachestat", "compare_ranges");
    Completion::Completed
}

fn compare_ranges() {
    assert!(!has_cachestat());
    let file = uncached_file(FILE_BYTES).unwrap();
    read_exactly(&file, MIB..2 * MIB);
    despite_reclaim(|| {
        let pages = pages_in_cache(&file);
        let missing = files::missing(&file, ALL).unwrap();
        let found = files::residency(&file, ALL).unwrap();
        assert_eq!(found.dirty_bytes, None);
        let is_same =
            missing == runs(&pages, false) && found.resident_bytes as usize == cached_bytes(&file);
        is_same
            .then_some(())
            .ok_or(format!("{missing:?} {found:?}"))
    });
    let (warmed, _) = warm_all([&file], &WarmOptions::new());
    assert!(warmed.is_complete(), "{warmed:?}");
}

/// Makes a file of 1 TiB with a MiB of data.
fn sparse_file() -> Result<(File, Range<u64>), String> {
    let file = uncached_file(0)?;
    let data = 512 << 30..(512 << 30) + MIB as u64;
    let len = file.set_len(1 << 40);
    len.map_err(|error| format!("the file system has no files of 1 TiB: {error}"))?;
    file.write_all_at(&vec![1; MIB], data.start).unwrap();
    file.sync_all().unwrap();
    // mincore of a TiB is long: the page cache is dropped unseen.
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    Ok((file, data))
}

fn holes_are_neither_missing_nor_resident() -> Completion {
    let (file, data) = match sparse_file() {
        Ok(file) => file,
        Err(why) => return skip(&why),
    };
    let found = [
        files::missing(&file, ALL).unwrap(),
        files::resident(&file, ALL).unwrap(),
    ];
    let mut found: Vec<_> = found.concat();
    found.sort_by_key(|range| range.start);
    let (first, last) = (found.first().unwrap(), found.last().unwrap());
    assert_eq!((first.start, last.end), (data.start, data.end), "{found:?}");
    Completion::Completed
}

fn file_offset_stays_after_a_look_at_holes() -> Completion {
    use std::io::{Seek, SeekFrom};
    let (mut file, _) = match sparse_file() {
        Ok(file) => file,
        Err(why) => return skip(&why),
    };
    file.seek(SeekFrom::Start(123)).unwrap();
    files::missing(&file, ALL).unwrap();
    assert_eq!(file.stream_position().unwrap(), 123);
    Completion::Completed
}

/// Names a file of root's that others may read.
const FOREIGN: &str = "TENURE_TEST_FOREIGN_FILE";

fn with_foreign_file(child: &str) -> Completion {
    if !is_root() {
        return skip("a file of another user needs root");
    }
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let path = folder.path().join("foreign");
    std::fs::write(&path, vec![1; FILE_BYTES]).unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o644)).unwrap();
    let output = in_child_with(FOREIGN, path.to_str().unwrap(), child);
    assert_ended_well(child, &output);
    let is_skipped = String::from_utf8_lossy(&output.stdout).contains("skip");
    match is_skipped {
        true => skip("this kernel tells everybody what is in the page cache"),
        false => Completion::Completed,
    }
}

fn foreign_file() -> Option<File> {
    drop_privileges();
    let file = File::open(std::env::var_os(FOREIGN).unwrap()).unwrap();
    let pages = |file: &File| files::residency(file, ALL);
    if pages(&file).is_ok() {
        println!("skip");
        return None;
    }
    Some(file)
}

fn residency_of_foreign_file_is_unsupported() -> Completion {
    with_foreign_file("look_at_foreign_file")
}

fn look_at_foreign_file() {
    let Some(file) = foreign_file() else { return };
    let error = files::residency(&file, ALL).unwrap_err();
    assert!(matches!(error, Error::Unsupported { .. }), "{error}");
    assert_eq!(files::missing(&file, ALL).unwrap_err(), error);
    assert_eq!(files::evict(&file, ALL).unwrap_err(), error);
}

fn warm_of_foreign_file_reads_all_of_it() -> Completion {
    with_foreign_file("warm_foreign_file")
}

fn warm_foreign_file() {
    let Some(file) = foreign_file() else { return };
    let (warmed, outcomes) = warm_all([&file], &WarmOptions::new());
    assert_eq!(outcomes[0].error, None);
    assert_eq!(warmed.read_bytes, FILE_BYTES as u64);
}

fn warm_reads_only_what_is_missing() -> Completion {
    let file = uncached_file!(FILE_BYTES + 1000);
    let all = FILE_BYTES + page_size();
    despite_reclaim(|| {
        drop_cache(&file).unwrap();
        read_exactly(&file, MIB..2 * MIB);
        let before = cached_bytes(&file);
        let (warmed, outcomes) = warm_all([&file], &WarmOptions::new());
        assert_eq!(warmed.stopped_by, None);
        assert_eq!(outcomes[0].error, None);
        assert!(warmed.is_complete());
        let sum = (warmed.resident_bytes + warmed.read_bytes) as usize;
        assert_eq!(sum, all);
        let after = cached_bytes(&file);
        let is_right = warmed.resident_bytes as usize == before && after == all;
        is_right
            .then_some(())
            .ok_or(format!("{before} {warmed:?} {after}"))
    });
    Completion::Completed
}

fn warm_within_budget_reads_the_front() -> Completion {
    // Larger than what the kernel reads ahead.
    const SECOND_BYTES: usize = 48 * MIB;
    let files = [uncached_file!(FILE_BYTES), uncached_file!(SECOND_BYTES)];
    const BUDGET: usize = FILE_BYTES + 24 * MIB;
    despite_reclaim(|| {
        files.iter().for_each(|file| drop_cache(file).unwrap());
        let options = WarmOptions::new().budget_bytes(BUDGET as u64);
        let (warmed, outcomes) = warm_all(&files, &options);
        assert_eq!(warmed.read_bytes as usize, BUDGET);
        assert_eq!(
            warmed.left_bytes as usize,
            FILE_BYTES + SECOND_BYTES - BUDGET
        );
        assert_eq!(warmed.stopped_by, Some(StoppedBy::Budget));
        assert_eq!(outcomes[0].left_bytes, 0);
        let first = runs(&pages_in_cache(&files[0]), true);
        let second = runs(&pages_in_cache(&files[1]), true);
        let cut = (BUDGET - FILE_BYTES) as u64;
        let is_front = first == [0..FILE_BYTES as u64] && second == [0..cut];
        is_front
            .then_some(())
            .ok_or(format!("{first:?} {second:?}"))
    });
    Completion::Completed
}

fn warm_of_small_budgets_reads_exactly_that() -> Completion {
    let file = uncached_file!(FILE_BYTES);
    for pages in [0, 1, 3] {
        let budget = pages * page_size() + page_size() / 2;
        despite_reclaim(|| {
            drop_cache(&file).unwrap();
            let options = WarmOptions::new().budget_bytes(budget as u64).readers(4);
            let (warmed, _) = warm_all([&file], &options);
            assert_eq!(warmed.read_bytes as usize, pages * page_size());
            let found = cached_bytes(&file);
            let is_exact = found == pages * page_size();
            is_exact.then_some(()).ok_or(format!("{pages}: {found}"))
        });
    }
    Completion::Completed
}

fn warm_of_part_reads_that_part() -> Completion {
    let file = uncached_file!(FILE_BYTES);
    let part = 2 * MIB as u64..3 * MIB as u64;
    despite_reclaim(|| {
        drop_cache(&file).unwrap();
        let wanted = Wanted::part((), again(&file), part.start + 1..part.end - 1);
        let warmed = files::warm([wanted], &WarmOptions::new(), |(), _| ()).unwrap();
        assert_eq!(warmed.read_bytes, part.end - part.start);
        let found = runs(&pages_in_cache(&file), true);
        (found == [part.clone()])
            .then_some(())
            .ok_or(format!("{found:?}"))
    });
    Completion::Completed
}

fn warm_of_sparse_file_reads_no_holes() -> Completion {
    let (file, data) = match sparse_file() {
        Ok(file) => file,
        Err(why) => return skip(&why),
    };
    let (warmed, _) = warm_all([&file], &WarmOptions::new());
    assert!(warmed.is_complete(), "{warmed:?}");
    assert_eq!(
        warmed.resident_bytes + warmed.read_bytes,
        data.end - data.start
    );
    Completion::Completed
}

fn warm_of_unreadable_file_goes_on_with_the_others() -> Completion {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("write-only");
    std::fs::write(&path, [1; 5000]).unwrap();
    let unreadable = OpenOptions::new().write(true).open(&path).unwrap();
    rustix::fs::fsync(&unreadable).unwrap();
    let dropped = drop_cache(&File::open(&path).unwrap());
    if let Err(why) = dropped {
        return skip(&why);
    }
    let good = uncached_file!(FILE_BYTES);
    let (warmed, outcomes) = warm_all([&unreadable, &good], &WarmOptions::new());
    assert_eq!(warmed.failed_files, 1);
    assert!(!warmed.is_complete());
    assert!(outcomes[0].error.is_some());
    assert_eq!((outcomes[0].read_bytes, &outcomes[1].error), (0, &None));
    assert_eq!(
        outcomes[1].read_bytes + outcomes[1].resident_bytes,
        FILE_BYTES as u64
    );
    Completion::Completed
}

fn warm_of_shortened_file_is_no_error() -> Completion {
    let files = [uncached_file!(40 * MIB), uncached_file!(MIB)];
    let wanted = files.iter().enumerate().map(|(index, file)| {
        if index == 1 {
            // Much of the first file is queued, and not read yet.
            files[0].set_len(5000).unwrap();
        }
        Wanted::whole(index, again(file))
    });
    let mut outcomes = Vec::new();
    let warmed = files::warm(wanted, &WarmOptions::new().readers(1), |_, outcome| {
        outcomes.push(outcome);
    });
    assert!(warmed.unwrap().is_complete());
    assert!(outcomes[0].read_bytes <= 40 * MIB as u64);
    assert_eq!(
        outcomes[1].read_bytes + outcomes[1].resident_bytes,
        MIB as u64
    );
    Completion::Completed
}

fn warm_tells_outcomes_in_order() -> Completion {
    let files: Vec<File> = (0..20)
        .map(|index| uncached_file(index * 3000))
        .collect::<Result<_, _>>()
        .unwrap_or_default();
    if files.is_empty() {
        return skip("TMPDIR is on a file system that keeps pages in memory");
    }
    // `warm_all` checks the order.
    let (warmed, outcomes) = warm_all(&files, &WarmOptions::new().readers(8));
    assert_eq!(outcomes.len(), files.len());
    assert!(warmed.is_complete() && outcomes[0] == FileOutcome::default());
    let none: [Wanted<()>; 0] = [];
    let nothing = files::warm(none, &WarmOptions::new(), |(), _| ()).unwrap();
    assert!(nothing.is_complete());
    Completion::Completed
}

fn warm_without_threads_reads_all() -> Completion {
    drop(uncached_file!(page_size()));
    in_child_ok("warm_alone");
    Completion::Completed
}

fn warm_alone() {
    use rustix::process::{Resource, Rlimit, setrlimit};
    // The folder of temporary files may be closed to another user.
    let file = uncached_file(FILE_BYTES).unwrap();
    // Threads count against the limit of their user's processes.
    drop_privileges();
    let limit = Rlimit {
        current: Some(0),
        maximum: Some(0),
    };
    setrlimit(Resource::Nproc, limit).unwrap();
    let (warmed, _) = warm_all([&file], &WarmOptions::new());
    assert!(warmed.is_complete(), "{warmed:?}");
    assert_eq!(warmed.resident_bytes + warmed.read_bytes, FILE_BYTES as u64);
}

/// The path of the file that the child reads in its cgroup.
const LARGE: &str = "TENURE_TEST_LARGE_FILE";
const LIMIT: usize = 160 * MIB;
const LARGE_BYTES: usize = 320 * MIB;

fn warm_in_cgroup_keeps_the_front_resident() -> Completion {
    let group = match Group::with_limit(LIMIT) {
        Ok(group) => group,
        Err(why) => return skip(&why),
    };
    let file = uncached_file!(LARGE_BYTES);
    use std::os::fd::AsRawFd;
    let path = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    command
        .args(["--child", "warm_over_cgroup_limit"])
        .env(LARGE, path);
    group.tell(&mut command);
    assert_ended_well("warm_over_cgroup_limit", &command.output().unwrap());
    Completion::Completed
}

fn warm_over_cgroup_limit() {
    enter_group();
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_CLOEXEC)
        .open(std::env::var_os(LARGE).unwrap())
        .unwrap();
    despite_reclaim(|| {
        drop_cache(&file).unwrap();
        let (warmed, _) = warm_all([&file], &WarmOptions::new());
        assert!(
            matches!(warmed.stopped_by, Some(StoppedBy::Headroom(_))),
            "{warmed:?}"
        );
        assert_eq!(
            (warmed.read_bytes + warmed.left_bytes) as usize,
            LARGE_BYTES
        );
        // An eighth is left to others, and the process has memory of its own.
        let read = warmed.read_bytes as usize;
        assert!(read > LIMIT * 3 / 4 && read < LIMIT * 7 / 8, "{warmed:?}");
        // Another time nothing more fits, and nothing is read that would push it out.
        let (second, _) = warm_all([&file], &WarmOptions::new());
        let front = runs(&pages_in_cache(&file), true);
        let is_kept = front
            .first()
            .is_some_and(|run| *run == (0..run.end.max(read as u64)));
        (is_kept && second.read_bytes < 2 * MIB as u64)
            .then_some(())
            .ok_or(format!("{warmed:?} {second:?} {front:?}"))
    });
}

fn evict_drops_clean_and_dirty_pages() -> Completion {
    let file = uncached_file!(FILE_BYTES);
    read_exactly(&file, 0..2 * MIB);
    file.write_all_at(&vec![9; MIB], 4 * MIB as u64).unwrap();
    let evicted = files::evict(&file, ALL).unwrap();
    assert_eq!(evicted.write_error, None);
    assert_eq!(cached_bytes(&file), 0, "{evicted:?}");
    assert_eq!(evicted.after.resident_bytes, 0);
    assert_eq!(evicted.evicted_bytes(), evicted.before.resident_bytes);
    assert!(evicted.evicted_bytes() > 0);
    let mut bytes = vec![0; MIB];
    file.read_exact_at(&mut bytes, 4 * MIB as u64).unwrap();
    assert!(bytes.iter().all(|&byte| byte == 9));
    Completion::Completed
}

fn evict_of_part_leaves_the_rest() -> Completion {
    let file = uncached_file!(FILE_BYTES);
    despite_reclaim(|| {
        drop_cache(&file).unwrap();
        read_exactly(&file, 0..FILE_BYTES);
        files::evict(&file, 0..2 * MIB as u64).unwrap();
        let found = runs(&pages_in_cache(&file), true);
        let wanted = [2 * MIB as u64..FILE_BYTES as u64];
        (found == wanted).then_some(()).ok_or(format!("{found:?}"))
    });
    Completion::Completed
}

fn evict_leaves_mapped_pages_and_counts_them() -> Completion {
    let file = uncached_file!(FILE_BYTES);
    read_exactly(&file, 0..FILE_BYTES);
    let mapping = unsafe { Mapping::file(&file) }.map().unwrap();
    mapping.lock(..MIB, tenure::LockMode::Now).unwrap();
    let evicted = files::evict(&file, ALL).unwrap();
    assert!(evicted.after.resident_bytes >= MIB as u64, "{evicted:?}");
    assert!(
        pages_in_cache(&file)[..MIB / page_size()]
            .iter()
            .all(|&is| is)
    );
    drop(mapping);
    let evicted = files::evict(&file, ALL).unwrap();
    assert_eq!(evicted.after.resident_bytes, 0, "{evicted:?}");
    Completion::Completed
}
