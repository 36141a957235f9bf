//! The marks on plain ranges, the free pages of an arena, and the list of objects,
//! beside what is said of each page.

use std::sync::Arc;

use super::marks::{Mark, Marks};
use super::objects::{Object, Objects};
use super::runs::FreeRuns;
use super::{Priority, Stamp, Unmarked};
use crate::fuzzing::{PAGES, Step, range, steps};
use crate::ground::range::PageRange;
use crate::page_size;

/// What is known of a page, if anything.
type Page = Option<Mark>;

pub(crate) fn marks(data: &[u8]) {
    let mut marks = Marks::new();
    let mut model: [Page; PAGES] = [None; PAGES];
    for (index, step) in steps(data).enumerate() {
        take(&mut marks, &mut model[step.from..step.to], step, index);
        compare(&marks, &model, step);
    }
}

fn take(marks: &mut Marks, pages: &mut [Page], step: Step, index: usize) {
    let named = range(step.from, step.to);
    match step.what % 6 {
        0 | 1 => {
            let priority = Priority::from_low_bits(u64::from(step.more));
            let stamp = Stamp::from_nanos(index as u64);
            let is_known = pages.iter().all(Option::is_some);
            assert_eq!(marks.mark(named, priority, stamp), is_known);
            if !is_known {
                marks.mark_new(named, priority, stamp);
            }
            for page in pages {
                *page = Some(Mark::Volatile {
                    offered: page.is_some_and(|mark| is(mark, true, false)),
                    due: true,
                    priority,
                    stamp,
                });
            }
        }
        2 => unmark(marks, pages, named),
        3 => {
            let offered_now = step.more.is_multiple_of(2);
            marks.settle(named, offered_now);
            for page in pages.iter_mut().flatten() {
                if let Mark::Volatile { offered, due, .. } = page {
                    *offered |= offered_now;
                    *due = false;
                }
            }
        }
        4 => {
            marks.forget(named);
            pages.fill(None);
        }
        _ => {
            marks.set_known(named);
            for page in pages.iter_mut().flatten() {
                *page = Mark::Known;
            }
        }
    }
}

fn unmark(marks: &mut Marks, pages: &mut [Page], named: PageRange) {
    let any_offered = pages.iter().flatten().any(|&mark| is(mark, true, false));
    let any_volatile = pages.iter().flatten().any(|&mark| mark != Mark::Known);
    let expected = match () {
        () if any_offered || pages.contains(&None) => Unmarked::Ask,
        () if any_volatile => Unmarked::Intact,
        () => Unmarked::WasNot,
    };
    assert_eq!(marks.unmark(named), expected, "{named}");
    if expected == Unmarked::Intact {
        pages.fill(Some(Mark::Known));
    }
}

/// Whether it is volatile, and offered, or due, if that is asked for.
fn is(mark: Mark, must_be_offered: bool, must_be_due: bool) -> bool {
    match mark {
        Mark::Known => false,
        Mark::Volatile { offered, due, .. } => {
            (offered || !must_be_offered) && (due || !must_be_due)
        }
    }
}

fn compare(marks: &Marks, model: &[Page], step: Step) {
    let count = |fits: &dyn Fn(Mark) -> bool| {
        let pages = model.iter().flatten().filter(|&&mark| fits(mark));
        pages.count() * page_size()
    };
    assert_eq!(
        marks.volatile_bytes(),
        count(&|mark| is(mark, false, false))
    );
    assert_eq!(marks.due_bytes(), count(&|mark| is(mark, false, true)));
    let mut found: [Page; PAGES] = [None; PAGES];
    for (part, mark) in marks.volatile() {
        fill(&mut found, part, mark);
    }
    for (page, (found, expected)) in found.iter().zip(model).enumerate() {
        let expected = expected.filter(|mark| *mark != Mark::Known);
        assert_eq!(*found, expected, "page {page}");
    }
    let pages = &model[step.from..step.to];
    let unknown: usize = marks
        .unknown(range(step.from, step.to))
        .iter()
        .map(|part| part.pages())
        .sum();
    assert_eq!(unknown, pages.iter().filter(|page| page.is_none()).count());
    let parts = marks.volatile_parts(range(step.from, step.to));
    let volatile: usize = parts.iter().map(|part| part.pages()).sum();
    let expected = pages.iter().flatten().filter(|&&mark| mark != Mark::Known);
    assert_eq!(volatile, expected.count());
}

/// No page is told twice.
fn fill(pages: &mut [Page], part: PageRange, mark: Mark) {
    for at in part.chunks(page_size()) {
        let page = &mut pages[(at.start() - range(0, 1).start()) / page_size()];
        assert_eq!(page.replace(mark), None, "{at}");
    }
}

pub(crate) fn runs(data: &[u8]) {
    let mut runs = FreeRuns::new(range(0, PAGES));
    let mut is_free = [true; PAGES];
    let mut taken: Vec<PageRange> = Vec::new();
    for step in steps(data) {
        if step.what % 2 == 0 {
            let count = step.to - step.from;
            let got = runs.take(count * page_size());
            assert_eq!(got, best_fit(&is_free, count));
            for at in got.iter().flat_map(|got| got.chunks(page_size())) {
                is_free[(at.start() - range(0, 1).start()) / page_size()] = false;
            }
            taken.extend(got);
        } else if !taken.is_empty() {
            let back = taken.swap_remove(step.from % taken.len());
            for at in back.chunks(page_size()) {
                is_free[(at.start() - range(0, 1).start()) / page_size()] = true;
            }
            runs.put_back(back);
        }
        let longest = free_runs(&is_free).map(|(from, to)| to - from).max();
        assert_eq!(runs.longest(), longest.unwrap_or(0) * page_size());
    }
}

/// The first of the shortest runs that are long enough.
fn best_fit(is_free: &[bool], count: usize) -> Option<PageRange> {
    let fitting = free_runs(is_free).filter(|(from, to)| to - from >= count);
    let (from, _) = fitting.min_by_key(|(from, to)| to - from)?;
    Some(range(from, from + count))
}

/// Where each run of free pages begins and ends.
fn free_runs(is_free: &[bool]) -> impl Iterator<Item = (usize, usize)> {
    let begins = |&at: &usize| is_free[at] && (at == 0 || !is_free[at - 1]);
    (0..is_free.len()).filter(begins).map(|from| {
        let count = is_free[from..].iter().take_while(|&&free| free).count();
        (from, from + count)
    })
}

pub(crate) fn objects(data: &[u8]) {
    let mut objects = Objects::new();
    // Also those that were removed, which may be removed once more.
    let mut model: Vec<(Arc<Object>, bool)> = Vec::new();
    for step in steps(data) {
        match step.what % 3 {
            0 => model.push((objects.add(range(step.from, step.to)), true)),
            _ if model.is_empty() => {}
            1 => {
                let index = step.from % model.len();
                let (object, is_there) = &mut model[index];
                objects.remove(object);
                *is_there = false;
            }
            _ => {
                let (object, _) = &model[step.from % model.len()];
                object.word.mark(Priority::Normal, Stamp::from_nanos(1));
            }
        }
        let there = model.iter().filter(|(_, is_there)| *is_there);
        assert_eq!(objects.all().len(), there.clone().count());
        for (object, _) in there {
            let found = objects
                .all()
                .iter()
                .filter(|found| Arc::ptr_eq(found, object));
            assert_eq!(found.count(), 1, "{object:?}");
        }
        assert_eq!(objects.has_marked(), objects.volatile().next().is_some());
    }
}
