//! What the ways have in common: a worker for each sample.

use std::rc::Rc;

use anyhow::{Result, ensure};

use super::{
    super::{
        experiment::{Recorder, Unit, Way},
        group::Group,
    },
    allocators::{Allocator, GLIBC},
    job::{Done, Job},
    process::{Ending, Worker},
};

pub const RECORDS: &str = "records";
pub const TIME: &str = "time";
pub const FAULTS: &str = "page faults";
pub const PEAK: &str = "peak memory";
pub const KILLED: &str = "killed";

/// Makes a way in which a worker does the job; `record` takes its figures down,
/// and fails when they cannot be true.
pub fn way(
    allocator: &Rc<Allocator>,
    job: Job,
    record: impl Fn(&Done, &mut Recorder<'_>) -> Result<()> + 'static,
) -> Way {
    let allocator_of_way = allocator.clone();
    let way = Way::new(
        allocator.name,
        move || {
            let mut worker = Worker::start(&allocator_of_way, &job, None)?;
            worker.wait_until_ready()?;
            Ok(worker)
        },
        move |mut worker: Worker, recorder: &mut Recorder<'_>| {
            worker.go_on()?;
            let done = worker.done()?;
            record(&done, recorder)?;
            Ok(done)
        },
        |done: Done, _: &mut Recorder<'_>| check(&done),
    );
    marked(way, allocator)
}

/// Makes a way in which a worker does the job as far as the limit lets it live.
pub fn limited_way(allocator: &Rc<Allocator>, job: Job, limit_bytes: usize) -> Way {
    let allocator_of_way = allocator.clone();
    let way = Way::new(
        allocator.name,
        move || {
            let group = Group::with_limit(limit_bytes)?;
            let worker = Worker::start(&allocator_of_way, &job, Some(&group))?;
            // The worker ends before its cgroup goes.
            Ok((worker, group))
        },
        |(mut worker, _group): (Worker, Group), recorder: &mut Recorder<'_>| {
            let mut ending = Ending::Killed;
            if worker.lives_and_waits()? {
                worker.go_on()?;
                ending = worker.ending()?;
            }
            let (rate, killed) = match ending {
                Ending::Done(done) => (done.rate, 0.0),
                Ending::Killed => (0.0, 1.0),
            };
            recorder.record(RECORDS, Unit::PerSecond, rate);
            recorder.record(KILLED, Unit::Count, killed);
            Ok(ending)
        },
        |ending: Ending, _: &mut Recorder<'_>| match ending {
            Ending::Done(done) => check(&done),
            Ending::Killed => Ok(()),
        },
    );
    marked(way, allocator)
}

/// Says of a way whose it is.
pub fn marked(way: Way, allocator: &Allocator) -> Way {
    match allocator.name {
        _ if allocator.is_tenure() => way.tenure(),
        GLIBC => way.baseline(),
        _ => way,
    }
}

fn check(done: &Done) -> Result<()> {
    ensure!(done.wrong == 0, "{} answers were wrong", done.wrong);
    Ok(())
}
