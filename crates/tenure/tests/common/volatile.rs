//! Volatile memory beside a model of each page: its contents, whether it may be purged, and
//! whether it has been purged. Every step checks that the two agree.

use std::os::fd::AsRawFd;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use rustix::fs::MemfdFlags;
use rustix::mm::Advice;
use tenure::{
    Error, Features, Mapping, Outcome, PageRange, VolatileArena, VolatileBuffer, page_size,
    pressure,
    volatile::{Priority, VolatileOptions},
};

use super::{ZEROS, absent, pages, row_at};

/// When marked memory is offered to the kernel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum OfferTiming {
    /// Inside the marking call.
    InCall,
    /// By the offer thread, at any time.
    ByThread,
    /// Never, except under memory pressure.
    Never,
}

impl OfferTiming {
    pub const ALL: [Self; 3] = [Self::InCall, Self::ByThread, Self::Never];

    /// Sets the offer delay of this process.
    pub fn set(self) {
        watch_pressure();
        tenure::volatile::set_offer_delay(match self {
            Self::InCall => Duration::ZERO,
            Self::ByThread => Duration::from_micros(500),
            Self::Never => Duration::from_secs(24 * 3600),
        });
    }
}

/// Set once there was memory pressure: from then on tenure may offer and purge at any time.
static WAS_UNDER_PRESSURE: AtomicBool = AtomicBool::new(false);

pub fn watch_pressure() {
    static WATCHED: LazyLock<Option<pressure::Subscription>> =
        LazyLock::new(|| pressure::subscribe(|_| WAS_UNDER_PRESSURE.store(true, Relaxed)).ok());
    LazyLock::force(&WATCHED);
}

pub fn was_under_pressure() -> bool {
    if pressure::level() > pressure::Level::None {
        WAS_UNDER_PRESSURE.store(true, Relaxed);
    }
    WAS_UNDER_PRESSURE.load(Relaxed) || tenure::stats().purged_under_pressure_bytes > 0
}

pub fn can_offer() -> bool {
    Features::get().sigbus_on_missing() && Features::get().madv_populate.is_ok()
}

/// Whether memory without huge-page advice, such as an arena's, gets huge pages.
fn thp_is_always() -> bool {
    std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled")
        .is_ok_and(|modes| modes.contains("[always]"))
}

/// Bytes that unmarking has reported to this process as purged.
pub static REPORTED_BYTES: AtomicU64 = AtomicU64::new(0);

/// The part of them that may have lain in huge pages.
pub static REPORTED_HUGE_BYTES: AtomicU64 = AtomicU64::new(0);

/// The model of one page.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Page {
    /// The version written last; 0 if nothing was written, which reads as zeros.
    version: usize,
    volatile: bool,
    /// The page has been offered to the kernel, or may have been.
    maybe_offered: bool,
    /// The contents are gone, which unmarking must report.
    purged: bool,
    locked: bool,
    /// The page may be part of a huge page, and so have contents because its neighbour has.
    in_huge: bool,
}

impl Page {
    fn may_be_purged(&self) -> bool {
        // Without PAGEMAP_SCAN, unmarking cannot tell the zero page from others and
        // repopulates it as a page of its own, which can be purged.
        let has_contents =
            self.version > 0 || self.in_huge || Features::get().pagemap_scan.is_err();
        self.volatile && has_contents && (self.maybe_offered || was_under_pressure())
    }
}

/// Returns the contents of a page: no byte is zero, and each byte differs from the next
/// version's.
fn contents(page: PageRange, version: usize) -> &'static [u8] {
    match version {
        0 => &ZEROS[..page_size()],
        _ => row_at(page.start() / page_size() * 31 + version),
    }
}

fn bytes_of(page: PageRange) -> &'static [u8] {
    unsafe { std::slice::from_raw_parts(page.as_ptr(), page.len()) }
}

thread_local! {
    /// The file through which system calls copy pages that may not be present.
    static TRANSFER: rustix::fd::OwnedFd =
        rustix::fs::memfd_create("transfer", MemfdFlags::CLOEXEC).unwrap();
}

