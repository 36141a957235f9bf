//! Experiment: read a mapped file at random while what has been read stays
//! locked in memory.

use std::{fs::File, os::unix::fs::FileExt, rc::Rc};

use anyhow::{Context as _, Result, bail};
use fastrand::Rng;
use rustix::mm;
use tenure::{LockMode, Mapping};

use super::{
    Settings,
    experiment::{Case, CaseResult, Experiment, Recorder, Unit, Way},
    fault_handler::LockedOnTouch,
    files, kernel,
    raw::RawMapping,
    sizes,
    statistics::Better,
    text::{bytes_text, count_text, ratio_text, seconds_text},
};

const WANTED_LEN: usize = 64 << 20;
/// As in the reference: 15,000,000 reads in 5 GiB.
const READS_PER_GIB: u64 = 3_000_000;

const WHOLE: &str = "mlock of the whole";
const EACH_ACCESS: &str = "mlock before each read";
const HANDLERS: [(&str, usize); 3] = [
    ("SIGSEGV handler, 1 page", 1),
    ("SIGSEGV handler, 8 pages", 8),
    ("SIGSEGV handler, 16 pages", 16),
];
const TENURE: &str = "tenure, lock on fault";

const SET_UP: &str = "set up";
const READS: &str = "reads";
const TOTAL: &str = "total";

/// Prepares the experiment.
pub fn experiment(settings: &Settings) -> Result<Experiment> {
    let step = 16 * tenure::page_size();
    let by_memory = settings.room.fit(WANTED_LEN, 8, step)?;
    let by_limit = sizes::fit_to_lock(by_memory.len, step)?;
    let len = by_limit.len;
    let work = Rc::new(Work::prepare(len, settings.seed)?);

    let mut notes: Vec<String> = by_memory.note.into_iter().chain(by_limit.note).collect();
    notes.push(if work.cold {
        "Page cache: cold. The file is dropped from it before each sample.".to_owned()
    } else {
        "Page cache: warm. The file system under TMPDIR keeps the file in memory (a tmpfs?)."
            .to_owned()
    });
    let mut ways = vec![
        whole(&work),
        each_access(&work).baseline(),
        on_fault(&work).tenure(),
    ];
    let handlers = HANDLERS.map(|(name, pages)| handler(name, pages, &work));
    ways.splice(2..2, handlers);
    let reads = count_text(work.reads as f64);
    Ok(Experiment {
        title: format!(
            "{reads} random reads in a mapped file of {}, locking what is read",
            bytes_text(len as f64)
        ),
        notes,
        compared: TOTAL,
        better: Better::Less,
        cases: vec![Case::new("file", ways)],
        conclude,
    })
}

/// What every way has to do, and what must come out.
struct Work {
    file: File,
    len: usize,
    reads: u64,
    seed: u64,
    cold: bool,
    expected_sum: u64,
}

impl Work {
    fn prepare(len: usize, seed: u64) -> Result<Self> {
        let file = files::random_file(len, &mut Rng::with_seed(seed))?;
        let mut contents = vec![0; len];
        file.read_exact_at(&mut contents, 0)
            .context("reading the file back")?;
        // SAFETY: the file has no name and nobody writes to it any more.
        let cold = unsafe { files::can_be_cold(&file, len) }?;
        let mut work = Self {
            file,
            len,
            reads: (READS_PER_GIB * len as u64) >> 30,
            seed,
            cold,
            expected_sum: 0,
        };
        let offsets = work.offsets();
        work.expected_sum = offsets.map(|offset| u64::from(contents[offset])).sum();
        Ok(work)
    }

    /// Returns where to read, the same for every way and sample.
    fn offsets(&self) -> impl Iterator<Item = usize> + use<> {
        let mut rng = Rng::with_seed(self.seed);
        let len = self.len;
        (0..self.reads).map(move |_| rng.usize(..len))
    }

    /// Brings the page cache to the state that each sample starts from.
    fn reset_cache(&self) -> Result<()> {
        if self.cold {
            files::drop_from_cache(&self.file)?;
        }
        Ok(())
    }

    fn map(&self) -> Result<RawMapping> {
        // SAFETY: the file has no name and nobody writes to it any more.
        unsafe { files::map_for_reading(&self.file, self.len) }
    }

    /// Reads all offsets and adds up what is there.
    ///
    /// # Safety
    /// - `len` bytes from `start` can be read, at the latest when `before_read`
    ///   has been called with the address.
    unsafe fn read(
        &self,
        start: *const u8,
        mut before_read: impl FnMut(*const u8) -> Result<()>,
    ) -> Result<u64> {
        let mut sum = 0;
        for offset in self.offsets() {
            // SAFETY: `offsets` stays below `len`.
            let address = unsafe { start.add(offset) };
            before_read(address)?;
            // SAFETY: readable, says the caller. Volatile, because the bytes of
            // a page that a handler admits are none that Rust knows of.
            sum += u64::from(unsafe { address.read_volatile() });
        }
        Ok(sum)
    }

