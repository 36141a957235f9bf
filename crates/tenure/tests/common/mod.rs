//! Shared by every test file: a runner with a third result (skipped, with the reason),
//! tests that run in a process of their own, and probes of real memory.

#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "tests probe memory that they have mapped themselves"
)]
// Each test file uses its own part of this module.
#![allow(dead_code)]

pub mod cached;
pub mod cgroup;
pub mod mappings;
pub mod merging;
pub mod missing;
pub mod names;
pub mod neighbour;
pub mod opens;
pub mod pool;
mod seccomp;
mod smaps;
pub mod stall;
mod swap;
mod undo;
pub mod volatile;
mod watchdog;

use std::process::{Command, ExitCode, Output};

use libtest_mimic::{Arguments, Completion, Failed, Trial};
use rustix::mm::{Advice, MapFlags, ProtFlags};
use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};
use tenure::{Mapping, PageRange, page_size};

#[allow(unused_imports, reason = "each test file uses its own part of this")]
pub use {seccomp::*, smaps::*, swap::*, undo::*, watchdog::*};

/// The result of a test that may find that it cannot run here.
pub trait Verdict {
    fn completion(self) -> Completion;
}

impl Verdict for () {
    fn completion(self) -> Completion {
        Completion::Completed
    }
}

impl Verdict for Completion {
    fn completion(self) -> Completion {
        self
    }
}

pub struct Test {
    pub name: &'static str,
    /// The words in brackets before the test, separated by spaces.
    pub kinds: &'static str,
    pub run: fn() -> Completion,
    /// Runs also where the other tests of the file cannot.
    pub everywhere: bool,
}

/// Defines `main` of a test file from its tests, the functions that tests run in a process
/// of their own with [`in_child`], and the reason why all tests may be skipped. Tests under
/// `everywhere:` run regardless of that reason. `cargo xtask test` reads what stands in
/// brackets before a test: `[exclusive]` has the machine to itself, `[thorough]` is left to
/// `make test-thorough`.
#[macro_export]
macro_rules! tests {
    ($($([$($kind:ident)*])? $test:ident),* $(,)?) => {
        $crate::tests!($($([$($kind)*])? $test),*; children:);
    };
    (
        $($([$($kind:ident)*])? $test:ident),* $(,)?;
        children: $($child:ident),* $(,)?
    ) => {
        $crate::tests!(unless: || None; $($([$($kind)*])? $test),*; children: $($child),*);
    };
    (
        unless: $reason:expr; $($([$($kind:ident)*])? $test:ident),* $(,)?;
        children: $($child:ident),* $(,)?
    ) => {
        $crate::tests!(
            unless: $reason; $($([$($kind)*])? $test),*; everywhere: ; children: $($child),*
        );
    };
    (
        unless: $reason:expr; $($([$($kind:ident)*])? $test:ident),* $(,)?;
        everywhere: $($([$($also_kind:ident)*])? $also:ident),* $(,)?;
        children: $($child:ident),* $(,)?
    ) => {
        fn main() -> std::process::ExitCode {
            use $crate::common::{Test, Verdict, run};
            macro_rules! test {
                ($name:ident, $everywhere:expr, $kinds:expr) => {
                    Test {
                        name: stringify!($name),
                        kinds: $kinds,
                        run: || $name().completion(),
                        everywhere: $everywhere,
                    }
                };
            }
            run(
                $reason,
                &[
                    $(test!($test, false, stringify!($($($kind)*)?)),)*
                    $(test!($also, true, stringify!($($($also_kind)*)?))),*
                ],
                &[$((stringify!($child), $child as fn())),*],
            )
        }
    };
}

