//! The operations with more objects, or more addresses, than a slot has.

use std::ops::Range;
use std::ptr;
use std::sync::Mutex;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use fastrand::Rng;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};
use tenure::volatile::{Priority, VolatileOptions};
use tenure::{Outcome, PageRange, Stats, VolatileArena, VolatileBuffer, page_size, stats};

use super::Tools;
use crate::model::{Checked, Page, Seen, fill, mismatch};
use crate::peek;
use crate::step::Count;
use crate::worker::is_gate_wanted;

/// One thread does one of these operations at a time, which bounds the memory; the others
/// go on.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// How large they are.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    pub objects: usize,
    pub empty_bytes: usize,
}

/// One in so many objects is not marked.
const UNMARKED_PART: usize = 64;

/// After so many objects the thread waits until enough of them are offered.
const BATCH: usize = 1024;

/// The addresses that are marked and hardly have any memory.
static EMPTY_BYTES: AtomicU64 = AtomicU64::new(0);

/// Returns how much is marked and not offered, at most.
pub fn unoffered_bytes(stats: &Stats) -> u64 {
    let marked = stats.volatile_bytes.saturating_sub(stats.offered_bytes);
    marked.saturating_sub(EMPTY_BYTES.load(Relaxed))
}

/// An operation adds no object after this time: the others that wait for it must not seem
/// to hang.
const MAX_TIME: Duration = Duration::from_secs(20);

/// A buffer of a page in an arena, and the stamp at its begin and end.
struct Object {
    buffer: VolatileBuffer,
    stamp: u64,
    is_marked: bool,
    /// It was purged on request: unmarking it must report that.
    is_purged: bool,
}

impl Object {
    fn places() -> [Range<usize>; 2] {
        [0..8, page_size() - 8..page_size()]
    }

    /// Makes it nonvolatile and compares its stamps.
    fn check(&mut self, tools: &Tools) -> Checked {
        let answer = self.buffer.mark_nonvolatile();
        let Some(outcome) = tools.expect(answer, &[])? else {
            return Ok(());
        };
        let is_intact = outcome == Outcome::Intact;
        let (was_marked, was_purged) = (self.is_marked, self.is_purged);
        (self.is_marked, self.is_purged) = (false, false);
        if is_intact && was_purged || !is_intact && !was_marked {
            let found = format!("{outcome:?}, marked: {was_marked}, purged: {was_purged}");
            return mismatch("one of many objects", "its report", found);
        }
        match is_intact {
            true => tools.board.add(Count::UnmarkedIntact, 1),
            false => {
                self.stamp = 0;
                tools.board.add(Count::PagesPurged, 1);
            }
        }
        let bytes = tools.expect(self.buffer.as_slice(), &[])?.unwrap_or(&[]);
        let stamp = self.stamp.to_ne_bytes();
        for place in Self::places() {
            if bytes.get(place.clone()) != Some(&stamp) {
                let found = format!("{:x?} at {:?}", bytes.get(place), self.buffer.range());
                let expected = format!("{stamp:x?} after {outcome:?}");
                return mismatch("the stamp of one of many objects", expected, found);
            }
        }
        tools.board.add(Count::PagesChecked, 1);
        Ok(())
    }
}