    fn check(&self, sum: u64, recorder: &mut Recorder<'_>) -> Result<()> {
        if sum != self.expected_sum {
            bail!("the bytes read add up to {sum}, not {}", self.expected_sum);
        }
        recorder.record("locked", Unit::Bytes, kernel::locked_bytes()? as f64);
        Ok(())
    }
}

/// Makes a way from how it sets up and how it reads; both are timed.
fn way<M: 'static>(
    name: &'static str,
    work: &Rc<Work>,
    set_up: impl Fn(&Work) -> Result<M> + 'static,
    read: impl Fn(&Work, &M) -> Result<u64> + 'static,
) -> Way {
    let works = [work.clone(), work.clone(), work.clone()];
    let [before, during, after] = works;
    Way::new(
        name,
        move || before.reset_cache(),
        move |(), recorder: &mut Recorder<'_>| {
            let (memory, set_up_seconds) = recorder.measure(|| set_up(&during));
            let memory = memory?;
            let (sum, read_seconds) = recorder.measure(|| read(&during, &memory));
            recorder.record(SET_UP, Unit::Seconds, set_up_seconds);
            recorder.record(READS, Unit::Seconds, read_seconds);
            recorder.record(TOTAL, Unit::Seconds, set_up_seconds + read_seconds);
            Ok((sum?, memory))
        },
        move |(sum, memory), recorder| {
            after.check(sum, recorder)?;
            drop(memory);
            // The next sample can only start cold when nothing maps the file.
            Ok(tenure::drain(None)?)
        },
    )
}

fn whole(work: &Rc<Work>) -> Way {
    let set_up = |work: &Work| {
        let mapping = work.map()?;
        mapping.lock()?;
        Ok(mapping)
    };
    way(WHOLE, work, set_up, |work, mapping: &RawMapping| {
        // SAFETY: the whole file is mapped for reading.
        unsafe { work.read(mapping.bytes().as_ptr(), |_| Ok(())) }
    })
}

fn each_access(work: &Rc<Work>) -> Way {
    way(
        EACH_ACCESS,
        work,
        Work::map,
        |work, mapping: &RawMapping| {
            let page = tenure::page_size();
            let lock_page = |address: *const u8| {
                let start = address.map_addr(|address| address & !(page - 1));
                // SAFETY: a page of the mapping; locking changes no contents.
                unsafe { mm::mlock(start.cast_mut().cast(), page) }.context("mlock of a page")
            };
            // SAFETY: the whole file is mapped for reading.
            unsafe { work.read(mapping.bytes().as_ptr(), lock_page) }
        },
    )
}

fn handler(name: &'static str, pages: usize, work: &Rc<Work>) -> Way {
    let step = pages * tenure::page_size();
    let set_up = move |work: &Work| LockedOnTouch::new(work.map()?, step);
    way(name, work, set_up, |work, guarded: &LockedOnTouch| {
        // SAFETY: the handler makes readable what is touched.
        let sum = unsafe { work.read(guarded.as_ptr(), |_| Ok(())) }?;
        guarded.check()?;
        Ok(sum)
    })
}

fn on_fault(work: &Rc<Work>) -> Way {
    let set_up = |work: &Work| {
        // SAFETY: the file has no name and nobody writes to it any more.
        let mapping = unsafe { Mapping::file(&work.file) }.map()?;
        mapping.lock(.., LockMode::OnFault)?;
        Ok(mapping)
    };
    way(TENURE, work, set_up, |work, mapping: &Mapping| {
        // SAFETY: the whole file is mapped for reading.
        unsafe { work.read(mapping.as_slice().as_ptr(), |_| Ok(())) }
    })
}

fn conclude(cases: &[CaseResult]) -> String {
    let figure = |way, figure| {
        let way = cases.first()?.way(way)?;
        Some(&way.figure(figure)?.series)
    };
    let set_up = |way| figure(way, SET_UP).map_or(f64::NAN, |series| series.median);
    let against = |way| {
        figure(TENURE, TOTAL)
            .zip(figure(way, TOTAL))
            .and_then(|(own, other)| own.times_as_good(other, Better::Less))
            .map_or(f64::NAN, |ratio| ratio.median)
    };
    let fastest_handler = HANDLERS
        .map(|(name, _)| against(name))
        .into_iter()
        .fold(f64::INFINITY, f64::min);
    format!(
        "Locked on fault, the file can be used after {} instead of {}; all in all that is {} times \
         as fast as mlock of the whole, {} times as fast as mlock before each read and {} times as \
         fast as the fastest handler.",
        seconds_text(set_up(TENURE)),
        seconds_text(set_up(WHOLE)),
        ratio_text(against(WHOLE)),
        ratio_text(against(EACH_ACCESS)),
        ratio_text(fastest_handler),
    )
}