/// Runs the tests of a file. `unless` gives the reason why none of the tests can run here,
/// except those that run everywhere.
pub fn run(
    unless: fn() -> Option<&'static str>,
    tests: &[Test],
    children: &[(&str, fn())],
) -> ExitCode {
    let args: Vec<String> = std::env::args().collect();
    if let [_, flag, name] = args.as_slice()
        && flag == "--child"
    {
        let (_, child) = children
            .iter()
            .find(|(known, _)| known == name)
            .expect("a child of this file");
        child();
        return ExitCode::SUCCESS;
    }
    let mut arguments = Arguments::from_args();
    // One test at a time: tests measure the whole process (limits, threads, RSS).
    arguments.test_threads.get_or_insert(1);
    let trials = tests
        .iter()
        .map(|test| {
            let (run, everywhere) = (test.run, test.everywhere);
            let body = move || {
                let reason = unless().filter(|_| !everywhere);
                Ok::<_, Failed>(reason.map_or_else(run, skip))
            };
            Trial::ignorable_test(test.name, body).with_kind(test.kinds)
        })
        .collect();
    libtest_mimic::run(&arguments, trials).exit_code()
}

pub fn skip(reason: &str) -> Completion {
    Completion::ignored_with(reason)
}

/// Skips a test that populates `need_bytes`, which tenure rejects past the headroom of the
/// machine or its cgroup.
pub fn skip_without_headroom(need_bytes: usize) -> Option<Completion> {
    let headroom = tenure::Headroom::now().unwrap();
    let is_too_little = headroom.bytes < need_bytes;
    is_too_little.then(|| skip(&format!("needs {} MiB of headroom", need_bytes >> 20)))
}

/// Runs a function of this test file, named in `children:`, in a new process.
pub fn in_child(name: &str) -> Output {
    child(name).output().unwrap()
}

/// Runs a function of this test file in a new process, which must succeed.
pub fn in_child_ok(name: &str) {
    assert_ended_well(name, &child(name).output().unwrap());
}

/// Runs a function of this test file in a new process that may hang: it must succeed within
/// the limit.
pub fn in_child_within(limit: std::time::Duration, name: &str) {
    ends_well_within(limit, name, &mut child(name));
}

/// Runs a function of this test file in a new process without the named kernel features;
/// the process must succeed.
pub fn in_child_without(features: &str, name: &str) {
    let output = child(name)
        .env("TENURE_WITHOUT", features)
        .output()
        .unwrap();
    assert_ended_well(name, &output);
    print!("{}", String::from_utf8_lossy(&output.stdout));
}

/// Runs a function of this test file in a new process with an environment variable set.
pub fn in_child_with(variable: &str, value: &str, name: &str) -> Output {
    child(name).env(variable, value).output().unwrap()
}

fn child(name: &str) -> Command {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--child", name]);
    child
}

pub fn assert_ended_well(name: &str, output: &Output) {
    assert!(
        output.status.success(),
        "{name}: {}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

/// Forks, runs `body` in the child, and returns its exit status (or the signal
/// that ended it, negative). A panic in `body` is status 101.
pub fn fork(body: impl FnOnce() -> i32) -> i32 {
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0);
    if pid == 0 {
        let status = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).unwrap_or(101);
        unsafe { libc::_exit(status) };
    }
    let mut status = 0;
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
    if libc::WIFEXITED(status) {
        libc::WEXITSTATUS(status)
    } else {
        -libc::WTERMSIG(status)
    }
}

pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Waits in another thread until the first has ended, as far as other processes see.
pub fn wait_for_end_of_first_thread() {
    let stat = format!("/proc/{}/stat", std::process::id());
    while !std::fs::read_to_string(&stat).unwrap().contains(") Z ") {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

/// Whether only these tests run on the machine, as in tests/kernels: then they may change
/// system-wide settings.
pub fn machine_is_ours() -> bool {
    std::env::var_os("TENURE_TEST_MACHINE_IS_OURS").is_some_and(|value| value == "1")
}

/// Closes every descriptor but the standard ones, as daemons do. It waits until tenure's threads
/// keep the files that they have open: a build with debug assertions aborts where a file that is
/// open for one reading is closed under it.
pub fn close_all_descriptors() {
    let list = || -> std::collections::BTreeSet<_> {
        let entries = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
        let named = entries.map(|entry| (entry.file_name(), std::fs::read_link(entry.path()).ok()));
        named.collect()
    };
    let (mut known, mut same) = (list(), 0);
    while same < 5 {
        std::thread::sleep(std::time::Duration::from_millis(10));
        let now = list();
        same = if now == known { same + 1 } else { 0 };
        known = now;
    }
    let closed = unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0) };
    assert_eq!(closed, 0);
}

