//! Experiment: give memory up. How long does the caller wait, and how long does
//! everybody else?

mod conclusion;
mod kill;
mod memory;
mod parallel;
mod selection;
mod sparse;
mod ways;

use anyhow::Result;

use self::selection::Selection;
use super::{Settings, experiment::Experiment, sizes::Sizes, statistics::Better};
use crate::text::bytes_text;

/// Prepares the experiment.
pub fn experiment(settings: &Settings) -> Result<Experiment> {
    let is_quick = settings.sizes == Sizes::Quick;
    let Selection { cases, mut notes } = if is_quick {
        Selection::quick(settings)?
    } else {
        Selection::large(settings)?
    };
    let probed = if is_quick {
        "While the range is given up, another thread"
    } else {
        "Where waits are measured, and only there, another thread"
    };
    notes.push(format!(
        "All in memory, in base pages where nothing else is said. {probed} maps and unmaps {} \
         every 0.2 ms.",
        bytes_text(ways::PROBE_LEN as f64)
    ));
    notes.push(
        "tenure has freed 16 MiB just before each sample, so that its thread is there: it stays \
         for 10 s, and a release after that also starts one."
            .to_owned(),
    );
    if !is_quick {
        notes.push(
            "MADV_DONTNEED, munmap: the first frees the pages, in one call or in chunks. Threads are \
             there before the clock starts, and the caller waits for them. Of a killed process the \
             caller waits from kill to the end of waitpid."
                .to_owned(),
        );
    }
    Ok(Experiment {
        title: "give up private anonymous memory".to_owned(),
        notes,
        compared: ways::CALLER,
        better: Better::Less,
        cases,
        conclude: conclusion::conclude,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::{
        alone::alone,
        clock::MonotonicClock,
        runner::{self, Repeats},
        sizes::Room,
    };

    #[test]
    fn every_way_gives_the_memory_back() {
        alone(
            "bench::free::tests::every_way_gives_the_memory_back",
            || {
                for (sizes, least) in [(Sizes::Quick, 2), (Sizes::Full, 8)] {
                    let settings = Settings {
                        seed: 1,
                        sizes,
                        room: Room::of_bytes(200 << 20),
                    };
                    let mut experiment = experiment(&settings).unwrap();
                    let clock = MonotonicClock::start();
                    let cases = runner::measure(&mut experiment, Repeats::ONCE, &clock, &mut || ())
                        .unwrap();
                    assert!(cases.len() >= least);
                    let text = (experiment.conclude)(&cases);
                    assert!(text.contains("the caller waits "), "{text}");
                    assert!(text.contains("another thread waits at most "), "{text}");
                    let is_killed = text.contains("with tear-down");
                    assert_eq!(is_killed, sizes != Sizes::Quick, "{text}");
                }
            },
        );
    }
}
