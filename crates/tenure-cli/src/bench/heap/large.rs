//! The end of much memory: one large block is freed, or its process is killed.

use std::{os::unix::process::ExitStatusExt as _, process::ExitStatus, rc::Rc};

use anyhow::ensure;
use rustix::process::Signal;

use super::{
    super::{
        experiment::{Case, Recorder, Unit, Way},
        statistics::Better,
        trace::Trace,
    },
    allocators::{Allocator, Allocators, GLIBC, TENURE},
    job::Job,
    process::Worker,
    scale::{Frees, Scale},
    ways::{TIME, way},
};
use crate::text::bytes_text;

/// What the tables' titles begin with.
pub const FREE: &str = "free() of one block";
pub const KILL: &str = "Kill a process, wait for it";
/// The ways to kill.
pub const PLAIN: &str = "plain";
pub const BACKGROUND: &str = "tenure, --exit=background";

/// Makes the case in which one block is freed.
pub fn free(scale: &Scale, allocators: &Allocators) -> Case {
    let len = scale.freed_len;
    let are_named = allocators.all.iter().filter(|one| match scale.frees {
        Frees::All => true,
        Frees::TwoThatAreJudged => [GLIBC, TENURE].contains(&one.name),
    });
    let ways = are_named.map(|allocator| {
        way(allocator, Job::Free(len), |done, recorder| {
            recorder.record(TIME, Unit::Seconds, done.seconds);
            recorder.record("held 0.2 s after", Unit::Bytes, done.left_bytes as f64);
            Ok(())
        })
    });
    Case::new(bytes_text(len as f64), ways.collect())
        .in_table(FREE)
        .comparing(TIME, Better::Less)
        .long()
}

/// Makes the case in which a process is killed; none without tenure's library.
pub fn kill(scale: &Scale, allocators: &Allocators) -> Option<Case> {
    let background = allocators.background_exit.as_ref()?;
    let len = scale.kept_len;
    let ways = vec![
        kill_way(PLAIN, &Rc::new(Allocator::libc()), len).baseline(),
        kill_way(BACKGROUND, background, len).tenure(),
    ];
    let case = Case::new(bytes_text(len as f64), ways);
    Some(case.in_table(KILL).comparing(TIME, Better::Less).long())
}

fn kill_way(name: &'static str, allocator: &Rc<Allocator>, len: usize) -> Way {
    let allocator = allocator.clone();
    Way::new(
        name,
        move || {
            let trace = Trace::new()?;
            let job = Job::Keep {
                len,
                trace: trace.path(),
            };
            let mut worker = Worker::start(&allocator, &job, None)?;
            worker.wait_until_ready()?;
            Ok((worker, trace))
        },
        |(mut worker, trace): (Worker, Trace), recorder: &mut Recorder<'_>| {
            let (status, seconds) = recorder.measure(|| worker.kill_and_wait());
            let (gone, more_seconds) = recorder.measure(|| trace.wait_until_gone());
            gone?;
            recorder.record(TIME, Unit::Seconds, seconds);
            let freed = seconds + more_seconds;
            recorder.record("all is freed after", Unit::Seconds, freed);
            status
        },
        |status: ExitStatus, _: &mut Recorder<'_>| {
            let killed = status.signal() == Some(Signal::KILL.as_raw());
            ensure!(
                killed,
                "the worker ended otherwise than by SIGKILL: {status}"
            );
            Ok(())
        },
    )
}
