//! Volatile memory beside what its owner knows of each page: what was written,
//! what may be taken, and what is gone. Every step checks that the two agree.

use std::os::fd::AsRawFd;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use rustix::fs::MemfdFlags;
use rustix::mm::Advice;
use tenure::{
    Error, Features, Mapping, Outcome, PageRange, Priority, VolatileArena, VolatileBuffer,
    page_size, pressure,
};

use super::{absent, pages};

/// When the kernel is offered what has been marked.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum HandOver {
    /// Inside the call.
    AtOnce,
    /// By the keeper, at any time.
    Soon,
    /// Never, unless memory is short.
    Never,
}

impl HandOver {
    pub const ALL: [Self; 3] = [Self::AtOnce, Self::Soon, Self::Never];

    /// Has it hold for this process.
    pub fn set(self) {
        watch_pressure();
        tenure::set_hand_over_delay(match self {
            Self::AtOnce => Duration::ZERO,
            Self::Soon => Duration::from_micros(500),
            Self::Never => Duration::from_secs(24 * 3600),
        });
    }
}

/// Set once memory has been short: then tenure offers, and takes, what it likes.
static WAS_SHORT: AtomicBool = AtomicBool::new(false);

pub fn watch_pressure() {
    static WATCHED: LazyLock<Option<pressure::Subscription>> =
        LazyLock::new(|| pressure::subscribe(|_| WAS_SHORT.store(true, Relaxed)).ok());
    LazyLock::force(&WATCHED);
}

pub fn memory_was_short() -> bool {
    if pressure::level() > pressure::Level::None {
        WAS_SHORT.store(true, Relaxed);
    }
    WAS_SHORT.load(Relaxed) || tenure::stats().purged_under_pressure_bytes > 0
}

pub fn can_offer() -> bool {
    Features::get().sigbus_on_missing() && Features::get().madv_populate.is_ok()
}

/// Also that which nobody has asked about huge pages for: that of arenas.
fn all_memory_has_huge_pages() -> bool {
    std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled")
        .is_ok_and(|modes| modes.contains("[always]"))
}

/// What unmarking has told this process to be lost.
pub static REPORTED_BYTES: AtomicU64 = AtomicU64::new(0);

/// Of that, what may have been parts of huge pages.
pub static REPORTED_HUGE_BYTES: AtomicU64 = AtomicU64::new(0);

/// One page, as its owner knows it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Page {
    /// What was written last; 0 is nothing: it reads as zeros.
    version: usize,
    volatile: bool,
    /// The kernel has been offered what is in it, or may have been.
    takeable: bool,
    /// Its contents are gone, which unmarking will have to tell.
    gone: bool,
    locked: bool,
    /// It may be a part of a huge page, and have contents by a neighbour's.
    in_huge: bool,
}

impl Page {
    fn may_be_taken(&self) -> bool {
        // Without PAGEMAP_SCAN, unmarking cannot tell the page of zeros from
        // others, and makes it a page of its own, which can be lost.
        let has_contents =
            self.version > 0 || self.in_huge || Features::get().pagemap_scan.is_err();
        self.volatile && has_contents && (self.takeable || memory_was_short())
    }
}

/// The contents of a page: no byte is zero, and each differs from the next
/// version's.
fn contents(page: PageRange, version: usize) -> &'static [u8] {
    const SHIFTS: usize = 4093;
    static ROW: LazyLock<Vec<u8>> = LazyLock::new(|| {
        (0..page_size() + SHIFTS)
            .map(|index| (index * index / 3 + index / 256) as u8 | 1)
            .collect()
    });
    static ZEROS: LazyLock<Vec<u8>> = LazyLock::new(|| vec![0; page_size()]);
    match version {
        0 => &ZEROS,
        _ => &ROW[(page.start() / page_size() * 31 + version) % SHIFTS..][..page_size()],
    }
}

fn bytes_of(page: PageRange) -> &'static [u8] {
    unsafe { std::slice::from_raw_parts(page.as_ptr(), page.len()) }
}

thread_local! {
    /// What bytes go through when a page may not be there.
    static THROUGH: rustix::fd::OwnedFd =
        rustix::fs::memfd_create("through", MemfdFlags::CLOEXEC).unwrap();
}

