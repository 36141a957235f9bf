//! Every system call of the heap. None of them allocates, and none calls a function of
//! libc that a program may have replaced, except where a comment names it.

use std::ffi::{CStr, c_void};
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mm::{
    self, Advice, MapFlags, MlockFlags, MprotectFlags, MremapFlags, MsyncFlags, ProtFlags,
};
use rustix::process::Resource;
use rustix::thread::futex;
use rustix::time::{ClockId, Timespec};

/// How much one call discards, because other threads' `mmap` waits for it.
const CHUNK_BYTES: usize = 32 << 20;

/// A range of the heap's addresses: its start and its length in bytes.
pub(crate) type Part = (usize, usize);

fn pointer(at: usize) -> *mut c_void {
    std::ptr::with_exposed_provenance_mut(at)
}

pub(crate) fn page_bytes() -> usize {
    rustix::param::page_size()
}

/// Reserves addresses (mmap, PROT_NONE): no memory is charged, and none can be used.
pub(crate) fn reserve(bytes: usize) -> Result<usize, Errno> {
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: without MAP_FIXED the kernel picks addresses that nobody uses.
    let at = unsafe { mm::mmap_anonymous(std::ptr::null_mut(), bytes, ProtFlags::empty(), flags) }?;
    Ok(at.expose_provenance())
}

/// Maps memory at free addresses, at `hint` if those are free: zeros, which take no memory
/// until they are written.
pub(crate) fn map(hint: *mut c_void, bytes: usize) -> Result<usize, Errno> {
    let access = ProtFlags::READ | ProtFlags::WRITE;
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: without MAP_FIXED the kernel picks addresses that nobody uses.
    let at = unsafe { mm::mmap_anonymous(hint, bytes, access, flags) }?;
    Ok(at.expose_provenance())
}

/// Unmaps a part.
///
/// # Safety
///
/// The part must be mapped by this module, and nobody may use it any more.
pub(crate) unsafe fn unmap((at, bytes): Part) {
    // SAFETY: nobody uses the part, as the caller ensures. If the kernel refuses, for want
    // of a mapping, the part stays.
    let _ = unsafe { mm::munmap(pointer(at), bytes) };
}

/// Unmaps a part in pieces, so that other threads' `mmap` does not wait for the whole.
///
/// # Safety
///
/// As for [`unmap`].
pub(crate) unsafe fn unmap_in_chunks(part: Part) {
    // SAFETY: the caller's conditions are the same.
    chunks(part).for_each(|chunk| unsafe { unmap(chunk) });
}

/// Has children of a fork not get the part (MADV_DONTFORK).
pub(crate) fn keep_from_children((at, bytes): Part) {
    // SAFETY: the advice changes no contents. If the kernel refuses, children have a copy
    // that they never free.
    let _ = unsafe { mm::madvise(pointer(at), bytes, Advice::LinuxDontFork) };
}

/// Discards contents and memory now (MADV_DONTNEED): the part reads as zeros. Locked
/// memory stays locked.
///
/// # Safety
///
/// - The part must lie in the heap.
/// - Nobody may use it during the call, or rely on its contents afterwards.
pub(crate) unsafe fn discard(part: Part) -> Result<(), Errno> {
    chunks(part).try_for_each(|(at, bytes)| {
        // SAFETY: the part is the heap's, and its contents may go, as the caller
        // ensures.
        let advise = |advice| unsafe { mm::madvise(pointer(at), bytes, advice) };
        match advise(Advice::LinuxDontNeed) {
            Err(Errno::INVAL) => advise(Advice::LinuxDontneedLocked),
            answer => answer,
        }
    })
}

/// Discards as [`discard`] does, also memory that the kernel does not discard because it is
/// locked (before Linux 5.18): the part is unlocked for a moment, and locked on fault
/// afterwards, all of it.
///
/// # Safety
///
/// The conditions of [`discard`] hold.
pub(crate) unsafe fn discard_locked(part: Part) -> Result<(), Errno> {
    // SAFETY: the caller's conditions are the same.
    let answer = unsafe { discard(part) };
    if answer != Err(Errno::INVAL) {
        return answer;
    }
    chunks(part).try_for_each(|(at, bytes)| {
        // SAFETY: locks change no contents, and those may go, as the caller ensures.
        unsafe {
            mm::munlock(pointer(at), bytes)?;
            let answer = mm::madvise(pointer(at), bytes, Advice::LinuxDontNeed);
            mm::mlock_with(pointer(at), bytes, MlockFlags::ONFAULT).and(answer)
        }
    })
}

