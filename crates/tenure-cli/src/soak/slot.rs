//! A piece of memory beside what is known of each of its pages.

use std::{
    fs::File,
    io::{self, Write as _},
};

use fastrand::Rng;
use tenure::{
    Error, Features, HugePages, Mapping, MemfdPages, Outcome, PageRange, VolatileArena,
    VolatileBuffer, page_size,
};

use super::{
    board::{Board, Count},
    model::{self, Page, Seen, Wrong, pages_in},
    peek,
    step::Kind,
};

/// How many pages are looked at in one call.
const PAGES_AT_ONCE: usize = 64;

pub enum Body {
    Mapping(Mapping),
    /// What is left of a mapping of which a part has been unmapped.
    Range(PageRange),
    Buffer(VolatileBuffer),
}

pub struct Slot {
    pub kind: Kind,
    pub body: Body,
    pub pages: Vec<Page>,
    /// What a page holds when its changes are discarded; zeros where there is none.
    beneath: Vec<u64>,
    /// Every page may have memory of its own, whatever was done to it.
    always_own: bool,
    /// A buffer that has said that it has lost something.
    pub is_not_whole: bool,
}

impl Slot {
    pub fn new(
        kind: Kind,
        page_count: usize,
        arena: &VolatileArena,
        stamps: &mut Rng,
    ) -> Result<Self, Error> {
        let len = page_count * page_size();
        let mut beneath = Vec::new();
        let small = |mapping: tenure::MappingBuilder<'static>| {
            mapping
                .huge_pages(HugePages::Never)
                .map()
                .map(Body::Mapping)
        };
        let body = match kind {
            Kind::Plain => small(Mapping::anonymous(len))?,
            Kind::Huge => Body::Mapping(
                Mapping::anonymous(len)
                    .huge_pages(HugePages::Always)
                    .map()?,
            ),
            Kind::SharedAnonymous => small(Mapping::shared_anonymous(len))?,
            Kind::Memfd => Body::Mapping(Mapping::memfd(len, MemfdPages::Base).map()?),
            Kind::File | Kind::PrivateFile => {
                beneath = (0..page_count).map(|_| stamps.u64(1..)).collect();
                let file = file_of(&beneath).map_err(|error| Error::System {
                    call: "writing a temporary file",
                    errno: tenure::Errno::from_raw_os_error(error.raw_os_error().unwrap_or(5)),
                })?;
                // SAFETY: nobody else knows the file.
                let mapping = unsafe { Mapping::file(&file) }.read_write();
                Body::Mapping(match kind {
                    Kind::PrivateFile => mapping.private().map()?,
                    _ => mapping.map()?,
                })
            }
            Kind::Buffer => {
                let mapping = Mapping::anonymous(len).huge_pages(HugePages::Never).map()?;
                Body::Buffer(VolatileBuffer::from_mapping(mapping)?)
            }
            Kind::InArena => Body::Buffer(arena.buffer(len)?),
        };
        // Without PAGEMAP_SCAN tenure cannot tell a page of zeros from others.
        let always_own =
            matches!(kind, Kind::Huge) || kind.is_shared() || Features::get().pagemap_scan.is_err();
        let page = |index| Page {
            stamp: beneath.get(index).copied().unwrap_or(0),
            own: always_own,
            ..Page::default()
        };
        let pages = (0..page_count).map(page).collect();
        if kind == Kind::File {
            beneath.clear();
        }
        let is_not_whole = false;
        Ok(Self {
            kind,
            body,
            pages,
            beneath,
            always_own,
            is_not_whole,
        })
    }

    pub fn range(&self) -> PageRange {
        match &self.body {
            Body::Mapping(mapping) => mapping.range(),
            Body::Range(range) => *range,
            Body::Buffer(buffer) => buffer.range(),
        }
    }

    /// The pages `count` from page `first` on.
    pub fn part(&self, first: usize, count: usize) -> PageRange {
        let range = self.range();
        PageRange::new(range.start() + first * page_size(), count * page_size())
            .unwrap_or_else(|_| unreachable!("whole pages of a range"))
    }

    pub fn known(&mut self, (first, count): (usize, usize)) -> &mut [Page] {
        &mut self.pages[first..first + count]
    }

    pub fn has(&self, (first, count): (usize, usize), is: impl Fn(&Page) -> bool) -> bool {
        self.pages[first..first + count].iter().any(is)
    }

    /// The runs of pages that are volatile.
    pub fn volatile_parts(&self) -> Vec<(usize, usize)> {
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

    /// How many pages the kernel cannot take.
    pub fn firm_pages(&self) -> usize {
        self.pages.iter().filter(|page| page.is_firm()).count()
    }

    /// Looks at pages, those that may be missing and those that may not alike.
    pub fn check(&mut self, (first, count): (usize, usize), board: &Board) -> Result<(), Wrong> {
        let mut bytes = vec![0; PAGES_AT_ONCE.min(count) * page_size()];
        let (mut next, end) = (first, first + count);
        while next < end {
            let at = self.part(next, 1).start();
            let wanted = PAGES_AT_ONCE.min(end - next) * page_size();
            let read = peek::read(at, &mut bytes[..wanted]);
            let read = read.map_err(|error| Wrong::new("process_vm_readv", "bytes", error))?;
            for page in bytes[..read].chunks_exact(page_size()) {
                self.look(next, Seen::Bytes(page))?;
                next += 1;
            }
            if read < wanted {
                self.look(next, Seen::Missing)?;
                next += 1;
            }
        }
        board.add(Count::PagesChecked, count as u64);
        Ok(())
    }

    /// Looks at those that are ordinary memory as the program does.
    pub fn check_directly(&mut self, part: (usize, usize), board: &Board) -> Result<(), Wrong> {
        for index in part.0..part.0 + part.1 {
            let page = self.pages[index];
            if page.volatile || page.lazy {
                self.check((index, 1), board)?;
                continue;
            }
            let at = self.part(index, 1);
            // SAFETY: nobody writes to it meanwhile, for the slot is this thread's,
            // and nothing of it may be taken.
            let bytes = unsafe { std::slice::from_raw_parts(at.as_ptr(), at.len()) };
            self.look(index, Seen::Bytes(bytes))?;
            board.add(Count::PagesChecked, 1);
        }
        Ok(())
    }

    fn look(&mut self, index: usize, seen: Seen) -> Result<(), Wrong> {
        let (at, kind, count) = (self.part(index, 1).start(), self.kind, self.pages.len());
        self.pages[index].look(seen).map_err(|wrong| Wrong {
            what: format!("{}, page {index} of {count}, {kind:?}", wrong.what),
            page: Some(at),
            ..wrong
        })
    }

    /// Writes to each page something of its own.
    pub fn write(&mut self, (first, count): (usize, usize), stamps: &mut Rng) -> Result<(), Wrong> {
        let mut bytes = vec![0; page_size()];
        for index in first..first + count {
            let (at, stamp) = (self.part(index, 1), stamps.u64(1..));
            model::fill(&mut bytes, stamp);
            if !self.pages[index].volatile {
                // SAFETY: a page of this thread's, ordinary and writable memory.
                unsafe {
                    at.as_ptr()
                        .copy_from_nonoverlapping(bytes.as_ptr(), bytes.len())
                };
                self.pages[index].holds(stamp);
                continue;
            }
            // The kernel makes the page and copies to it in two steps, and others may
            // have it purged between them.
            self.pages[index].own = true;
            let written = peek::write_page(at.start(), &bytes);
            let written = written.map_err(|error| Wrong::new("process_vm_writev", "", error))?;
            if !written {
                self.look(index, Seen::Missing)?;
            } else if self.pages[index].gone {
                self.look(index, Seen::Bytes(&bytes))?;
            } else {
                self.pages[index].holds(stamp);
            }
        }
        Ok(())
    }

    /// The pages have been unmarked, with this answer. Returns how many are lost.
    pub fn unmarked(
        &mut self,
        part: (usize, usize),
        outcome: &Outcome,
        board: &Board,
    ) -> Result<usize, Wrong> {
        let range = self.part(part.0, part.1);
        let mut lost = vec![false; part.1];
        if let Outcome::Purged(runs) = outcome {
            let mut end = range.start();
            for run in runs {
                if run.start() < end || run.is_empty() || !range.contains(*run) {
                    let expected = format!("pages of {range}, in order");
                    return Err(Wrong::new(
                        "the runs reported",
                        expected,
                        format!("{runs:?}"),
                    ));
                }
                end = run.end();
                let first = pages_in(run.start() - range.start());
                lost[first..first + run.pages()].fill(true);
            }
            if runs.is_empty() {
                return Err(Wrong::new("what was purged", "a page at least", "none"));
            }
        }
        for (offset, &lost) in lost.iter().enumerate() {
            let at = range.start() + offset * page_size();
            let unmarked = self.pages[part.0 + offset].unmarked(lost);
            unmarked.map_err(|wrong| Wrong {
                page: Some(at),
                ..wrong
            })?;
        }
        self.check(part, board)?;
        let count = lost.iter().filter(|&&lost| lost).count();
        match count {
            0 => board.add(Count::Intact, 1),
            lost => board.add(Count::PagesLost, lost as u64),
        }
        Ok(count)
    }

    /// Their contents, or the changes, are gone.
    pub fn emptied(&mut self, (first, count): (usize, usize)) {
        for index in first..first + count {
            let stamp = self.beneath.get(index).copied().unwrap_or(0);
            self.pages[index].emptied(stamp, self.always_own);
        }
    }

    /// Only these pages are left of it, and they belong to no mapping any more.
    pub fn cut(&mut self, (first, count): (usize, usize)) {
        let left = self.part(first, count);
        match std::mem::replace(&mut self.body, Body::Range(left)) {
            // A descriptor that it has goes with it: a memfd's pages stay as long
            // as they are mapped. What has to go by hand is the descriptor.
            Body::Mapping(mapping) => std::mem::forget(mapping),
            Body::Range(_) => {}
            Body::Buffer(_) => unreachable!("a buffer is not cut"),
        }
        self.pages = self.pages[first..first + count].to_vec();
        if !self.beneath.is_empty() {
            self.beneath = self.beneath[first..first + count].to_vec();
        }
    }
}