/// Whether a system call has done all of a page, or has met one that is gone.
fn was_there(done: isize) -> bool {
    if done < 0 {
        let error = std::io::Error::last_os_error();
        assert_eq!(error.raw_os_error(), Some(libc::EFAULT), "{error}");
    }
    done == page_size() as isize
}

/// Copies a page out by a system call, which reads it as the program would.
pub fn read_through(page: PageRange) -> Option<Vec<u8>> {
    THROUGH.with(|through| {
        let fd = through.as_raw_fd();
        if !was_there(unsafe { libc::pwrite(fd, page.as_ptr().cast(), page.len(), 0) }) {
            return None;
        }
        let mut copy = vec![0; page.len()];
        assert_eq!(rustix::io::pread(through, &mut copy, 0), Ok(page.len()));
        Some(copy)
    })
}

/// Writes a page by a system call, which writes it as the program would.
fn write_through(page: PageRange, bytes: &[u8]) -> bool {
    THROUGH.with(|through| {
        assert_eq!(rustix::io::pwrite(through, bytes, 0), Ok(page.len()));
        let fd = through.as_raw_fd();
        was_there(unsafe { libc::pread(fd, page.as_ptr().cast(), page.len(), 0) })
    })
}

/// How many lazily freed pages the kernel has taken, anybody's.
pub fn lazily_freed_and_taken() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/vmstat").ok()?;
    let count = text
        .lines()
        .find_map(|line| line.strip_prefix("pglazyfreed "))?;
    count.parse().ok()
}

/// Has the kernel take what it may. Somebody may unmap the range meanwhile.
pub fn page_out_if_there(range: PageRange) {
    let _ =
        unsafe { rustix::mm::madvise(range.as_ptr().cast(), range.len(), Advice::LinuxPageOut) };
}

/// What unmarking has told.
#[derive(Clone, Copy, Debug, Default)]
pub struct Lost {
    pub pages: usize,
    /// Those that were still there when it was called.
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
    hand_over: HandOver,
    next_version: usize,
}

impl Memory {
    pub fn plain(mapping: Mapping, hand_over: HandOver) -> Self {
        Self::new(mapping.range(), Body::Plain(mapping), hand_over)
    }

    pub fn buffer(mapping: Mapping, hand_over: HandOver) -> Self {
        let buffer = VolatileBuffer::from_mapping(mapping).unwrap();
        Self::new(buffer.range(), Body::Buffer(buffer), hand_over)
    }

    /// The same, of huge pages.
    pub fn huge_buffer(mapping: Mapping, hand_over: HandOver) -> Self {
        let mut memory = Self::buffer(mapping, hand_over);
        memory.pages.iter_mut().for_each(|page| page.in_huge = true);
        memory
    }

    pub fn in_arena(arena: &VolatileArena, page_count: usize, hand_over: HandOver) -> Self {
        let buffer = arena.buffer(page_count * page_size()).unwrap();
        let mut memory = Self::new(buffer.range(), Body::Buffer(buffer), hand_over);
        let in_huge = all_memory_has_huge_pages();
        memory
            .pages
            .iter_mut()
            .for_each(|page| page.in_huge = in_huge);
        memory
    }