/// Whether a system call has copied a whole page; otherwise it met a purged one.
fn was_present(done: isize) -> bool {
    if done < 0 {
        let error = std::io::Error::last_os_error();
        assert_eq!(error.raw_os_error(), Some(libc::EFAULT), "{error}");
    }
    done == page_size() as isize
}

/// Copies a page out by a system call, which reads it as the program would.
pub fn read_by_syscall(page: PageRange) -> Option<Vec<u8>> {
    TRANSFER.with(|through| {
        let fd = through.as_raw_fd();
        if !was_present(unsafe { libc::pwrite(fd, page.as_ptr().cast(), page.len(), 0) }) {
            return None;
        }
        let mut copy = vec![0; page.len()];
        assert_eq!(rustix::io::pread(through, &mut copy, 0), Ok(page.len()));
        Some(copy)
    })
}

/// Writes a page by a system call, which writes it as the program would.
fn write_by_syscall(page: PageRange, bytes: &[u8]) -> bool {
    TRANSFER.with(|through| {
        assert_eq!(rustix::io::pwrite(through, bytes, 0), Ok(page.len()));
        let fd = through.as_raw_fd();
        was_present(unsafe { libc::pread(fd, page.as_ptr().cast(), page.len(), 0) })
    })
}

/// Counts the lazily freed pages that the kernel has reclaimed in the whole system.
pub fn lazyfree_reclaimed_pages() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/vmstat").ok()?;
    let count = text
        .lines()
        .find_map(|line| line.strip_prefix("pglazyfreed "))?;
    count.parse().ok()
}

/// Makes the kernel reclaim what it may. Another thread may unmap the range concurrently.
pub fn page_out_if_mapped(range: PageRange) {
    let _ =
        unsafe { rustix::mm::madvise(range.as_ptr().cast(), range.len(), Advice::LinuxPageOut) };
}

/// The purged pages that one unmarking has reported.
#[derive(Clone, Copy, Debug, Default)]
pub struct PurgeCount {
    pub pages: usize,
    /// Purged pages that were still present just before the call.
    pub unforeseen: usize,
}

#[derive(Debug)]
enum Body {
    Plain(Mapping),
    Buffer(VolatileBuffer),
}

#[derive(Debug)]
pub struct Memory {
    body: Body,
    pages: Vec<Page>,
    timing: OfferTiming,
    next_version: usize,
}

impl Memory {
    pub fn plain(mapping: Mapping, timing: OfferTiming) -> Self {
        Self::new(mapping.range(), Body::Plain(mapping), timing)
    }

    pub fn buffer(mapping: Mapping, timing: OfferTiming) -> Self {
        let buffer = VolatileBuffer::from_mapping(mapping).unwrap();
        Self::new(buffer.range(), Body::Buffer(buffer), timing)
    }

    /// Wraps a mapping of huge pages in a buffer.
    pub fn huge_buffer(mapping: Mapping, timing: OfferTiming) -> Self {
        let mut memory = Self::buffer(mapping, timing);
        memory.pages.iter_mut().for_each(|page| page.in_huge = true);
        memory
    }

    pub fn in_arena(arena: &VolatileArena, page_count: usize, timing: OfferTiming) -> Self {
        let buffer = arena.buffer(page_count * page_size()).unwrap();
        let mut memory = Self::new(buffer.range(), Body::Buffer(buffer), timing);
        let in_huge = thp_is_always();
        memory
            .pages
            .iter_mut()
            .for_each(|page| page.in_huge = in_huge);
        memory
    }

    fn new(range: PageRange, body: Body, timing: OfferTiming) -> Self {
        let pages = vec![Page::default(); range.pages()];
        Self {
            body,
            pages,
            timing,
            next_version: 1,
        }
    }

    pub fn range(&self) -> PageRange {
        match &self.body {
            Body::Plain(mapping) => mapping.range(),
            Body::Buffer(buffer) => buffer.range(),
        }
    }

    pub fn page_count(&self) -> usize {
        self.pages.len()
    }

    fn page(&self, index: usize) -> PageRange {
        pages(self.range(), index, 1)
    }

