//! What every test file needs: a runner with a third result (skipped, with the
//! reason), tests that run in a process of their own, and looks at real memory.

#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "tests probe memory that they have mapped themselves"
)]
// Each test file uses its own part of this.
#![allow(dead_code)]

pub mod cgroup;
pub mod neighbour;
mod seccomp;
mod smaps;
mod undo;
pub mod volatile;

use std::process::{Command, ExitCode, Output};
use std::sync::LazyLock;

use libtest_mimic::{Arguments, Completion, Failed, Trial};
use rustix::mm::{Advice, MapFlags, ProtFlags};
use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};
use tenure::{Mapping, PageRange, page_size};

#[allow(unused_imports, reason = "each test file uses its own part of this")]
pub use {seccomp::*, smaps::*, undo::*};

/// A test that may find that it cannot run here.
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
    pub run: fn() -> Completion,
    /// It runs also where the others of the file cannot.
    pub everywhere: bool,
}

/// Makes `main` of a test file: its tests, the functions that tests run in a
/// process of their own with [`in_child`], and why all of them may be skipped, but
/// for those under `everywhere:`.
#[macro_export]
macro_rules! tests {
    ($($test:ident),* $(,)?) => { $crate::tests!($($test),*; children:); };
    ($($test:ident),* $(,)?; children: $($child:ident),* $(,)?) => {
        $crate::tests!(unless: || None; $($test),*; children: $($child),*);
    };
    (unless: $reason:expr; $($test:ident),* $(,)?; children: $($child:ident),* $(,)?) => {
        $crate::tests!(unless: $reason; $($test),*; everywhere: ; children: $($child),*);
    };
    (
        unless: $reason:expr; $($test:ident),* $(,)?;
        everywhere: $($also:ident),* $(,)?;
        children: $($child:ident),* $(,)?
    ) => {
        fn main() -> std::process::ExitCode {
            use $crate::common::{Test, Verdict, run};
            macro_rules! test {
                ($name:ident, $everywhere:expr) => {
                    Test {
                        name: stringify!($name),
                        run: || $name().completion(),
                        everywhere: $everywhere,
                    }
                };
            }
            run(
                $reason,
                &[$(test!($test, false),)* $(test!($also, true)),*],
                &[$((stringify!($child), $child as fn())),*],
            )
        }
    };
}

/// `unless` tells why none of the tests can run here, but for those that run
/// everywhere.
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
    // Tests fork beside threads that may be at their first call.
    tenure::prepare();
    let mut arguments = Arguments::from_args();
    // One at a time: tests look at the whole process (limits, threads, RSS).
    arguments.test_threads.get_or_insert(1);
    let trials = tests
        .iter()
        .map(|test| {
            let (run, everywhere) = (test.run, test.everywhere);
            let body = move || {
                let reason = unless().filter(|_| !everywhere);
                Ok::<_, Failed>(reason.map_or_else(run, skip))
            };
            Trial::ignorable_test(test.name, body)
        })
        .collect();
    libtest_mimic::run(&arguments, trials).exit_code()
}

pub fn skip(reason: &str) -> Completion {
    Completion::ignored_with(reason)
}

/// For a test that brings in so much, which is refused past what the machine or its
/// cgroup has left.
pub fn too_little_room(need_bytes: usize) -> Option<Completion> {
    let room = tenure::Room::now().unwrap();
    let is_too_little = room.bytes < need_bytes;
    is_too_little.then(|| skip(&format!("needs room for {} MiB", need_bytes >> 20)))
}

/// Runs a function of this test file, named in `children:`, in a new process.
pub fn in_child(name: &str) -> Output {
    child(name).output().unwrap()
}

/// The same, for functions that must end well.
pub fn in_child_ok(name: &str) {
    assert_ended_well(name, &child(name).output().unwrap());
}

