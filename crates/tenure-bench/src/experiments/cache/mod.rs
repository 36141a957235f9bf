//! Experiment: caches of values. What a hit takes, and which values a cache keeps beside a
//! process that takes memory and gives it back.

mod hits;
mod limit;
mod lru;
mod offered;
mod shared;

use crate::measure::prelude::*;

/// The time that a hit takes a thread.
const HIT: &str = "hit";

/// Prepares the experiment.
pub fn experiment(settings: &Settings) -> Result<Experiment> {
    let mut notes = Vec::new();
    let mut cases = hits::cases(settings, &mut notes)?;
    cases.extend(offered::case(settings, &mut notes)?);
    cases.extend(shared::cases(settings, &mut notes)?);
    cases.extend(limit::case(settings, &mut notes)?);
    Ok(Experiment {
        title: "caches of values".to_owned(),
        notes,
        compared: HIT,
        cases,
    })
}

/// Returns the byte that fills the value of a key.
fn byte_of(key: usize) -> u8 {
    (key % 251) as u8
}

#[cfg(test)]
#[path = "../../../tests/unit/cache.rs"]
mod tests;
