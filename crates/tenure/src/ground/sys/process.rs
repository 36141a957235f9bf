//! The process's limits, the machine's memory, clocks, and thread scheduling.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use procfs::process::{Stat, StatM, Status};
use procfs::{Current, FromBufRead, FromRead};
use rustix::io::Errno;
use rustix::process::Resource;
use rustix::thread::CapabilitySet;

use super::proc_file::ProcFile;

/// The limit on locked memory that applies to this process, and its use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LockLimit {
    /// The soft `RLIMIT_MEMLOCK`.
    pub(crate) limit_bytes: usize,
    /// The bytes that are locked already (`VmLck`): whole mappings, not pages.
    pub(crate) used_bytes: usize,
    /// The bytes that are mapped in all (`VmSize`).
    pub(crate) mapped_bytes: usize,
}

/// Returns a limit of this process; `None` where there is none, or where a filter of system calls
/// refuses to tell it, as systemd's `~@resources` does. (rustix panics there.)
pub(crate) fn limit(resource: Resource) -> Option<u64> {
    let mut limits = libc::rlimit {
        rlim_cur: libc::RLIM_INFINITY,
        rlim_max: libc::RLIM_INFINITY,
    };
    // SAFETY: the call writes to a local variable; rustix's numbers are the kernel's.
    let answer = unsafe { libc::getrlimit(resource as _, &raw mut limits) };
    (answer == 0 && limits.rlim_cur != libc::RLIM_INFINITY).then_some(limits.rlim_cur)
}

impl LockLimit {
    /// Reads the limit; `None` where there is none, or `/proc/self/status`
    /// cannot be read.
    pub(crate) fn now() -> Option<Self> {
        let limit_bytes = limit(Resource::Memlock)?;
        let status = status(Path::new("/proc/thread-self")).ok()?;
        Some(Self {
            limit_bytes: limit_bytes as usize,
            used_bytes: status.vmlck?.saturating_mul(1024) as usize,
            mapped_bytes: status.vmsize?.saturating_mul(1024) as usize,
        })
    }
}

/// Reads the status of a process or thread, given its folder in `/proc`. The kernel cuts a
/// name after 15 bytes, in the middle of a character at times.
pub(crate) fn status(folder: &Path) -> io::Result<Status> {
    let bytes = std::fs::read(folder.join("status"))?;
    let text = String::from_utf8_lossy(&bytes);
    Status::from_buf_read(text.as_bytes()).map_err(io::Error::other)
}

/// Returns the folder in `/proc` where a process shows its memory: its own, or that of another
/// thread where the first has ended (pthread_exit(3)), whose folder shows none.
pub(crate) fn folder_with_memory(pid: u32) -> PathBuf {
    let folder = PathBuf::from(format!("/proc/{pid}"));
    let threads = folder.join("task");
    if !has_ended(&threads.join(pid.to_string())) {
        return folder;
    }
    let threads = std::fs::read_dir(threads).into_iter().flatten().flatten();
    let mut folders = threads.map(|thread| thread.path());
    folders.find(|thread| !has_ended(thread)).unwrap_or(folder)
}

/// Returns whether a thread has ended, or is not there; anyone may read its state.
fn has_ended(thread: &Path) -> bool {
    let stat = std::fs::read(thread.join("stat")).unwrap_or_default();
    // `TID (NAME) STATE …`: the name may hold anything.
    let end = stat.iter().rposition(|&byte| byte == b')');
    let state = end.and_then(|end| stat.get(end + 2));
    state.is_none_or(|state| b"ZXx".contains(state))
}

/// Returns an address at the end of the first thread's stack, where the kernel has placed the
/// program's name; 0 if it tells of none. No address of the process is past the end of the
/// address space up to there.
pub(crate) fn stack_top() -> usize {
    // SAFETY: the call has no preconditions.
    let address = unsafe { libc::getauxval(libc::AT_EXECFN) };
    address as usize
}

