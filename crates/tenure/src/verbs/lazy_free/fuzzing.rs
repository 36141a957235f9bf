//! Compares the records of adaptively freed ranges with a model that has two flags
//! per page.

use super::freed_ranges::FreedRanges;
use crate::fuzzing::{PAGES, range, steps};

#[derive(Clone, Copy, Default)]
struct Page {
    is_validated: bool,
    is_lazily_free: bool,
}

pub(crate) fn freed_ranges(data: &[u8]) {
    let mut freed = FreedRanges::new();
    let mut model = [Page::default(); PAGES];
    for step in steps(data) {
        let range = range(step.from, step.to);
        let pages = &mut model[step.from..step.to];
        match step.what % 6 {
            0 | 1 => {
                let wants_lazy = step.what % 6 == 0;
                let record = freed.record(range, wants_lazy);
                let all_validated = pages.iter().all(|page| page.is_validated);
                assert_eq!(record.is_validated, all_validated);
                assert_eq!(record.is_lazy, wants_lazy, "so few ranges fit");
                for page in pages {
                    page.is_lazily_free = wants_lazy;
                }
            }
            2 => {
                freed.record_validated(range);
                for page in pages {
                    page.is_validated = true;
                }
            }
            3 => {
                freed.forget_freed(range);
                for page in pages {
                    page.is_lazily_free = false;
                }
            }
            4 => {
                freed.forget(range);
                pages.fill(Page::default());
            }
            _ => pop(&mut freed, &mut model),
        }
    }
    while model.iter().any(|page| page.is_lazily_free) {
        pop(&mut freed, &mut model);
    }
    assert_eq!(freed.pop_lazily_free(), None);
}

/// Pops a range, which must be the model's first run of lazily free pages.
fn pop(freed: &mut FreedRanges, model: &mut [Page]) {
    let Some(from) = model.iter().position(|page| page.is_lazily_free) else {
        assert_eq!(freed.pop_lazily_free(), None);
        return;
    };
    let run = model[from..].iter().take_while(|page| page.is_lazily_free);
    let to = from + run.count();
    assert_eq!(freed.pop_lazily_free(), Some(range(from, to)));
    for page in &mut model[from..to] {
        page.is_lazily_free = false;
    }
}
