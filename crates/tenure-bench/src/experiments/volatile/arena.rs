//! The cost of unmarking buffers of an arena that are offered, beside the one call that
//! it cannot do without.

use rustix::mm::Advice;
use tenure::{VolatileArena, VolatileBuffer};

use super::TIME;
use super::region::{self, AtOnce, Contents, FREE, Region as _, advised};
use crate::measure::prelude::*;

const TABLE: &str = "Unmark offered buffers of an arena, one after the other";
const LENS: [usize; 2] = [4 << 10, 64 << 10];
/// A sample has as many buffers as have this size together.
const TOGETHER: usize = 32 << 20;
/// Every byte of a buffer.
const OLD: u8 = 7;

/// Makes a case for each size.
pub fn cases(settings: &Settings, notes: &mut Vec<String>) -> Result<Vec<Case>> {
    let step = LENS[1].next_multiple_of(page_size());
    let fitted = settings.headroom.fit(TOGETHER, 4, step)?;
    notes.extend(fitted.note);
    let case = |len: usize| {
        let len = len.next_multiple_of(page_size());
        let count = fitted.len / len;
        let ways = Work { count, len }.ways();
        let case = Case::new(bytes_text(len as f64), ways);
        case.in_table(TABLE).short()
    };
    Ok(LENS.map(case).into())
}

#[derive(Clone, Copy)]
struct Work {
    count: usize,
    len: usize,
}

impl Work {
    fn ways(self) -> Vec<Way> {
        vec![self.populate().baseline(), self.tenure().tenure()]
    }

    /// Keeps the pages, but cannot tell which of them were purged.
    fn populate(self) -> Way {
        Way::new(
            "MADV_POPULATE_WRITE alone",
            move || {
                let mut memory = advised(FREE)(self.count * self.len)?;
                memory.bytes()?.fill(OLD);
                memory.advise_each(self.len, self.len, Advice::LinuxFree)?;
                Ok(memory)
            },
            move |mut memory, recorder| {
                let populate =
                    || memory.advise_each(self.len, self.len, Advice::LinuxPopulateWrite);
                self.time(recorder, populate)?;
                Ok(memory)
            },
            |mut memory, _| region::check(&mut memory, &Contents::Unknown, OLD),
        )
    }

    fn tenure(self) -> Way {
        Way::new(
            "tenure",
            move || offered(self.count, self.len, OLD),
            move |buffers, recorder| {
                let unmark = |mut buffer: VolatileBuffer| {
                    let contents = buffer.unmark()?;
                    Ok((buffer, contents))
                };
                self.time(recorder, || buffers.into_iter().map(unmark).collect())
            },
            |unmarked: Vec<(VolatileBuffer, Contents)>, _| {
                let mut unmarked = unmarked.into_iter();
                unmarked.try_for_each(|(mut buffer, contents)| {
                    region::check(&mut buffer, &contents, OLD)
                })
            },
        )
    }

    fn time<T>(self, recorder: &mut Recorder<'_>, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let (answer, seconds) = recorder.measure(work);
        recorder.record(TIME, Unit::Seconds, seconds / self.count as f64);
        answer
    }
}

/// Makes so many buffers of an arena, full of `byte` and offered.
pub fn offered(count: usize, len: usize, byte: u8) -> Result<Vec<VolatileBuffer>> {
    let arena = VolatileArena::new(count * len)?;
    let _at_once = AtOnce::begin();
    let offer = |_| {
        let mut buffer = arena.buffer(len)?;
        buffer.bytes()?.fill(byte);
        buffer.mark()?;
        Ok(buffer)
    };
    (0..count).map(offer).collect()
}

#[cfg(test)]
#[path = "../../../tests/unit/volatile/arena.rs"]
mod tests;
