//! Experiment: unmodified programs with another malloc. How fast does it make and free
//! large blocks, and what does it hold when they are free? And blocks of all sizes?

mod allocators;
mod burst;
mod cases;
mod load_scale;
mod loads;
mod neighbours;
mod rounds;
mod scale;
mod stages;

use self::allocators::{Allocators, GLIBC, MMAP_ALWAYS, TENURE};
use self::load_scale::LoadScale;
use self::scale::Scale;
use crate::{machine::group::Group, measure::prelude::*};

/// Prepares the experiment.
pub fn experiment(settings: &Settings) -> Result<Experiment> {
    let allocators = Allocators::find()?;
    let scale = Scale::of(settings, allocators.all.len())?;
    let mut notes = allocators.notes();
    let times = [scale.search.before, scale.search.counted];
    let [before, counted] = times.map(|time| seconds_text(time.as_secs_f64()));
    notes.push(format!(
        "Records count for {counted}, after {before}. held: charged to the process's cgroup (or in \
         memory) and not lazily free."
    ));
    notes.extend(scale.notes.clone());
    let (all, sizes) = (&allocators.all, settings.sizes);
    // A large block takes long to free.
    let mut chosen = all.clone();
    chosen.retain(|one| sizes == Sizes::Full || [GLIBC, TENURE].contains(&one.name));
    let mut cases = cases::searches(&scale, all);
    cases.extend(burst::cases(&scale, all));
    if sizes != Sizes::Quick {
        cases.extend(cases::arrays(&scale, all));
    }
    cases.extend(cases::free(scale.freed_len, &chosen));
    let background_exit = allocators.background_exit.clone();
    cases.extend(background_exit.map(|environment| cases::kill(scale.kept_len, environment)));
    if sizes != Sizes::Quick {
        match Group::without_limit() {
            Ok(_) => cases.extend(cases::limited(&scale, all)),
            Err(why) => notes.push(format!("Nothing under a limit: {why:#}.")),
        }
    }
    let mut blocks = "large blocks";
    if has_all_sizes(settings) {
        blocks = "blocks of all sizes";
        // A threshold for mmap changes nothing for small blocks.
        let mut chosen = all.clone();
        chosen.retain(|one| one.name != MMAP_ALWAYS);
        let scale = LoadScale::of(settings, chosen.len())?;
        notes.extend(scale.notes.clone());
        match neighbours::case(settings.seed, &chosen) {
            Ok(case) => cases.push(case),
            Err(why) => notes.push(format!("No two programs under one limit: {why:#}.")),
        }
        cases.extend(stages::cases(&scale, &chosen));
        cases.extend(loads::cases(&scale, &chosen));
    }
    Ok(Experiment {
        title: format!("{blocks}, with one malloc and another"),
        notes,
        compared: cases::TIME,
        cases,
    })
}

/// Says whether there is time for blocks of all sizes, and not only for large ones.
fn has_all_sizes(settings: &Settings) -> bool {
    match settings.sizes {
        Sizes::Quick => false,
        Sizes::Medium => settings.is_named,
        Sizes::Full => true,
    }
}

#[cfg(test)]
#[path = "../../../tests/unit/heap.rs"]
mod tests;
