//! What is measured: the quick selection, and the tables of the reference with
//! what they leave open.

use std::rc::Rc;

use anyhow::Result;
use fastrand::Rng;
use tenure::Access;

use super::{
    super::{
        Settings,
        experiment::{Case, Way},
        files,
        kernel::{self, HugePageMode},
        sizes::Fitted,
        touch,
    },
    content::Content,
    huge_pool::HugePool,
    kind::Kind,
    must_show,
    work::{AUTO, Populate, READ_AND_WRITE, Work},
};
use crate::text::bytes_text;

const STEP: usize = 2 << 20;
const QUICK: usize = 64 << 20;
/// The sizes of the reference.
const SIZES: [usize; 3] = [2 << 20, 128 << 20, 4 << 30];
/// The size of what the reference leaves open.
const OTHERS: usize = 128 << 20;
/// From this size on few rounds must do.
const LONG: usize = 1 << 30;
const THREADS_LEN: usize = 256 << 20;
const THREADS: [(usize, &str); 5] = [
    (1, "1 thread"),
    (2, "2 threads"),
    (4, "4 threads"),
    (8, "8 threads"),
    (16, "16 threads"),
];

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
        // Two files with content stay in memory beside what is measured.
        let len = selection.note(settings.room.fit(QUICK, 8, STEP)?);
        let mut rng = Rng::with_seed(settings.seed);
        let memfd = Rc::new(Content::memfd(len, &mut rng)?);
        let file = Rc::new(Content::file(len, &mut rng)?);
        let size = bytes_text(len as f64);
        let mut add = |name: &str, kind: Kind, access: Access| {
            let work = Work::whole(kind, len, access);
            let case = Case::new(name, few_ways(&work, Vec::new()));
            selection
                .cases
                .push(case.in_table(&format!("{size}, {access:?}")));
        };
        add("shared anonymous", Kind::SharedAnonymous, Access::Read);
        add("file, warm", Kind::WarmFile(file), Access::Read);
        add("private anonymous", Kind::PrivateBase, Access::Write);
        if kernel::huge_page_mode() != HugePageMode::Never {
            add("private, huge pages", Kind::PrivateHuge, Access::Write);
        }
        add("shared anonymous", Kind::SharedAnonymous, Access::Write);
        let shared_memfd = Kind::Memfd {
            shared: true,
            pool: None,
        };
        add("shared memfd", shared_memfd, Access::Write);
        add(
            "private memfd with content",
            Kind::FullMemfd(memfd),
            Access::Write,
        );
        selection.note_huge_page_mode();
        Ok(selection)
    }

    /// Selects all.
    pub fn full(settings: &Settings) -> Result<Self> {
        let mut selection = Self::default();
        // A private memfd takes its size twice, and the pool of huge pages once.
        let largest = selection.note(settings.room.fit(SIZES[2], 4, STEP)?);
        let pool = selection.huge_pool(largest);
        // Long cases get no other warm-up.
        touch::memory_once(2 * largest)?;
        selection.cases.push(must_show::case(largest));
        let mut sizes = SIZES.map(|size| size.min(largest)).to_vec();
        sizes.dedup();
        for len in sizes {
            let pool = pool.as_ref().filter(|(_, room)| *room >= len);
            for access in [Access::Read, Access::Write] {
                selection.reference(len, access, pool.map(|(pool, _)| pool))?;
            }
        }
        // Three files and a memfd stay in memory beside what is measured.
        let fitted = settings.room.fit(OTHERS.min(largest), 8, STEP)?;
        let len = selection.note(fitted);
        selection.left_open(len, &mut Rng::with_seed(settings.seed))?;
        selection.threads(THREADS_LEN.min(largest));
        selection.note_huge_page_mode();
        Ok(selection)
    }

    fn note(&mut self, fitted: Fitted) -> usize {
        self.notes.extend(fitted.note);
        fitted.len
    }

    fn note_huge_page_mode(&mut self) {
        if kernel::huge_page_mode() == HugePageMode::Never {
            let note = "No transparent huge pages: this kernel's mode is never.";
            self.notes.push(note.to_owned());
        }
    }

    /// Gets a pool of huge pages for a mapping of `largest` bytes, or else for
    /// one of the smaller sizes, and returns for which.
    fn huge_pool(&mut self, largest: usize) -> Option<(Rc<HugePool>, usize)> {
        let smaller = SIZES.into_iter().rev().filter(|&size| size < largest);
        for len in [largest].into_iter().chain(smaller) {
            match HugePool::with_room(len) {
                Ok(pool) => {
                    if pool.is_enlarged() {
                        let note = "The pool of huge pages was enlarged for the run.";
                        self.notes.push(note.to_owned());
                    }
                    return Some((Rc::new(pool), len));
                }
                Err(error) => self.notes.push(format!(
                    "No memfd of 2 MiB pages with {}: {error:#}.",
                    bytes_text(len as f64)
                )),
            }
        }
        None
    }

    /// Adds a table of the reference.
    fn reference(&mut self, len: usize, access: Access, pool: Option<&Rc<HugePool>>) -> Result<()> {
        let memfd = |shared| Kind::Memfd { shared, pool: None };
        let huge_memfd = |shared| {
            let pool = Some(pool?.clone());
            Some(Kind::Memfd { shared, pool })
        };
        let kinds = [
            ("private anonymous", Some(Kind::PrivateBase)),
            ("private memfd 4 KiB", Some(memfd(false))),
            ("private memfd 2 MiB", huge_memfd(false)),
            ("shared anonymous", Some(Kind::SharedAnonymous)),
            ("shared memfd 4 KiB", Some(memfd(true))),
            ("shared memfd 2 MiB", huge_memfd(true)),
        ];
        let table = format!("{}, {access:?}", bytes_text(len as f64));
        for (name, kind) in kinds {
            if let Some(kind) = kind {
                self.add(&table, name, Work::whole(kind, len, access))?;
            }
        }
        Ok(())
    }

    /// Adds files, memory with contents, huge pages, and parts of mappings.
    fn left_open(&mut self, len: usize, rng: &mut Rng) -> Result<()> {
        let memfd = Rc::new(Content::memfd(len, rng)?);
        let file = Rc::new(Content::file(len, rng)?);
        // SAFETY: the file has no name and nobody writes to it any more.
        let has_disk = unsafe { files::can_be_cold(file.as_file(), len) }?;
        for access in [Access::Read, Access::Write] {
            let table = format!(
                "{}, {access:?}: what the reference leaves open",
                bytes_text(len as f64)
            );
            let mut add = |name, kind| self.add(&table, name, Work::whole(kind, len, access));
            if access == Access::Read {
                if has_disk {
                    add("file, cold", Kind::ColdFile(file.clone()))?;
                }
                add("file, warm", Kind::WarmFile(file.clone()))?;
            }
            if has_disk {
                let holes = Content::file_with_holes(len, rng)?;
                add("file with holes", Kind::FileWithHoles(Rc::new(holes)))?;
            }
            add("private memfd, content", Kind::FullMemfd(memfd.clone()))?;
            if access == Access::Write && kernel::huge_page_mode() != HugePageMode::Never {
                add("private, huge pages", Kind::PrivateHuge)?;
            }
            self.add(
                &table,
                "private anonymous, middle half",
                Work::middle_half(len, access),
            )?;
        }
        if !has_disk {
            let note = "No cold file and none with holes: the file system under TMPDIR keeps \
                        files in memory (a tmpfs?).";
            self.notes.push(note.to_owned());
        }
        Ok(())
    }

    /// Adds a comparison of numbers of threads.
    fn threads(&mut self, len: usize) {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let table = format!(
            "{}, Write, by the number of threads",
            bytes_text(len as f64)
        );
        for (name, kind) in [
            ("private anonymous", Kind::PrivateBase),
            ("shared anonymous", Kind::SharedAnonymous),
        ] {
            let work = Work::whole(kind, len, Access::Write);
            let choices = THREADS
                .into_iter()
                .filter(|&(threads, _)| threads <= cpus.max(2))
                .map(|(threads, name)| (name, work.with_threads(threads)));
            let ways = few_ways(&work, choices.collect());
            self.cases.push(Case::new(name, ways).in_table(&table));
        }
    }

    fn add(&mut self, table: &str, name: &str, work: Work) -> Result<()> {
        let case = Case::new(name, ways(&work, work.strategies()?)).in_table(table);
        let is_long = work.len >= LONG;
        self.cases.push(if is_long { case.long() } else { case });
        Ok(())
    }
}

/// Makes the older ways, the first of which is the baseline, those that tenure
/// chooses from, and tenure's own.
fn ways(work: &Work, choices: Vec<(&'static str, Populate)>) -> Vec<Way> {
    let older = work.older_ways().into_iter().map(|way| work.way(way));
    let choices = choices.into_iter().map(|way| work.way(way).choice());
    let mut ways: Vec<Way> = older.chain(choices).collect();
    ways[0].is_baseline = true;
    ways.push(work.way((AUTO, work.auto())).tenure());
    ways
}

/// Makes the same without the way that takes longest and shows least.
fn few_ways(work: &Work, choices: Vec<(&'static str, Populate)>) -> Vec<Way> {
    let mut ways = ways(work, choices);
    ways.retain(|way| way.name != READ_AND_WRITE);
    ways
}
