//! Experiment: take a block, copy a chunk into it, search in the copy, free the
//! block (the loop of ebizzy), in ever more processes and threads under a memory
//! limit.

mod blocks;
mod conclusion;
mod crew;
mod scale;
mod work;

use std::rc::Rc;

use anyhow::{Result, ensure};
use fastrand::Rng;

use self::{
    blocks::{Blocks, DontNeed, Free, MapEachTime, Tenure},
    crew::{Crew, Start},
    scale::{Cell, Scale},
    work::{CHUNK_BYTES, Done, Loop},
};
use super::{
    Settings,
    experiment::{Case, Experiment, Recorder, Unit, Way},
    group::Group,
    statistics::Better,
    threads::in_threads,
};
use crate::text::{bytes_text, seconds_text};

const RECORDS: &str = "records";
const DONT_NEED: &str = "MADV_DONTNEED";
const FREE: &str = "MADV_FREE";

/// Prepares the experiment.
pub fn experiment(settings: &Settings) -> Result<Experiment> {
    let scale = Scale::of(settings, true)?;
    match Group::with_limit(scale.limit_bytes()) {
        Ok(group) => Ok(at_scale(scale, settings.seed, Ok(Rc::new(group)))),
        Err(why) => Ok(at_scale(
            Scale::of(settings, false)?,
            settings.seed,
            Err(why),
        )),
    }
}

/// Prepares it in the cgroup, or says why there is none.
fn at_scale(scale: Scale, seed: u64, group: Result<Rc<Group>>) -> Experiment {
    let mut notes = vec![
        format!(
            "P.T: P processes with T threads each. Random chunks ({}) are copied into blocks of \
             {}. Each thread has blocks of its own and takes one at random: an allocator uses \
             free blocks again neither newest nor oldest first.",
            scale.text(),
            bytes_text(CHUNK_BYTES as f64),
        ),
        format!(
            "Every block has been used once, and the loop has run for {}, before records count, \
             for {}.",
            seconds_text(scale.times.before.as_secs_f64()),
            seconds_text(scale.times.counted.as_secs_f64())
        ),
    ];
    notes.push(match &group {
        Ok(_) => format!(
            "All processes together have {}. With 8 of them half of it is chunks, and with 8.8 \
             the blocks are four times what is left.",
            bytes_text(scale.limit_bytes() as f64)
        ),
        Err(why) => format!(
            "No memory limit, and so no pressure: {why:#}. The gain of lazy freeing shrinks as \
             pressure grows."
        ),
    });
    notes.extend(scale.note.clone());
    let conclude = match &group {
        Ok(_) => conclusion::under_a_limit,
        Err(_) => conclusion::without_a_limit,
    };
    let group = group.ok();
    let cases = scale.cells.iter().map(|&cell| {
        let sample = Sample {
            scale: scale.clone(),
            cell,
            seed,
            group: group.clone(),
        };
        let ways = vec![
            sample.way::<MapEachTime>("munmap"),
            sample.way::<DontNeed>(DONT_NEED).baseline(),
            sample.way::<Free>(FREE),
            sample.way::<Tenure>("tenure").tenure(),
        ];
        Case::new(cell.name(), ways)
    });
    Experiment {
        title: "take a block, copy into it, search in it, free it".to_owned(),
        cases: cases.collect(),
        notes,
        compared: RECORDS,
        better: Better::More,
        conclude,
    }
}

/// What all samples of a cell have in common.
#[derive(Clone)]
struct Sample {
    scale: Scale,
    cell: Cell,
    seed: u64,
    group: Option<Rc<Group>>,
}

impl Sample {
    fn way<B: Blocks + 'static>(&self, name: &'static str) -> Way {
        let sample = self.clone();
        let seconds = self.scale.times.counted.as_secs_f64();
        Way::new(
            name,
            move || sample.start::<B>(),
            move |crew: Crew, recorder: &mut Recorder<'_>| {
                let done = crew.run()?;
                recorder.record(RECORDS, Unit::PerSecond, done.records as f64 / seconds);
                Ok(done)
            },
            |Done { records, wrong }, _| {
                ensure!(wrong == 0, "{wrong} searches had a wrong answer");
                ensure!(
                    records > 0,
                    "no record was finished in the time: others have the CPUs"
                );
                Ok(())
            },
        )
    }

    fn start<B: Blocks + 'static>(&self) -> Result<Crew> {
        let group = self.group.as_ref().map(|group| group.path());
        let Self {
            scale, cell, seed, ..
        } = self.clone();
        let work = move |number: usize, start: &mut Start| {
            let mut rng = Rng::with_seed(seed ^ (number as u64 + 1) << 32);
            let chunks = work::chunks(scale.chunks(), &mut rng);
            let prepare = |rng| Loop::<B>::prepare(&chunks, scale.blocks(), rng);
            let rngs = (0..cell.threads).map(|_| rng.fork());
            let loops = in_threads(rngs.collect(), prepare)?;
            let (begin, clock) = start.wait()?;
            let done = in_threads(loops, |work| work.run(clock, begin, scale.times))?;
            Ok(done.into_iter().sum())
        };
        Crew::start(cell.processes, group, &work)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::{
        alone::alone,
        clock::MonotonicClock,
        runner::{self, Repeats},
    };

    #[test]
    fn every_way_finds_every_word() {
        alone("bench::lazy::tests::every_way_finds_every_word", || {
            let scale = Scale::tiny();
            let group = Group::with_limit(scale.limit_bytes()).map(Rc::new);
            let is_limited = group.is_ok();
            let mut experiment = at_scale(scale, 1, group);
            let clock = MonotonicClock::start();
            let cases =
                runner::measure(&mut experiment, Repeats::ONCE, &clock, &mut || ()).unwrap();
            let names: Vec<_> = cases.iter().map(|case| case.name.as_str()).collect();
            assert_eq!(names, ["1.1", "2.3"]);
            let text = (experiment.conclude)(&cases);
            assert!(
                text.starts_with("Without pressure (1.1) tenure makes "),
                "{text}"
            );
            assert_eq!(text.contains("heaviest"), is_limited, "{text}");
        });
    }
}