    /// Returns the whole buffer, which is only marked and unmarked whole, or the part
    /// given.
    pub fn part(&self, first: usize, count: usize) -> (usize, usize) {
        match self.body {
            Body::Plain(_) => (first, count),
            Body::Buffer(_) => (0, self.pages.len()),
        }
    }

    fn model_of(&mut self, (first, count): (usize, usize)) -> &mut [Page] {
        &mut self.pages[first..first + count]
    }

    fn has_locked(&mut self, part: (usize, usize)) -> bool {
        self.model_of(part).iter().any(|page| page.locked)
    }

    pub fn mark(&mut self, first: usize, count: usize, priority: Priority) {
        let part = self.part(first, count);
        let range = pages(self.range(), part.0, part.1);
        let marked = match &mut self.body {
            Body::Plain(_) => unsafe {
                range.mark_volatile_with(VolatileOptions::new().priority(priority))
            },
            Body::Buffer(buffer) => {
                buffer.mark_volatile_with(VolatileOptions::new().priority(priority));
                Ok(())
            }
        };
        match marked {
            Ok(()) => {}
            Err(Error::Locked { .. }) if self.has_locked(part) => return,
            Err(error) => panic!("{error}"),
        }
        let maybe_offered = can_offer() && self.timing != OfferTiming::Never;
        for page in self.model_of(part) {
            page.volatile = true;
            page.maybe_offered |= maybe_offered;
        }
    }

    pub fn unmark(&mut self, first: usize, count: usize) -> PurgeCount {
        let part = self.part(first, count);
        let range = pages(self.range(), part.0, part.1);
        let absent = self.record_purged(part);
        let outcome = match &mut self.body {
            Body::Plain(_) => unsafe { range.mark_nonvolatile() }.unwrap(),
            Body::Buffer(buffer) => buffer.mark_nonvolatile().unwrap(),
        };
        let reported = Self::reported_pages(range, &outcome);
        let mut purges = PurgeCount::default();
        for (index, (&reported, absent)) in (part.0..).zip(reported.iter().zip(absent)) {
            let page = &mut self.pages[index];
            if reported {
                assert!(
                    page.purged || page.may_be_purged(),
                    "page {index} is reported purged, but cannot be: {page:?}"
                );
                purges.pages += 1;
                purges.unforeseen += usize::from(!page.purged && !absent);
                (page.version, page.purged) = (0, false);
            }
            assert!(
                !page.purged,
                "page {index} was purged without a report: {page:?}"
            );
            (page.volatile, page.maybe_offered) = (false, false);
            self.check_page(index);
        }
        let purged_bytes = (purges.pages * page_size()) as u64;
        REPORTED_BYTES.fetch_add(purged_bytes, Relaxed);
        if self.pages[0].in_huge {
            REPORTED_HUGE_BYTES.fetch_add(purged_bytes, Relaxed);
        }
        purges
    }

    /// Which pages of the range are reported.
    fn reported_pages(range: PageRange, outcome: &Outcome) -> Vec<bool> {
        let mut reported = vec![false; range.pages()];
        if let Outcome::Purged(runs) = outcome {
            assert!(!runs.is_empty());
            let mut end = range.start();
            for run in runs {
                assert!(
                    run.start() >= end && !run.is_empty() && range.contains(*run),
                    "{runs:?}"
                );
                end = run.end();
                let first = (run.start() - range.start()) / page_size();
                reported[first..first + run.pages()].fill(true);
            }
        }
        reported
    }

    /// Records absent pages that had contents as purged. Returns which pages are absent.
    fn record_purged(&mut self, part: (usize, usize)) -> Vec<bool> {
        let absent = absent(pages(self.range(), part.0, part.1));
        for (page, &absent) in self.model_of(part).iter_mut().zip(&absent) {
            if absent && page.volatile && page.version > 0 {
                assert!(
                    page.purged || page.may_be_purged(),
                    "purged without having been offered: {page:?}"
                );
                page.purged = true;
            }
        }
        absent
    }