/// The same, as on a kernel without the features named.
pub fn in_child_without(features: &str, name: &str) {
    let output = child(name)
        .env("TENURE_WITHOUT", features)
        .output()
        .unwrap();
    assert_ended_well(name, &output);
    print!("{}", String::from_utf8_lossy(&output.stdout));
}

/// The same with an environment variable set, however the function ends.
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

/// Whether nothing but these tests runs on the machine, as in those of
/// tests/kernels: they may change what concerns everybody.
pub fn machine_is_ours() -> bool {
    std::env::var_os("TENURE_TEST_MACHINE_IS_OURS").is_some_and(|value| value == "1")
}

/// Makes root a user like others, for whom limits hold.
pub fn give_up_privileges() {
    if is_root() {
        assert_eq!(unsafe { libc::setuid(65534) }, 0);
        // Without it files under /proc/self belong to root from here on.
        assert_eq!(unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 1) }, 0);
    }
}

/// Whether `RLIMIT_MEMLOCK` does not hold for this process.
pub fn may_lock_anything() -> bool {
    use rustix::{process::Resource, thread::CapabilitySet};
    let limit = rustix::process::getrlimit(Resource::Memlock).current;
    let sets = rustix::thread::capabilities(None).unwrap();
    limit.is_none() || sets.effective.contains(CapabilitySet::IPC_LOCK)
}

/// Runs a function of this test file that locks all memory in a new process.
pub fn without_limit_in_child(name: &str) -> Completion {
    if !may_lock_anything() {
        return skip("locks all memory of a process, which RLIMIT_MEMLOCK does not allow");
    }
    in_child_ok(name);
    Completion::Completed
}

/// Has `RLIMIT_MEMLOCK` hold for this process, whoever runs it.
pub fn limit_memlock(bytes: u64) {
    set_memlock(bytes);
    give_up_privileges();
}

pub fn set_memlock(bytes: u64) {
    use rustix::process::{Resource, Rlimit, setrlimit};
    let limit = Rlimit {
        current: Some(bytes),
        maximum: Some(bytes),
    };
    setrlimit(Resource::Memlock, limit).unwrap();
}

/// The pages `count` from page `first` of a mapping or range.
pub fn pages(of: PageRange, first: usize, count: usize) -> PageRange {
    PageRange::new(of.start() + first * page_size(), count * page_size()).unwrap()
}

/// Private anonymous memory of base pages, with a [`mark`] of its own.
pub fn anonymous(page_count: usize) -> Mapping {
    let memory = Mapping::anonymous(page_count * page_size())
        .huge_pages(tenure::HugePages::Never)
        .map()
        .unwrap();
    mark(memory.range());
    memory
}

/// Gives the mapping a flag that nobody else's has (advice on read-ahead), so
/// that [`is_still_there`] knows it again.
pub fn mark(range: PageRange) {
    let advice = rustix::mm::Advice::Random;
    unsafe { rustix::mm::madvise(range.as_ptr().cast(), range.len(), advice) }.unwrap();
}

/// Enough to be moved away when it is released: 64 MiB and one page.
pub fn large() -> Mapping {
    let memory = anonymous((64 << 20) / page_size() + 1);
    memory.populate(.., tenure::Access::Write).unwrap();
    memory
}

/// Whether the memory is still mapped, which has a [`mark`]. (What was unmapped
/// may be somebody else's by now, a worker's stack for example.)
pub fn is_still_there(range: PageRange) -> bool {
    has_vm_flag(range, "rr")
}

/// Waits until all that was released is free.
pub fn settle() {
    tenure::drain(Some(std::time::Duration::from_secs(60))).unwrap();
}

/// Writes something of its own to every page; no byte is zero. The kernel can do
/// with the pages what it likes: none waits in the batch of a CPU that the thread
/// then leaves, where MADV_FREE would pass it over.
pub fn fill(range: PageRange) {
    on_one_cpu(|| {
        for page in 0..range.pages() {
            let at = pages(range, page, 1);
            let bytes = unsafe { std::slice::from_raw_parts_mut(at.as_ptr(), page_size()) };
            bytes.copy_from_slice(pattern(at));
        }
        finish_batches();
    });
}

