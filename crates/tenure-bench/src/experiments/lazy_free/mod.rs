//! Experiment: take a block, copy a chunk into it, search in the copy, free the block
//! (the loop of ebizzy), in ever more processes and threads under a memory limit.

mod scale;

use std::rc::Rc;

use self::scale::{Scale, limit_bytes};
use crate::machine::clock::{Clock as _, MonotonicClock};
use crate::machine::group::Group;
use crate::measure::prelude::*;
use crate::worker::job::{BlocksOf, Job, Search};
use crate::worker::{Environment, Worker};

const RECORDS: &str = "records";

/// Prepares the experiment.
pub fn experiment(settings: &Settings) -> Result<Experiment> {
    let scale = Scale::of(settings, true)?;
    let group = Group::with_limit(limit_bytes(scale.steps)).map(Rc::new);
    let scale = match &group {
        Ok(_) => scale,
        Err(_) => Scale::of(settings, false)?,
    };
    Ok(at_scale(scale, settings.seed, group))
}

/// Prepares the experiment in the cgroup, or notes why there is none.
fn at_scale(scale: Scale, seed: u64, group: Result<Rc<Group>>) -> Experiment {
    let times = [scale.before, scale.counted].map(|time| seconds_text(time.as_secs_f64()));
    let [before, counted] = times;
    let limit = match &group {
        Ok(_) => bytes_text(limit_bytes(scale.steps) as f64),
        Err(why) => format!("none, for {why:#}"),
    };
    let mut notes = vec![format!(
        "P.T: P processes with T threads each. Memory limit of all: {limit}. Records count for \
         {counted}, after {before}."
    )];
    notes.extend(scale.note.clone());
    let group = group.ok();
    let case = |&(processes, threads): &(usize, usize)| {
        let way = |name, blocks| {
            let search = scale.search(blocks, threads, seed);
            way(name, processes, search, group.clone())
        };
        let ways = vec![
            way("munmap", BlocksOf::MapEachTime),
            way("MADV_DONTNEED", BlocksOf::DontNeed).baseline(),
            way("MADV_FREE", BlocksOf::Free),
            way("tenure", BlocksOf::Adaptive).tenure(),
        ];
        Case::new(format!("{processes}.{threads}"), ways)
    };
    Experiment {
        title: "take a block, copy into it, search in it, free it".to_owned(),
        cases: scale.cells.iter().map(case).collect(),
        notes,
        compared: RECORDS,
    }
}

/// Makes a way in which each process is a worker, and all begin at the same time.
fn way(name: &'static str, processes: usize, search: Search, group: Option<Rc<Group>>) -> Way {
    Way::new(
        name,
        move || {
            let start = |number: usize| {
                let seed = search.seed ^ (number as u64) << 32;
                let job = Job::Search(Search { seed, ..search });
                Worker::start(&Environment::new(), &job, group.as_deref())
            };
            let mut workers: Vec<Worker> = (1..=processes).map(start).collect::<Result<_>>()?;
            workers.iter_mut().try_for_each(Worker::wait_until_ready)?;
            Ok(workers)
        },
        |mut workers: Vec<Worker>, recorder: &mut Recorder<'_>| {
            let now = MonotonicClock::SHARED.now();
            let mut all = workers.iter_mut();
            all.try_for_each(|worker| worker.begin_at(now))?;
            let (mut rate, mut wrong) = (0.0, 0);
            for worker in &mut workers {
                let done = worker.done()?;
                rate += done.rate;
                wrong += done.wrong;
            }
            recorder.record(RECORDS, Unit::PerSecond, rate);
            Ok(wrong)
        },
        |wrong, _| {
            ensure!(wrong == 0, "{wrong} searches had a wrong answer");
            Ok(())
        },
    )
}

#[cfg(test)]
#[path = "../../../tests/unit/lazy_free.rs"]
mod tests;
