//! The cases: the quick selection, and the tables of the reference with others beside them.

use std::{iter, rc::Rc, thread};

use fastrand::Rng;
use tenure::Access;

use super::content::Content;
use super::huge_pool;
use super::kind::Kind;
use super::work::{PROBE_LEN, READ_AND_WRITE, Work};
use crate::machine::restore::Setting;
use crate::measure::prelude::*;

const STEP: usize = 2 << 20;
const QUICK: usize = 64 << 20;
/// The sizes of the reference.
const SIZES: [usize; 3] = [2 << 20, 128 << 20, 4 << 30];
/// The size of what the reference leaves open.
const OTHERS: usize = 128 << 20;
/// From this size on few rounds must do.
const LONG: usize = 1 << 30;
const THREADS_LEN: usize = 256 << 20;
const THREADS: [usize; 5] = [1, 2, 4, 8, 16];

/// The cases, and what a reader must know about them.
#[derive(Default)]
pub struct Selection {
    pub cases: Vec<Case>,
    pub notes: Vec<String>,
}

impl Selection {
    /// Selects what lets all experiments end within a minute.
    pub fn quick(&mut self, settings: &Settings) -> Result<()> {
        // Two files with content stay in memory beside what is measured.
        let len = self.note(settings.headroom.fit(QUICK, 8, STEP)?);
        let mut rng = Rng::with_seed(settings.seed);
        let memfd = Kind::FullMemfd(Rc::new(Content::memfd(len, &mut rng)?));
        let file = Kind::WarmFile(Rc::new(Content::file(len, &mut rng)?));
        let has_huge_pages = self.has_huge_pages();
        for (name, kind, access) in [
            ("shared anonymous", Kind::SharedAnonymous, Access::Read),
            ("file, warm", file, Access::Read),
            ("private anonymous", Kind::PrivateBase, Access::Write),
            ("private, huge pages", Kind::PrivateHuge, Access::Write),
            ("shared anonymous", Kind::SharedAnonymous, Access::Write),
            ("shared memfd", Kind::Memfd(true, None), Access::Write),
            ("private memfd with content", memfd, Access::Write),
        ] {
            if has_huge_pages || !matches!(kind, Kind::PrivateHuge) {
                let work = Work::whole(kind, len, access);
                let case = case(name, &work, [], is_informative);
                self.cases.push(case.in_table(&table(len, access)));
            }
        }
        Ok(())
    }

    /// Selects all.
    pub fn full(&mut self, settings: &Settings) -> Result<()> {
        // A private memfd takes its size twice, and the pool of huge pages once.
        let largest = self.note(settings.headroom.fit(SIZES[2], 4, STEP)?);
        let pool = self.huge_pool(largest);
        // Long cases get no other warm-up.
        touch::memory_once(2 * largest)?;
        self.beside_another_thread(largest);
        let mut sizes = SIZES.map(|size| size.min(largest)).to_vec();
        sizes.dedup();
        for len in sizes {
            let pool = pool.as_ref().filter(|(_, fits)| *fits >= len);
            let pool = pool.map(|(pool, _)| pool);
            for access in [Access::Read, Access::Write] {
                self.reference(len, access, pool)?;
            }
        }
        // Three files and a memfd stay in memory beside what is measured.
        let len = self.note(settings.headroom.fit(OTHERS.min(largest), 8, STEP)?);
        self.left_open(len, &mut Rng::with_seed(settings.seed))?;
        self.threads(THREADS_LEN.min(largest));
        Ok(())
    }

    fn note(&mut self, fitted: Fitted) -> usize {
        self.notes.extend(fitted.note);
        fitted.len
    }

    fn has_huge_pages(&mut self) -> bool {
        let has_huge_pages = kernel::huge_page_mode() != "never";
        if !has_huge_pages {
            let note = "No transparent huge pages: this kernel's mode is never.";
            self.notes.push(note.to_owned());
        }
        has_huge_pages
    }

    /// Gets a pool of huge pages for a mapping of `largest` bytes, or else for one of the
    /// smaller sizes, and returns for which.
    fn huge_pool(&mut self, largest: usize) -> Option<(Rc<Setting>, usize)> {
        let smaller = SIZES.into_iter().rev().filter(|&size| size < largest);
        for len in iter::once(largest).chain(smaller) {
            match huge_pool::with_free(len) {
                Ok(pool) => {
                    let note = "The pool of huge pages was enlarged for the run.";
                    self.notes.extend(pool.is_raised().then(|| note.to_owned()));
                    return Some((Rc::new(pool), len));
                }
                Err(why) => {
                    let size = bytes_text(len as f64);
                    let note = format!("No memfd of 2 MiB pages with {size}: {why:#}.");
                    self.notes.push(note);
                }
            }
        }
        None
    }

