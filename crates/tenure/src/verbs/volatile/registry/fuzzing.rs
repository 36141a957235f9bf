//! The marks on plain ranges, beside a model of each page, and the list of objects,
//! beside a plain list.

use std::sync::Arc;

use super::marks::{Mark, Marks};
use super::objects::{Object, Objects};
use crate::fuzzing::{PAGES, Step, range, steps};
use crate::ground::range::PageRange;
use crate::page_size;
use crate::verbs::volatile::priority::{Priority, Timestamp};
use crate::verbs::volatile::word::Unmarked;

/// The mark of a page, if it has one.
type Page = Option<Mark>;

pub(crate) fn marks(data: &[u8]) {
    let mut marks = Marks::new();
    let mut model: [Page; PAGES] = [None; PAGES];
    for (index, step) in steps(data).enumerate() {
        apply(&mut marks, &mut model[step.from..step.to], step, index);
        compare(&marks, &model, step);
    }
}

fn apply(marks: &mut Marks, pages: &mut [Page], step: Step, index: usize) {
    let named = range(step.from, step.to);
    match step.what % 6 {
        0 | 1 => {
            let priority = Priority::from_low_bits(u64::from(step.more));
            let timestamp = Timestamp::from_nanos(index as u64);
            let is_validated = pages.iter().all(Option::is_some);
            assert_eq!(marks.mark(named, priority, timestamp), is_validated);
            if !is_validated {
                marks.mark_validated(named, priority, timestamp);
            }
            for page in pages {
                *page = Some(Mark::Volatile {
                    offered: page.is_some_and(|mark| is(mark, true, false)),
                    due: true,
                    priority,
                    timestamp,
                });
            }
        }
        2 => unmark(marks, pages, named),
        3 => {
            let offered_now = step.more.is_multiple_of(2);
            marks.publish(named, offered_now);
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
            marks.set_nonvolatile(named);
            for page in pages.iter_mut().flatten() {
                *page = Mark::Validated;
            }
        }
    }
}

fn unmark(marks: &mut Marks, pages: &mut [Page], named: PageRange) {
    let any_offered = pages.iter().flatten().any(|&mark| is(mark, true, false));
    let any_volatile = pages.iter().flatten().any(|&mark| mark != Mark::Validated);
    let expected = match () {
        () if any_offered || pages.contains(&None) => Unmarked::NeedsEngine,
        () if any_volatile => Unmarked::Intact,
        () => Unmarked::WasNonvolatile,
    };
    assert_eq!(marks.unmark(named), expected, "{named}");
    if expected == Unmarked::Intact {
        pages.fill(Some(Mark::Validated));
    }
}

/// Whether the mark is volatile, and also offered or due where the caller requires it.
fn is(mark: Mark, must_be_offered: bool, must_be_due: bool) -> bool {
    match mark {
        Mark::Validated => false,
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
        let expected = expected.filter(|mark| *mark != Mark::Validated);
        assert_eq!(*found, expected, "page {page}");
    }
    let pages = &model[step.from..step.to];
    let named = range(step.from, step.to);
    assert_eq!(marks.is_validated(named), pages.iter().all(Option::is_some));
    let first = |is_wanted: &dyn Fn(Mark) -> bool| {
        let index = pages.iter().position(|page| page.is_some_and(is_wanted))?;
        Some(range(step.from + index, step.to).start())
    };
    assert_eq!(
        marks.first_volatile(named).map(PageRange::start),
        first(&|mark| is(mark, false, false))
    );
    assert_eq!(
        marks.first_due(named).map(PageRange::start),
        first(&|mark| is(mark, false, true))
    );
}

/// Sets the mark of each page of the part, none of which may have one yet.
fn fill(pages: &mut [Page], part: PageRange, mark: Mark) {
    for at in part.chunks(page_size()) {
        let page = &mut pages[(at.start() - range(0, 1).start()) / page_size()];
        assert_eq!(page.replace(mark), None, "{at}");
    }
}

pub(crate) fn objects(data: &[u8]) {
    let mut objects = Objects::new();
    // Removed objects stay in the model, because they may be removed once more.
    let mut model: Vec<(Arc<Object>, bool)> = Vec::new();
    for step in steps(data) {
        match step.what % 3 {
            0 => model.push((objects.add(range(step.from, step.to)), true)),
            _ if model.is_empty() => {}
            1 => {
                let index = step.from % model.len();
                let (object, is_listed) = &mut model[index];
                objects.remove(object);
                *is_listed = false;
            }
            _ => {
                let (object, _) = &model[step.from % model.len()];
                object.word.mark(Priority::Normal, Timestamp::from_nanos(1));
            }
        }
        let listed = model.iter().filter(|(_, is_listed)| *is_listed);
        assert_eq!(objects.all().len(), listed.clone().count());
        for (object, _) in listed {
            let found = objects
                .all()
                .iter()
                .filter(|found| Arc::ptr_eq(found, object));
            assert_eq!(found.count(), 1, "{object:?}");
        }
        assert_eq!(objects.has_marked(), objects.volatile().next().is_some());
    }
}
