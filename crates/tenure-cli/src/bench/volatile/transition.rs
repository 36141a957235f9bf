//! What it costs to mark a page volatile, or to unmark it, while the kernel does
//! not know, beside others that are volatile.

use std::thread::{self, ScopedJoinHandle};

use anyhow::{Result, ensure};
use rustix::mm::Advice;
use tenure::{Outcome, page_size};

use super::{
    super::{
        Settings,
        experiment::{Case, Recorder, Unit, Way},
        raw::RawMapping,
        sizes::Sizes,
    },
    TIME,
    live::{Handle, Live, OWN, Page, Plain},
};
use crate::text::count_text;

/// The table.
pub const TABLE: &str = "Mark or unmark a page within the delay, beside others that are volatile";

pub const HANDLE: &str = "a handle";
pub const HANDLES: &str = "handles in turn";
pub const RANGE: &str = "a raw range";
pub const RANGES: &str = "raw ranges in turn";

/// For what a system call and a fault take part in.
const FEWER: usize = 20;

/// Makes a case for each number of others.
pub fn cases(settings: &Settings, notes: &mut Vec<String>) -> Result<Vec<Case>> {
    let (turns, others): (usize, &[usize]) = match settings.sizes {
        Sizes::Quick => (100_000, &[0, 10_000]),
        Sizes::Middle | Sizes::Full => (500_000, &[0, 1_000, 10_000, 100_000]),
    };
    let most = others[others.len() - 1] + OWN;
    let fitted = settings.room.fit(most * page_size(), 4, page_size())?;
    notes.extend(fitted.note);
    let fits = |&&others: &&usize| (others + OWN) * page_size() <= fitted.len;
    notes.push(format!(
        "Mark or unmark: the mean of {} in a row, or, in turn, of {} pages in no order; one \
         half of the others has been offered to the kernel before, and the other half is, meanwhile, \
         by tenure's thread, as it becomes older than 100 ms. MADV_DONTNEED, MADV_FREE: half of \
         what the advice and a write to the page take.",
        count_text(2.0 * turns as f64),
        count_text(OWN as f64),
    ));
    let case = |&others: &usize| {
        let work = Work {
            others,
            turns,
            together: settings.sizes != Sizes::Quick,
        };
        Case::new(name(others), work.ways()).in_table(TABLE)
    };
    Ok(others.iter().filter(fits).map(case).collect())
}

/// Names the case with so many others.
pub fn name(others: usize) -> String {
    match others {
        0 => "alone".to_owned(),
        _ => format!("{} others", count_text(others as f64)),
    }
}

#[derive(Clone, Copy)]
struct Work {
    others: usize,
    turns: usize,
    /// Whether two threads at once are measured, too.
    together: bool,
}

impl Work {
    fn ways(self) -> Vec<Way> {
        let mut ways = vec![
            self.older("MADV_DONTNEED, written again", Advice::LinuxDontNeed)
                .baseline(),
            self.older("MADV_FREE, written again", Advice::LinuxFree),
            self.way::<Handle>(HANDLE, 1, 1).tenure(),
            self.way::<Handle>(HANDLES, 1, OWN),
            self.way::<Plain>(RANGE, 1, 1),
            self.way::<Plain>(RANGES, 1, OWN),
        ];
        if self.together {
            ways.push(self.way::<Handle>("2 threads, a handle each", 2, 1));
            ways.push(self.way::<Plain>("2 threads, a raw range each", 2, 1));
        }
        ways
    }

    /// Makes a way in which each of so many threads takes its turns with so many
    /// pages.
    fn way<P: Page + 'static>(self, name: &'static str, threads: usize, pages: usize) -> Way
    where
        P::Memory: 'static,
    {
        Way::new(
            name,
            move || Live::<P>::make(self.others),
            move |mut live, recorder: &mut Recorder<'_>| {
                let own = &mut live.own[..threads * pages];
                let (done, seconds) = recorder.measure(|| match threads {
                    1 => take_turns(own, self.turns),
                    _ => each_thread(own, pages, self.turns),
                });
                done?;
                record(recorder, seconds, self.turns);
                Ok(live)
            },
            |live, _| live.check(),
        )
    }

    fn older(self, name: &'static str, advice: Advice) -> Way {
        let turns = self.turns / FEWER;
        Way::new(
            name,
            || RawMapping::base_pages(page_size()),
            move |mut mapping, recorder| {
                let (done, seconds) = recorder.measure(|| {
                    (0..turns).try_for_each(|_| {
                        mapping.advise(advice)?;
                        // SAFETY: `base_pages` maps writable memory.
                        let bytes = unsafe { mapping.bytes_mut() };
                        bytes[0] = 1;
                        Ok(())
                    })
                });
                record(recorder, seconds, turns);
                done.map(|()| mapping)
            },
            |mapping, _| {
                ensure!(mapping.bytes()[0] == 1, "what was written is not there");
                Ok(())
            },
        )
    }
}

/// Marks and unmarks each page, again and again.
fn take_turns<P: Page>(pages: &mut [P], turns: usize) -> Result<()> {
    for _ in 0..turns / pages.len() {
        for page in &mut *pages {
            page.mark()?;
            if let Outcome::Purged(_) = page.unmark()? {
                // It was marked for long: this thread did not run.
                page.fill()?;
            }
        }
    }
    Ok(())
}

fn each_thread<P: Page>(own: &mut [P], pages: usize, turns: usize) -> Result<()> {
    thread::scope(|scope| {
        let spawn = |pages| scope.spawn(move || take_turns(pages, turns));
        let threads: Vec<_> = own.chunks_mut(pages).map(spawn).collect();
        let join = |thread: ScopedJoinHandle<'_, Result<()>>| {
            thread.join().expect("to mark pages does not panic")
        };
        threads.into_iter().try_for_each(join)
    })
}

/// Records the mean of a transition; a turn is two of them.
fn record(recorder: &mut Recorder<'_>, seconds: f64, turns: usize) {
    recorder.record(TIME, Unit::Seconds, seconds / (2 * turns) as f64);
}