/// A file without a name of these pages.
fn file_of(stamps: &[u64]) -> io::Result<File> {
    let mut file = tempfile::tempfile()?;
    let mut bytes = vec![0; page_size()];
    for &stamp in stamps {
        model::fill(&mut bytes, stamp);
        file.write_all(&bytes)?;
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A slot of four filled pages, and what all its threads share.
    fn slot(kind: Kind) -> (Slot, &'static Board) {
        let (board, _) = Board::make().unwrap();
        let arena = VolatileArena::new(1 << 20).unwrap();
        let mut slot = Slot::new(kind, 4, &arena, &mut Rng::with_seed(1)).unwrap();
        slot.write((0, 4), &mut Rng::with_seed(2)).unwrap();
        slot.check((0, 4), board).unwrap();
        (slot, board)
    }

    /// Changes a byte, behind the slot's back.
    fn change(slot: &Slot, page: usize, byte: usize) {
        let at = slot.part(page, 1).as_ptr();
        // SAFETY: inside of the slot's memory, which nobody borrows.
        unsafe { at.add(byte).write_volatile(!at.add(byte).read_volatile()) };
    }

    /// Has a page read as zeros, as if the kernel had taken it.
    fn take(slot: &Slot, page: usize) {
        let at = slot.part(page, 1).as_ptr();
        // SAFETY: as above.
        unsafe { at.write_bytes(0, page_size()) };
    }

    #[test]
    fn a_wrong_byte_is_found_in_memory_of_every_kind() {
        for kind in [
            Kind::Plain,
            Kind::Huge,
            Kind::SharedAnonymous,
            Kind::Memfd,
            Kind::File,
            Kind::PrivateFile,
            Kind::Buffer,
            Kind::InArena,
        ] {
            let (mut slot, board) = slot(kind);
            change(&slot, 2, 1234);
            let at = Some(slot.part(2, 1).start());
            let wrong = slot.check((0, 4), board).unwrap_err();
            assert_eq!(wrong.page, at, "{kind:?}: {wrong:?}");
            let wrong = slot.check_directly((0, 4), board).unwrap_err();
            assert_eq!(wrong.page, at, "{kind:?}: {wrong:?}");
        }
    }

    #[test]
    fn a_loss_without_a_word_is_found() {
        let (mut slot, board) = slot(Kind::Plain);
        slot.pages.iter_mut().for_each(|page| page.volatile = true);
        take(&slot, 3);
        let at = Some(slot.part(3, 1).start());
        let wrong = slot.unmarked((0, 4), &Outcome::Intact, board).unwrap_err();
        assert_eq!(wrong.page, at, "{wrong:?}");
    }

    #[test]
    fn a_loss_that_is_none_is_found() {
        let (mut slot, board) = slot(Kind::Plain);
        slot.pages.iter_mut().for_each(|page| page.volatile = true);
        take(&slot, 1);
        let told = Outcome::Purged(vec![slot.part(1, 2)]);
        let at = Some(slot.part(2, 1).start());
        let wrong = slot.unmarked((0, 4), &told, board).unwrap_err();
        assert_eq!(wrong.page, at, "{wrong:?}");
    }

    #[test]
    fn a_loss_that_is_told_is_right() {
        let (mut slot, board) = slot(Kind::Plain);
        slot.pages.iter_mut().for_each(|page| page.volatile = true);
        take(&slot, 1);
        let told = Outcome::Purged(vec![slot.part(1, 1)]);
        assert_eq!(slot.unmarked((0, 4), &told, board), Ok(1));
    }
}
