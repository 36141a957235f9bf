//! Every system call of the heap. None of them allocates, and none goes through a
//! function of libc that a program may have replaced, but for those named.

use std::ffi::{CStr, c_void};
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mm::{self, Advice, MapFlags, MprotectFlags, MremapFlags, MsyncFlags, ProtFlags};
use rustix::process::Resource;
use rustix::thread::futex;
use rustix::time::{ClockId, Timespec};

/// What is given up in one call: other threads' `mmap` waits for it.
const CHUNK_BYTES: usize = 32 << 20;

/// A range of addresses of our own: its first and its length in bytes.
pub(crate) type Part = (usize, usize);

fn pointer(at: usize) -> *mut c_void {
    std::ptr::with_exposed_provenance_mut(at)
}

pub(crate) fn page_bytes() -> usize {
    rustix::param::page_size()
}

/// Reserves addresses: no memory is charged, and nothing can be used.
pub(crate) fn reserve(bytes: usize) -> Result<usize, Errno> {
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: without MAP_FIXED the kernel picks addresses that nobody uses.
    let at = unsafe { mm::mmap_anonymous(std::ptr::null_mut(), bytes, ProtFlags::empty(), flags) }?;
    Ok(at.expose_provenance())
}

/// Lets what is reserved be used.
///
/// # Safety
///
/// The part must lie in the heap's reservation.
pub(crate) unsafe fn commit((at, bytes): Part) -> Result<(), Errno> {
    let access = MprotectFlags::READ | MprotectFlags::WRITE;
    // SAFETY: contents stay as they are, and the addresses are the heap's.
    unsafe { mm::mprotect(pointer(at), bytes, access) }
}

/// Gives contents and memory up now: zeros from now on. Locked memory stays locked.
///
/// # Safety
///
/// Nobody may use the part meanwhile, or rely on what is in it.
pub(crate) unsafe fn give_back(part: Part) -> Result<(), Errno> {
    chunks(part).try_for_each(|(at, bytes)| {
        // SAFETY: handed on to the caller.
        let advise = |advice| unsafe { mm::madvise(pointer(at), bytes, advice) };
        match advise(Advice::LinuxDontNeed) {
            Err(Errno::INVAL) => advise(Advice::LinuxDontneedLocked),
            answer => answer,
        }
    })
}

/// Lets the kernel take the memory when it needs some. What is there afterwards,
/// page by page, are the old contents or zeros.
///
/// # Safety
///
/// As for [`give_back`].
pub(crate) unsafe fn free_lazily(part: Part) -> Result<(), Errno> {
    chunks(part).try_for_each(|(at, bytes)| {
        // SAFETY: handed on to the caller.
        unsafe { mm::madvise(pointer(at), bytes, Advice::LinuxFree) }
    })
}

fn chunks((at, bytes): Part) -> impl Iterator<Item = Part> {
    let starts = (at..at + bytes).step_by(CHUNK_BYTES);
    starts.map(move |start| (start, CHUNK_BYTES.min(at + bytes - start)))
}

/// Has huge pages put into the part, as faults ask for memory, or none.
///
/// # Safety
///
/// The part must lie in the heap's reservation.
pub(crate) unsafe fn want_huge_pages((at, bytes): Part, wanted: bool) -> Result<(), Errno> {
    let advice = if wanted {
        Advice::LinuxHugepage
    } else {
        Advice::LinuxNoHugepage
    };
    // SAFETY: contents stay as they are, and the addresses are the heap's.
    unsafe { mm::madvise(pointer(at), bytes, advice) }
}

/// Maps the part anew, so that it is like what lies beside it again. The addresses
/// are never anybody else's in between.
///
/// # Safety
///
/// As for [`give_back`].
pub(crate) unsafe fn make_anew((at, bytes): Part) -> Result<(), Errno> {
    let access = ProtFlags::READ | ProtFlags::WRITE;
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
    // SAFETY: the caller gives up what is there.
    unsafe { mm::mmap_anonymous(pointer(at), bytes, access, flags) }.map(drop)
}

/// Moves page tables from one part to another, and leaves the first as it is, but
/// empty (Linux 5.7).
///
/// # Safety
///
/// As for [`give_back`], for both parts.
pub(crate) unsafe fn move_pages((at, bytes): Part, to: usize) -> Result<(), Errno> {
    let flags = MremapFlags::MAYMOVE | MremapFlags::DONTUNMAP;
    // SAFETY: handed on to the caller.
    unsafe { mm::mremap_fixed(pointer(at), bytes, bytes, flags, pointer(to)) }.map(drop)
}

/// Maps addresses that a failed [`move_pages`] may have left without anything.
/// EEXIST: there is something, ours or another's.
pub(crate) fn mend((at, bytes): Part) -> Result<(), Errno> {
    let access = ProtFlags::READ | ProtFlags::WRITE;
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED_NOREPLACE;
    // SAFETY: the flag has the kernel replace nothing.
    unsafe { mm::mmap_anonymous(pointer(at), bytes, access, flags) }.map(drop)
}

/// Whether [`move_pages`] can do it: one mapping that is not locked, and no limit on
/// addresses. The kernel would find out too late, with the target unmapped already.
pub(crate) fn can_move((at, bytes): Part) -> bool {
    let has_limit = |resource| rustix::process::getrlimit(resource).current.is_some();
    if has_limit(Resource::As) || has_limit(Resource::Data) {
        return false;
    }
    let flags = MsyncFlags::ASYNC | MsyncFlags::INVALIDATE;
    // SAFETY: with these flags the call changes nothing; EBUSY is locked memory.
    let is_free = unsafe { mm::msync(pointer(at), bytes, flags) }.is_ok();
    // Growing where it is: there is no room, for what follows is mapped. That is what
    // the kernel answers for one mapping, and EFAULT for several.
    let more = bytes + page_bytes();
    // SAFETY: without MREMAP_MAYMOVE the call moves nothing, and it cannot grow.
    let grown = unsafe { mm::mremap(pointer(at), bytes, more, MremapFlags::empty()) };
    is_free && grown == Err(Errno::NOMEM)
}

