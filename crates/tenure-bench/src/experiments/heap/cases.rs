//! The cases in which a worker does a job with each allocator.

use super::allocators::{Allocator, GLIBC, MMAP_ALWAYS, TENURE};
use super::scale::Scale;
use crate::machine::group::Group;
use crate::measure::prelude::*;
use crate::worker::job::{Done, GROWN_FROM, Job, Keep, Search, TIMES, Waves};
use crate::worker::{Environment, Worker, killed_way};

pub const TIME: &str = "time";
const LIMITED_THREADS: usize = 4;
const MIN_RANDOM: usize = 128 << 10;
const MAX_RANDOM: usize = 1 << 20;

/// A figure of a worker.
pub type Figure = (&'static str, Unit, fn(&Done) -> f64);
const RATE: Figure = ("records", Unit::PerSecond, |done| done.rate);
const SECONDS: Figure = (TIME, Unit::Seconds, |done| done.seconds);
const FAULTS: Figure = ("page faults", Unit::Count, |done| done.faults as f64);
const FAULTS_A_RECORD: Figure = ("page faults a record", Unit::Ratio, faults_a_record);
pub const PEAK: Figure = ("peak memory", Unit::Bytes, |done| done.peak_bytes as f64);
const LEFT: Figure = ("held 0.2 s after", Unit::Bytes, |done| {
    done.end_bytes as f64
});
const KILLED: Figure = ("killed", Unit::Count, |done| done.is_killed.into());

fn faults_a_record(done: &Done) -> f64 {
    done.faults as f64 / done.all_records as f64
}

/// Makes the cases of the loop of ebizzy, with chunks of one size and with random sizes.
pub fn searches(scale: &Scale, all: &[Allocator]) -> Vec<Case> {
    let (count, len) = (scale.search.chunks, scale.search.chunk_bytes);
    let chunk = text(len);
    let same = format!("Copy a chunk, search in the copy, free it: {count} chunks of {chunk}");
    let (min, max) = (text(MIN_RANDOM), text(MAX_RANDOM));
    let random = format!("The same with random sizes: {min} to {max}");
    let of_random = random_sizes(scale, count * len / MAX_RANDOM);
    let cases = |table: &str, threads: &[usize], search| {
        let jobs = threads.iter().map(|&threads| with_threads(search, threads));
        cases_of(table, jobs, None, &[RATE, FAULTS_A_RECORD, PEAK], all)
    };
    let mut both = cases(&same, &scale.threads, scale.search);
    both.extend(cases(&random, &scale.random_threads, of_random));
    both.into_iter().map(Case::short).collect()
}

/// Makes the cases under a limit, which lets a worker live or does not.
pub fn limited(scale: &Scale, all: &[Allocator]) -> Vec<Case> {
    let live_bytes = scale.limited_live_bytes;
    let search = random_sizes(scale, live_bytes / MAX_RANDOM);
    let (name, search) = with_threads(search, LIMITED_THREADS);
    let waves = Job::Waves(Waves {
        live_bytes,
        wave_bytes: live_bytes / 5,
        counted: scale.search.before + scale.search.counted,
    });
    let limit_bytes = Scale::limit_bytes(live_bytes);
    let (limit, live) = (text(limit_bytes), text(live_bytes));
    let table = format!("Under a limit of {limit}, with {live} live");
    let jobs = [
        (format!("random sizes, {name}"), search),
        ("waves".to_owned(), waves),
    ];
    cases_of(&table, jobs, Some(limit_bytes), &[RATE, KILLED], all)
}

fn random_sizes(scale: &Scale, chunks: usize) -> Search {
    Search {
        chunks,
        chunk_bytes: MAX_RANDOM,
        min_bytes: MIN_RANDOM,
        ..scale.search
    }
}

fn with_threads(search: Search, threads: usize) -> (String, Job) {
    (
        threads_text(threads),
        Job::Search(Search { threads, ..search }),
    )
}

/// Makes the cases with large arrays.
pub fn arrays(scale: &Scale, all: &[Allocator]) -> Vec<Case> {
    let of_len = |&len: &usize| (format!("{TIMES} × c = a + b, {}", text(len)), Job::Sum(len));
    let mut jobs: Vec<(String, Job)> = scale.array_lens.iter().map(of_len).collect();
    let sparse = format!("{TIMES} × calloc {}, sparse", text(scale.sparse_len));
    jobs.push((sparse, Job::Sparse(scale.sparse_len)));
    let grown = format!("realloc {} to {}", text(GROWN_FROM), text(scale.grown_len));
    jobs.push((grown, Job::Grow(scale.grown_len)));
    cases_of("Large arrays", jobs, None, &[SECONDS, FAULTS, PEAK], all)
}

/// Makes the case in which one block is freed.
pub fn free(len: usize, all: &[Allocator]) -> Vec<Case> {
    let job = (text(len), Job::Free(len));
    cases_of("free() of one block", [job], None, &[SECONDS, LEFT], all)
}

/// Makes the case in which a process is killed.
pub fn kill(len: usize, background_exit: Environment) -> Case {
    let keep = Keep {
        len,
        is_block: true,
        tear_down: false,
    };
    let ways = vec![
        killed_way("plain", Environment::new(), keep, TIME).baseline(),
        killed_way("tenure, --exit=background", background_exit, keep, TIME).tenure(),
    ];
    let case = Case::new(text(len), ways);
    case.in_table("Kill a process, wait for it").long()
}

fn text(len: usize) -> String {
    bytes_text(len as f64)
}

/// Makes a case for each job, in which the first of the figures is compared.
pub fn cases_of(
    table: &str,
    jobs: impl IntoIterator<Item = (String, Job)>,
    limit_bytes: Option<usize>,
    figures: &'static [Figure],
    all: &[Allocator],
) -> Vec<Case> {
    let case = |(name, job): (String, Job)| {
        let way = |one| way(one, &job, limit_bytes, figures);
        let case = Case::new(name, all.iter().map(way).collect()).in_table(table);
        case.comparing(figures[0].0).long()
    };
    jobs.into_iter().map(case).collect()
}

/// Makes a way in which a worker does the job, under a limit as far as that lets it live.
fn way(
    allocator: &Allocator,
    job: &Job,
    limit_bytes: Option<usize>,
    figures: &'static [Figure],
) -> Way {
    let maps_always = allocator.name == MMAP_ALWAYS;
    let (environment, job) = (allocator.environment.clone(), job.clone());
    let way = Way::new(
        allocator.name,
        move || {
            let group = limit_bytes.map(Group::with_limit).transpose()?;
            let mut worker = Worker::start(&environment, &job, group.as_ref())?;
            let is_ready = worker.is_ready()?;
            // The worker ends before its cgroup is dropped.
            Ok((worker, is_ready, group))
        },
        move |(mut worker, is_ready, group), recorder: &mut Recorder<'_>| {
            if is_ready {
                worker.go_on()?;
            }
            let done = match group {
                Some(_) => worker.ending()?,
                None => worker.done()?,
            };
            for (name, unit, figure) in figures {
                recorder.record(name, *unit, figure(&done));
            }
            Ok(done)
        },
        move |done, _| {
            ensure!(done.wrong == 0, "{} answers were wrong", done.wrong);
            let has_new_pages = !maps_always || done.faults >= done.all_records;
            ensure!(has_new_pages, "not each block had new pages");
            Ok(())
        },
    );
    marked(way, allocator)
}

/// Marks tenure's way and the baseline.
pub fn marked(way: Way, allocator: &Allocator) -> Way {
    match allocator.name {
        TENURE => way.tenure(),
        GLIBC => way.baseline(),
        _ => way,
    }
}
