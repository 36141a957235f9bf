//! The experiments, one for each verb.

mod cache;
mod heap;
mod lazy_free;
mod lock;
mod pool;
mod populate;
mod release;
mod volatile;

use crate::{arguments::Name, measure::prelude::*};

pub fn prepare(name: Name, settings: &Settings) -> Result<Experiment> {
    match name {
        Name::Populate => populate::experiment(settings),
        Name::Lock => lock::experiment(settings),
        Name::LazyFree => lazy_free::experiment(settings),
        Name::Volatile => volatile::experiment(settings),
        Name::Release => release::experiment(settings),
        Name::Heap => heap::experiment(settings),
        Name::Cache => cache::experiment(settings),
        Name::Pool => pool::experiment(settings),
    }
}
