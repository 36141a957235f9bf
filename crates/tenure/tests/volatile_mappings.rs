//! Offered ranges of which a part is given up: what happens where no mapping is left to split
//! its registration, and what is forgotten of a range in many spans.

#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "tests use memory that they have mapped themselves"
)]

mod common;

use std::time::Duration;

use common::mappings::{AllMappings, too_many_mappings};
use common::volatile::{can_offer, matches_outcome};
use common::*;
use libtest_mimic::Completion;
use rustix::mm::{Advice, MapFlags, ProtFlags, mmap_anonymous};
use tenure::{Error, Outcome, PageRange, page_size};

/// Returns the reason why nothing can be offered to the kernel here, and makes marking
/// offer immediately.
fn missing() -> Option<&'static str> {
    tenure::volatile::set_offer_delay(Duration::ZERO);
    (!can_offer()).then_some("needs userfaultfd (Linux 5.11) and MADV_POPULATE_WRITE (5.14)")
}

tests!(
    unless: missing;
    discard_of_a_part_without_mappings_left_changes_nothing,
    lazy_free_of_a_part_without_mappings_left_changes_nothing,
    discard_of_many_spans_of_one_mark_forgets_exactly_these,
    discard_of_many_marks_forgets_exactly_these,
    munmap_of_many_spans_of_one_mark_forgets_exactly_these,
    munmap_of_many_marks_forgets_exactly_these;
    children:
    discard_without_mappings,
    lazy_free_without_mappings,
    discard_one_mark,
    discard_many_marks,
    munmap_one_mark,
    munmap_many_marks,
);

fn mark(range: PageRange) {
    unsafe { range.mark_volatile() }.unwrap();
}

fn unmark(range: PageRange) -> Outcome {
    unsafe { range.mark_nonvolatile() }.unwrap()
}

fn advise(range: PageRange, advice: Advice) {
    unsafe { rustix::mm::madvise(range.as_ptr().cast(), range.len(), advice) }.unwrap();
}

/// Returns how much is volatile, and how much is offered.
fn volatile_bytes() -> (usize, usize) {
    let stats = tenure::stats();
    (stats.volatile_bytes as usize, stats.offered_bytes as usize)
}

/// Returns the pages of a sixth each.
fn sixth(of: PageRange, first: usize, count: usize) -> PageRange {
    let sixth = of.pages() / 6;
    pages(of, first * sixth, count * sixth)
}

/// Memory of three mappings, of which a part cannot be given up without one more.
struct Offered {
    all: PageRange,
    /// In sixths of all, the first and the number.
    marked: &'static [(usize, usize)],
    part: PageRange,
}

impl Offered {
    const PAGES: usize = 24;

    fn new(marked: &'static [(usize, usize)], part: impl Fn(PageRange) -> PageRange) -> Self {
        let all = std::mem::ManuallyDrop::new(anonymous(Self::PAGES)).range();
        advise(sixth(all, 2, 2), Advice::Sequential);
        let part = part(all);
        let offered = Self { all, marked, part };
        fill(all);
        offered.marked().for_each(mark);
        offered
    }

    fn marked(&self) -> impl Iterator<Item = PageRange> {
        self.marked
            .iter()
            .map(|&(first, count)| sixth(self.all, first, count))
    }

    fn kinds() -> [Self; 3] {
        [
            // A page within a mapping.
            Self::new(&[(0, 6)], |all| pages(all, 1, 1)),
            // The middle of one span in three mappings.
            Self::new(&[(0, 6)], |all| sixth(all, 1, 4)),
            // Halves of two spans, between which nothing is offered.
            Self::new(&[(0, 2), (4, 2)], |all| sixth(all, 1, 4)),
        ]
    }

    fn assert_unchanged(&self) {
        for page in 0..self.all.pages() {
            let page = pages(self.all, page, 1);
            let is_marked = self.marked().any(|marked| marked.contains(page));
            assert_eq!(has_vm_flag(page, "um"), is_marked, "{page:?}");
        }
        for marked in self.marked() {
            assert!(matches_outcome(marked, &unmark(marked)));
            fill(marked);
        }
        assert!(is_filled(self.all));
    }
}

/// Gives parts of offered memory up where no mapping is left, and where one is: with that
/// one the kernel can split one end, and not the other.
fn give_up_without_mappings(give_up: fn(PageRange) -> tenure::Result<()>) {
    tenure::volatile::set_offer_delay(Duration::ZERO);
    for left in [0, 1] {
        for kind in Offered::kinds() {
            let before = volatile_bytes();
            let all_mappings = AllMappings::but_for(left);
            let answer = give_up(kind.part);
            drop(all_mappings);
            let is_refused = matches!(answer, Err(Error::MappingLimit { .. }));
            assert!(is_refused, "with {left} mappings left: {answer:?}");
            assert_eq!(volatile_bytes(), before);
            kind.assert_unchanged();
            kind.marked().for_each(mark);
            give_up(kind.part).unwrap();
            assert!(!has_vm_flag(kind.part, "um"));
            unsafe { kind.all.munmap() }.unwrap();
        }
    }
}

fn discard_without_mappings() {
    give_up_without_mappings(|part| unsafe { part.discard() });
}

fn lazy_free_without_mappings() {
    give_up_without_mappings(|part| unsafe { part.lazy_free() }.map(drop));
}

