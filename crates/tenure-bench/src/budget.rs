//! How much each experiment measures, and for how long.

use std::time::Duration;

use crate::arguments::{BenchArguments, Name};
use crate::measure::{Repeats, Sizes};

/// Returns the sizes of an experiment: asked for, or else what lets all six end
/// within ten minutes, and more for those named.
pub fn sizes(name: Name, arguments: &BenchArguments) -> Sizes {
    let is_named = arguments.experiments.contains(&name);
    match name {
        _ if arguments.full => Sizes::Full,
        _ if arguments.quick => Sizes::Quick,
        Name::Populate if is_named => Sizes::Full,
        Name::LazyFree | Name::Volatile | Name::Release if !is_named => Sizes::Quick,
        _ => Sizes::Medium,
    }
}

/// The seconds of an experiment: with --quick, its medium sizes among all, when it
/// is named, and its full sizes. Long cases are not counted in them.
fn seconds(name: Name) -> [u64; 4] {
    match name {
        Name::Populate => [6, 60, 60, 100],
        Name::Lock => [3, 60, 60, 100],
        Name::LazyFree => [4, 60, 60, 100],
        Name::Volatile => [4, 240, 240, 240],
        Name::Release => [8, 270, 270, 270],
        // Ratios near 1 need many rounds.
        Name::Heap => [2, 120, 400, 800],
        Name::Pool => [20, 60, 60, 120],
        Name::Cache => [20, 90, 90, 180],
    }
}

/// Divides the minute that all six may take, or the ten; a slow machine gets fewer
/// rounds. Larger sizes have a time of their own, and long cases, which take most of it.
pub fn repeats(name: Name, sizes: Sizes, arguments: &BenchArguments) -> Repeats {
    if let Some(rounds) = arguments.rounds {
        return Repeats::exactly(rounds);
    }
    let [quick, among_all, named, full] = seconds(name).map(Duration::from_secs);
    if arguments.quick {
        return Repeats {
            rounds: 5,
            // A slow machine is to need no more than the minute, either.
            at_least: 2,
            of_long: 1,
            of_short: 21,
            within: quick,
        };
    }
    let (of_long, within) = match sizes {
        Sizes::Quick => (2, Duration::from_secs(60)),
        Sizes::Full => (3, full),
        Sizes::Medium if arguments.experiments.contains(&name) => (1, named),
        Sizes::Medium => (1, among_all),
    };
    Repeats {
        rounds: 11,
        at_least: 3,
        of_long: match name {
            Name::Heap | Name::Pool => of_long.max(2),
            _ => of_long,
        },
        of_short: 41,
        within,
    }
}

#[cfg(test)]
#[path = "../tests/unit/budget.rs"]
mod tests;