/// The threads of this process.
pub(super) struct Threads {
    /// With the first, until the last has ended.
    pub(super) count: u64,
    /// The thread that began the process has ended.
    pub(super) is_first_ended: bool,
}

/// How long the kernel's `stat` of a thread is at most.
const MAX_STAT_BYTES: usize = 1024;

/// Reads the first thread's `stat`: unlike the process's it does not visit all threads.
fn first_stat(bytes: &mut [u8; MAX_STAT_BYTES]) -> Result<&[u8], Errno> {
    let read = |fd: BorrowedFd<'_>| rustix::io::pread(fd, &mut *bytes, 0);
    let len = ProcFile::stat()?.run(read)?;
    Ok(&bytes[..len])
}

/// Returns whether the process was made by a fork, and has called no exec since: PF_FORKNOEXEC.
/// Takes no memory of the allocator.
pub(super) fn was_forked() -> Result<bool, Errno> {
    const FORKED: u64 = 0x40;
    let mut bytes = [0; MAX_STAT_BYTES];
    let flags = stat_flags(first_stat(&mut bytes)?).ok_or(Errno::IO)?;
    Ok(flags & FORKED != 0)
}

/// Returns the flags in a thread's `stat`, the seventh word after its name.
fn stat_flags(stat: &[u8]) -> Option<u64> {
    let name_end = stat.iter().rposition(|&byte| byte == b')')?;
    let words = std::str::from_utf8(&stat[name_end + 1..]).ok()?;
    words.split_ascii_whitespace().nth(6)?.parse().ok()
}

/// Tells of the threads of the process.
pub(super) fn threads() -> Result<Threads, Errno> {
    let mut bytes = [0; MAX_STAT_BYTES];
    let stat = Stat::from_read(first_stat(&mut bytes)?).map_err(|_| Errno::IO)?;
    Ok(Threads {
        count: stat.num_threads.cast_unsigned(),
        is_first_ended: stat.state == 'Z',
    })
}

/// Returns whether this process may exceed the limit: CAP_IPC_LOCK, which
/// counts in the initial user namespace only.
pub(crate) fn may_exceed_lock_limit() -> bool {
    let has_capability = rustix::thread::capabilities(None)
        .is_ok_and(|sets| sets.effective.contains(CapabilitySet::IPC_LOCK));
    has_capability && is_in_initial_user_namespace()
}

/// The initial user namespace maps every user id to itself. Where the map cannot be read (no
/// descriptor is left) this one may be it, and the kernel tells whether the limit holds.
fn is_in_initial_user_namespace() -> bool {
    let map = std::fs::read_to_string("/proc/self/uid_map");
    map.map_or(true, |map| {
        map.split_whitespace().eq(["0", "0", "4294967295"])
    })
}

/// Returns all memory of the machine, in bytes.
pub(crate) fn mem_total_bytes() -> Option<usize> {
    let info = procfs::Meminfo::current().ok()?;
    Some(info.mem_total as usize)
}

/// The memory of the machine, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MachineMemory {
    pub(crate) total_bytes: usize,
    /// Memory that is unused (`MemFree`).
    pub(crate) free_bytes: usize,
    /// Memory that can be taken without swapping, as the kernel estimates it
    /// (`MemAvailable`, Linux 3.14).
    pub(crate) available_bytes: usize,
    /// Page cache, without shared memory.
    pub(crate) page_cache_bytes: usize,
}

impl MachineMemory {
    /// Reads `/proc/meminfo`; ENOENT where it has no `MemAvailable`.
    pub(crate) fn now() -> Result<Self, Errno> {
        let text = std::fs::read("/proc/meminfo")
            .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
        let info = procfs::Meminfo::from_buf_read(&*text).map_err(|_| Errno::IO)?;
        Self::of(&info).ok_or(Errno::NOENT)
    }