    fn new(range: PageRange, body: Body, hand_over: HandOver) -> Self {
        let pages = vec![Page::default(); range.pages()];
        Self {
            body,
            pages,
            hand_over,
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

    /// A buffer is marked and unmarked as a whole.
    pub fn part(&self, first: usize, count: usize) -> (usize, usize) {
        match self.body {
            Body::Plain(_) => (first, count),
            Body::Buffer(_) => (0, self.pages.len()),
        }
    }

    fn known(&mut self, (first, count): (usize, usize)) -> &mut [Page] {
        &mut self.pages[first..first + count]
    }

    fn has_locked(&mut self, part: (usize, usize)) -> bool {
        self.known(part).iter().any(|page| page.locked)
    }

    pub fn mark(&mut self, first: usize, count: usize, priority: Priority) {
        let part = self.part(first, count);
        let range = pages(self.range(), part.0, part.1);
        let marked = match &mut self.body {
            Body::Plain(_) => unsafe { range.mark_volatile_with(priority) },
            Body::Buffer(buffer) => {
                buffer.mark_volatile_with(priority);
                Ok(())
            }
        };
        match marked {
            Ok(()) => {}
            Err(Error::Locked { .. }) if self.has_locked(part) => return,
            Err(error) => panic!("{error}"),
        }
        let takeable = can_offer() && self.hand_over != HandOver::Never;
        for page in self.known(part) {
            page.volatile = true;
            page.takeable |= takeable;
        }
    }

    pub fn unmark(&mut self, first: usize, count: usize) -> Lost {
        let part = self.part(first, count);
        let range = pages(self.range(), part.0, part.1);
        let absent = self.note_what_is_gone(part);
        let outcome = match &mut self.body {
            Body::Plain(_) => unsafe { range.mark_nonvolatile() }.unwrap(),
            Body::Buffer(buffer) => buffer.mark_nonvolatile().unwrap(),
        };
        let reported = Self::flags(range, &outcome);
        let mut lost = Lost::default();
        for (index, (&reported, absent)) in (part.0..).zip(reported.iter().zip(absent)) {
            let page = &mut self.pages[index];
            if reported {
                assert!(
                    page.gone || page.may_be_taken(),
                    "page {index} was not lost: {page:?}"
                );
                lost.pages += 1;
                lost.unforeseen += usize::from(!page.gone && !absent);
                (page.version, page.gone) = (0, false);
            }
            assert!(!page.gone, "page {index} is lost without a word: {page:?}");
            (page.volatile, page.takeable) = (false, false);
            self.look(index);
        }
        let lost_bytes = (lost.pages * page_size()) as u64;
        REPORTED_BYTES.fetch_add(lost_bytes, Relaxed);
        if self.pages[0].in_huge {
            REPORTED_HUGE_BYTES.fetch_add(lost_bytes, Relaxed);
        }
        lost
    }

    /// Which pages of the range have been reported.
    fn flags(range: PageRange, outcome: &Outcome) -> Vec<bool> {
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

    /// What was written and is nowhere any more has been taken. Returns which pages are
    /// nowhere.
    fn note_what_is_gone(&mut self, part: (usize, usize)) -> Vec<bool> {
        let absent = absent(pages(self.range(), part.0, part.1));
        for (page, &absent) in self.known(part).iter_mut().zip(&absent) {
            if absent && page.volatile && page.version > 0 {
                assert!(
                    page.gone || page.may_be_taken(),
                    "taken, and was not offered: {page:?}"
                );
                page.gone = true;
            }
        }
        absent
    }

    /// Writes to each page something of its own.
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
                continue; // It lends nobody its bytes now.
            } else if write_through(at, bytes) {
                assert!(!page.gone, "page {index} has come back: {page:?}");
                // A write keeps a page that has been offered; not one that will be.
                page.takeable &= self.hand_over != HandOver::AtOnce;
            } else {
                assert!(
                    page.gone || page.may_be_taken(),
                    "page {index} cannot be written: {page:?}"
                );
                page.gone = true;
                continue;
            }
            page.version = version;
        }
    }

    /// Looks at a page; whether it is there.
    fn look(&self, index: usize) -> bool {
        let (at, page) = (self.page(index), &self.pages[index]);
        let expected = contents(at, page.version);
        if !page.volatile {
            assert!(bytes_of(at) == expected, "page {index} is wrong: {page:?}");
            return true;
        }
        match read_through(at) {
            Some(found) => {
                assert!(!page.gone, "page {index} has come back: {page:?}");
                assert!(
                    found == expected,
                    "volatile page {index} is wrong: {page:?}"
                );
                true
            }
            None => {
                assert!(
                    page.gone || page.may_be_taken(),
                    "page {index} cannot be read: {page:?}"
                );
                false
            }
        }
    }

    /// Looks at pages.
    pub fn check(&mut self, first: usize, count: usize) {
        for index in first..first + count {
            if !self.look(index) {
                self.pages[index].gone = true;
            }
        }
    }

