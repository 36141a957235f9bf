//! The case that parallel populating is for: a large mapping, and another thread
//! that wants to map memory meanwhile.

use tenure::Access;

use super::{
    super::{
        experiment::{Case, CaseResult, Unit, Way},
        probe,
    },
    kind::Kind,
    work::{AUTO, Populate, TIME, Work},
};
use crate::text::{bytes_text, ratio_text, seconds_text};

const PROBE_LEN: usize = 64 << 10;
const OTHERS: &str = "another thread's mmap waits at most";

/// Makes the case.
pub fn case(len: usize) -> Case {
    let work = Work::whole(Kind::PrivateBase, len, Access::Write);
    // Touching by reading and writing, and MAP_POPULATE, are in the large table.
    let is_shown = |name: &str| ["touch, Write", "POPULATE_WRITE"].contains(&name);
    let mut ways: Vec<Way> = work
        .older_ways()
        .into_iter()
        .filter(|(name, _)| is_shown(name))
        .map(|way| way_beside_probe(&work, way))
        .collect();
    ways[0].is_baseline = true;
    ways.push(way_beside_probe(&work, (AUTO, work.auto())).tenure());
    let table = format!(
        "{} of private anonymous memory, Write, while another thread maps and unmaps {}",
        bytes_text(len as f64),
        bytes_text(PROBE_LEN as f64)
    );
    Case::new("private anonymous, beside another thread", ways).in_table(&table)
}

fn way_beside_probe(work: &Work, (name, populate): (&'static str, Populate)) -> Way {
    work.measured_way(name, move |recorder| {
        let clock = recorder.clock();
        let work = || recorder.time(TIME, &populate);
        let (populated, longest) = probe::longest_wait(clock, PROBE_LEN, work)?;
        recorder.record(OTHERS, Unit::Seconds, longest);
        populated
    })
}

/// Says what the data of that case say.
pub fn conclude(cases: &[CaseResult]) -> Option<String> {
    let wait = |case: &CaseResult, way: &str| {
        let figure = case.way(way)?.figure(OTHERS)?;
        Some(figure.series.median)
    };
    let case = cases.iter().find(|case| wait(case, AUTO).is_some())?;
    let older = case.ways.iter().filter(|way| !way.is_tenure);
    let parts: Option<Vec<String>> = older
        .map(|way| {
            let ratio = way.tenure_times_as_good.as_ref()?.median;
            let wait = seconds_text(wait(case, way.name)?);
            let ratio = ratio_text(ratio);
            Some(format!(
                "{ratio} times as fast as {} (wait: {wait})",
                way.name
            ))
        })
        .collect();
    Some(format!(
        "Beside another thread, which waits at most {} for its mmap, tenure is {}.",
        seconds_text(wait(case, AUTO)?),
        parts?.join(" and ")
    ))
}
