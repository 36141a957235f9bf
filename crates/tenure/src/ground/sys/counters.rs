//! A page of counters that other processes can find by its name and read.
//!
//! The page is mapped privately from a memfd whose only purpose is its name,
//! `/memfd:tenure-stats-1` in `/proc/PID/maps` (not every kernel has names for
//! anonymous memory). A fork zeroes the counters in the child; a module that
//! keeps a gauge then sets it again.

use std::ffi::CStr;
use std::fs::File;
use std::io::{self, BufReader};
use std::ops::{ControlFlow, Range};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use rustix::fs::{MemfdFlags, Mode, OFlags, memfd_create, openat};
use rustix::io::Errno;
use rustix::process::Resource;

use super::map::{self, Backing};
use super::{maps, page_size, process};
use crate::PageRange;

/// The number of counters that fit: 4 KiB of them, which every page has.
pub(crate) const COUNTER_CAPACITY: usize = 512;

/// The counters that a child keeps: gauges of memory of which it has a copy, and which nobody
/// sets again before the child uses that memory.
pub(crate) const KEPT_IN_CHILD: Range<usize> = 59..74;

/// All counters of the process.
pub(crate) type Counters = [AtomicU64; COUNTER_CAPACITY];

/// The name of the page. The number stands for the layout: new counters are
/// added at the end under the same number; a changed order needs a new one.
const NAME: &CStr = c"tenure-stats-1";
/// The start of the name in `/proc/PID/maps`, for any layout.
const ANY_NAME: &[u8] = b"/memfd:tenure-stats-";

/// The counters, once they exist.
static COUNTERS: AtomicPtr<Counters> = AtomicPtr::new(ptr::null_mut());

/// The counters of a process that cannot map a page or create a memfd. Other
/// processes cannot read them.
static FALLBACK: Counters = [const { AtomicU64::new(0) }; COUNTER_CAPACITY];

/// Returns the process's counters. A child after fork has its own, which start
/// at zero.
#[inline]
pub(crate) fn counters() -> &'static Counters {
    let counters = COUNTERS.load(Ordering::Acquire);
    let counters = match counters.is_null() {
        true => init(),
        false => counters,
    };
    // SAFETY: the pointer refers to a whole array of atomics, in static memory
    // or in a mapping that is never unmapped and that children of fork have,
    // too.
    unsafe { &*counters }
}

/// Returns the page of the counters, which must stay mapped; creates it if
/// necessary. `None` if it could not be created.
pub(crate) fn page() -> Option<PageRange> {
    let counters = ptr::from_ref(counters());
    (!ptr::eq(counters, &FALLBACK)).then(|| {
        let start = counters.addr();
        PageRange::between(start, start + page_size())
    })
}

#[cold]
fn init() -> *mut Counters {
    let page = make_page().ok();
    let made = page.map_or_else(
        || (&raw const FALLBACK).cast_mut(),
        |page| page.as_ptr().cast(),
    );
    let empty = ptr::null_mut();
    match COUNTERS.compare_exchange(empty, made, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => made,
        Err(winner) => {
            if let Some(page) = page {
                // SAFETY: another thread stored its page first, so nobody has
                // seen this one.
                let _ = unsafe { map::unmap(page) };
            }
            winner
        }
    }
}

/// Maps a page of a memfd privately: `memfd_create(2)`, `mmap(2)`.
fn make_page() -> Result<PageRange, Errno> {
    let len = page_size();
    // Past this limit ftruncate would raise SIGXFSZ.
    let limit = process::limit(Resource::Fsize);
    if limit.is_some_and(|limit| limit < len as u64) {
        return Err(Errno::FBIG);
    }
    // Not executable where the kernel supports that (Linux 6.3).
    let memfd = memfd_create(NAME, MemfdFlags::CLOEXEC | MemfdFlags::NOEXEC_SEAL)
        .or_else(|_| memfd_create(NAME, MemfdFlags::CLOEXEC))?;
    rustix::fs::ftruncate(&memfd, len as u64)?;
    let backing = Backing::File {
        fd: memfd.as_fd(),
        offset: 0,
    };
    map::map(backing, len, false, true)
}

/// Zeroes the counters in a child. Modules that keep gauges set them again
/// afterwards.
pub(super) fn zero_in_child() {
    let counters = COUNTERS.load(Ordering::Acquire);
    // SAFETY: as in `counters`.
    if let Some(counters) = unsafe { counters.as_ref() } {
        let (before, rest) = counters.split_at(KEPT_IN_CHILD.start);
        for counter in before.iter().chain(&rest[KEPT_IN_CHILD.len()..]) {
            counter.store(0, Ordering::Relaxed);
        }
    }
}

/// The result of reading another process's counters.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// Its counters: the sum, if several copies of tenure are linked into it.
    Counters(Box<[u64; COUNTER_CAPACITY]>),
    /// It has no page of counters.
    None,
    /// It has a page with this other layout name.
    IncompatibleLayout(String),
}

/// Reads the counters of a process: `/proc/PID/maps` and `/proc/PID/mem`.
pub(crate) fn of_process(pid: u32) -> Result<Found, Errno> {
    // Both files are opened relative to one descriptor, because the process
    // number may be reused.
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = rustix::fs::open(process::folder_with_memory(pid), flags, Mode::empty())?;
    let open = |name: &str| {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        openat(&directory, name, flags, Mode::empty()).map(File::from)
    };
    let mut pages = Vec::new();
    let mut other_layout = None;
    let page = page_size();
    let everywhere = PageRange::between(page, isize::MAX as usize / page * page);
    maps::read(BufReader::new(open("maps")?), everywhere, |line| {
        match layout(line.name) {
            Some(name) if name == NAME.to_bytes() => pages.push(line.range.start()),
            Some(name) => other_layout = Some(String::from_utf8_lossy(name).into_owned()),
            None => {}
        }
        ControlFlow::Continue(())
    })
    .map_err(to_errno)?;
    if pages.is_empty() {
        return Ok(other_layout.map_or(Found::None, Found::IncompatibleLayout));
    }
    let memory = open("mem")?;
    let mut sum = Box::new([0_u64; COUNTER_CAPACITY]);
    for at in pages {
        let mut bytes = [0; COUNTER_CAPACITY * size_of::<u64>()];
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

/// A file that ends too early belongs to a process that has ended.
fn to_errno(error: io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::SRCH)
}

/// Returns the layout name of a page of counters.
fn layout(mapped: &[u8]) -> Option<&[u8]> {
    mapped.starts_with(ANY_NAME).then_some(())?;
    mapped.strip_prefix(b"/memfd:")?.strip_suffix(b" (deleted)")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_process_finds_page_by_name() {
        counters()[COUNTER_CAPACITY - 1].store(17, Ordering::Relaxed);
        let found = of_process(std::process::id()).unwrap();
        assert!(matches!(found, Found::Counters(all) if all[COUNTER_CAPACITY - 1] == 17));
    }

    #[test]
    fn layout_of_other_mapping_is_none() {
        let known = layout(b"/memfd:tenure-stats-1 (deleted)");
        assert_eq!(known, Some(NAME.to_bytes()));
        let unknown = layout(b"/memfd:tenure-stats-12 (deleted)");
        assert_eq!(unknown, Some(&b"tenure-stats-12"[..]));
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
