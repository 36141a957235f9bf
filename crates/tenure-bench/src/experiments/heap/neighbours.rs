//! Two programs in a cgroup in which the bursts of one do not fit beside the other: memory
//! that one does not return is taken from the other by swapping.

use std::time::Duration;

use procfs::Current as _;

use super::allocators::Allocator;
use super::cases::marked;
use super::scale::MIB;
use crate::machine::group::Group;
use crate::measure::prelude::*;
use crate::worker::Worker;
use crate::worker::job::{Job, Neighbour};

const LIMIT: usize = 1024 * MIB;
/// The live memory of the program that has bursts, and of the one beside it.
const LIVE: [usize; 2] = [300 * MIB, 400 * MIB];
const BURST: usize = 600 * MIB;
const COUNTED: Duration = Duration::from_secs(12);
const RATE: &str = "records of both";

/// Makes the case, or says why there is none.
pub fn case(seed: u64, all: &[Allocator]) -> Result<Case> {
    let swap_bytes = procfs::Meminfo::current()?.swap_free;
    let wanted = LIVE[0] + LIVE[1] + BURST - LIMIT / 2;
    ensure!(
        swap_bytes >= wanted as u64,
        "it needs {} of free swap",
        bytes_text(wanted as f64)
    );
    drop(Group::with_limit_of_memory(LIMIT)?);
    let ways = all.iter().map(|allocator| way(seed, allocator)).collect();
    let [first, second, burst, limit] =
        [LIVE[0], LIVE[1], BURST, LIMIT].map(|bytes| bytes_text(bytes as f64));
    let name = format!("{first} live and bursts of {burst} beside {second} live");
    let table = format!("Two programs under a limit of {limit}, with swap");
    let case = Case::new(name, ways).in_table(&table);
    Ok(case.comparing(RATE).long())
}

fn way(seed: u64, allocator: &Allocator) -> Way {
    let environment = allocator.environment.clone();
    let way = Way::new(
        allocator.name,
        move || {
            let group = Group::with_limit_of_memory(LIMIT)?;
            let mut workers = Vec::new();
            for (live_bytes, burst_bytes) in LIVE.into_iter().zip([BURST, 0]) {
                let job = Job::Neighbour(Neighbour {
                    live_bytes,
                    burst_bytes,
                    counted: COUNTED,
                    seed,
                });
                let mut worker = Worker::start(&environment, &job, Some(&group))?;
                worker.wait_until_ready()?;
                workers.push(worker);
            }
            // The workers end before their cgroup is dropped.
            Ok((workers, group))
        },
        |(mut workers, _group), recorder: &mut Recorder<'_>| {
            for worker in &mut workers {
                worker.go_on()?;
            }
            let (mut rate, mut killed, mut wrong) = (0.0, 0.0, 0);
            for worker in &mut workers {
                let done = worker.ending()?;
                rate += done.rate;
                killed += f64::from(u8::from(done.is_killed));
                wrong += done.wrong;
            }
            recorder.record(RATE, Unit::PerSecond, rate);
            recorder.record("killed", Unit::Count, killed);
            Ok(wrong)
        },
        |wrong, _| {
            ensure!(wrong == 0, "{wrong} marks in blocks were wrong");
            Ok(())
        },
    );
    marked(way, allocator)
}
