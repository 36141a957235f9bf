//! How many small blocks are made and freed in a second, in the manner of the usual
//! benchmarks of allocators.

use super::allocators::Allocator;
use super::cases::{Figure, PEAK, cases_of};
use super::load_scale::LoadScale;
use crate::measure::prelude::*;
use crate::worker::job::{Job, Load, Manner};

pub const OPERATIONS: &str = "operations";
const RATE: Figure = (OPERATIONS, Unit::PerSecond, |done| done.rate);

/// A load: its title, its manner, and how many threads it needs at least.
const LOADS: [(&str, Manner, usize); 5] = [
    (
        "Half of the threads allocates 16 B to 64 KiB, half frees",
        Manner::Queue,
        2,
    ),
    (
        "Small blocks as in larson: threads exchange them",
        Manner::Larson,
        1,
    ),
    (
        "Small blocks as in cfrac: tiny, for a moment",
        Manner::Cfrac,
        1,
    ),
    (
        "Small blocks as in sh6bench: batches, freed in both orders",
        Manner::Sh6bench,
        1,
    ),
    (
        "Small blocks as in xmalloc-test: half allocates, half frees",
        Manner::Xmalloc,
        2,
    ),
];

/// Makes a case for each load and number of threads.
pub fn cases(scale: &LoadScale, all: &[Allocator]) -> Vec<Case> {
    let of_load = |&(table, manner, min_threads): &(&str, Manner, usize)| {
        let enough = scale.threads.iter().filter(move |&&n| n >= min_threads);
        let job = |&threads: &usize| {
            let load = Load {
                manner,
                threads,
                ..scale.load
            };
            (threads_text(threads), Job::Load(load))
        };
        cases_of(table, enough.map(job), None, &[RATE, PEAK], all)
    };
    let cases = LOADS.iter().flat_map(of_load);
    let pace = Pace::Usual;
    cases.map(|case| Case { pace, ..case }).collect()
}