/// Opens files until none can be opened: the process has no descriptor left until they are
/// dropped.
pub fn take_all_descriptors() -> Vec<std::fs::File> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let maximum = getrlimit(Resource::Nofile).maximum;
    let current = Some(256);
    setrlimit(Resource::Nofile, Rlimit { current, maximum }).unwrap();
    let open = || std::fs::File::open("/dev/null");
    let taken = std::iter::from_fn(|| open().ok()).collect();
    assert_eq!(open().unwrap_err().raw_os_error(), Some(libc::EMFILE));
    taken
}

/// Makes root a user without privileges, for whom limits hold.
pub fn drop_privileges() {
    if is_root() {
        assert_eq!(unsafe { libc::setuid(65534) }, 0);
        // Without it files under /proc/self belong to root from here on.
        assert_eq!(unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 1) }, 0);
    }
}

/// Whether `RLIMIT_MEMLOCK` does not limit this process.
pub fn may_lock_anything() -> bool {
    use rustix::{process::Resource, thread::CapabilitySet};
    let limit = rustix::process::getrlimit(Resource::Memlock).current;
    let sets = rustix::thread::capabilities(None).unwrap();
    limit.is_none() || sets.effective.contains(CapabilitySet::IPC_LOCK)
}

/// Runs a function of this test file that locks all memory in a new process, or skips the
/// test where `RLIMIT_MEMLOCK` forbids that.
pub fn in_child_if_unlimited(name: &str) -> Completion {
    if !may_lock_anything() {
        return skip("locks all memory of a process, which RLIMIT_MEMLOCK does not allow");
    }
    in_child_ok(name);
    Completion::Completed
}

/// Limits `RLIMIT_MEMLOCK` and drops the privileges that override it.
pub fn limit_memlock(bytes: u64) {
    set_memlock(bytes);
    drop_privileges();
}

pub fn set_memlock(bytes: u64) {
    use rustix::process::{Resource, Rlimit, setrlimit};
    let limit = Rlimit {
        current: Some(bytes),
        maximum: Some(bytes),
    };
    setrlimit(Resource::Memlock, limit).unwrap();
}

/// Returns `count` pages of a range, from page `first` on.
pub fn pages(of: PageRange, first: usize, count: usize) -> PageRange {
    PageRange::new(of.start() + first * page_size(), count * page_size()).unwrap()
}

/// Maps private anonymous memory of base pages, with a [`tag`], so that no neighbour merges with
/// it.
pub fn anonymous(page_count: usize) -> Mapping {
    let memory = Mapping::anonymous(page_count * page_size())
        .huge_pages(tenure::HugePages::Never)
        .map()
        .unwrap();
    tag(memory.range());
    memory
}

/// Sets a flag that no other mapping has (read-ahead advice), so that [`is_still_mapped`]
/// recognizes the mapping.
pub fn tag(range: PageRange) {
    let advice = rustix::mm::Advice::Random;
    unsafe { rustix::mm::madvise(range.as_ptr().cast(), range.len(), advice) }.unwrap();
}

/// Maps and populates 64 MiB and one page: enough for a deferred free.
pub fn large() -> Mapping {
    let memory = anonymous((64 << 20) / page_size() + 1);
    memory.populate(.., tenure::Access::Write).unwrap();
    memory
}

/// Whether memory with a [`tag`] is still mapped. (Unmapped addresses may already hold
/// another mapping, such as a worker's stack.)
pub fn is_still_mapped(range: PageRange) -> bool {
    has_vm_flag(range, "rr")
}

/// Waits until all pending memory is freed.
pub fn drain_pending() {
    tenure::drain(Some(std::time::Duration::from_secs(60))).unwrap();
}

/// Writes a pattern of its own to every page; no byte is zero. No page stays in the batch
/// of a CPU that the thread then leaves, where MADV_FREE would skip it: afterwards the
/// kernel can reclaim every page.
pub fn fill(range: PageRange) {
    on_one_cpu(|| {
        for page in 0..range.pages() {
            let at = pages(range, page, 1);
            let bytes = unsafe { std::slice::from_raw_parts_mut(at.as_ptr(), page_size()) };
            bytes.copy_from_slice(pattern(at));
        }
        flush_batch();
    });
}