/// Returns whether what [`discard`] has discarded reads as zeros: QEMU before 7.1, which runs
/// programs of other machines, answers that it has discarded and keeps the contents.
pub(crate) fn discards_to_zeros() -> bool {
    let bytes = page_bytes();
    let Ok(at) = map(std::ptr::null_mut(), bytes) else {
        // Nothing can be mapped, and so nothing discarded.
        return true;
    };
    let byte = pointer(at).cast::<u8>();
    // SAFETY: mapped above, and no other code knows the address.
    unsafe {
        byte.write_volatile(1);
        let is_kept = discard((at, bytes)).is_ok() && byte.read_volatile() != 0;
        unmap((at, bytes));
        !is_kept
    }
}

/// Lets the kernel reclaim the memory (MADV_FREE). Afterwards each page holds the old
/// contents or zeros.
///
/// # Safety
///
/// The conditions of [`discard`] hold.
pub(crate) unsafe fn free_lazily(part: Part) -> Result<(), Errno> {
    chunks(part).try_for_each(|(at, bytes)| {
        // SAFETY: the part is the heap's, and its contents may go, as the caller
        // ensures.
        unsafe { mm::madvise(pointer(at), bytes, Advice::LinuxFree) }
    })
}

fn chunks((at, bytes): Part) -> impl Iterator<Item = Part> {
    let starts = (at..at + bytes).step_by(CHUNK_BYTES);
    starts.map(move |start| (start, CHUNK_BYTES.min(at + bytes - start)))
}

/// Returns the size of a huge page: what the lowest table of pages covers, 2 MiB with pages of
/// 4 KiB, and 512 MiB with those of 64 KiB.
pub(crate) fn huge_page_bytes() -> usize {
    page_bytes() * (page_bytes() / size_of::<u64>())
}

/// Has the kernel use huge pages in the part (MADV_HUGEPAGE).
///
/// # Safety
///
/// The part must lie in the heap.
pub(crate) unsafe fn advise_huge_pages((at, bytes): Part) -> Result<(), Errno> {
    // SAFETY: contents stay as they are, and the caller passes the heap's own
    // addresses.
    unsafe { mm::madvise(pointer(at), bytes, Advice::LinuxHugepage) }
}

/// Has the kernel use no huge pages in the part (MADV_NOHUGEPAGE).
///
/// # Safety
///
/// The part must lie in the heap.
pub(crate) unsafe fn advise_base_pages((at, bytes): Part) -> Result<(), Errno> {
    // SAFETY: as for [`advise_huge_pages`].
    unsafe { mm::madvise(pointer(at), bytes, Advice::LinuxNoHugepage) }
}

/// Maps the part anew (mmap, MAP_FIXED), so that it forms one mapping with its
/// neighbours again. The addresses are at no time free.
///
/// # Safety
///
/// The conditions of [`discard`] hold.
pub(crate) unsafe fn remap((at, bytes): Part) -> Result<(), Errno> {
    let access = ProtFlags::READ | ProtFlags::WRITE;
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
    // SAFETY: the part is the heap's, and its contents may go, as the caller ensures.
    unsafe { mm::mmap_anonymous(pointer(at), bytes, access, flags) }.map(drop)
}

/// Makes the part readable and writable (mprotect).
///
/// # Safety
///
/// The part must be jemalloc's, and nobody may use it.
pub(crate) unsafe fn make_accessible((at, bytes): Part) -> Result<(), Errno> {
    let access = MprotectFlags::READ | MprotectFlags::WRITE;
    // SAFETY: nobody uses the part, as the caller ensures.
    unsafe { mm::mprotect(pointer(at), bytes, access) }
}

/// Moves page tables from one part to another (mremap, MREMAP_DONTUNMAP, Linux 5.7),
/// and leaves the first mapped and empty.
///
/// # Safety
///
/// The conditions of [`discard`] hold for the target, and nobody may use the source.
pub(crate) unsafe fn move_pages((at, bytes): Part, to: usize) -> Result<(), Errno> {
    // rustix on libc has no name for the flag.
    let dont_unmap = MremapFlags::from_bits_retain(libc::MREMAP_DONTUNMAP as u32);
    let flags = MremapFlags::MAYMOVE | dont_unmap;
    // SAFETY: both parts are the heap's and unused during the call, as the caller
    // ensures.
    unsafe { mm::mremap_fixed(pointer(at), bytes, bytes, flags, pointer(to)) }.map(drop)
}