    pub(super) fn of(info: &procfs::Meminfo) -> Option<Self> {
        let page_cache = info.cached.saturating_sub(info.shmem.unwrap_or(0));
        let bytes = |number| usize::try_from(number).unwrap_or(usize::MAX);
        Some(Self {
            total_bytes: bytes(info.mem_total),
            free_bytes: bytes(info.mem_free),
            available_bytes: bytes(info.mem_available?),
            page_cache_bytes: bytes(page_cache),
        })
    }
}

/// Returns the unused memory of the machine, in bytes: `sysinfo(2)`, in 0.2 µs.
pub(crate) fn mem_free_bytes() -> usize {
    mem_total_and_free_bytes().1
}

/// Returns all memory of the machine and the unused part, in bytes: `sysinfo(2)`, which
/// needs no `/proc`.
pub(crate) fn mem_total_and_free_bytes() -> (usize, usize) {
    match sysinfo() {
        Some(info) => (units(&info, info.totalram), units(&info, info.freeram)),
        None => (
            meminfo_bytes("MemTotal:").unwrap_or(0),
            meminfo_bytes("MemFree:").unwrap_or(0),
        ),
    }
}

/// Calls `sysinfo(2)`; `None` where a filter of system calls refuses it. (rustix panics there.)
fn sysinfo() -> Option<libc::sysinfo> {
    let mut info = MaybeUninit::uninit();
    // SAFETY: the call writes to a local variable, all of it if it succeeds.
    unsafe { (libc::sysinfo(info.as_mut_ptr()) == 0).then(|| info.assume_init()) }
}

fn units(info: &libc::sysinfo, count: libc::c_ulong) -> usize {
    (count as usize).saturating_mul(info.mem_unit as usize)
}

/// Returns `MemAvailable`, in bytes; `None` where it cannot be read. This takes
/// 4 µs, a tenth of [`MachineMemory::now`].
pub(crate) fn mem_available_bytes() -> Option<usize> {
    meminfo_bytes("MemAvailable:")
}

fn meminfo_bytes(name: &str) -> Option<usize> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let mut lines = text.lines();
    let line = lines.find_map(|line| line.strip_prefix(name))?;
    let kib: usize = line.trim().strip_suffix(" kB")?.parse().ok()?;
    kib.checked_mul(1024)
}

/// Returns the unused swap of the machine, in bytes: `sysinfo(2)`.
pub(crate) fn swap_free_bytes() -> usize {
    match sysinfo() {
        Some(info) => units(&info, info.freeswap),
        None => meminfo_bytes("SwapFree:").unwrap_or(0),
    }
}

/// Returns the number of CPUs of the machine that run: `sysconf(3)`.
pub(crate) fn online_cpus() -> usize {
    // SAFETY: the call takes a number and returns one.
    let cpus = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) };
    usize::try_from(cpus).unwrap_or(1).max(1)
}

/// Returns how much memory this process has in all its mappings, in bytes, other than of huge
/// pages from the pool. The kernel counts it to within some pages for each CPU.
pub(crate) fn resident_bytes() -> Option<usize> {
    let used = StatM::from_file("/proc/thread-self/statm").ok()?;
    usize::try_from(used.resident)
        .ok()?
        .checked_mul(super::page_size())
}

/// Returns how many mappings a process may have (`vm.max_map_count`), or the
/// kernel's default where that cannot be read.
pub(crate) fn max_map_count() -> usize {
    const DEFAULT: usize = 65530;
    let count = std::fs::read_to_string("/proc/sys/vm/max_map_count").ok();
    count
        .and_then(|count| count.trim().parse().ok())
        .unwrap_or(DEFAULT)
}

/// Reclaim counters of the machine, since it booted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reclaims {
    /// Direct reclaims, which a program does itself because the machine has no
    /// free pages (not because of a cgroup: `allocstall`).
    pub(crate) direct: u64,
    /// Lazily free pages that the kernel reclaimed, for whatever reason
    /// (`pglazyfreed`, Linux 4.12).
    pub(crate) lazily_free_pages: u64,
}