    /// Adds a table of the reference.
    fn reference(&mut self, len: usize, access: Access, pool: Option<&Rc<Setting>>) -> Result<()> {
        let huge_memfd = |shared| Some(Kind::Memfd(shared, Some(pool?.clone())));
        for (name, kind) in [
            ("private anonymous", Some(Kind::PrivateBase)),
            ("private memfd 4 KiB", Some(Kind::Memfd(false, None))),
            ("private memfd 2 MiB", huge_memfd(false)),
            ("shared anonymous", Some(Kind::SharedAnonymous)),
            ("shared memfd 4 KiB", Some(Kind::Memfd(true, None))),
            ("shared memfd 2 MiB", huge_memfd(true)),
        ] {
            if let Some(kind) = kind {
                self.add(&table(len, access), name, &Work::whole(kind, len, access))?;
            }
        }
        Ok(())
    }

    /// Adds files, memory with contents, huge pages, and parts of mappings.
    fn left_open(&mut self, len: usize, rng: &mut Rng) -> Result<()> {
        let memfd = Rc::new(Content::memfd(len, rng)?);
        let file = Rc::new(Content::file(len, rng)?);
        // SAFETY: the file has no name and nobody writes to it any more.
        let has_disk = unsafe { files::can_be_cold(&file.file, len) }?;
        if !has_disk {
            let note = "No cold file and none with holes: TMPDIR keeps files in memory (a tmpfs?).";
            self.notes.push(note.to_owned());
        }
        let has_huge_pages = self.has_huge_pages();
        for access in [Access::Read, Access::Write] {
            let mut kinds = Vec::new();
            if access == Access::Read {
                kinds.extend(has_disk.then(|| ("file, cold", Kind::ColdFile(file.clone()))));
                kinds.push(("file, warm", Kind::WarmFile(file.clone())));
            }
            if has_disk {
                let holes = Rc::new(Content::file_with_holes(len, rng)?);
                kinds.push(("file with holes", Kind::FileWithHoles(holes)));
            }
            kinds.push(("private memfd, content", Kind::FullMemfd(memfd.clone())));
            if access == Access::Write && has_huge_pages {
                kinds.push(("private, huge pages", Kind::PrivateHuge));
            }
            let table = format!("{}: what the reference leaves open", table(len, access));
            for (name, kind) in kinds {
                self.add(&table, name, &Work::whole(kind, len, access))?;
            }
            let half = Work::middle_half(len, access);
            self.add(&table, "private anonymous, middle half", &half)?;
        }
        Ok(())
    }

    /// Adds a comparison of numbers of threads.
    fn threads(&mut self, len: usize) {
        let cpus = thread::available_parallelism().map_or(1, usize::from);
        let table = format!("{}, by the number of threads", table(len, Access::Write));
        for (name, kind) in [
            ("private anonymous", Kind::PrivateBase),
            ("shared anonymous", Kind::SharedAnonymous),
        ] {
            let work = Work::whole(kind, len, Access::Write);
            let choices = THREADS
                .into_iter()
                .filter(|&threads| threads <= cpus.max(2));
            let choices = choices
                .map(|threads| work.way((threads_text(threads), work.with_threads(threads))));
            let case = case(name, &work, choices, is_informative);
            self.cases.push(case.in_table(&table));
        }
    }

    /// Adds the case that parallel populating is for: a large mapping, and another thread
    /// that wants to map memory meanwhile.
    fn beside_another_thread(&mut self, len: usize) {
        let mut work = Work::whole(Kind::PrivateBase, len, Access::Write);
        work.is_probed = true;
        let (size, probe) = (bytes_text(len as f64), bytes_text(PROBE_LEN as f64));
        let table = format!(
            "{size} of private anonymous memory, Write, while another thread maps and unmaps {probe}"
        );
        let is_shown = |name: &str| ["touch, Write", "POPULATE_WRITE"].contains(&name);
        let name = "private anonymous, beside another thread";
        let case = case(name, &work, [], is_shown);
        self.cases.push(case.in_table(&table));
    }

    fn add(&mut self, table: &str, name: &str, work: &Work) -> Result<()> {
        let choices = work.strategies()?.into_iter().map(|way| work.way(way));
        let case = case(name, work, choices, |_| true).in_table(table);
        let is_long = work.len >= LONG;
        self.cases.push(if is_long { case.long() } else { case });
        Ok(())
    }
}

fn table(len: usize, access: Access) -> String {
    format!("{}, {access:?}", bytes_text(len as f64))
}

fn is_informative(name: &str) -> bool {
    name != READ_AND_WRITE
}

/// Makes a case of the older ways that are shown, the first of which is the baseline, of
/// those that tenure chooses from, and of tenure's own.
fn case(
    name: &str,
    work: &Work,
    choices: impl IntoIterator<Item = Way>,
    is_shown: fn(&str) -> bool,
) -> Case {
    let mut older = work.older_ways();
    older.retain(|(name, _)| is_shown(name));
    let older = older.into_iter().map(|way| work.way(way));
    let choices = choices.into_iter().map(Way::choice);
    let mut ways: Vec<Way> = older.chain(choices).collect();
    ways[0].is_baseline = true;
    ways.push(work.way(work.auto()).tenure());
    Case::new(name, ways)
}
