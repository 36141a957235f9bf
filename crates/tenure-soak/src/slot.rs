//! A piece of memory and the models of its pages.

use std::fs::File;
use std::io::Write as _;
use std::{mem, slice};

use fastrand::Rng;
use tenure::{
    Errno, Error, Features, HugePages, Mapping, MemfdPages, Outcome, PageRange, VolatileArena,
    VolatileBuffer, page_size,
};

use super::board::Board;
use super::model::{self, Checked, Page, Seen, mismatch};
use super::peek;
use super::step::{Count, Kind};

/// How many pages one system call reads.
const PAGES_AT_ONCE: usize = 64;

/// The first page and the number of pages of a part of a slot.
pub type Part = (usize, usize);

pub enum Body {
    Mapping(Mapping),
    /// The rest of a mapping of which a part was unmapped.
    Range(PageRange),
    Buffer(VolatileBuffer),
}

pub struct Slot {
    pub kind: Kind,
    pub body: Body,
    pub pages: Vec<Page>,
    /// The patterns that pages show when their changes are discarded; empty for zeros.
    beneath: Vec<u64>,
    /// Every page may always have memory of its own.
    always_backed: bool,
    /// It is a buffer, and reported that it is not intact.
    pub is_not_intact: bool,
}

impl Slot {
    pub fn new(
        kind: Kind,
        page_count: usize,
        arena: &VolatileArena,
        patterns: &mut Rng,
    ) -> Result<Self, Error> {
        let len = page_count * page_size();
        let base_pages =
            |mapping: tenure::MappingBuilder<'static>| mapping.huge_pages(HugePages::Never).map();
        let mut beneath = Vec::new();
        let body = match kind {
            Kind::Plain => Body::Mapping(base_pages(Mapping::anonymous(len))?),
            Kind::Huge => {
                let mapping = Mapping::anonymous(len).huge_pages(HugePages::Always);
                Body::Mapping(mapping.map()?)
            }
            Kind::SharedAnonymous => Body::Mapping(base_pages(Mapping::shared_anonymous(len))?),
            Kind::Memfd => Body::Mapping(Mapping::memfd(len, MemfdPages::Base).map()?),
            Kind::File | Kind::PrivateFile => {
                beneath = (0..page_count).map(|_| patterns.u64(1..)).collect();
                let file = temporary_file(&beneath)?;
                // SAFETY: the file has no name, so that nothing truncates or writes it.
                let mapping = unsafe { Mapping::file(&file) }.read_write();
                Body::Mapping(match kind {
                    Kind::PrivateFile => mapping.private().map()?,
                    _ => mapping.map()?,
                })
            }
            Kind::Buffer => {
                let mapping = base_pages(Mapping::anonymous(len))?;
                Body::Buffer(VolatileBuffer::from_mapping(mapping)?)
            }
            Kind::InArena => Body::Buffer(arena.buffer(len)?),
        };
        // Without PAGEMAP_SCAN tenure cannot tell the zero page from others.
        let always_backed =
            kind == Kind::Huge || kind.is_shared() || Features::get().pagemap_scan.is_err();
        let mut slot = Self {
            kind,
            body,
            pages: vec![Page::default(); page_count],
            beneath,
            always_backed,
            is_not_intact: false,
        };
        slot.discarded(slot.all());
        if kind == Kind::File {
            slot.beneath.clear();
        }
        Ok(slot)
    }

    pub fn range(&self) -> PageRange {
        match &self.body {
            Body::Mapping(mapping) => mapping.range(),
            Body::Range(range) => *range,
            Body::Buffer(buffer) => buffer.range(),
        }
    }

    /// Returns the range of `count` pages from page `first` on.
    pub fn part(&self, (first, count): Part) -> PageRange {
        let range = self.range();
        PageRange::new(range.start() + first * page_size(), count * page_size())
            .unwrap_or_else(|_| unreachable!("a part of a range consists of whole pages"))
    }

    pub fn address(&self, page: usize) -> usize {
        self.range().start() + page * page_size()
    }

    pub fn all(&self) -> Part {
        (0, self.pages.len())
    }

    pub fn pages_of(&mut self, (first, count): Part) -> &mut [Page] {
        &mut self.pages[first..first + count]
    }

    pub fn any(&self, (first, count): Part, is: impl Fn(&Page) -> bool) -> bool {
        self.pages[first..first + count].iter().any(is)
    }

    pub fn is_volatile(&self) -> bool {
        self.any(self.all(), |page| page.volatile)
    }

