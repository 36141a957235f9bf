//! The cases of giving memory up.

use super::ways::{CALLER, Figures, OTHERS, Work};
use super::{percentiles, sparse};
use crate::{
    measure::prelude::*,
    worker::{Environment, job::Keep, killed_way},
};

const STEP: usize = 64 << 20;
const GIB: usize = 1 << 30;
/// The size that is compared in every respect.
const MAIN: usize = 4 * GIB;
const DISCARDED: usize = GIB;
/// Blocks as malloc maps them.
const BLOCKS: usize = 16;
const BLOCK: usize = 64 << 20;
/// How many times as large the larger range is, where only the size differs.
const TIMES_AS_LARGE: usize = 8;
/// From this size on few rounds must do, where there is larger than that.
const LONG: usize = 8 * GIB;
/// The most threads that free, of the full sizes and of others.
const MAX_THREADS: [usize; 2] = [32, 4];
const LARGEST: usize = 320 * GIB;

const UNMAP: &str = "Unmap";

#[derive(Default)]
pub struct Selection {
    /// The cases, those of a table one after the other.
    pub cases: Vec<Case>,
    /// Why they are not all there, or smaller.
    pub notes: Vec<String>,
}

impl Selection {
    /// Selects what lets all experiments end within a minute.
    pub fn quick(settings: &Settings) -> Result<Self> {
        let mut selection = Self::default();
        let len = selection.note(settings.headroom.fit(MAIN, 3, STEP)?);
        let work = |block_len| Work {
            figures: Figures::Both,
            ..times(block_len, Pages::Base)
        };
        let unmapped = vec![work(len).munmap(), work(len).tenure()];
        selection.add(name(len, Pages::Base), "", unmapped);
        let len = len.min(DISCARDED);
        selection.add(format!("discard {}", size(len)), "", work(len).discarding());
        Ok(selection)
    }

    /// Selects what tells more in a few minutes, or all.
    pub fn large(settings: &Settings) -> Result<Self> {
        let mut selection = Self::default();
        let is_full = settings.sizes == Sizes::Full;
        let max_threads = MAX_THREADS[usize::from(!is_full)];
        let largest = selection.note(settings.headroom.fit(TIMES_AS_LARGE * GIB, 2, STEP)?);
        let main = largest.min(MAIN);
        let mut most = largest;
        if is_full {
            most = selection.note(settings.headroom.fit_nearly_all(LARGEST, STEP)?);
            // Long cases get no other warm-up.
            touch::memory_once(most)?;
        }
        let mut lens = vec![BLOCK, GIB, main, largest, most];
        lens.retain(|&len| len <= most);
        lens.sort_unstable();
        lens.dedup();
        let mut kinds = vec![Pages::Base];
        match kernel::huge_page_mode() {
            "never" => selection
                .notes
                .push("No transparent huge pages.".to_owned()),
            _ => kinds.push(Pages::Huge),
        }

        selection.blocks(largest.min(BLOCKS * BLOCK) / BLOCKS);
        for &pages in &kinds {
            let is_huge = pages == Pages::Huge;
            for &len in lens
                .iter()
                .filter(|&&len| is_full || !is_huge || len == main)
            {
                let work = times(len, pages);
                let ways = match is_full || !is_huge && len <= main {
                    true => work.unmapping(max_threads),
                    false => vec![work.munmap(), work.tenure()],
                };
                let case = selection.add(name(len, pages), UNMAP, ways);
                if is_full && len >= LONG {
                    case.pace = Pace::Long;
                }
            }
        }
        selection.by_size(largest);
        let discarded = format!("iscard {}", size(largest.min(DISCARDED)));
        let ways = times(largest.min(DISCARDED), Pages::Base).discarding();
        selection.add(format!("d{discarded}"), &format!("D{discarded}"), ways);
        // How long another thread waits for its own mappings meanwhile.
        for pages in kinds {
            let work = Work {
                figures: Figures::Wait,
                ..times(main, pages)
            };
            selection.add(name(main, pages), OTHERS, work.unmapping(max_threads));
        }
        let title = format!("ill a process with {}", size(main));
        let ways = vec![
            killed("without tear-down", main, false).baseline(),
            killed("with tear-down", main, true).tenure(),
        ];
        selection.add(
            format!("k{title}"),
            &format!("K{title}, and wait for it"),
            ways,
        );
        match sparse::cases() {
            Ok(cases) => selection.cases.extend(cases),
            Err(why) => selection
                .notes
                .push(format!("Nothing larger than memory: {why:#}.")),
        }
        selection.cases.extend(percentiles::cases(settings));
        Ok(selection)
    }

    fn note(&mut self, fitted: Fitted) -> usize {
        self.notes.extend(fitted.note);
        fitted.len
    }

    fn add(&mut self, name: String, table: &str, ways: Vec<Way>) -> &mut Case {
        self.cases.push(Case::new(name, ways).in_table(table));
        self.cases.last_mut().expect("just pushed")
    }

    fn blocks(&mut self, block_len: usize) {
        let work = Work {
            blocks: BLOCKS,
            ..times(block_len, Pages::Base)
        };
        let name = format!("unmap {BLOCKS} blocks of {}", size(block_len));
        let ways = vec![work.munmap(), work.dont_need_first(), work.tenure()];
        self.add(name, UNMAP, ways);
    }

    /// Adds two ranges of which one is larger.
    fn by_size(&mut self, larger: usize) {
        let smaller = larger / TIMES_AS_LARGE;
        let way = |len, name| times(len, Pages::Base).tenure_named(name);
        let ways = vec![
            way(smaller, "the smaller").baseline(),
            way(larger, "the larger"),
        ];
        let sizes = format!("{} and {}", size(larger), size(smaller));
        let table = format!("Unmap {sizes}, tenure alone");
        // Times of microseconds need many samples.
        self.add(format!("unmap {sizes}"), &table, ways).pace = Pace::Short;
    }
}

fn times(block_len: usize, pages: Pages) -> Work {
    Work {
        blocks: 1,
        block_len,
        pages,
        figures: Figures::Times,
    }
}

fn killed(name: &'static str, len: usize, tear_down: bool) -> Way {
    let keep = Keep {
        len,
        is_block: false,
        tear_down,
    };
    killed_way(name, Environment::new(), keep, CALLER)
}

fn size(len: usize) -> String {
    bytes_text(len as f64)
}

fn name(len: usize, pages: Pages) -> String {
    match pages {
        Pages::Base => format!("unmap {}", size(len)),
        Pages::Huge => format!("unmap {}, huge pages", size(len)),
    }
}

#[cfg(test)]
#[path = "../../../tests/unit/release/selection.rs"]
mod tests;