    /// The same for who only borrows it: copies bytes out as a reader does.
    /// Whether that could be done.
    pub fn read(&self, offset: usize, len: usize) -> bool {
        let Body::Buffer(buffer) = &self.body else {
            return self.look(offset / page_size());
        };
        let mut copy = vec![0; len];
        let read = match buffer.read_volatile_into(offset, &mut copy) {
            Ok(()) => true,
            Err(Error::Purged { .. }) => false,
            Err(error) => panic!("{error}"),
        };
        let touched = offset / page_size()..(offset + len).div_ceil(page_size());
        if !read {
            let may_be = |page: &Page| page.gone || page.may_be_taken();
            assert!(
                self.pages.iter().any(may_be),
                "nothing was lost: {:?}",
                self.pages
            );
            return false;
        }
        let mut at = offset;
        for index in touched {
            let page = &self.pages[index];
            assert!(!page.gone, "page {index} was read: {page:?}");
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
        for page in self.known(part).iter_mut().filter(|page| page.volatile) {
            match purged {
                Ok(()) if page.version > 0 => page.gone = true,
                // A page of zeros stays, unless it has memory of its own: as a part of a
                // huge page, or where the kernel did not tell when it was taken back. Of
                // an error some may be done.
                _ => page.takeable = true,
            }
        }
    }

    pub fn discard(&mut self, first: usize, count: usize) {
        if let Body::Plain(mapping) = &mut self.body {
            let bounds = first * page_size()..(first + count) * page_size();
            mapping.discard(bounds).unwrap();
            self.known((first, count)).fill(Page::default());
        }
    }

    /// Locks pages behind tenure's back.
    pub fn lock(&mut self, first: usize, count: usize) {
        let range = pages(self.range(), first, count);
        let flags = rustix::mm::MlockFlags::ONFAULT;
        if unsafe { rustix::mm::mlock_with(range.as_ptr().cast(), range.len(), flags) }.is_ok() {
            self.known((first, count))
                .iter_mut()
                .for_each(|page| page.locked = true);
        }
    }

    pub fn unlock(&mut self) {
        let range = self.range();
        unsafe { rustix::mm::munlock(range.as_ptr().cast(), range.len()) }.unwrap();
        self.forget_locks();
    }

    /// A child inherits none.
    pub fn forget_locks(&mut self) {
        self.pages.iter_mut().for_each(|page| page.locked = false);
    }

    /// Has the kernel take what it may.
    pub fn page_out(&self, first: usize, count: usize) {
        page_out_if_there(pages(self.range(), first, count));
    }
}

/// Whether the contents are what was told of them. (What is offered the kernel
/// may take at any time, also in a test.)
pub fn is_as_told(range: PageRange, outcome: &Outcome) -> bool {
    let lost: &[PageRange] = match outcome {
        Outcome::Intact => &[],
        Outcome::Purged(runs) => runs,
    };
    (0..range.pages()).all(|page| {
        let page = pages(range, page, 1);
        match lost.iter().any(|run| run.contains(page)) {
            true => super::is_zero(page),
            false => super::is_filled(page),
        }
    })
}

/// What the kernel takes by itself of what it has been offered, at any time.
pub struct Watch {
    taken: Option<u64>,
    asked_bytes: u64,
}

impl Watch {
    pub fn now() -> Self {
        Self {
            taken: lazily_freed_and_taken(),
            asked_bytes: tenure::stats().purged_on_request_bytes,
        }
    }

    /// Whether so many pages may be gone: the kernel has taken as many, anybody's,
    /// or they were asked for.
    pub fn explains(&self, page_count: usize) -> bool {
        let asked_bytes = tenure::stats().purged_on_request_bytes - self.asked_bytes;
        let taken = match (lazily_freed_and_taken(), self.taken) {
            (Some(now), Some(before)) => now - before,
            _ => u64::MAX,
        };
        page_count as u64 <= taken.saturating_add(asked_bytes / page_size() as u64)
    }

    /// Asserts that these pages are lost of the range, others only if the kernel
    /// has taken them as well, and that the contents are what was told of them.
    #[track_caller]
    pub fn assert_lost(&self, range: PageRange, outcome: &Outcome, expected: &[PageRange]) {
        assert!(is_as_told(range, outcome), "{outcome:?}");
        let runs: &[PageRange] = match outcome {
            Outcome::Intact => &[],
            Outcome::Purged(runs) => runs,
        };
        for part in expected {
            let is_lost = runs.iter().any(|run| run.contains(*part));
            assert!(is_lost, "{part:?} in {outcome:?}");
        }
        let count = |parts: &[PageRange]| parts.iter().map(|part| part.pages()).sum::<usize>();
        assert!(
            count(runs) == count(expected) || self.explains(count(runs)),
            "more than {expected:?}: {outcome:?}"
        );
    }
}

/// How many page faults that read nothing in this thread has had.
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
