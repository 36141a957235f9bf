//! Experiment: memory that is volatile between two uses, and the cost of marking it
//! and of having it again.

mod arena;
mod hits;
mod large;
mod many;
mod offer;
mod refill;
mod region;
mod sparse;
mod transition;

use tenure::Features;

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
    if Features::get().sigbus_on_missing() && Features::get().madv_populate.is_ok() {
        cases.extend(offer::cases(settings, &mut notes)?);
        cases.extend(arena::cases(settings, &mut notes)?);
        cases.extend(hits::cases(settings, &mut notes)?);
        cases.extend(many::cases(settings, &mut notes)?);
        cases.extend(large::cases(settings, &mut notes)?);
        cases.extend(sparse::cases(settings, &mut notes)?);
    } else {
        notes.push("Nothing is offered: userfaultfd or MADV_POPULATE is unavailable.".to_owned());
    }
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
