//! The cost of marking or unmarking a page that is not offered yet, beside others
//! that are volatile.

use std::thread;
use std::time::{Duration, Instant};

use fastrand::Rng;
use rustix::mm::Advice;
use tenure::{Features, VolatileArena, VolatileBuffer};

use super::TIME;
use super::region::{self, Contents, RawRange, Region};
use crate::machine::threads::in_threads;
use crate::measure::prelude::*;

const TABLE: &str = "Mark or unmark a page within the delay, beside others that are volatile";
/// Ways with a system call and a fault make so many times fewer turns.
const FEWER: usize = 20;

/// Makes a case for each number of others.
pub fn cases(settings: &Settings, notes: &mut Vec<String>) -> Result<Vec<Case>> {
    const ALL: &[usize] = &[0, 1_000, 10_000, 100_000];
    let quick: (usize, &[usize]) = (100_000, &[0, 10_000]);
    let (turns, others) = settings
        .sizes
        .pick(&[quick, (500_000, ALL), (500_000, ALL)]);
    let pages = others[others.len() - 1] + OWN;
    let fitted = settings.headroom.fit(pages * page_size(), 4, page_size())?;
    notes.extend(fitted.note);
    let fits = |&&others: &&usize| (others + OWN) * page_size() <= fitted.len;
    let case = |&others: &usize| {
        let name = match others {
            0 => "alone".to_owned(),
            _ => format!("{} others", count_text(others as f64)),
        };
        let mut ways = Work { others, turns }.ways();
        if settings.sizes == Sizes::Quick {
            ways.retain(|way| !way.name.starts_with("2 threads"));
        }
        Case::new(name, ways).in_table(TABLE)
    };
    Ok(others.iter().filter(fits).map(case).collect())
}

#[derive(Clone, Copy)]
struct Work {
    others: usize,
    turns: usize,
}

impl Work {
    fn ways(self) -> Vec<Way> {
        let ranges = RawRange::pages;
        vec![
            self.older("MADV_DONTNEED, written again", Advice::LinuxDontNeed)
                .baseline(),
            self.older("MADV_FREE, written again", Advice::LinuxFree),
            self.way("a VolatileBuffer", buffers, 1, 1).tenure(),
            self.way("VolatileBuffers in turn", buffers, 1, OWN),
            self.way("a PageRange", ranges, 1, 1),
            self.way("PageRanges in turn", ranges, 1, OWN),
            self.way("2 threads, a VolatileBuffer each", buffers, 2, 1),
            self.way("2 threads, a PageRange each", ranges, 2, 1),
        ]
    }

    /// Makes a way in which each of so many threads takes its turns with so many
    /// pages.
    fn way<R: Region + 'static, M: 'static>(
        self,
        name: &'static str,
        make: Make<R, M>,
        threads: usize,
        pages: usize,
    ) -> Way {
        Way::new(
            name,
            move || Live::make(make, self.others),
            move |mut live, recorder| {
                let own = &mut live.own[..threads * pages];
                let take_turns = |own: &mut [R]| take_turns(own, self.turns);
                let (done, seconds) = recorder.measure(|| match threads {
                    1 => take_turns(own),
                    _ => in_threads(own.chunks_mut(pages), take_turns).map(drop),
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
                        mapping.bytes_mut()[0] = 1;
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

/// Marks and unmarks each page in turn, `turns` times in all.
fn take_turns<R: Region>(pages: &mut [R], turns: usize) -> Result<()> {
    for _ in 0..turns / pages.len() {
        for page in &mut *pages {
            page.mark()?;
            if let Contents::Purged(_) = page.unmark()? {
                // It was offered, because this thread did not run for the delay.
                page.bytes()?.fill(PATTERN);
            }
        }
    }
    Ok(())
}

/// Records the mean of a transition; a turn is two of them.
fn record(recorder: &mut Recorder<'_>, seconds: f64, turns: usize) {
    recorder.record(TIME, Unit::Seconds, seconds / (2 * turns) as f64);
}

/// How many pages are marked and unmarked in turn.
const OWN: usize = 1_000;
/// The byte that fills every page.
const PATTERN: u8 = 7;

/// Pages to be marked and unmarked among others that are volatile.
struct Live<R, M> {
    /// Pages that are not volatile, all over the memory, in random order.
    own: Vec<R>,
    others: Vec<R>,
    /// The memory that the pages are part of; dropped last.
    _memory: M,
}

/// Makes so many pages, in order of address, and the memory that they are part of.
type Make<R, M> = fn(usize) -> Result<(Vec<R>, M)>;

/// Makes buffers of a page each, all of one arena, because there are more than the
/// kernel has mappings for.
fn buffers(count: usize) -> Result<(Vec<VolatileBuffer>, VolatileArena)> {
    let arena = VolatileArena::new(count * page_size())?;
    let pages = (0..count).map(|_| Ok(arena.buffer(page_size())?));
    Ok((pages.collect::<Result<_>>()?, arena))
}

impl<R: Region, M> Live<R, M> {
    /// Makes so many others: the first half is offered, the second is only marked.
    fn make(make: Make<R, M>, others: usize) -> Result<Self> {
        let (mut pages, memory) = make(OWN + others)?;
        for page in &mut pages {
            page.bytes()?.fill(PATTERN);
        }
        let is_own = |(place, _): &(usize, R)| place * OWN % (OWN + others) < OWN;
        let pages = pages.into_iter().enumerate();
        let (own, others): (Vec<_>, Vec<_>) = pages.partition(is_own);
        let [mut own, mut others] =
            [own, others].map(|pages| pages.into_iter().map(|(_, page)| page).collect::<Vec<R>>());
        Rng::with_seed(1).shuffle(&mut own);
        // The first marking validates the range, which is not measured.
        for page in &mut own {
            page.mark()?;
            page.unmark()?;
        }
        let half = others.len() / 2;
        let (first, second) = others.split_at_mut(half);
        first.iter_mut().try_for_each(R::mark)?;
        wait_until_offered(first.len())?;
        second.iter_mut().try_for_each(R::mark)?;
        Ok(Self {
            own,
            others,
            _memory: memory,
        })
    }

    /// Fails unless all own pages, and about as many of the others, hold what
    /// unmarking says.
    fn check(mut self) -> Result<()> {
        let step = (self.others.len() / OWN).max(1);
        let others = self.others.iter_mut().step_by(step);
        for page in self.own.iter_mut().chain(others) {
            let contents = page.unmark()?;
            region::check(page, &contents, PATTERN)?;
        }
        Ok(())
    }
}

/// Waits until the offer thread has offered so many pages.
pub fn wait_until_offered(pages: usize) -> Result<()> {
    const MAX_WAIT: Duration = Duration::from_secs(30);
    let expected = (pages * page_size()) as u64;
    let start = Instant::now();
    let can_offer = Features::get().sigbus_on_missing();
    while can_offer && tenure::stats().offered_bytes < expected {
        ensure!(
            start.elapsed() < MAX_WAIT,
            "{pages} pages are volatile and not offered yet"
        );
        thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

#[cfg(test)]
#[path = "../../../tests/unit/volatile/transition.rs"]
mod tests;
