//! Experiment: memory that the kernel may take between two uses. What does it
//! cost to let it, and to have the memory back?

mod chunk;
mod conclusion;
mod delay;
mod live;
mod reference;
mod take_back;
mod transition;

use anyhow::Result;

use super::{Settings, experiment::Experiment, statistics::Better};

/// The figure that all cases have.
const TIME: &str = "time";

/// Prepares the experiment.
pub fn experiment(settings: &Settings) -> Result<Experiment> {
    let mut notes = vec![
        "Base pages. tenure offers what has been volatile for 100 ms, or, offered at once, inside \
         the call. The loop: only tenure tells whether the contents of the last pass were lost; \
         memset alone is the floor: nothing is offered."
            .to_owned(),
    ];
    let mut cases = reference::cases(settings, &mut notes)?;
    cases.extend(transition::cases(settings, &mut notes)?);
    cases.extend(take_back::cases(settings, &mut notes)?);
    Ok(Experiment {
        title: "memory that the kernel may take between two uses".to_owned(),
        notes,
        compared: TIME,
        better: Better::Less,
        cases,
        conclude: conclusion::conclude,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::{
        clock::MonotonicClock,
        runner::{self, Repeats},
        sizes::{Room, Sizes},
    };

    #[test]
    fn every_way_finds_the_right_answer() {
        let settings = Settings {
            seed: 1,
            sizes: Sizes::Quick,
            room: Room::of_bytes(64 << 20),
        };
        let mut experiment = experiment(&settings).unwrap();
        let clock = MonotonicClock::start();
        let cases = runner::measure(&mut experiment, Repeats::ONCE, &clock, &mut || ()).unwrap();
        let loops = cases.iter().filter(|case| case.name.contains("thread"));
        assert_eq!(loops.count(), 2);
        let text = (experiment.conclude)(&cases);
        assert!(text.contains("With 2 threads the loop takes "), "{text}");
        assert!(text.contains("A transition through a handle"), "{text}");
    }

    #[test]
    fn little_memory_makes_the_sizes_smaller_and_the_reader_is_told() {
        let settings = Settings {
            seed: 1,
            sizes: Sizes::Middle,
            room: Room::of_bytes(256 << 20),
        };
        let experiment = experiment(&settings).unwrap();
        let told = experiment
            .notes
            .iter()
            .filter(|note| note.starts_with("Size: "));
        assert_eq!(told.count(), 3);
        let has = |name: &str| experiment.cases.iter().any(|case| case.name == name);
        assert!(has("10,000 others") && !has("100,000 others"));
        assert!(has("16 MiB") && has("64 MiB") && !has("1 GiB"));
    }
}
