//! Experiment: give memory up. How long does the caller wait, and how long does
//! everybody else?

mod before;
mod parallel;
mod percentiles;
mod selection;
mod sparse;
mod ways;

use self::selection::Selection;
use crate::measure::prelude::*;

pub fn experiment(settings: &Settings) -> Result<Experiment> {
    let selection = match settings.sizes {
        Sizes::Quick => Selection::quick(settings)?,
        Sizes::Medium | Sizes::Full => Selection::large(settings)?,
    };
    let Selection { cases, mut notes } = selection;
    notes.push(format!(
        "Base pages where nothing else is said. Where waits are measured, another thread maps and \
         unmaps {} every 0.2 ms. tenure's thread is there before each sample.",
        bytes_text(ways::PROBE_LEN as f64)
    ));
    Ok(Experiment {
        title: "give up private anonymous memory".to_owned(),
        notes,
        compared: ways::CALLER,
        cases,
    })
}

#[cfg(test)]
#[path = "../../../tests/unit/release.rs"]
mod tests;