/// The same on every CPU. After freeing lazily, before anything else may have the
/// kernel take pages: the thread may have been moved between the two calls of it.
pub fn finish_all_batches() {
    on_each_cpu(finish_batches);
}

/// Puts the pages that this CPU has gathered in batches into the kernel's lists,
/// as MADV_COLD does before it looks at any page: at one of ours that is always
/// there.
fn finish_batches() {
    static SOMETHING: u8 = 1;
    let at = (&raw const SOMETHING).addr();
    let page = PageRange::new(at / page_size() * page_size(), page_size()).unwrap();
    // Refused for what is locked, by a test that locks everything.
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

/// What [`fill`] writes to a page: a stretch of one long row of bytes, which
/// begins elsewhere for each page.
pub fn pattern(page: PageRange) -> &'static [u8] {
    const SHIFTS: usize = 4093;
    static ROW: LazyLock<Vec<u8>> = LazyLock::new(|| {
        (0..page_size() + SHIFTS)
            .map(|index| (index * index / 3 + index / 256) as u8 | 1)
            .collect()
    });
    &ROW[page.start() / page_size() % SHIFTS..][..page_size()]
}

pub fn is_zero(range: PageRange) -> bool {
    static ZEROS: LazyLock<Vec<u8>> = LazyLock::new(|| vec![0; page_size()]);
    let bytes = unsafe { std::slice::from_raw_parts(range.as_ptr(), range.len()) };
    bytes
        .chunks(page_size())
        .all(|page| page == ZEROS.as_slice())
}