/// Flushes the batches of every CPU: pages that wait there are added to the kernel's LRU
/// lists. Needed after a lazy free, before anything makes the kernel reclaim pages, because
/// the thread may have moved to another CPU between the two calls of the lazy free; and for
/// pages that [`fill`] did not write.
pub fn flush_all_batches() {
    on_each_cpu(flush_batch);
}

/// Flushes this CPU's batches to the kernel's LRU lists, which MADV_COLD does before it
/// looks at any page. The page given is one of the program that is always present.
fn flush_batch() {
    static SOMETHING: u8 = 1;
    let at = (&raw const SOMETHING).addr();
    let page = PageRange::new(at / page_size() * page_size(), page_size()).unwrap();
    // MADV_COLD fails on locked memory, in a test that locks everything.
    let _ = unsafe { rustix::mm::madvise(page.as_ptr().cast(), page.len(), Advice::LinuxCold) };
}

/// Whether every byte is what [`fill`] wrote.
pub fn is_filled(range: PageRange) -> bool {
    (0..range.pages()).all(|page| {
        let at = pages(range, page, 1);
        let bytes = unsafe { std::slice::from_raw_parts(at.as_ptr(), page_size()) };
        bytes == pattern(at)
    })
}

/// Returns what [`fill`] writes to a page: a part of one long row of bytes, at an offset
/// that differs between pages.
pub fn pattern(page: PageRange) -> &'static [u8] {
    row_at(page.start() / page_size())
}

/// Returns as many bytes as a page has, none of them zero, which differ from those at
/// another offset.
fn row_at(offset: usize) -> &'static [u8] {
    const SHIFTS: usize = 4093;
    // Not a LazyLock: a child forked while another thread makes it would wait for ever.
    static ROW: [u8; MAX_PAGE_BYTES + SHIFTS] = {
        let mut row = [0; MAX_PAGE_BYTES + SHIFTS];
        let mut index = 0;
        while index < row.len() {
            row[index] = (index * index / 3 + index / 256) as u8 | 1;
            index += 1;
        }
        row
    };
    &ROW[offset % SHIFTS..][..page_size()]
}

/// The largest page of any machine that Linux runs on.
const MAX_PAGE_BYTES: usize = 64 << 10;

static ZEROS: [u8; MAX_PAGE_BYTES] = [0; MAX_PAGE_BYTES];

pub fn is_zero(range: PageRange) -> bool {
    let bytes = unsafe { std::slice::from_raw_parts(range.as_ptr(), range.len()) };
    bytes
        .chunks(page_size())
        .all(|page| page == &ZEROS[..page.len()])
}

