//! Experiment: fault a fresh mapping in.

mod check;
mod content;
mod huge_pool;
mod kind;
mod selection;
mod way;
mod work;

use self::selection::Selection;
use crate::measure::prelude::*;

/// Prepares the experiment.
pub fn experiment(settings: &Settings) -> Result<Experiment> {
    let mut selection = Selection::default();
    match settings.sizes {
        Sizes::Quick | Sizes::Medium => selection.quick(settings)?,
        Sizes::Full => selection.full(settings)?,
    }
    let Selection { cases, mut notes } = selection;
    let note = "touch: one byte of each page. –: the way is not possible, or does something else.";
    notes.push(note.to_owned());
    if settings.sizes == Sizes::Full {
        let note = "*: the best of tenure's strategies, or numbers of threads; Auto chooses one.";
        notes.push(note.to_owned());
    }
    Ok(Experiment {
        title: "fault a fresh mapping in".to_owned(),
        notes,
        compared: work::TIME,
        cases,
    })
}

#[cfg(test)]
#[path = "../../../tests/unit/populate.rs"]
mod tests;