fn in_child_with_mappings(child: &str) -> Completion {
    if let Some(reason) = too_many_mappings() {
        return skip(reason);
    }
    in_child_ok(child);
    Completion::Completed
}

fn discard_of_a_part_without_mappings_left_changes_nothing() -> Completion {
    in_child_with_mappings("discard_without_mappings")
}

fn lazy_free_of_a_part_without_mappings_left_changes_nothing() -> Completion {
    in_child_with_mappings("lazy_free_without_mappings")
}

/// Several times as many as the engine forgets under one lock.
const SPANS: usize = 700;

/// The distance of two spans of a page each: no gap as long is offered.
const APART_BYTES: usize = 4 << 20;

const NEIGHBOURS: usize = 3;

/// Address space with a page of contents at the beginning of each part.
struct Sparse(PageRange);

impl Sparse {
    fn new() -> Self {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        let len = (SPANS + 2 * NEIGHBOURS) * APART_BYTES;
        let at = unsafe { mmap_anonymous(std::ptr::null_mut(), len, access, flags) }.unwrap();
        let all = PageRange::new(at.addr(), len).unwrap();
        advise(all, Advice::LinuxNoHugepage);
        tag(all);
        let sparse = Self(all);
        sparse.spans().for_each(fill);
        sparse
    }

    fn part(&self, first: usize, count: usize) -> PageRange {
        let part_pages = APART_BYTES / page_size();
        pages(self.0, first * part_pages, count * part_pages)
    }

    fn middle(&self) -> PageRange {
        self.part(NEIGHBOURS, SPANS)
    }

    fn spans(&self) -> impl Iterator<Item = PageRange> {
        (0..SPANS + 2 * NEIGHBOURS).map(|index| pages(self.part(index, 1), 0, 1))
    }

    fn neighbours(&self) -> impl Iterator<Item = PageRange> {
        self.spans().filter(|&span| !self.middle().contains(span))
    }
}

/// Gives the middle of a range in many spans up.
fn forget_spans(is_one_mark: bool, give_up: fn(PageRange)) {
    tenure::volatile::set_offer_delay(Duration::ZERO);
    let sparse = Sparse::new();
    let middle = sparse.middle();
    match is_one_mark {
        true => mark(sparse.0),
        false => sparse.spans().for_each(mark),
    }
    let marked_bytes = |parts: usize| match is_one_mark {
        true => parts * APART_BYTES,
        false => parts * page_size(),
    };
    let all = SPANS + 2 * NEIGHBOURS;
    let before = (marked_bytes(all), all * page_size());
    assert_eq!(volatile_bytes(), before);
    let purged = pages(middle, (SPANS / 2) * (APART_BYTES / page_size()), 1);
    unsafe { purged.purge() }.unwrap();

    give_up(middle);

    let left = 2 * NEIGHBOURS;
    assert_eq!(volatile_bytes(), (marked_bytes(left), left * page_size()));
    // The addresses belong to memory that is not volatile and loses nothing.
    let spans = sparse.spans().filter(|&span| middle.contains(span));
    spans.for_each(fill);
    flush_all_batches();
    page_out(middle);
    assert_eq!(unmark(middle), Outcome::Intact);
    let mut spans = sparse.spans().filter(|&span| middle.contains(span));
    assert!(spans.all(|span| is_filled(span) && !has_vm_flag(span, "um")));
    for neighbour in sparse.neighbours() {
        assert!(has_vm_flag(neighbour, "um"));
        page_out_all(neighbour);
        assert_eq!(unmark(neighbour), Outcome::Purged(vec![neighbour]));
    }
    assert_eq!(volatile_bytes().1, 0);
}

fn discard(middle: PageRange) {
    unsafe { middle.discard() }.unwrap();
    assert!(is_zero(pages(middle, 0, 1)));
}

fn munmap(middle: PageRange) {
    // A worker that starts later might get its stack there.
    drop(large());
    drain_pending();
    unsafe { middle.munmap() }.unwrap();
    let access = ProtFlags::READ | ProtFlags::WRITE;
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED_NOREPLACE;
    let at = middle.as_ptr().cast();
    unsafe { mmap_anonymous(at, middle.len(), access, flags) }.unwrap();
    advise(middle, Advice::LinuxNoHugepage);
}

fn discard_one_mark() {
    forget_spans(true, discard);
}

fn discard_many_marks() {
    forget_spans(false, discard);
}

/// Has threads allocate from the first arena of malloc: another one would be mapped where the
/// range has been.
fn use_one_malloc_arena() {
    assert_eq!(unsafe { libc::mallopt(libc::M_ARENA_MAX, 1) }, 1);
}

fn munmap_one_mark() {
    use_one_malloc_arena();
    forget_spans(true, munmap);
}

fn munmap_many_marks() {
    use_one_malloc_arena();
    forget_spans(false, munmap);
}

fn discard_of_many_spans_of_one_mark_forgets_exactly_these() {
    in_child_ok("discard_one_mark");
}

fn discard_of_many_marks_forgets_exactly_these() {
    in_child_ok("discard_many_marks");
}

fn munmap_of_many_spans_of_one_mark_forgets_exactly_these() {
    in_child_ok("munmap_one_mark");
}

fn munmap_of_many_marks_forgets_exactly_these() {
    in_child_ok("munmap_many_marks");
}
