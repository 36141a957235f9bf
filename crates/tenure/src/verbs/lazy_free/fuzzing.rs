//! What is known of ranges freed adaptively, beside two marks for each page.

use super::known::Known;
use crate::fuzzing::{PAGES, range, steps};

#[derive(Clone, Copy, Default)]
struct Page {
    is_checked: bool,
    is_freed: bool,
}

pub(crate) fn known(data: &[u8]) {
    let mut known = Known::default();
    let mut model = [Page::default(); PAGES];
    for step in steps(data) {
        let named = range(step.from, step.to);
        let pages = &mut model[step.from..step.to];
        match step.what % 6 {
            0 | 1 => {
                let wants_lazy = step.what % 6 == 0;
                let noted = known.note(named, wants_lazy);
                assert_eq!(noted.is_checked, pages.iter().all(|page| page.is_checked));
                assert_eq!(noted.is_lazy, wants_lazy, "there is room for so few");
                for page in pages {
                    page.is_freed = wants_lazy;
                }
            }
            2 => {
                known.note_checked(named);
                for page in pages {
                    page.is_checked = true;
                }
            }
            3 => {
                known.forget_freed(named);
                for page in pages {
                    page.is_freed = false;
                }
            }
            4 => {
                known.forget(named);
                pages.fill(Page::default());
            }
            _ => take(&mut known, &mut model),
        }
    }
    while model.iter().any(|page| page.is_freed) {
        take(&mut known, &mut model);
    }
    assert_eq!(known.take_freed(), None);
}

/// What is taken is the first run of pages that were freed.
fn take(known: &mut Known, model: &mut [Page]) {
    let Some(from) = model.iter().position(|page| page.is_freed) else {
        assert_eq!(known.take_freed(), None);
        return;
    };
    let count = model[from..].iter().take_while(|page| page.is_freed);
    let to = from + count.count();
    assert_eq!(known.take_freed(), Some(range(from, to)));
    for page in &mut model[from..to] {
        page.is_freed = false;
    }
}
