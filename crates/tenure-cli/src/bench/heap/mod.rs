//! Experiment: unmodified programs with another malloc. How fast does it make and
//! free large blocks, and what does it hold when they are free?

mod allocators;
mod arrays;
mod burst;
mod conclusion;
mod inside;
mod job;
mod large;
mod process;
mod scale;
mod search;
mod ways;

use anyhow::Result;

use self::{allocators::Allocators, scale::Scale};
use super::{Settings, experiment::Experiment, group::Group, sizes::Sizes, statistics::Better};
use crate::text::seconds_text;

pub use self::{inside::work, process::ARGUMENT};

/// Prepares the experiment.
pub fn experiment(settings: &Settings) -> Result<Experiment> {
    let allocators = Allocators::find()?;
    let scale = Scale::of(settings, allocators.all.len())?;
    let is_quick = settings.sizes == Sizes::Quick;
    let mut notes = allocators.notes.clone();
    notes.push(format!(
        "Each sample is a process of its own, with the allocator preloaded; its loop has run for \
         {} before records count, for {}.",
        seconds_text(scale.before.as_secs_f64()),
        seconds_text(scale.counted.as_secs_f64())
    ));
    notes.push(
        "held: what is charged to the process's cgroup, or is in memory where it can have none, \
         and is not lazily free. The burst came twice; what stays is scattered in it."
            .to_owned(),
    );
    notes.extend(scale.notes.clone());
    let mut cases = search::cases(&scale, settings.seed, &allocators);
    cases.extend(burst::cases(&scale, settings.seed, &allocators));
    if !is_quick {
        cases.extend(arrays::cases(&scale, &allocators));
    }
    cases.push(large::free(&scale, &allocators));
    cases.extend(large::kill(&scale, &allocators));
    if !is_quick {
        match Group::without_limit() {
            Ok(_) => cases.extend(search::limited_cases(&scale, settings.seed, &allocators)),
            Err(why) => notes.push(format!("Nothing under a limit: {why:#}.")),
        }
    }
    Ok(Experiment {
        title: "large blocks, with one malloc and another".to_owned(),
        notes,
        compared: ways::TIME,
        better: Better::Less,
        cases,
        conclude: conclusion::conclude,
    })
}
