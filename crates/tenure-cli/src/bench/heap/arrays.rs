//! Large arrays.

use super::{
    super::{
        experiment::{Case, Recorder, Unit},
        statistics::Better,
    },
    allocators::Allocators,
    job::{Arrays, Done, Job},
    scale::Scale,
    ways::{FAULTS, PEAK, TIME, way},
};
use crate::text::bytes_text;

/// The table.
pub const TABLE: &str = "Large arrays";

/// What is written to, where little is: one byte in so many.
const EVERY: usize = 1 << 20;
/// How often.
const TIMES: usize = 3;
/// How long the one that grows is at first.
const FROM: usize = 1 << 20;

/// Makes the cases.
pub fn cases(scale: &Scale, allocators: &Allocators) -> Vec<Case> {
    let text = |len: usize| bytes_text(len as f64);
    let sums = scale.array_lens.iter().map(|&len| {
        let name = format!("{TIMES} × c = a + b, {}", text(len));
        (name, Arrays::Sum { len, times: TIMES })
    });
    let len = scale.sparse_len;
    let sparse = Arrays::Sparse {
        len,
        every: EVERY,
        times: TIMES,
    };
    let sparse = (format!("{TIMES} × calloc {}, sparse", text(len)), sparse);
    let (from, to) = (FROM, scale.grown_len);
    let grow = (
        format!("realloc {} to {}", text(from), text(to)),
        Arrays::Grow { from, to },
    );
    let case = |(name, arrays): (String, Arrays)| {
        let ways = allocators.all.iter();
        let ways = ways.map(|allocator| way(allocator, Job::Arrays(arrays), record));
        Case::new(name, ways.collect())
            .in_table(TABLE)
            .comparing(TIME, Better::Less)
            .long()
    };
    sums.chain([sparse, grow]).map(case).collect()
}

fn record(done: &Done, recorder: &mut Recorder<'_>) -> anyhow::Result<()> {
    recorder.record(TIME, Unit::Seconds, done.seconds);
    recorder.record(FAULTS, Unit::Count, done.faults as f64);
    recorder.record(PEAK, Unit::Bytes, done.peak_bytes as f64);
    Ok(())
}
