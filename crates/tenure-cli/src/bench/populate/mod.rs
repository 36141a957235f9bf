//! Experiment: fault a fresh mapping in.

mod check;
mod content;
mod huge_pool;
mod kind;
mod must_show;
mod selection;
mod work;

use anyhow::Result;

use self::selection::Selection;
use super::{
    Settings,
    experiment::{CaseResult, Experiment},
    sizes::Sizes,
    statistics::Better,
};
use crate::text::ratio_text;

/// Prepares the experiment.
pub fn experiment(settings: &Settings) -> Result<Experiment> {
    let Selection { cases, mut notes } = match settings.sizes {
        Sizes::Quick | Sizes::Middle => Selection::quick(settings)?,
        Sizes::Full => Selection::full(settings)?,
    };
    notes.push(
        "Base pages where nothing else is said. touch: one byte of each page; POPULATE_READ and \
         POPULATE_WRITE: one madvise; tenure's ways: with as many threads as it chooses. A memfd is empty, \
         unless it has content; a cold file is not in the page cache. MAP_POPULATE cannot be told \
         about writing to shared memory, nor about huge pages. –: the way does something else or \
         is not possible."
            .to_owned(),
    );
    if settings.sizes == Sizes::Full {
        let note = "Populate to ReadAheadThenPopulate are tenure's strategies; Auto chooses from them, \
                    or from numbers of threads. *: the best of those; the last row says how much \
                    longer Auto takes.";
        notes.push(note.to_owned());
    }
    Ok(Experiment {
        title: "fault a fresh mapping in".to_owned(),
        notes,
        compared: work::TIME,
        better: Better::Less,
        cases,
        conclude,
    })
}

fn conclude(cases: &[CaseResult]) -> String {
    let sentences = [
        against_touching(cases),
        must_show::conclude(cases),
        choices(cases),
    ];
    let sentences: Vec<String> = sentences.into_iter().flatten().collect();
    sentences.join(" ")
}

fn against_touching(cases: &[CaseResult]) -> Option<String> {
    let mut rows: Vec<(f64, &CaseResult)> = cases
        .iter()
        .filter_map(|case| Some((case.tenure()?.median, case)))
        .collect();
    rows.sort_by(|a, b| a.0.total_cmp(&b.0));
    let text = |(ratio, case): &(f64, &CaseResult)| {
        format!(
            "{} times ({}, {})",
            ratio_text(*ratio),
            case.table,
            case.name
        )
    };
    Some(format!(
        "tenure populates between {} and {} as fast as touching every page.",
        text(rows.first()?),
        text(rows.last()?)
    ))
}

fn choices(cases: &[CaseResult]) -> Option<String> {
    let choices: Vec<_> = cases
        .iter()
        .filter_map(|case| case.choice.as_ref())
        .collect();
    let within = choices
        .iter()
        .filter(|choice| choice.is_within_5_percent)
        .count();
    (!choices.is_empty()).then(|| {
        format!(
            "Auto is within 5 % of the best that it can choose from in {within} of {} cases.",
            choices.len()
        )
    })
}