    /// Writes contents of its own to each page.
    pub fn write(&mut self, first: usize, count: usize) {
        let version = self.next_version;
        self.next_version += 1;
        for index in first..first + count {
            let at = self.page(index);
            let bytes = contents(at, version);
            let page = &mut self.pages[index];
            if !page.volatile {
                unsafe {
                    at.as_ptr()
                        .copy_from_nonoverlapping(bytes.as_ptr(), at.len())
                };
            } else if matches!(self.body, Body::Buffer(_)) {
                continue; // A volatile buffer lends no bytes.
            } else if write_by_syscall(at, bytes) {
                assert!(!page.purged, "page {index} has reappeared: {page:?}");
                // A write keeps a page that has been offered, but not one that will be.
                page.maybe_offered &= self.timing != OfferTiming::InCall;
            } else {
                assert!(
                    page.purged || page.may_be_purged(),
                    "page {index} cannot be written: {page:?}"
                );
                page.purged = true;
                continue;
            }
            page.version = version;
        }
    }

    /// Checks a page. Returns whether it is present.
    fn check_page(&self, index: usize) -> bool {
        let (at, page) = (self.page(index), &self.pages[index]);
        let expected = contents(at, page.version);
        if !page.volatile {
            assert!(bytes_of(at) == expected, "page {index} is wrong: {page:?}");
            return true;
        }
        match read_by_syscall(at) {
            Some(found) => {
                assert!(!page.purged, "page {index} has reappeared: {page:?}");
                assert!(
                    found == expected,
                    "volatile page {index} is wrong: {page:?}"
                );
                true
            }
            None => {
                assert!(
                    page.purged || page.may_be_purged(),
                    "page {index} cannot be read: {page:?}"
                );
                false
            }
        }
    }

    /// Checks pages, and records those that are purged.
    pub fn check(&mut self, first: usize, count: usize) {
        for index in first..first + count {
            if !self.check_page(index) {
                self.pages[index].purged = true;
            }
        }
    }

    /// Checks bytes through a shared reference, copying them out as a reader does. Returns
    /// whether they could be read.
    pub fn read(&self, offset: usize, len: usize) -> bool {
        let Body::Buffer(buffer) = &self.body else {
            return self.check_page(offset / page_size());
        };
        let mut copy = vec![0; len];
        let read = match buffer.read_volatile_into(offset, &mut copy) {
            Ok(()) => true,
            Err(Error::Purged { .. }) => false,
            Err(error) => panic!("{error}"),
        };
        let touched = offset / page_size()..(offset + len).div_ceil(page_size());
        if !read {
            let purgeable = |page: &Page| page.purged || page.may_be_purged();
            assert!(
                self.pages.iter().any(purgeable),
                "reported purged, but no page can be: {:?}",
                self.pages
            );
            return false;
        }
        let mut at = offset;
        for index in touched {
            let page = &self.pages[index];
            assert!(!page.purged, "purged page {index} was read: {page:?}");
            let end = ((index + 1) * page_size()).min(offset + len);
            let within = at % page_size()..(end - 1) % page_size() + 1;
            let expected = &contents(self.page(index), page.version)[within];
            assert!(
                copy[at - offset..end - offset] == *expected,
                "page {index}: {page:?}"
            );
            at = end;
        }
        true
    }

    pub fn purge(&mut self, first: usize, count: usize) {
        let part = self.part(first, count);
        let range = pages(self.range(), part.0, part.1);
        let purged = match &mut self.body {
            Body::Plain(_) => unsafe { range.purge() },
            Body::Buffer(buffer) => buffer.purge(),
        };
        let is_locked = self.has_locked(part);
        if let Err(error) = &purged {
            assert!(is_locked, "{error}");
        }
        for page in self.model_of(part).iter_mut().filter(|page| page.volatile) {
            match purged {
                Ok(()) if page.version > 0 => page.purged = true,
                // A zero page stays, unless it has memory of its own: as a part of a huge
                // page, or where the kernel could not identify it when it was repopulated.
                // After an error some pages may be purged.
                _ => page.maybe_offered = true,
            }
        }
    }