/// Which pages are present, according to `/proc/self/pagemap`. A page that the kernel is
/// migrating (compaction) looks swapped out: such pages are read again, for half a second,
/// because the kernel's thread may wait for a CPU in the middle of a migration.
pub fn present(range: PageRange) -> Vec<bool> {
    let mut present = vec![false; range.pages()];
    for _ in 0..500 {
        let entries = pagemap(range);
        for (is_present, entry) in present.iter_mut().zip(&entries) {
            *is_present |= entry >> 63 == 1;
        }
        let mut entries_now = present.iter().zip(&entries);
        if !entries_now.any(|(is_present, entry)| !is_present && entry >> 62 == 1) {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    present
}

/// Whether a range that has been populated is present. The kernel unmaps pages of a file
/// when it splits a large folio, so what is absent is populated again, twice at most: a
/// page that populating leaves out stays absent.
pub fn is_populated(range: PageRange, populate_again: impl Fn()) -> bool {
    (0..2).any(|_| {
        let is_present = count_present(range) == range.pages();
        if !is_present {
            populate_again();
        }
        is_present
    }) || count_present(range) == range.pages()
}

/// Which pages are neither present nor in swap nor being migrated.
pub fn absent(range: PageRange) -> Vec<bool> {
    let entries = pagemap(range).into_iter();
    entries.map(|entry| entry >> 62 == 0).collect()
}

/// Returns the entries of `/proc/self/pagemap`.
pub fn pagemap(range: PageRange) -> Vec<u64> {
    use std::os::unix::fs::FileExt;
    let pagemap = std::fs::File::open("/proc/self/pagemap").unwrap();
    let mut entries = vec![0; range.pages() * 8];
    pagemap
        .read_exact_at(&mut entries, (range.start() / page_size() * 8) as u64)
        .unwrap();
    let entries = entries.chunks(8);
    entries
        .map(|entry| u64::from_ne_bytes(entry.try_into().unwrap()))
        .collect()
}

pub fn count_present(range: PageRange) -> usize {
    present(range).into_iter().filter(|&is| is).count()
}

/// Makes the kernel reclaim what it may of the range, as under memory pressure.
pub fn page_out(range: PageRange) {
    unsafe { rustix::mm::madvise(range.as_ptr().cast(), range.len(), Advice::LinuxPageOut) }
        .unwrap();
}

/// Makes the kernel reclaim every page of the range, which must have been offered. Batches
/// are flushed first: once the kernel has tried to reclaim a page that waits in a batch,
/// the batch's CPU forgets MADV_FREE for it.
pub fn page_out_all(range: PageRange) {
    offer_and_page_out(range, || ());
}

/// Frees lazily and makes the kernel reclaim every page, repeatedly, because MADV_FREE
/// skips pages that the kernel is migrating (compaction).
pub fn lazy_free_and_page_out(range: PageRange) {
    offer_and_page_out(range, || unsafe { range.lazy_free() }.unwrap());
}

fn offer_and_page_out(range: PageRange, offer: impl Fn()) {
    for _ in 0..2000 {
        offer();
        flush_all_batches();
        page_out(range);
        if count_present(range) == 0 {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    panic!(
        "{} of {} pages are still there",
        count_present(range),
        range.pages()
    );
}

pub fn raw_unmap(range: PageRange) {
    unsafe { rustix::mm::munmap(range.as_ptr().cast(), range.len()) }.unwrap();
}

/// Maps fresh private anonymous memory over the range, without tenure.
pub fn raw_map_over(range: PageRange) {
    unsafe {
        rustix::mm::mmap_anonymous(
            range.as_ptr().cast(),
            range.len(),
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::PRIVATE | MapFlags::FIXED,
        )
    }
    .unwrap();
}

pub fn raw_protect(range: PageRange, flags: rustix::mm::MprotectFlags) {
    unsafe { rustix::mm::mprotect(range.as_ptr().cast(), range.len(), flags) }.unwrap();
}

/// Registers a range with a userfaultfd that is not tenure's.
pub fn register_with_foreign_userfaultfd(range: PageRange) -> std::os::fd::OwnedFd {
    register_with_features(range, 0)
}

/// Registers a range with a userfaultfd of its own, which has these features.
pub fn register_with_features(range: PageRange, features: u64) -> std::os::fd::OwnedFd {
    // UFFD_USER_MODE_ONLY needs no privilege.
    register_with_flags(range, 1, features).unwrap()
}

/// Registers a range with a userfaultfd that is created with these flags.
fn register_with_flags(
    range: PageRange,
    flags: u32,
    features: u64,
) -> rustix::io::Result<std::os::fd::OwnedFd> {
    use linux_raw_sys::general::{UFFD_API, uffdio_api, uffdio_range, uffdio_register};
    use linux_raw_sys::ioctl::{UFFDIO_API, UFFDIO_REGISTER};
    use std::os::fd::AsRawFd;
    let flags = rustix::mm::UserfaultfdFlags::from_bits_retain(flags | libc::O_CLOEXEC as u32);
    let fd = unsafe { rustix::mm::userfaultfd(flags) }?;
    let mut api = uffdio_api {
        api: UFFD_API.into(),
        features,
        ioctls: 0,
    };
    let mut register = uffdio_register {
        range: uffdio_range {
            start: range.start() as u64,
            len: range.len() as u64,
        },
        mode: 1,
        ioctls: 0,
    };
    unsafe {
        assert_eq!(libc::ioctl(fd.as_raw_fd(), UFFDIO_API.into(), &mut api), 0);
        assert_eq!(
            libc::ioctl(fd.as_raw_fd(), UFFDIO_REGISTER.into(), &mut register),
            0
        );
    }
    Ok(fd)
}

/// Closes tenure's userfaultfd without tenure. (Only that one: tenure's threads may be
/// using other descriptors.)
pub fn close_userfaultfd() {
    assert_eq!(unsafe { libc::close(userfaultfd_number()) }, 0);
}

/// Replaces tenure's userfaultfd by another file in one call: tenure's threads open files,
/// too, and could get the number in between.
pub fn replace_userfaultfd(file: std::fs::File) -> std::fs::File {
    use std::os::fd::{AsRawFd, FromRawFd};
    let number = userfaultfd_number();
    assert_eq!(unsafe { libc::dup2(file.as_raw_fd(), number) }, number);
    unsafe { std::fs::File::from_raw_fd(number) }
}

fn userfaultfd_number() -> std::os::fd::RawFd {
    let found = userfaultfds();
    let [path] = &found[..] else {
        panic!("there should be one: {found:?}")
    };
    path.file_name().unwrap().to_str().unwrap().parse().unwrap()
}

/// Returns the paths in `/proc/self/fd` of the process's userfaultfds.
pub fn userfaultfds() -> Vec<std::path::PathBuf> {
    let all = std::fs::read_dir("/proc/self/fd").unwrap();
    let is_it = |path: &std::path::PathBuf| {
        std::fs::read_link(path).is_ok_and(|to| to.as_os_str() == "anon_inode:[userfaultfd]")
    };
    all.map(|entry| entry.unwrap().path())
        .filter(is_it)
        .collect()
}

/// Runs `work` without being moved to another CPU.
pub fn on_one_cpu(work: impl FnOnce()) {
    let before = sched_getaffinity(None).unwrap();
    move_to(sched_getcpu());
    work();
    sched_setaffinity(None, &before).unwrap();
}

/// Runs `work` once on each CPU that this thread may use.
fn on_each_cpu(work: impl Fn()) {
    let before = sched_getaffinity(None).unwrap();
    for cpu in (0..CpuSet::MAX_CPU).filter(|&cpu| before.is_set(cpu)) {
        move_to(cpu);
        work();
    }
    sched_setaffinity(None, &before).unwrap();
}

fn move_to(cpu: usize) {
    let mut one = CpuSet::new();
    one.set(cpu);
    sched_setaffinity(None, &one).unwrap();
}

/// Reads a line of `/proc/self/status` in KiB, such as `VmLck`.
pub fn status_kib(line: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let found = status
        .lines()
        .find_map(|text| text.strip_prefix(&format!("{line}:")));
    found
        .unwrap()
        .trim()
        .trim_end_matches(" kB")
        .parse()
        .unwrap()
}

/// Creates a temporary file of `len` bytes with a pattern other than [`fill`]'s: byte `n`
/// is `n % 251`.
pub fn file(len: usize) -> std::fs::File {
    use std::io::Write;
    let mut file = tempfile::tempfile().unwrap();
    let bytes: Vec<u8> = (0..len).map(|index| (index % 251) as u8).collect();
    file.write_all(&bytes).unwrap();
    file
}

/// Free huge pages of 2 MiB in the hugetlb pool. Dropping it, or the end of this process,
/// removes the pages that it has added. Until then no other test changes the pool.
pub struct HugePool {
    /// Of a pool that is large enough.
    _lock: Option<std::fs::File>,
    _undo: Option<Undo>,
}

impl HugePool {
    pub const COUNT: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";
    pub const FREE: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages";

    /// Makes sure that `wanted` of them are free, if possible.
    pub fn of(wanted: usize) -> Option<Self> {
        let lock = lock_setting(Self::COUNT)?;
        if Self::read(Self::FREE)? >= wanted {
            return Some(Self {
                _lock: Some(lock),
                _undo: None,
            });
        }
        let count = Self::read(Self::COUNT)? + wanted;
        let undo = change_setting(Self::COUNT, lock, &count.to_string())?;
        (Self::read(Self::FREE)? >= wanted).then_some(Self {
            _lock: None,
            _undo: Some(undo),
        })
    }

    pub fn read(file: &str) -> Option<usize> {
        let text = std::fs::read_to_string(file).ok()?;
        text.trim().parse().ok()
    }
}
