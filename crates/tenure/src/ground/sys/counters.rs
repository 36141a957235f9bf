//! A page of counters that other processes can find by its name and read.

use std::ffi::CStr;
use std::fs::File;
use std::io::{self, BufReader};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use rustix::fs::{MemfdFlags, Mode, OFlags, memfd_create, openat};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

use super::fork::at_fork;
use super::map::{self, Backing};
use super::{maps, page_size};
use crate::PageRange;

/// How many counters there is room for: 4 KiB, which every page has.
pub(crate) const ROOM: usize = 512;

/// All counters of the process.
pub(crate) type Counters = [AtomicU64; ROOM];

/// What the page is called. The number says which counter is where: counters may
/// be added behind the last one under the same number.
const NAME: &CStr = c"tenure-stats-1";
/// How it begins in `/proc/PID/maps`, whatever the number.
const ANY_NAME: &[u8] = b"/memfd:tenure-stats-";

/// Where the counters are, once they are needed.
static COUNTERS: AtomicPtr<Counters> = AtomicPtr::new(ptr::null_mut());

/// The counters of a process that has no room for a page, or no memfd. Nobody
/// else can read them.
static WITHOUT_PAGE: Counters = [const { AtomicU64::new(0) }; ROOM];

/// The process's counters. Children after fork have their own, and begin at
/// zero.
pub(crate) fn counters() -> &'static Counters {
    let counters = COUNTERS.load(Ordering::Acquire);
    let counters = match counters.is_null() {
        true => first(),
        false => counters,
    };
    // SAFETY: what is stored is a whole array of atomics, in static memory or in
    // a mapping that is never unmapped and that children of fork have, too.
    unsafe { &*counters }
}

/// The page of the counters, which must stay mapped; makes it if need be. `None` in
/// a process that has no room for it.
pub(crate) fn page() -> Option<PageRange> {
    let counters = ptr::from_ref(counters());
    (!ptr::eq(counters, &WITHOUT_PAGE)).then(|| {
        let start = counters.addr();
        PageRange::between(start, start + page_size())
    })
}

#[cold]
fn first() -> *mut Counters {
    // If that cannot be helped (ENOMEM) a child counts from where its parent was.
    // Two threads that come here together both do it, which does no harm.
    let _ = at_fork(nothing, nothing, begin_at_zero);
    let page = make_page().ok();
    let made = page.map_or_else(
        || (&raw const WITHOUT_PAGE).cast_mut(),
        |page| page.as_ptr().cast(),
    );
    let before = ptr::null_mut();
    match COUNTERS.compare_exchange(before, made, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => made,
        Err(others) => {
            if let Some(page) = page {
                // SAFETY: another thread was faster; nobody has seen this page.
                let _ = unsafe { map::unmap(page) };
            }
            others
        }
    }
}

/// Maps a page privately of a memfd, which is there for its name only: it is
/// shown in `/proc/PID/maps`, by kernels that have no names for anonymous memory
/// as well.
fn make_page() -> Result<PageRange, Errno> {
    let len = page_size();
    // Past this limit making it longer would be a signal.
    let limit = getrlimit(Resource::Fsize).current;
    if limit.is_some_and(|limit| limit < len as u64) {
        return Err(Errno::FBIG);
    }
    // Not executable where the kernel knows of that (Linux 6.3).
    let memfd = memfd_create(NAME, MemfdFlags::CLOEXEC | MemfdFlags::NOEXEC_SEAL)
        .or_else(|_| memfd_create(NAME, MemfdFlags::CLOEXEC))?;
    rustix::fs::ftruncate(&memfd, len as u64)?;
    let backing = Backing::File {
        fd: memfd.as_fd(),
        offset: 0,
    };
    map::map(backing, len, false, true)
}

unsafe extern "C" fn nothing() {}

/// What tells how it is at the moment is set anew by whoever keeps the state, in
/// a handler that was registered later.
unsafe extern "C" fn begin_at_zero() {
    let counters = COUNTERS.load(Ordering::Acquire);
    // SAFETY: as in `counters`.
    if let Some(counters) = unsafe { counters.as_ref() } {
        for counter in counters {
            counter.store(0, Ordering::Relaxed);
        }
    }
}

/// What the counters of another process say.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// Its counters: the sum where several copies of tenure are linked into it.
    Counters(Box<[u64; ROOM]>),
    /// It has no page of counters.
    Nothing,
    /// It has one of this other name.
    OtherLayout(String),
}

/// Reads the counters of a process by `/proc/PID/maps` and `/proc/PID/mem`.
pub(crate) fn of_process(pid: u32) -> Result<Found, Errno> {
    // Both files by one descriptor: the number may become another process's.
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let folder = rustix::fs::open(format!("/proc/{pid}"), flags, Mode::empty())?;
    let open = |name: &str| {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        openat(&folder, name, flags, Mode::empty()).map(File::from)
    };
    let mut pages = Vec::new();
    let mut other_layout = None;
    let page = page_size();
    let everywhere = PageRange::between(page, isize::MAX as usize / page * page);
    maps::read(
        BufReader::new(open("maps")?),
        everywhere,
        |line| match layout(line.name) {
            Some(name) if name == NAME.to_bytes() => pages.push(line.range.start()),
            Some(name) => other_layout = Some(String::from_utf8_lossy(name).into_owned()),
            None => {}
        },
    )
    .map_err(to_errno)?;
    if pages.is_empty() {
        return Ok(other_layout.map_or(Found::Nothing, Found::OtherLayout));
    }
    let memory = open("mem")?;
    let mut sum = Box::new([0_u64; ROOM]);
    for at in pages {
        let mut bytes = [0; ROOM * size_of::<u64>()];
        memory
            .read_exact_at(&mut bytes, at as u64)
            .map_err(to_errno)?;
        let (counters, _) = bytes.as_chunks();
        for (sum, counter) in sum.iter_mut().zip(counters) {
            *sum = sum.wrapping_add(u64::from_ne_bytes(*counter));
        }
    }
    Ok(Found::Counters(sum))
}

/// What ends too early belongs to a process that has ended.
fn to_errno(error: io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::SRCH)
}

/// The name that a page of counters was given.
fn layout(mapped: &[u8]) -> Option<&[u8]> {
    mapped.starts_with(ANY_NAME).then_some(())?;
    mapped.strip_prefix(b"/memfd:")?.strip_suffix(b" (deleted)")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_found_by_its_name() {
        counters()[ROOM - 1].store(17, Ordering::Relaxed);
        let found = of_process(std::process::id()).unwrap();
        assert!(matches!(found, Found::Counters(all) if all[ROOM - 1] == 17));
    }

    #[test]
    fn only_memfds_of_the_name_are_counters() {
        let ours = layout(b"/memfd:tenure-stats-1 (deleted)");
        assert_eq!(ours, Some(NAME.to_bytes()));
        let others = layout(b"/memfd:tenure-stats-12 (deleted)");
        assert_eq!(others, Some(&b"tenure-stats-12"[..]));
        for name in [
            "",
            "/memfd:tenure (deleted)",
            "/memfd:tenure-stats-1",
            "/tmp/tenure-stats-1",
        ] {
            assert_eq!(layout(name.as_bytes()), None, "{name}");
        }
    }
}
