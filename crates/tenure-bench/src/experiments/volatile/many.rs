//! Very many buffers of a page in one arena: what each costs, and how long other threads
//! wait while all are offered and while they stay volatile.

use std::thread;
use std::time::Duration;

use rustix::mm::Advice;
use tenure::volatile::VolatileOptions;
use tenure::{Mapping, VolatileArena, VolatileBuffer};

use super::region::{self, Contents, FREE, Region as _, advised};
use super::transition::wait_until_offered;
use crate::machine::probe::Probe;
use crate::measure::prelude::*;

const COSTS: &str = "What a buffer of a page costs, with all of them in one arena";
const OTHERS: &str = "Other threads, while buffers of a page of one arena are offered, and at rest";
const OFFERED: &str = "all are offered after";
const MMAP: &str = "another thread's mmap waits at most";
/// The figures of the probes, in their order.
const WAITS: [&str; 4] = [
    MMAP,
    "dropping a mapping waits at most",
    "a hit in another arena waits at most",
    "stats() waits at most",
];
const AT_REST: &str = "at rest they wait at most";
const OFFER_THREAD: &str = "at rest the offer thread runs, in a second";
/// The byte that fills every buffer.
const OLD: u8 = 7;

/// Makes a case of what they cost, and one of what other threads see.
pub fn cases(settings: &Settings, notes: &mut Vec<String>) -> Result<Vec<Case>> {
    const ALL: usize = 1_000_000;
    let long = (ALL, Duration::from_secs(4));
    let quick = (ALL / 10, Duration::from_millis(500));
    let (wanted, rest) = settings.sizes.pick(&[quick, long, long]);
    let fitted = (settings.headroom).fit(wanted * page_size(), 2, page_size())?;
    let count = fitted.len / page_size();
    notes.extend(fitted.note);
    let name = format!("{} buffers", count_text(count as f64));
    if count < ALL {
        let all = count_text(ALL as f64);
        notes.push(format!("One arena has {name} instead of {all}."));
    }
    let work = Work { count, rest };
    let costs = Case::new(name.clone(), vec![work.costs().tenure()]);
    let others = vec![work.advise_each().baseline(), work.tenure().tenure()];
    let others = Case::new(name, others).comparing(MMAP);
    Ok(vec![
        costs.in_table(COSTS).long(),
        others.in_table(OTHERS).long(),
    ])
}

#[derive(Clone, Copy)]
struct Work {
    count: usize,
    /// How long the waits at rest are measured.
    rest: Duration,
}

impl Work {
    fn advise_each(self) -> Way {
        Way::new(
            "MADV_FREE of each page",
            move || {
                let mut memory = advised(FREE)(self.count * page_size())?;
                memory.bytes()?.fill(OLD);
                Ok(memory)
            },
            move |mut memory, recorder| {
                let clock = recorder.clock();
                let page = page_size();
                let free = || memory.advise_each(page, page, Advice::LinuxFree);
                let free = || recorder.time(OFFERED, free);
                let (done, longest) = probe::longest_wait(clock, page, free)?;
                recorder.record(MMAP, Unit::Seconds, longest);
                done.map(|()| memory)
            },
            |mut memory, _| region::check(&mut memory, &Contents::Unknown, OLD),
        )
    }

    fn tenure(self) -> Way {
        Way::new(
            "tenure",
            move || {
                let arena = VolatileArena::new(self.count * page_size())?;
                let buffers = (0..self.count).map(|_| Ok(arena.buffer(page_size())?));
                let mut buffers = buffers.collect::<Result<Vec<_>>>()?;
                fill(&mut buffers)?;
                Ok((buffers, probes()?))
            },
            move |(mut buffers, mut probes), recorder| {
                self.offer(&mut buffers, &mut probes, recorder)?;
                self.rest(&mut probes, recorder)?;
                Ok(buffers)
            },
            |mut buffers, _| {
                let contents = unmark(&mut buffers)?;
                check(&mut buffers, &contents)
            },
        )
    }

    fn costs(self) -> Way {
        Way::new(
            "tenure",
            move || Ok(VolatileArena::new(self.count * page_size())?),
            move |arena, recorder| {
                let mut buffers = self.create(&arena, recorder)?;
                fill(&mut buffers)?;
                let (marked, seconds) =
                    recorder.measure(|| buffers.iter_mut().try_for_each(VolatileBuffer::mark));
                marked?;
                self.record_each("mark", seconds, recorder);
                wait_until_offered(self.count)?;
                let (contents, seconds) = recorder.measure(|| unmark(&mut buffers));
                self.record_each("unmark", seconds, recorder);
                check(&mut buffers, &contents?)?;
                let ((), seconds) = recorder.measure(|| drop(buffers));
                self.record_each("drop", seconds, recorder);
                Ok(arena)
            },
            |arena, _| {
                // Pages of a few dropped buffers wait to be freed together.
                const MAX_WAITING: usize = 64;
                let range = arena.range();
                let left = kernel::own_pages(range.start(), range.len())?;
                ensure!(
                    left <= MAX_WAITING,
                    "{left} pages of dropped buffers are left"
                );
                Ok(())
            },
        )
    }