    /// Returns the runs of volatile pages.
    pub fn volatile_parts(&self) -> Vec<Part> {
        let mut parts = Vec::new();
        let mut first = 0;
        for run in self.pages.chunk_by(|a, b| a.volatile == b.volatile) {
            if run[0].volatile {
                parts.push((first, run.len()));
            }
            first += run.len();
        }
        parts
    }

    pub fn unreclaimable_pages(&self) -> usize {
        let pages = self.pages.iter();
        pages.filter(|page| page.is_unreclaimable()).count()
    }

    pub fn check_all(&mut self, board: &Board) -> Checked {
        self.check(self.all(), board)
    }

    /// Compares pages with their models through the kernel, so that any may be absent.
    pub fn check(&mut self, (first, count): Part, board: &Board) -> Checked {
        let mut bytes = vec![0; PAGES_AT_ONCE.min(count) * page_size()];
        let (mut next, end) = (first, first + count);
        while next < end {
            let wanted = PAGES_AT_ONCE.min(end - next) * page_size();
            let read = peek::read(self.address(next), &mut bytes[..wanted])?;
            for page in bytes[..read].chunks_exact(page_size()) {
                self.observe(next, Seen::Bytes(page))?;
                next += 1;
            }
            if read < wanted {
                self.observe(next, Seen::Absent)?;
                next += 1;
            }
        }
        board.add(Count::PagesChecked, count as u64);
        Ok(())
    }

    /// Compares pages with their models, those of ordinary memory by reading them as the
    /// program does.
    pub fn check_directly(&mut self, (first, count): Part, board: &Board) -> Checked {
        for index in first..first + count {
            if self.pages[index].volatile || self.pages[index].lazily_free {
                self.check((index, 1), board)?;
                continue;
            }
            let page = self.part((index, 1));
            // SAFETY: the slot belongs to this thread, so that nothing writes to the page,
            // and it is not offered, so that the kernel does not change it.
            let bytes = unsafe { slice::from_raw_parts(page.as_ptr(), page.len()) };
            self.observe(index, Seen::Bytes(bytes))?;
            board.add(Count::PagesChecked, 1);
        }
        Ok(())
    }

    pub fn observe(&mut self, index: usize, seen: Seen) -> Checked {
        let result = self.pages[index].observe(seen);
        result.map_err(|text| format!("{}: {text}", self.page_text(index)))
    }

    pub fn page_text(&self, index: usize) -> String {
        let (kind, count) = (self.kind, self.pages.len());
        format!(
            "{kind:?}, page {index} of {count} at {:#x}",
            self.address(index)
        )
    }

    /// Writes a new pattern to each page.
    pub fn write(&mut self, (first, count): Part, patterns: &mut Rng) -> Checked {
        let mut bytes = vec![0; page_size()];
        for index in first..first + count {
            let (page, pattern) = (self.part((index, 1)), patterns.u64(1..));
            model::fill(&mut bytes, pattern);
            if !self.pages[index].volatile {
                // SAFETY: the page is ordinary writable memory of this thread's slot, and
                // `bytes` has a page's length.
                unsafe {
                    page.as_ptr()
                        .copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
                };
                self.pages[index].write(pattern);
                continue;
            }
            // The kernel makes the page and copies to it in two steps, and another thread
            // may have it purged between them.
            self.pages[index].backed = true;
            if !peek::write_page(page.start(), &bytes)? {
                self.observe(index, Seen::Absent)?;
            } else if self.pages[index].purged {
                self.observe(index, Seen::Bytes(&bytes))?;
            } else {
                self.pages[index].write(pattern);
            }
        }
        Ok(())
    }

    /// Learns that pages were unmarked with this outcome, and checks them. Returns how
    /// many were purged.
    pub fn unmarked(&mut self, part: Part, outcome: &Outcome, board: &Board) -> Checked<usize> {
        let range = self.part(part);
        let mut purged = vec![false; part.1];
        if let Outcome::Purged(runs) = outcome {
            let mut end = range.start();
            for run in runs {
                if run.start() < end || run.is_empty() || !range.contains(*run) {
                    let expected = format!("pages of {range}, in order");
                    return mismatch("the runs reported", expected, format!("{runs:?}"));
                }
                end = run.end();
                let first = (run.start() - range.start()) / page_size();
                purged[first..first + run.pages()].fill(true);
            }
            if runs.is_empty() {
                return mismatch("Outcome::Purged", "at least one page", "none");
            }
        }
        for (index, &purged) in (part.0..).zip(&purged) {
            let result = self.pages[index].unmarked(purged);
            result.map_err(|text| format!("{}: {text}", self.page_text(index)))?;
        }
        self.check(part, board)?;
        let count = purged.iter().filter(|&&purged| purged).count();
        match count {
            0 => board.add(Count::UnmarkedIntact, 1),
            count => board.add(Count::PagesPurged, count as u64),
        }
        Ok(count)
    }

