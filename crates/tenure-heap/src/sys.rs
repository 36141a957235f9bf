//! Every system call of the heap. None of them allocates, and none calls a function of
//! libc that a program may have replaced, except where a comment names it.

use std::ffi::{CStr, c_void};
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mm::{self, Advice, MapFlags, MprotectFlags, MremapFlags, MsyncFlags, ProtFlags};
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

/// Maps a page that is zero and that the kernel wipes in children (MADV_WIPEONFORK, Linux 4.14);
/// null where it cannot.
pub(crate) fn wiped_on_fork() -> Result<*mut AtomicU32, Errno> {
    let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
    let bytes = page_bytes();
    // SAFETY: without MAP_FIXED the kernel picks addresses that nobody uses.
    let page = unsafe { mm::mmap_anonymous(std::ptr::null_mut(), bytes, access, flags) }?;
    // SAFETY: nothing relies on the contents of the new page.
    if unsafe { mm::madvise(page, bytes, Advice::LinuxWipeOnFork) }.is_ok() {
        return Ok(page.cast());
    }
    // SAFETY: mapped above, and no other code knows the address.
    let _ = unsafe { mm::munmap(page, bytes) };
    Ok(std::ptr::null_mut())
}

/// Makes reserved addresses readable and writable (mprotect).
///
/// # Safety
///
/// The part must lie in the heap's reservation.
pub(crate) unsafe fn commit((at, bytes): Part) -> Result<(), Errno> {
    let access = MprotectFlags::READ | MprotectFlags::WRITE;
    // SAFETY: contents stay as they are, and the caller passes the heap's own
    // addresses.
    unsafe { mm::mprotect(pointer(at), bytes, access) }
}

/// Discards contents and memory now (MADV_DONTNEED): the part reads as zeros. Locked
/// memory stays locked.
///
/// # Safety
///
/// - The part must lie in the heap's reservation.
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

/// Advises the kernel whether to use huge pages in the part (MADV_HUGEPAGE,
/// MADV_NOHUGEPAGE).
///
/// # Safety
///
/// The part must lie in the heap's reservation.
pub(crate) unsafe fn advise_huge_pages((at, bytes): Part, wanted: bool) -> Result<(), Errno> {
    let advice = if wanted {
        Advice::LinuxHugepage
    } else {
        Advice::LinuxNoHugepage
    };
    // SAFETY: contents stay as they are, and the caller passes the heap's own
    // addresses.
    unsafe { mm::madvise(pointer(at), bytes, advice) }
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

/// Returns whether [`move_pages`] can succeed: the part is one mapping and not locked,
/// and addresses are not limited. The kernel would find out too late, with the target
/// unmapped already.
pub(crate) fn can_move((at, bytes): Part) -> bool {
    let has_limit = |resource| rustix::process::getrlimit(resource).current.is_some();
    if has_limit(Resource::As) || has_limit(Resource::Data) {
        return false;
    }
    let flags = MsyncFlags::ASYNC | MsyncFlags::INVALIDATE;
    // SAFETY: with these flags the call changes nothing; EBUSY means locked memory.
    let is_free = unsafe { mm::msync(pointer(at), bytes, flags) }.is_ok();
    // Growing in place fails, because the next addresses are mapped: with ENOMEM for
    // one mapping, and with EFAULT for several.
    let more = bytes + page_bytes();
    // SAFETY: without MREMAP_MAYMOVE the call moves nothing, and it cannot grow.
    let grown = unsafe { mm::mremap(pointer(at), bytes, more, MremapFlags::empty()) };
    is_free && grown == Err(Errno::NOMEM)
}

/// Returns whether addresses are limited (`RLIMIT_AS`).
pub(crate) fn has_address_limit() -> bool {
    rustix::process::getrlimit(Resource::As).current.is_some()
}

/// Returns whether the kernel charges addresses as memory (`vm.overcommit_memory` is
/// 2).
pub(crate) fn charges_addresses() -> bool {
    first_byte(c"/proc/sys/vm/overcommit_memory") == Some(b'2')
}

/// Returns whether the kernel uses huge pages without MADV_HUGEPAGE: `[always]`.
pub(crate) fn huge_pages_are_always() -> bool {
    first_byte(c"/sys/kernel/mm/transparent_hugepage/enabled") == Some(b'[')
}

fn first_byte(path: &CStr) -> Option<u8> {
    let file = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let mut byte = [0];
    let read = rustix::io::read(file, &mut byte).ok()?;
    (read == 1).then(|| byte[0])
}

/// Returns the machine's memory, in bytes.
pub(crate) fn machine_bytes() -> usize {
    let info = rustix::system::sysinfo();
    let units = usize::try_from(info.totalram).unwrap_or(usize::MAX);
    units.saturating_mul(info.mem_unit as usize)
}

/// Returns the number of the highest CPU that the process may use, plus one.
pub(crate) fn cpus() -> usize {
    let Ok(set) = rustix::thread::sched_getaffinity(None) else {
        return 1;
    };
    let last = (0..rustix::thread::CpuSet::MAX_CPU).rfind(|&cpu| set.is_set(cpu));
    last.map_or(1, |last| last + 1)
}

/// Returns the CPU that this thread is on, or was just now.
#[inline]
pub(crate) fn cpu() -> usize {
    // SAFETY: the call has no preconditions. (libc's `sched_getcpu` reads it without a
    // system call.)
    let cpu = unsafe { libc::sched_getcpu() };
    usize::try_from(cpu).unwrap_or(0)
}

pub(crate) fn yield_now() {
    rustix::thread::sched_yield();
}

pub(crate) fn sleep(time: Duration) {
    let _ = rustix::thread::nanosleep(&timespec(time));
}

/// Returns the time of the monotonic clock.
pub(crate) fn now() -> Duration {
    let now = rustix::time::clock_gettime(ClockId::Monotonic);
    // Neither field is negative on this clock.
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

fn timespec(time: Duration) -> Timespec {
    Timespec {
        // Times here are at most minutes.
        tv_sec: time.as_secs() as i64,
        tv_nsec: time.subsec_nanos().into(),
    }
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

/// Writes one line to standard error and aborts.
pub(crate) fn abort_with(parts: &[&[u8]]) -> ! {
    for part in parts {
        // The process aborts even if the line cannot be written.
        let _ = rustix::io::write(rustix::stdio::stderr(), part);
    }
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