    fn record_each(self, name: &'static str, seconds: f64, recorder: &mut Recorder<'_>) {
        recorder.record(name, Unit::Seconds, seconds / self.count as f64);
    }

    /// Creates the buffers, whose handles are in memory already.
    fn create(
        self,
        arena: &VolatileArena,
        recorder: &mut Recorder<'_>,
    ) -> Result<Vec<VolatileBuffer>> {
        let mut slots = Vec::new();
        slots.resize_with(self.count, || None);
        let before = kernel::rollup_bytes("Rss:")?;
        let (created, seconds) = recorder.measure(|| {
            slots.iter_mut().try_for_each(|slot| {
                *slot = Some(arena.buffer(page_size())?);
                anyhow::Ok(())
            })
        });
        created?;
        let bytes = kernel::rollup_bytes("Rss:")?.saturating_sub(before);
        self.record_each("create", seconds, recorder);
        let handle = size_of::<VolatileBuffer>() as f64;
        recorder.record("handle", Unit::Bytes, handle);
        let beside = bytes as f64 / self.count as f64;
        recorder.record("beside the handle", Unit::Bytes, beside.round());
        Ok(slots.into_iter().flatten().collect())
    }

    fn offer(
        self,
        buffers: &mut [VolatileBuffer],
        probes: &mut [Probe],
        recorder: &mut Recorder<'_>,
    ) -> Result<()> {
        let clock = recorder.clock();
        let offer = || {
            buffers.iter_mut().try_for_each(VolatileBuffer::mark)?;
            wait_until_offered(self.count)
        };
        let offer = || recorder.time(OFFERED, offer);
        let (done, longest) = probe::longest_waits(clock, probes, offer)?;
        done?;
        for (name, longest) in WAITS.into_iter().zip(longest) {
            recorder.record(name, Unit::Seconds, longest);
        }
        Ok(())
    }

    fn rest(self, probes: &mut [Probe], recorder: &mut Recorder<'_>) -> Result<()> {
        let rest = || thread::sleep(self.rest);
        let ((), longest) = probe::longest_waits(recorder.clock(), probes, rest)?;
        let longest = longest.into_iter().fold(0.0, f64::max);
        recorder.record(AT_REST, Unit::Seconds, longest);
        // Without the probes, which give the offer thread work.
        let cpu_time = || kernel::cpu_time_of_thread("tenure-offer");
        let before = cpu_time()?;
        let ((), seconds) = recorder.measure(rest);
        if let (Some(before), Some(after)) = (before, cpu_time()?) {
            let share = (after - before).as_secs_f64() / seconds;
            recorder.record(OFFER_THREAD, Unit::Seconds, share);
        }
        Ok(())
    }
}

fn fill(buffers: &mut [VolatileBuffer]) -> Result<()> {
    for buffer in buffers {
        buffer.bytes()?.fill(OLD);
    }
    Ok(())
}

fn unmark(buffers: &mut [VolatileBuffer]) -> Result<Vec<Contents>> {
    buffers.iter_mut().map(VolatileBuffer::unmark).collect()
}

fn check(buffers: &mut [VolatileBuffer], contents: &[Contents]) -> Result<()> {
    let mut pairs = buffers.iter_mut().zip(contents);
    pairs.try_for_each(|(buffer, contents)| region::check(buffer, contents, OLD))
}

/// Makes a probe for each of [`WAITS`].
fn probes() -> Result<Vec<Probe>> {
    let map = || Ok(Mapping::anonymous(page_size()).map()?);
    let drop_mapping = |mapping: Mapping| {
        drop(mapping);
        Ok(())
    };
    let mut hit = VolatileArena::new(page_size())?.buffer(page_size())?;
    let offer_and_hit: Probe = Box::new(move |clock| {
        hit.mark_volatile_with(VolatileOptions::new().offer_now());
        let before = clock.now();
        hit.unmark()?;
        Ok(clock.now() - before)
    });
    let stats = probe::of(|| {
        tenure::stats();
        Ok(())
    });
    let mapping = probe::prepared(map, drop_mapping);
    Ok(vec![
        probe::mmap(page_size()),
        mapping,
        offer_and_hit,
        stats,
    ])
}

#[cfg(test)]
#[path = "../../../tests/unit/volatile/many.rs"]
mod tests;