impl Reclaims {
    /// Reads `/proc/vmstat`, in some ten microseconds; `None` where it cannot
    /// be read.
    pub(crate) fn now() -> Option<Self> {
        let text = std::fs::read_to_string("/proc/vmstat").ok()?;
        Some(Self::parse(&text))
    }

    pub(super) fn parse(text: &str) -> Self {
        let sum = |name| {
            let counters = text.lines().filter(|line| line.starts_with(name));
            let counts = counters.filter_map(|line| line.split(' ').nth(1)?.parse::<u64>().ok());
            counts.fold(0, u64::saturating_add)
        };
        Self {
            direct: sum("allocstall"),
            lazily_free_pages: sum("pglazyfreed "),
        }
    }
}

/// Returns the time of the monotonic clock, in nanoseconds.
pub(crate) fn monotonic_nanos() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    // Neither is ever negative.
    (time.tv_sec as u64) * 1_000_000_000 + time.tv_nsec as u64
}

/// Returns the time of the monotonic clock at its last tick (1 to 10 ms), in nanoseconds,
/// in a fifth of the time.
pub(crate) fn monotonic_coarse_nanos() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::MonotonicCoarse);
    // Neither is ever negative.
    (time.tv_sec as u64) * 1_000_000_000 + time.tv_nsec as u64
}

/// Returns the CPU time of this thread.
pub(crate) fn thread_time() -> Duration {
    let mut time = MaybeUninit::<libc::timespec>::zeroed();
    // SAFETY: the call writes a timespec to `time`, which is valid zeroed: if
    // the call failed (it cannot, the clock exists since Linux 2.6.12), zero is
    // a valid time, too.
    let time = unsafe {
        libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, time.as_mut_ptr());
        time.assume_init()
    };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Sets or clears SCHED_BATCH for this thread: `sched_setscheduler(2)`. With
/// it, the thread does not preempt others when it wakes; otherwise the caller
/// that woke it would wait for the very work that it deferred.
pub(crate) fn set_batch_scheduling(is_batch: bool) {
    let policy = if is_batch {
        libc::SCHED_BATCH
    } else {
        libc::SCHED_OTHER
    };
    let unprioritised = libc::sched_param { sched_priority: 0 };
    // SAFETY: the call reads its argument and affects this thread alone. Where
    // a seccomp filter refuses it, the scheduling stays as it is.
    unsafe { libc::sched_setscheduler(0, policy, &unprioritised) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machine_memory_and_reclaims_are_consistent() {
        assert!(mem_total_bytes().unwrap() > 1 << 26);
        let memory = MachineMemory::now().unwrap();
        assert_eq!(Some(memory.total_bytes), mem_total_bytes());
        assert!(memory.available_bytes < memory.total_bytes);
        assert!(memory.free_bytes + memory.page_cache_bytes < memory.total_bytes);
        let (before, after) = (Reclaims::now().unwrap(), Reclaims::now().unwrap());
        assert!(before.direct <= after.direct);
        assert!(before.lazily_free_pages <= after.lazily_free_pages);
    }

    #[test]
    fn reclaims_parse_sums_zones() {
        let text = "pglazyfree 9\npglazyfreed 1234\nallocstall_dma 1\nallocstall_normal 20\n\
                    allocstall_movable 300\nallocstall_device x\n";
        let expected = Reclaims {
            direct: 321,
            lazily_free_pages: 1234,
        };
        assert_eq!(Reclaims::parse(text), expected);
        assert_eq!(Reclaims::parse(""), Reclaims::default());
        let many = format!("allocstall_a {0}\nallocstall_b {0}\n", u64::MAX);
        assert_eq!(Reclaims::parse(&many).direct, u64::MAX);
    }

    #[test]
    fn thread_time_excludes_sleep() {
        let before = thread_time();
        std::thread::sleep(Duration::from_millis(50));
        assert!(thread_time() - before < Duration::from_millis(50));
        while thread_time() - before < Duration::from_millis(5) {}
    }
}