/// Which pages are in memory, by `/proc/self/pagemap`. A page that the kernel is just
/// moving (compaction) looks as if it were in swap: such ones are looked at again.
pub fn present(range: PageRange) -> Vec<bool> {
    let mut present = vec![false; range.pages()];
    for _ in 0..20 {
        let entries = pagemap(range);
        for (is_present, entry) in present.iter_mut().zip(&entries) {
            *is_present |= entry >> 63 == 1;
        }
        let mut looks = present.iter().zip(&entries);
        if !looks.any(|(is_present, entry)| !is_present && entry >> 62 == 1) {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    present
}

/// Which pages are neither in memory nor in swap, nor on their way between two
/// places.
pub fn absent(range: PageRange) -> Vec<bool> {
    let entries = pagemap(range).into_iter();
    entries.map(|entry| entry >> 62 == 0).collect()
}

fn pagemap(range: PageRange) -> Vec<u64> {
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

/// Has the kernel take what it may of the range, as under memory pressure.
pub fn page_out(range: PageRange) {
    unsafe { rustix::mm::madvise(range.as_ptr().cast(), range.len(), Advice::LinuxPageOut) }
        .unwrap();
}

/// Has the kernel take every page of the range, which must be offered to it. What
/// waits in the batch of a CPU comes first: once the kernel has tried to take such
/// a page elsewhere, the batch's CPU forgets that MADV_FREE was asked for it.
pub fn page_out_all(range: PageRange) {
    offer_and_page_out(range, || ());
}

/// Frees lazily, and has the kernel take every page: again what it passed over, since
/// MADV_FREE leaves out pages that the kernel is just moving (compaction).
pub fn lazy_free_and_page_out(range: PageRange) {
    offer_and_page_out(range, || unsafe { range.lazy_free() }.unwrap());
}

fn offer_and_page_out(range: PageRange, offer: impl Fn()) {
    for _ in 0..2000 {
        offer();
        finish_all_batches();
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

/// Maps fresh private anonymous memory over the range, behind tenure's back.
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
pub fn register_elsewhere(range: PageRange) -> std::os::fd::OwnedFd {
    use linux_raw_sys::general::{UFFD_API, uffdio_api, uffdio_range, uffdio_register};
    use linux_raw_sys::ioctl::{UFFDIO_API, UFFDIO_REGISTER};
    use std::os::fd::AsRawFd;
    let flags = rustix::mm::UserfaultfdFlags::from_bits_retain(1 | libc::O_CLOEXEC as u32);
    let fd = unsafe { rustix::mm::userfaultfd(flags) }.unwrap();
    let mut api = uffdio_api {
        api: UFFD_API.into(),
        features: 0,
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
    fd
}

/// Closes tenure's userfaultfd behind its back. (Only that one: its threads may be
/// using others.)
pub fn close_userfaultfd() {
    assert_eq!(unsafe { libc::close(userfaultfd_number()) }, 0);
}

/// Puts another file in the place of tenure's userfaultfd, at once: tenure's threads
/// open files, too, and would get the number in between.
pub fn replace_userfaultfd(file: std::fs::File) -> std::fs::File {
    use std::os::fd::{AsRawFd, FromRawFd};
    let number = userfaultfd_number();
    assert_eq!(unsafe { libc::dup2(file.as_raw_fd(), number) }, number);
    unsafe { std::fs::File::from_raw_fd(number) }
}

fn userfaultfd_number() -> std::os::fd::RawFd {
    let all = std::fs::read_dir("/proc/self/fd").unwrap();
    let is_it = |path: &std::path::PathBuf| {
        std::fs::read_link(path).is_ok_and(|to| to.as_os_str() == "anon_inode:[userfaultfd]")
    };
    let found: Vec<_> = all
        .map(|entry| entry.unwrap().path())
        .filter(is_it)
        .collect();
    let [path] = &found[..] else {
        panic!("there should be one: {found:?}")
    };
    path.file_name().unwrap().to_str().unwrap().parse().unwrap()
}

/// Has every CPU put the pages that wait in its batches on the kernel's lists: for
/// what was not written by [`fill`].
pub fn empty_batches() {
    on_each_cpu(finish_batches);
}

/// Does something without being moved to another CPU.
pub fn on_one_cpu(work: impl FnOnce()) {
    let before = sched_getaffinity(None).unwrap();
    move_to(sched_getcpu());
    work();
    sched_setaffinity(None, &before).unwrap();
}

/// Does something once on each CPU that this thread may use.
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

/// A line of `/proc/self/status` in KiB, such as `VmLck`.
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

/// A temporary file of `len` bytes that [`fill`] knows nothing of: byte `n` is
/// `n % 251`.
pub fn file(len: usize) -> std::fs::File {
    use std::io::Write;
    let mut file = tempfile::tempfile().unwrap();
    let bytes: Vec<u8> = (0..len).map(|index| (index % 251) as u8).collect();
    file.write_all(&bytes).unwrap();
    file
}

/// Huge pages of 2 MiB in the pool; what was added goes when it is dropped.
pub struct HugePool {
    before: Option<String>,
}

impl HugePool {
    const COUNT: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";
    const FREE: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages";

    /// Sees to it that `wanted` of them are free, if that can be had.
    pub fn of(wanted: usize) -> Option<Self> {
        let free = || {
            Some(
                std::fs::read_to_string(Self::FREE)
                    .ok()?
                    .trim()
                    .parse::<usize>()
                    .ok()?
                    >= wanted,
            )
        };
        if free()? {
            return Some(Self { before: None });
        }
        let before = std::fs::read_to_string(Self::COUNT).ok()?;
        let count = before.trim().parse::<usize>().ok()? + wanted;
        std::fs::write(Self::COUNT, count.to_string()).ok()?;
        let pool = Self {
            before: Some(before),
        };
        free()?.then_some(pool)
    }
}

impl Drop for HugePool {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            std::fs::write(Self::COUNT, before.trim()).expect("the pool can be made small again");
        }
    }
}