/// Maps addresses that a failed [`move_pages`] may have left unmapped. EEXIST:
/// something is mapped there.
pub(crate) fn map_hole((at, bytes): Part) -> Result<(), Errno> {
    let access = ProtFlags::READ | ProtFlags::WRITE;
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED_NOREPLACE;
    // SAFETY: MAP_FIXED_NOREPLACE replaces no mapping.
    unsafe { mm::mmap_anonymous(pointer(at), bytes, access, flags) }.map(drop)
}

/// Returns whether [`move_pages`] can succeed: addresses are not limited, and the part is
/// not locked. The kernel would find out too late, with the target unmapped already.
pub(crate) fn can_move((at, bytes): Part) -> bool {
    if may_be_limited(Resource::As) || may_be_limited(Resource::Data) {
        return false;
    }
    let flags = MsyncFlags::ASYNC | MsyncFlags::INVALIDATE;
    // SAFETY: with these flags the call changes nothing; EBUSY means locked memory.
    unsafe { mm::msync(pointer(at), bytes, flags) }.is_ok()
}

/// Returns whether the process has this limit, or a filter of system calls refuses to tell, as
/// systemd's `~@resources` does. (rustix panics there.)
fn may_be_limited(resource: Resource) -> bool {
    let mut limits = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the call writes to a local variable; rustix's numbers are the kernel's.
    let answer = unsafe { libc::getrlimit(resource as _, &raw mut limits) };
    answer != 0 || limits.rlim_cur != libc::RLIM_INFINITY
}

/// Returns how many bytes of the part, from its start, are one mapping: only those can be
/// moved with one call. 0 if that cannot be found out.
pub(crate) fn bytes_of_mapping((at, bytes): Part) -> usize {
    /// More addresses than are free behind any mapping.
    const TOO_MUCH: usize = 1 << 46;

    // Growing in place fails: with ENOMEM for one mapping, and with EFAULT for several.
    let is_one = |bytes: usize| {
        // SAFETY: without MREMAP_MAYMOVE the call moves nothing, and it cannot grow.
        let grown = unsafe { mm::mremap(pointer(at), bytes, TOO_MUCH, MremapFlags::empty()) };
        grown == Err(Errno::NOMEM)
    };
    if is_one(bytes) {
        return bytes;
    }
    let page_bytes = page_bytes();
    let (mut known, mut pages) = (0, bytes / page_bytes);
    while pages - known > 1 {
        let middle = known + (pages - known) / 2;
        if is_one(middle * page_bytes) {
            known = middle;
        } else {
            pages = middle;
        }
    }
    known * page_bytes
}

/// Where the kernel uses huge pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HugePages {
    Never,
    /// After MADV_HUGEPAGE.
    Advised,
    Always,
}

/// Returns where the kernel uses huge pages: nowhere if it does not tell.
pub(crate) fn huge_pages() -> HugePages {
    let mut text = [0; 64];
    let path = c"/sys/kernel/mm/transparent_hugepage/enabled";
    let len = read_start(path, &mut text).unwrap_or(0);
    let is_chosen = |mode: &[u8]| text[..len].windows(mode.len()).any(|part| part == mode);
    if is_chosen(b"[always]") {
        HugePages::Always
    } else if is_chosen(b"[madvise]") {
        HugePages::Advised
    } else {
        HugePages::Never
    }
}

/// Returns whether the kernel uses huge pages without MADV_HUGEPAGE: `[always]`.
pub(crate) fn huge_pages_are_always() -> bool {
    huge_pages() == HugePages::Always
}

fn read_start(path: &CStr, bytes: &mut [u8]) -> Option<usize> {
    let file = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    rustix::io::read(file, bytes).ok()
}

/// Returns the time of the monotonic clock.
pub(crate) fn now() -> Duration {
    time_of(ClockId::Monotonic)
}

/// Returns the time of the monotonic clock at the kernel's last tick, which takes 5 ns.
pub(crate) fn coarse_now() -> Duration {
    time_of(ClockId::MonotonicCoarse)
}