impl Tools<'_> {
    /// Fills an arena with buffers of a page, has a part of them purged, and checks all.
    pub fn use_many_objects(&mut self, scale: Scale, max_pending: Option<u64>) -> Checked {
        let Ok(_one_at_a_time) = ONE_AT_A_TIME.try_lock() else {
            return Ok(());
        };
        let end = Instant::now() + MAX_TIME;
        let arena = VolatileArena::new(scale.objects * page_size());
        let Some(arena) = self.expect(arena, &[])? else {
            return Ok(());
        };
        let mut objects = Vec::new();
        for index in 0..scale.objects {
            if let Some(buffer) = self.expect(arena.buffer(page_size()), &[])? {
                objects.push(self.stamped(buffer)?);
            }
            if index % BATCH == 0 && self.must_stop(max_pending, end) {
                break;
            }
        }
        let all = arena.range();
        for _ in 0..8 {
            peek::page_out(self.random_part(all, objects.len().max(1)));
        }
        let mut index = 0;
        while index < objects.len() {
            match self.patterns.usize(..16) {
                0 => drop(objects.swap_remove(index)),
                1 => {
                    let object = &mut objects[index];
                    let is_purged = self.expect(object.buffer.purge(), &[])?.is_some();
                    object.is_purged = is_purged && object.is_marked;
                }
                2 => {
                    objects[index].check(self)?;
                    self.mark_object(&mut objects[index]);
                }
                _ => {}
            }
            index += 1;
            if index % BATCH == 0 && self.must_stop(max_pending, end) {
                break;
            }
        }
        // In another order than they were marked in.
        self.patterns.shuffle(&mut objects);
        for mut object in objects {
            object.check(self)?;
        }
        Ok(())
    }

    fn stamped(&mut self, mut buffer: VolatileBuffer) -> Checked<Object> {
        let stamp = self.patterns.u64(1..);
        if let Some(bytes) = self.expect(buffer.as_mut_slice(), &[])? {
            for place in Object::places() {
                bytes[place].copy_from_slice(&stamp.to_ne_bytes());
            }
        }
        let mut object = Object {
            buffer,
            stamp,
            is_marked: false,
            is_purged: false,
        };
        if self.patterns.usize(..UNMARKED_PART) > 0 {
            self.mark_object(&mut object);
        }
        Ok(object)
    }

    fn mark_object(&mut self, object: &mut Object) {
        let priority = Priority::ALL[self.patterns.usize(..Priority::ALL.len())];
        let options = VolatileOptions::new().priority(priority);
        object.buffer.mark_volatile_with(options);
        object.is_marked = true;
    }

    /// Waits while too much memory is marked but not offered. Returns whether the run ends,
    /// or the operation's time, or other threads wait for its end.
    fn must_stop(&self, max_pending: Option<u64>, end: Instant) -> bool {
        let max_bytes = max_pending.unwrap_or(u64::MAX);
        let is_too_much = || unoffered_bytes(&stats()) > max_bytes;
        while is_too_much() && Instant::now() < end {
            self.board.add(Count::Waits, 1);
            thread::sleep(Duration::from_millis(1));
        }
        self.board.stop.load(Acquire) || is_gate_wanted() || Instant::now() >= end
    }

    /// Returns a random part, of so many pages at most.
    fn random_part(&mut self, range: PageRange, max_pages: usize) -> PageRange {
        let first = self.patterns.usize(..range.pages());
        let max_pages = max_pages.min(range.pages() - first);
        let count = self.patterns.usize(1..=max_pages);
        page_range(range.start() + first * page_size(), count * page_size())
    }

    /// Marks, offers, purges and unmarks many addresses of which few have memory, and checks
    /// what has some, and that the rest gets none.
    pub fn use_mostly_empty(&mut self, scale: Scale) -> Checked {
        let Ok(_one_at_a_time) = ONE_AT_A_TIME.try_lock() else {
            return Ok(());
        };
        let Some(range) = map_without_reserve(scale.empty_bytes) else {
            return Ok(());
        };
        EMPTY_BYTES.store(scale.empty_bytes as u64, Relaxed);
        let done = self.use_empty_range(range);
        EMPTY_BYTES.store(0, Relaxed);
        // SAFETY: nothing borrows the range, and only this operation knows of it.
        self.release(|| unsafe { range.munmap() })?;
        done
    }

    fn use_empty_range(&mut self, range: PageRange) -> Checked {
        const WRITTEN: usize = 256;
        let mut written: Vec<(PageRange, Page)> = Vec::new();
        let mut bytes = vec![0; page_size()];
        for _ in 0..WRITTEN {
            let page = self.random_part(range, 1);
            let mut model = Page::default();
            model.write(self.patterns.u64(1..));
            fill(&mut bytes, model.pattern);
            // SAFETY: the page is writable memory of this operation.
            unsafe {
                page.as_ptr()
                    .copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
            }
            written.retain(|(other, _)| *other != page);
            written.push((page, model));
        }
        let options = match self.patterns.bool() {
            true => VolatileOptions::new().offer_now(),
            false => VolatileOptions::new(),
        };
        // SAFETY: the operation accesses volatile pages through the kernel only.
        let marked = unsafe { range.mark_volatile_with(options) };
        let is_marked = self.expect(marked, &[])?.is_some();
        for (_, model) in &mut written {
            model.volatile = is_marked;
        }
        self.check_written(&mut written)?;
        self.check_resident(range, written.len())?;
        // The offer thread may be in the middle of it.
        thread::sleep(Duration::from_millis(self.patterns.u64(..200)));
        for index in 0..written.len() / 4 {
            let (page, model) = &mut written[index];
            match index % 2 {
                0 => peek::page_out(*page),
                _ => {
                    // SAFETY: the range is this thread's.
                    let purged = unsafe { page.purge() };
                    if self.expect(purged, &[])?.is_some() {
                        model.purge();
                    }
                }
            }
        }
        self.check_written(&mut written)?;
        // SAFETY: the range is this thread's.
        let outcome = unsafe { range.mark_nonvolatile() };
        if let Some(outcome) = self.expect(outcome, &[])? {
            let runs = match &outcome {
                Outcome::Purged(runs) => runs.as_slice(),
                Outcome::Intact => &[],
            };
            let reported: usize = runs.iter().map(|run| run.pages()).sum();
            let mut expected = 0;
            for (page, model) in &mut written {
                let is_reported = runs.iter().any(|run| run.contains(*page));
                expected += usize::from(is_reported);
                model
                    .unmarked(is_reported)
                    .map_err(|text| format!("mostly empty, {page}: {text}"))?;
            }
            if reported != expected {
                let what = "the pages reported of a mostly empty range";
                return mismatch(what, expected, reported);
            }
            self.board.add(Count::PagesPurged, reported as u64);
        }
        self.check_written(&mut written)?;
        self.check_absent(range)?;
        self.check_resident(range, written.len())
    }

    fn check_written(&self, written: &mut [(PageRange, Page)]) -> Checked {
        let mut bytes = vec![0; page_size()];
        for (page, model) in &mut *written {
            let seen = match peek::read(page.start(), &mut bytes)? {
                0 => Seen::Absent,
                _ => Seen::Bytes(&bytes),
            };
            let observed = model.observe(seen);
            observed.map_err(|text| format!("mostly empty, {page}: {text}"))?;
        }
        self.board.add(Count::PagesChecked, written.len() as u64);
        Ok(())
    }

    /// Reads a few pages that were hardly ever written, which gives them no memory.
    fn check_absent(&mut self, range: PageRange) -> Checked {
        let mut bytes = vec![0; page_size()];
        let mut random = Rng::with_seed(self.patterns.u64(..));
        for _ in 0..16 {
            let page = range.start() + random.usize(..range.pages()) * page_size();
            if peek::read(page, &mut bytes)? == 0 {
                return mismatch("a page that is not volatile", "bytes", "nothing to read");
            }
        }
        Ok(())
    }

    fn check_resident(&self, range: PageRange, max_pages: usize) -> Checked {
        let Some(residency) = self.expect(range.residency(), &[])? else {
            return Ok(());
        };
        if residency.resident_bytes > max_pages * page_size() {
            let expected = format!("at most {max_pages} pages");
            let found = format!("{} bytes", residency.resident_bytes);
            return mismatch("the memory of a mostly empty range", expected, found);
        }
        Ok(())
    }
}

fn page_range(start: usize, len: usize) -> PageRange {
    PageRange::new(start, len).unwrap_or_else(|_| unreachable!("it consists of whole pages"))
}

/// Maps memory of base pages that no overcommit rule charges; `None` where the address
/// space or RLIMIT_DATA has no place for it.
fn map_without_reserve(len: usize) -> Option<PageRange> {
    let access = ProtFlags::READ | ProtFlags::WRITE;
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: the kernel chooses the place, so that the mapping replaces nothing.
    let at = unsafe { mmap_anonymous(ptr::null_mut(), len, access, flags) }.ok()?;
    // SAFETY: the mapping is this function's; kernels without huge pages refuse the advice.
    let _ = unsafe { madvise(at, len, Advice::LinuxNoHugepage) };
    Some(page_range(at.addr(), len))
}
