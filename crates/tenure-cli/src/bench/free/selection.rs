//! What is measured.

use anyhow::Result;

use super::{
    super::{
        Settings,
        experiment::{Case, Pace, Way},
        kernel::{self, HugePageMode},
        sizes::{Fitted, Sizes},
        touch,
    },
    kill,
    memory::Pages,
    sparse,
    ways::{CHUNK, Figures, LARGER, OTHERS, PARALLEL, SMALLER, Work},
};
use crate::text::bytes_text;

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
/// The numbers of threads that are measured where not all are.
const FEW_THREADS: usize = 4;
/// The size of the reference.
const LARGEST: usize = 320 * GIB;

/// The table of the times.
const UNMAP: &str = "Unmap";

/// The cases, and what a reader must know about them.
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
        let len = selection.note(settings.room.fit(MAIN, 3, STEP)?);
        let work = |block_len| Work {
            figures: Figures::Both,
            ..times(block_len, Pages::Base)
        };
        let unmapped = work(len);
        selection.add(
            &format!("unmap {}", size(len)),
            "",
            vec![unmapped.munmap(), unmapped.tenure()],
        );
        let discarded = work(len.min(DISCARDED));
        selection.add(
            &format!("discard {}", size(discarded.block_len)),
            "",
            vec![discarded.dont_need(), discarded.tenure_discard()],
        );
        Ok(selection)
    }

    /// Selects what tells more in a few minutes, or all.
    pub fn large(settings: &Settings) -> Result<Self> {
        let mut selection = Self::default();
        let is_full = settings.sizes == Sizes::Full;
        let largest = selection.note(settings.room.fit(TIMES_AS_LARGE * GIB, 2, STEP)?);
        let main = largest.min(MAIN);
        let most = if is_full {
            let most = selection.note(settings.room.fit_nearly_all(LARGEST, STEP)?);
            // Long cases get no other warm-up.
            touch::memory_once(most)?;
            most
        } else {
            largest
        };
        let mut lens = vec![BLOCK, GIB, main, largest, most];
        lens.retain(|&len| len <= most);
        lens.sort_unstable();
        lens.dedup();
        let has_huge_pages = selection.has_huge_pages();

        selection.blocks(largest.min(BLOCKS * BLOCK) / BLOCKS);
        for &len in &lens {
            let all_ways = is_full || len <= main;
            selection.unmap(len, Pages::Base, all_ways, is_full);
        }
        if has_huge_pages {
            for &len in lens.iter().filter(|&&len| is_full || len == main) {
                selection.unmap(len, Pages::Huge, is_full, is_full);
            }
        }
        selection.by_size(largest);
        selection.discard(largest.min(DISCARDED));
        selection.wait(main, Pages::Base, is_full);
        if has_huge_pages {
            selection.wait(main, Pages::Huge, is_full);
        }
        selection.kill(main);
        selection.sparse();
        Ok(selection)
    }

    fn note(&mut self, fitted: Fitted) -> usize {
        self.notes.extend(fitted.note);
        fitted.len
    }

    fn has_huge_pages(&mut self) -> bool {
        let has = kernel::huge_page_mode() != HugePageMode::Never;
        if !has {
            let note = "No transparent huge pages: this kernel's mode is never.";
            self.notes.push(note.to_owned());
        }
        has
    }

    fn add(&mut self, name: &str, table: &str, ways: Vec<Way>) -> &mut Case {
        self.cases.push(Case::new(name, ways).in_table(table));
        self.cases.last_mut().expect("just pushed")
    }

    /// Adds blocks that are given up in a row.
    fn blocks(&mut self, block_len: usize) {
        let work = Work {
            blocks: BLOCKS,
            ..times(block_len, Pages::Base)
        };
        let name = format!("unmap {BLOCKS} blocks of {}", size(block_len));
        let ways = vec![work.munmap(), work.dont_need_first(), work.tenure()];
        self.add(&name, UNMAP, ways);
    }

    /// Adds a range that is unmapped, by all ways or by the two that matter most.
    fn unmap(&mut self, len: usize, pages: Pages, all_ways: bool, is_full: bool) {
        let work = times(len, pages);
        let ways = if all_ways {
            unmapping_ways(work, is_full)
        } else {
            vec![work.munmap(), work.tenure()]
        };
        let case = self.add(&name(len, pages), UNMAP, ways);
        if is_full && len >= LONG {
            case.pace = Pace::Long;
        }
    }

    /// Adds two ranges of which one is larger.
    fn by_size(&mut self, larger: usize) {
        let smaller = larger / TIMES_AS_LARGE;
        let ways = vec![
            times(smaller, Pages::Base).tenure_named(SMALLER).baseline(),
            times(larger, Pages::Base).tenure_named(LARGER),
        ];
        let sizes = format!("{} and {}", size(larger), size(smaller));
        let table = format!("Unmap {sizes}, tenure alone");
        // Times of microseconds need many samples.
        self.add(&format!("unmap {sizes}"), &table, ways).pace = Pace::Short;
    }

    fn discard(&mut self, len: usize) {
        let work = times(len, Pages::Base);
        let ways = vec![work.dont_need(), work.tenure_discard()];
        let size = size(len);
        self.add(&format!("discard {size}"), &format!("Discard {size}"), ways);
    }

    /// Adds how long another thread waits for its own mappings meanwhile.
    fn wait(&mut self, len: usize, pages: Pages, is_full: bool) {
        let work = Work {
            figures: Figures::Wait,
            ..times(len, pages)
        };
        let ways = unmapping_ways(work, is_full);
        self.add(&name(len, pages), OTHERS, ways);
    }

    /// Adds ranges that are larger than memory.
    fn sparse(&mut self) {
        match sparse::cases() {
            Ok(cases) => self.cases.extend(cases),
            Err(why) => self
                .notes
                .push(format!("Nothing larger than memory: {why:#}.")),
        }
    }

    /// Adds a process that is killed.
    fn kill(&mut self, len: usize) {
        let ways = vec![kill::plain(len), kill::with_tear_down(len)];
        let name = format!("kill a process with {}", size(len));
        let table = format!("Kill a process with {}, and wait for it", size(len));
        self.add(&name, &table, ways);
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

fn unmapping_ways(work: Work, is_full: bool) -> Vec<Way> {
    let mut ways = vec![work.munmap(), work.dont_need_first()];
    if work.block_len > CHUNK {
        ways.push(work.chunked());
        let threads = PARALLEL
            .into_iter()
            .filter(|&(threads, _)| is_full || threads <= FEW_THREADS);
        ways.extend(threads.map(|threads| work.parallel(threads)));
    }
    ways.push(work.tenure());
    ways
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
mod tests {
    use super::*;
    use crate::bench::sizes::Room;

    fn select(sizes: Sizes, room: usize) -> Selection {
        let settings = Settings {
            seed: 1,
            sizes,
            room: Room::of_bytes(room),
        };
        match sizes {
            Sizes::Quick => Selection::quick(&settings),
            Sizes::Middle | Sizes::Full => Selection::large(&settings),
        }
        .unwrap()
    }

    fn names<'a>(selection: &'a Selection, table: &str) -> Vec<&'a str> {
        let cases = selection.cases.iter().filter(|case| case.table == table);
        cases.map(|case| case.name.as_str()).collect()
    }

    fn has(selection: &Selection, name: &str) -> bool {
        selection.cases.iter().any(|case| case.name == name)
    }

    #[test]
    fn the_middle_selection_has_what_must_be_shown() {
        let selection = select(Sizes::Middle, 24 * GIB);
        let unmapped = names(&selection, UNMAP);
        assert_eq!(unmapped[0], "unmap 16 blocks of 64 MiB");
        let ranges = ["unmap 64 MiB", "unmap 1 GiB", "unmap 4 GiB", "unmap 8 GiB"];
        assert_eq!(unmapped[1..5], ranges);
        assert_eq!(names(&selection, OTHERS)[0], "unmap 4 GiB");
        assert!(has(&selection, "unmap 8 GiB and 1 GiB"));
        assert!(has(&selection, "kill a process with 4 GiB"));
        assert_eq!(names(&selection, sparse::TABLE).len(), 3);
    }

    #[test]
    fn little_memory_makes_the_sizes_smaller_and_the_reader_is_told() {
        let selection = select(Sizes::Middle, GIB / 2);
        assert!(selection.notes[0].starts_with("Size: 256 MiB instead of 8 GiB"));
        let unmapped = names(&selection, UNMAP);
        assert_eq!(unmapped[0], "unmap 16 blocks of 16 MiB");
        assert_eq!(unmapped[1..3], ["unmap 64 MiB", "unmap 256 MiB"]);
        assert!(has(&selection, "unmap 256 MiB and 32 MiB"));
        assert!(has(&selection, "kill a process with 256 MiB"));
    }

    #[test]
    fn full_goes_to_the_largest_that_fits_with_all_numbers_of_threads() {
        let selection = select(Sizes::Full, GIB / 2);
        let unmapped = names(&selection, UNMAP);
        let ranges = ["unmap 64 MiB", "unmap 256 MiB", "unmap 384 MiB"];
        assert_eq!(unmapped[1..4], ranges);
        let ways = &selection.cases[3].ways;
        let is_parallel = |way: &&Way| PARALLEL.iter().any(|(_, name)| *name == way.name);
        assert_eq!(ways.iter().filter(is_parallel).count(), PARALLEL.len());
    }

    #[test]
    fn quick_has_two_cases() {
        let selection = select(Sizes::Quick, 24 * GIB);
        assert_eq!(names(&selection, ""), ["unmap 4 GiB", "discard 1 GiB"]);
    }
}
