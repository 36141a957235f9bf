//! The experiments, one for each verb.

mod free;
mod heap;
mod lazy;
mod lock;
mod populate;
mod volatile;

use crate::{arguments::Name, measure::prelude::*};

pub fn prepare(name: Name, settings: &Settings) -> Result<Experiment> {
    match name {
        Name::Populate => populate::experiment(settings),
        Name::Lock => lock::experiment(settings),
        Name::Lazy => lazy::experiment(settings),
        Name::Volatile => volatile::experiment(settings),
        Name::Free => free::experiment(settings),
        Name::Heap => heap::experiment(settings),
    }
}
