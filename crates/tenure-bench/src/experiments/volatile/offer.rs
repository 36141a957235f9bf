//! The cost of offering memory to the kernel, and of unmarking it when none, some or
//! all of its pages were purged.

use tenure::VolatileBuffer;

use super::TIME;
use super::region::{self, AtOnce, Contents, DONT_NEED, FREE, Region, advised};
use crate::measure::prelude::*;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;
const LENS: [usize; 6] = [4 * KIB, 64 * KIB, MIB, 16 * MIB, 128 * MIB, 1024 * MIB];
/// A sample has as many ranges as have this size together, but at most `MAX_RANGES`.
const TOGETHER: usize = 16 * MIB;
const MAX_RANGES: usize = 64;
/// Up to this size there are many rounds.
const SMALL: usize = MIB;
/// Every byte of a range, and the byte that is written to the start of each page.
const OLD: u8 = 7;
const WRITTEN: u8 = 9;

/// Makes two cases for each size.
pub fn cases(settings: &Settings, notes: &mut Vec<String>) -> Result<Vec<Case>> {
    let lens: &[usize] = settings
        .sizes
        .pick(&[&[LENS[0], LENS[2], LENS[3]], &LENS, &LENS]);
    let len = lens[lens.len() - 1];
    let fitted = settings.headroom.fit(len, 4, page_size())?;
    notes.extend(fitted.note);
    let lens = lens.iter().map(|&len| len.min(fitted.len));
    let mut lens: Vec<usize> = lens.map(|len| len.next_multiple_of(page_size())).collect();
    lens.dedup();
    let case = |len: usize, ways: fn(Work) -> Vec<Way>, table: &str| {
        let count = (TOGETHER / len).clamp(1, MAX_RANGES);
        let case = Case::new(bytes_text(len as f64), ways(Work { count, len })).in_table(table);
        if len <= SMALL { case.short() } else { case }
    };
    let offered = lens.iter().map(|&len| case(len, Work::offering, "Offer"));
    let table = "Revoke the offer, repopulate";
    let unmarked = lens.iter().map(|&len| case(len, Work::unmarking, table));
    Ok(offered.chain(unmarked).collect())
}

#[derive(Clone, Copy)]
struct Work {
    count: usize,
    len: usize,
}

impl Work {
    fn offering(self) -> Vec<Way> {
        vec![
            self.offer("MADV_DONTNEED", advised(DONT_NEED)).baseline(),
            self.offer("MADV_FREE", advised(FREE)),
            self.offer("tenure", region::buffer).tenure(),
        ]
    }

    fn unmarking(self) -> Vec<Way> {
        let older = |name, advice| self.unmark(name, advised(advice), |_| Ok(()), true);
        // Purges so many pages, from one on, in steps.
        let tenure = |name, (from, step, count), is_written| {
            let pages = (from..self.len / page_size()).step_by(step).take(count);
            let purge = move |buffer: &mut VolatileBuffer| region::purge(buffer, pages.clone());
            self.unmark(name, region::buffer, purge, is_written)
        };
        let mut ways = vec![
            older("MADV_DONTNEED, written again", DONT_NEED).baseline(),
            older("MADV_FREE, written again", FREE),
            tenure("tenure, nothing purged", (0, 1, 0), false).tenure(),
        ];
        let pages = self.len / page_size();
        // With few pages, some are all.
        if pages >= 16 {
            ways.push(tenure("tenure, one page purged", (pages / 2, 1, 1), false));
            ways.push(tenure("tenure, each 8th page purged", (0, 8, pages), false));
        }
        ways.push(tenure("tenure, all purged", (0, 1, pages), false));
        ways.push(tenure("the same, written again", (0, 1, pages), true));
        ways
    }

    fn make<R: Region>(self, new: &impl Fn(usize) -> Result<R>) -> Result<Vec<R>> {
        let filled = || {
            let mut region = new(self.len)?;
            region.bytes()?.fill(OLD);
            Ok(region)
        };
        (0..self.count).map(|_| filled()).collect()
    }

    fn offer<R: Region + 'static>(
        self,
        name: &'static str,
        new: impl Fn(usize) -> Result<R> + 'static,
    ) -> Way {
        Way::new(
            name,
            move || Ok((self.make(&new)?, AtOnce::begin())),
            move |(mut regions, _at_once), recorder| {
                self.time(recorder, || regions.iter_mut().try_for_each(R::mark))?;
                Ok(regions)
            },
            |regions, _| {
                for mut region in regions {
                    let contents = region.unmark()?;
                    region::check(&mut region, &contents, OLD)?;
                }
                Ok(tenure::drain(None)?)
            },
        )
    }

    fn unmark<R: Region + 'static>(
        self,
        name: &'static str,
        new: impl Fn(usize) -> Result<R> + 'static,
        purge: impl Fn(&mut R) -> Result<()> + 'static,
        is_written: bool,
    ) -> Way {
        Way::new(
            name,
            move || {
                let mut regions = self.make(&new)?;
                let at_once = AtOnce::begin();
                regions.iter_mut().try_for_each(R::mark)?;
                drop(at_once);
                regions.iter_mut().try_for_each(&purge)?;
                Ok(regions)
            },
            move |regions, recorder| {
                let unmark = |mut region: R| {
                    let contents = region.unmark()?;
                    if is_written {
                        touch::write_each_page(region.bytes()?, |_| WRITTEN);
                    }
                    Ok((region, contents))
                };
                self.time(recorder, || regions.into_iter().map(unmark).collect())
            },
            move |unmarked: Vec<(R, Contents)>, _| {
                for (mut region, contents) in unmarked {
                    if is_written {
                        restore_first_bytes(region.bytes()?)?;
                    }
                    region::check(&mut region, &contents, OLD)?;
                }
                Ok(tenure::drain(None)?)
            },
        )
    }

    fn time<T>(self, recorder: &mut Recorder<'_>, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let (answer, seconds) = recorder.measure(work);
        recorder.record(TIME, Unit::Seconds, seconds / self.count as f64);
        answer
    }
}

/// Checks the first byte of each page, and overwrites it with the byte behind it.
fn restore_first_bytes(bytes: &mut [u8]) -> Result<()> {
    for page in bytes.chunks_mut(page_size()) {
        ensure!(page[0] == WRITTEN, "what was written is not there");
        page[0] = page[1];
    }
    Ok(())
}

#[cfg(test)]
#[path = "../../../tests/unit/volatile/offer.rs"]
mod tests;
