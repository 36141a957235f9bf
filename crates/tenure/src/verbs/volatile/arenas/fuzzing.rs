//! The free pages of an arena, beside a model of each page.

use super::free_extents::FreeExtents;
use crate::fuzzing::{PAGES, range, steps};
use crate::ground::range::PageRange;
use crate::page_size;

pub(crate) fn free_extents(data: &[u8]) {
    let mut extents = FreeExtents::new(range(0, PAGES));
    let mut is_free = [true; PAGES];
    let mut taken: Vec<PageRange> = Vec::new();
    for step in steps(data) {
        if step.what % 2 == 0 {
            let count = step.to - step.from;
            let got = extents.take(count * page_size());
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
            extents.put_back(back);
        }
        let longest = free_runs(&is_free).map(|(from, to)| to - from).max();
        assert_eq!(extents.longest(), longest.unwrap_or(0) * page_size());
    }
}

/// Returns the first of the shortest runs that are long enough.
fn best_fit(is_free: &[bool], count: usize) -> Option<PageRange> {
    let fitting = free_runs(is_free).filter(|(from, to)| to - from >= count);
    let (from, _) = fitting.min_by_key(|(from, to)| to - from)?;
    Some(range(from, from + count))
}

/// Returns where each run of free pages begins and ends.
fn free_runs(is_free: &[bool]) -> impl Iterator<Item = (usize, usize)> {
    let begins = |&at: &usize| is_free[at] && (at == 0 || !is_free[at - 1]);
    (0..is_free.len()).filter(begins).map(|from| {
        let count = is_free[from..].iter().take_while(|&&free| free).count();
        (from, from + count)
    })
}