    /// Learns that the contents of pages, or their changes, were discarded.
    pub fn discarded(&mut self, (first, count): Part) {
        for index in first..first + count {
            let pattern = self.beneath.get(index).copied().unwrap_or(0);
            self.pages[index].reset(pattern, self.always_backed);
        }
    }

    /// Keeps these pages only, as a range without a mapping.
    pub fn cut(&mut self, (first, count): Part) {
        let left = self.part((first, count));
        match mem::replace(&mut self.body, Body::Range(left)) {
            // The plan cuts no kind whose mapping has a descriptor, which would leak.
            Body::Mapping(mapping) => mem::forget(mapping),
            Body::Range(_) => {}
            Body::Buffer(_) => unreachable!("a buffer is not cut"),
        }
        self.pages = self.pages[first..first + count].to_vec();
        if !self.beneath.is_empty() {
            self.beneath = self.beneath[first..first + count].to_vec();
        }
    }
}

/// Creates a file without a name that holds a page for each pattern.
pub fn temporary_file(patterns: &[u64]) -> Result<File, Error> {
    let mut bytes = vec![0; patterns.len() * page_size()];
    for (page, &pattern) in bytes.chunks_exact_mut(page_size()).zip(patterns) {
        model::fill(page, pattern);
    }
    let written = tempfile::tempfile().and_then(|mut file| file.write_all(&bytes).map(|()| file));
    written.map_err(|error| Error::System {
        call: "writing a temporary file",
        errno: Errno::from_raw_os_error(error.raw_os_error().unwrap_or(libc::EIO)),
    })
}

#[cfg(test)]
mod tests {
    use super::super::plan::SLOTS;
    use super::*;

    fn filled_slot(kind: Kind) -> (Slot, &'static Board) {
        let (board, _) = Board::create().unwrap();
        let arena = VolatileArena::new(1 << 20).unwrap();
        let mut slot = Slot::new(kind, 4, &arena, &mut Rng::with_seed(1)).unwrap();
        slot.write((0, 4), &mut Rng::with_seed(2)).unwrap();
        slot.check((0, 4), board).unwrap();
        (slot, board)
    }

    /// Unmarks a volatile slot of which one page has become zeros, with a report.
    fn unmark(purged: usize, report: impl Fn(&Slot) -> Outcome) -> (Slot, Checked<usize>) {
        let (mut slot, board) = filled_slot(Kind::Plain);
        slot.pages.iter_mut().for_each(|page| page.volatile = true);
        let page = slot.part((purged, 1));
        // SAFETY: the page is memory of the slot, and nothing borrows it.
        unsafe { page.as_ptr().write_bytes(0, page.len()) };
        let outcome = report(&slot);
        let result = slot.unmarked((0, 4), &outcome, board);
        (slot, result)
    }

    #[track_caller]
    fn assert_is_about_page<T: std::fmt::Debug>(page: usize, slot: &Slot, result: Checked<T>) {
        let text = result.unwrap_err();
        assert!(text.starts_with(&slot.page_text(page)), "{text}");
    }

    #[test]
    fn check_of_every_kind_finds_a_changed_byte() {
        for (kind, ..) in SLOTS {
            let (mut slot, board) = filled_slot(kind);
            let byte = slot.part((2, 1)).as_ptr().wrapping_add(1234);
            // SAFETY: the byte is memory of the slot, and nothing borrows it.
            unsafe { byte.write_volatile(!byte.read_volatile()) };
            let through_kernel = slot.check((0, 4), board);
            assert_is_about_page(2, &slot, through_kernel);
            let directly = slot.check_directly((0, 4), board);
            assert_is_about_page(2, &slot, directly);
        }
    }

    #[test]
    fn unmark_with_an_unreported_purge_is_a_mismatch() {
        let (slot, result) = unmark(3, |_| Outcome::Intact);
        assert_is_about_page(3, &slot, result);
    }

    #[test]
    fn unmark_with_a_false_report_is_a_mismatch() {
        let (slot, result) = unmark(1, |slot| Outcome::Purged(vec![slot.part((1, 2))]));
        assert_is_about_page(2, &slot, result);
    }

    #[test]
    fn unmark_with_a_right_report_is_ok() {
        let (_, result) = unmark(1, |slot| Outcome::Purged(vec![slot.part((1, 1))]));
        assert_eq!(result, Ok(1));
    }
}