    pub fn discard(&mut self, first: usize, count: usize) {
        if let Body::Plain(mapping) = &mut self.body {
            let bounds = first * page_size()..(first + count) * page_size();
            mapping.discard(bounds).unwrap();
            self.model_of((first, count)).fill(Page::default());
        }
    }

    /// Locks pages without tenure.
    pub fn lock(&mut self, first: usize, count: usize) {
        let range = pages(self.range(), first, count);
        let flags = rustix::mm::MlockFlags::ONFAULT;
        if unsafe { rustix::mm::mlock_with(range.as_ptr().cast(), range.len(), flags) }.is_ok() {
            self.model_of((first, count))
                .iter_mut()
                .for_each(|page| page.locked = true);
        }
    }

    pub fn unlock(&mut self) {
        let range = self.range();
        unsafe { rustix::mm::munlock(range.as_ptr().cast(), range.len()) }.unwrap();
        self.forget_locks();
    }

    /// Forgets the locks, which a child does not inherit.
    pub fn forget_locks(&mut self) {
        self.pages.iter_mut().for_each(|page| page.locked = false);
    }

    /// Makes the kernel reclaim what it may.
    pub fn page_out(&self, first: usize, count: usize) {
        page_out_if_mapped(pages(self.range(), first, count));
    }
}

/// Whether the contents match a reported outcome. (The kernel may purge offered pages at
/// any time, also during a test.)
pub fn matches_outcome(range: PageRange, outcome: &Outcome) -> bool {
    let runs: &[PageRange] = match outcome {
        Outcome::Intact => &[],
        Outcome::Purged(runs) => runs,
    };
    (0..range.pages()).all(|page| {
        let page = pages(range, page, 1);
        match runs.iter().any(|run| run.contains(page)) {
            true => super::is_zero(page),
            false => super::is_filled(page),
        }
    })
}

/// Counts what the kernel reclaims by itself of offered memory, which it may do at any
/// time.
pub struct PurgeWatch {
    reclaimed: Option<u64>,
    requested_bytes: u64,
}

impl PurgeWatch {
    pub fn now() -> Self {
        Self {
            reclaimed: lazyfree_reclaimed_pages(),
            requested_bytes: tenure::stats().purged_on_request_bytes,
        }
    }

    /// Whether `page_count` pages may have been purged: the kernel has reclaimed as many in
    /// the whole system, or the program has purged them itself.
    pub fn explains(&self, page_count: usize) -> bool {
        let requested_bytes = tenure::stats().purged_on_request_bytes - self.requested_bytes;
        let reclaimed = match (lazyfree_reclaimed_pages(), self.reclaimed) {
            (Some(now), Some(before)) => now - before,
            _ => u64::MAX,
        };
        page_count as u64 <= reclaimed.saturating_add(requested_bytes / page_size() as u64)
    }

    /// Asserts that the outcome reports the `expected` pages as purged, others only if the
    /// kernel has reclaimed as many, and that the contents match it.
    #[track_caller]
    pub fn assert_purged(&self, range: PageRange, outcome: &Outcome, expected: &[PageRange]) {
        assert!(matches_outcome(range, outcome), "{outcome:?}");
        let runs: &[PageRange] = match outcome {
            Outcome::Intact => &[],
            Outcome::Purged(runs) => runs,
        };
        for part in expected {
            let is_reported = runs.iter().any(|run| run.contains(*part));
            assert!(is_reported, "{part:?} is not reported in {outcome:?}");
        }
        let count = |parts: &[PageRange]| parts.iter().map(|part| part.pages()).sum::<usize>();
        assert!(
            count(runs) == count(expected) || self.explains(count(runs)),
            "more than {expected:?} is reported: {outcome:?}"
        );
    }
}

/// Counts the minor page faults of this thread.
pub fn minor_faults() -> i64 {
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    assert_eq!(
        unsafe { libc::getrusage(libc::RUSAGE_THREAD, &mut usage) },
        0
    );
    usage.ru_minflt
}

pub fn has_swap() -> bool {
    static HAS_SWAP: LazyLock<bool> = LazyLock::new(|| {
        std::fs::read_to_string("/proc/swaps").is_ok_and(|text| text.lines().count() > 1)
    });
    *HAS_SWAP
}
