//! Experiment: memory that is volatile between two uses, and the cost of marking it
//! and of having it again.

mod offer;
mod refill;
mod region;
mod transition;

use crate::measure::prelude::*;

/// The figure that all cases have.
const TIME: &str = "time";

/// Prepares the experiment.
pub fn experiment(settings: &Settings) -> Result<Experiment> {
    let mut notes = vec![
        "Base pages. tenure offers what has been volatile for 100 ms, or, offered at once, inside \
         the call. memset alone is the floor: nothing is offered."
            .to_owned(),
    ];
    let mut cases = refill::cases(settings, &mut notes)?;
    cases.extend(transition::cases(settings, &mut notes)?);
    cases.extend(offer::cases(settings, &mut notes)?);
    Ok(Experiment {
        title: "memory that the kernel may purge between two uses".to_owned(),
        notes,
        compared: TIME,
        cases,
    })
}

#[cfg(test)]
#[path = "../../../tests/unit/volatile.rs"]
mod tests;