/// Whether addresses are limited, by `RLIMIT_AS`.
pub(crate) fn has_address_limit() -> bool {
    rustix::process::getrlimit(Resource::As).current.is_some()
}

/// Whether the kernel charges for addresses as if they were memory
/// (`vm.overcommit_memory` is 2).
pub(crate) fn charges_addresses() -> bool {
    first_byte(c"/proc/sys/vm/overcommit_memory") == Some(b'2')
}

/// Whether the kernel puts huge pages wherever there is room for one: `[always]`.
pub(crate) fn puts_huge_pages_anywhere() -> bool {
    first_byte(c"/sys/kernel/mm/transparent_hugepage/enabled") == Some(b'[')
}

fn first_byte(path: &CStr) -> Option<u8> {
    let file = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let mut byte = [0];
    let read = rustix::io::read(file, &mut byte).ok()?;
    (read == 1).then(|| byte[0])
}

/// All the memory that the machine has, in bytes.
pub(crate) fn machine_bytes() -> usize {
    let info = rustix::system::sysinfo();
    let units = usize::try_from(info.totalram).unwrap_or(usize::MAX);
    units.saturating_mul(info.mem_unit as usize)
}

/// The number of the highest CPU that the process may use, and one.
pub(crate) fn cpus() -> usize {
    let Ok(set) = rustix::thread::sched_getaffinity(None) else {
        return 1;
    };
    let last = (0..rustix::thread::CpuSet::MAX_CPU).rfind(|&cpu| set.is_set(cpu));
    last.map_or(1, |last| last + 1)
}

/// The CPU that this thread is on, or was just now.
#[inline]
pub(crate) fn cpu() -> usize {
    // SAFETY: the call takes nothing. (By libc, which knows without asking the
    // kernel.)
    let cpu = unsafe { libc::sched_getcpu() };
    usize::try_from(cpu).unwrap_or(0)
}

pub(crate) fn give_way() {
    rustix::thread::sched_yield();
}

pub(crate) fn nap(time: Duration) {
    let _ = rustix::thread::nanosleep(&timespec(time));
}

/// The time of the monotonic clock.
pub(crate) fn now() -> Duration {
    let now = rustix::time::clock_gettime(ClockId::Monotonic);
    // Neither is ever negative.
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

fn timespec(time: Duration) -> Timespec {
    Timespec {
        // No time here is longer than some minutes.
        tv_sec: time.as_secs() as i64,
        tv_nsec: time.subsec_nanos().into(),
    }
}

/// Sleeps until the word is woken, unless it is another number already; for a time
/// at most, if one is given.
pub(crate) fn sleep_on(word: &AtomicU32, while_it_is: u32, time: Option<Duration>) {
    let time = time.map(timespec);
    // Whatever ends it, the caller looks again.
    let _ = futex::wait(word, futex::Flags::PRIVATE, while_it_is, time.as_ref());
}

pub(crate) fn wake(word: &AtomicU32) {
    // Whoever does not sleep needs no waking.
    let _ = futex::wake(word, futex::Flags::PRIVATE, 1);
}

/// Has a function called in the child of each later fork.
pub(crate) fn in_children(child: unsafe extern "C" fn()) -> Result<(), Errno> {
    // SAFETY: the function is never unloaded before the process ends.
    match unsafe { libc::pthread_atfork(None, None, Some(child)) } {
        0 => Ok(()),
        errno => Err(Errno::from_raw_os_error(errno)),
    }
}

/// Writes one line to standard error and aborts.
pub(crate) fn abort_with(parts: &[&[u8]]) -> ! {
    for part in parts {
        // If nobody can read it, so be it.
        let _ = rustix::io::write(rustix::stdio::stderr(), part);
    }
    // SAFETY: ends the process.
    unsafe { libc::abort() }
}

/// Starts a thread that is never waited for, and to which no signal of the program is
/// delivered. Leaves `errno` alone.
pub(crate) fn start_thread(body: extern "C" fn(*mut c_void) -> *mut c_void) -> bool {
    use std::mem::MaybeUninit;

    const STACK_BYTES: usize = 256 << 10;
    let mut thread = MaybeUninit::uninit();
    let mut attributes = MaybeUninit::uninit();
    let (mut all, mut before) = (MaybeUninit::uninit(), MaybeUninit::uninit());
    // SAFETY: every object is made by the call that first names it, and none is used
    // after it is destroyed; `errno` is this thread's.
    unsafe {
        let errno = *libc::__errno_location();
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
        let mut answer = libc::pthread_attr_init(attributes.as_mut_ptr());
        if answer == 0 {
            let attributes = attributes.as_mut_ptr();
            libc::pthread_attr_setdetachstate(attributes, libc::PTHREAD_CREATE_DETACHED);
            let argument = std::ptr::null_mut();
            // Threads of programs with much thread-local storage need larger stacks.
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

/// Names this thread, and has it not push others off their CPU when it wakes.
pub(crate) fn name_thread(name: &CStr) {
    let unprioritised = libc::sched_param { sched_priority: 0 };
    let _ = rustix::thread::set_name(name);
    // SAFETY: reads its argument; concerns this thread alone.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_BATCH, &raw const unprioritised) };
}