fn time_of(clock: ClockId) -> Duration {
    let now = rustix::time::clock_gettime(clock);
    // Neither field is negative on these clocks.
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

fn timespec(time: Duration) -> Timespec {
    Timespec {
        // Times here are at most minutes.
        tv_sec: time.as_secs() as i64,
        tv_nsec: time.subsec_nanos().into(),
    }
}

/// Waits for a time, or for a signal.
pub(crate) fn sleep(time: Duration) {
    let time = Timespec {
        tv_sec: time.as_secs() as _,
        tv_nsec: time.subsec_nanos().into(),
    };
    // An interrupted wait is shorter.
    let _ = rustix::thread::nanosleep(&time);
}

/// Waits until the word is woken (FUTEX_WAIT), unless it has another value already; at
/// most for `time`, if given.
pub(crate) fn futex_wait(word: &AtomicU32, while_it_is: u32, time: Option<Duration>) {
    let time = time.map(timespec);
    // The caller checks its condition again, whatever ended the wait.
    let _ = futex::wait(word, futex::Flags::PRIVATE, while_it_is, time.as_ref());
}

pub(crate) fn futex_wake(word: &AtomicU32) {
    // Without a waiter there is nothing to wake.
    let _ = futex::wake(word, futex::Flags::PRIVATE, 1);
}

/// Registers a function that runs in the child of each later fork (pthread_atfork).
pub(crate) fn atfork_child(child: unsafe extern "C" fn()) -> Result<(), Errno> {
    // SAFETY: the function is never unloaded before the process ends.
    match unsafe { libc::pthread_atfork(None, None, Some(child)) } {
        0 => Ok(()),
        errno => Err(Errno::from_raw_os_error(errno)),
    }
}

/// Returns the calling process.
pub(crate) fn process() -> u32 {
    // Process numbers are positive.
    rustix::process::getpid().as_raw_pid() as u32
}

/// Returns whether the calling thread is the process's first.
pub(crate) fn is_main_thread() -> bool {
    rustix::thread::gettid() == rustix::process::getpid()
}

/// Returns the calling thread, as pthread_self(3) names it.
pub(crate) fn thread() -> usize {
    // SAFETY: the call has no preconditions.
    unsafe { libc::pthread_self() as usize }
}

/// Writes one line to standard error and aborts.
pub(crate) fn abort_with(line: &[u8]) -> ! {
    // The process aborts even if the line cannot be written.
    let _ = rustix::io::write(rustix::stdio::stderr(), line);
    // SAFETY: `abort` has no preconditions.
    unsafe { libc::abort() }
}

/// Starts a detached thread with all signals blocked. Preserves `errno`.
pub(crate) fn start_thread(body: extern "C" fn(*mut c_void) -> *mut c_void) -> bool {
    use std::mem::MaybeUninit;

    const STACK_BYTES: usize = 256 << 10;
    let mut thread = MaybeUninit::uninit();
    let mut attributes = MaybeUninit::uninit();
    let (mut all, mut before) = (MaybeUninit::uninit(), MaybeUninit::uninit());
    // SAFETY: every object is initialised by the call that first names it, and none is
    // used after it is destroyed; `errno` is this thread's.
    unsafe {
        let errno = *libc::__errno_location();
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
        let mut answer = libc::pthread_attr_init(attributes.as_mut_ptr());
        if answer == 0 {
            let attributes = attributes.as_mut_ptr();
            libc::pthread_attr_setdetachstate(attributes, libc::PTHREAD_CREATE_DETACHED);
            let argument = std::ptr::null_mut();
            // Programs with much thread-local storage need larger stacks.
            for stack_bytes in [STACK_BYTES, 16 * STACK_BYTES] {
                libc::pthread_attr_setstacksize(attributes, stack_bytes);
                answer = libc::pthread_create(thread.as_mut_ptr(), attributes, body, argument);
                if answer != libc::EINVAL {
                    break;
                }
            }
            libc::pthread_attr_destroy(attributes);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut());
        *libc::__errno_location() = errno;
        answer == 0
    }
}

/// Names this thread, and sets SCHED_BATCH so that it preempts no thread when it wakes.
pub(crate) fn name_thread(name: &CStr) {
    let unprioritised = libc::sched_param { sched_priority: 0 };
    let _ = rustix::thread::set_name(name);
    // SAFETY: the call reads its argument and changes this thread only.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_BATCH, &raw const unprioritised) };
}
