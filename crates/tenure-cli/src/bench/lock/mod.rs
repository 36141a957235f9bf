//! Experiment: read a mapped file at random while what has been read stays
//! locked in memory.

mod conclusion;
mod data;
mod map_count;
mod stream;
mod ways;
mod work;

use std::rc::Rc;

use anyhow::Result;

use self::{
    data::{Cache, Data},
    map_count::RoomForMappings,
    work::Work,
};
use super::{
    Settings,
    experiment::{Case, Experiment, Way},
    sizes::{self, Sizes},
    statistics::Better,
};
use crate::text::{bytes_text, count_text};

/// As in the reference: 15,000,000 reads in 5 GiB.
const READS_PER_GIB: u64 = 3_000_000;
/// What the slow ways can do within the minute for all experiments.
const FEW_READS: u64 = 10_000;

/// Prepares the experiment.
pub fn experiment(settings: &Settings) -> Result<Experiment> {
    let wanted_len = match settings.sizes {
        Sizes::Quick => 256 << 20,
        Sizes::Middle => 512 << 20,
        Sizes::Full => 5 << 30,
    };
    let page = tenure::page_size();
    let step = 16 * page;
    // The file is in memory once: what is locked is the page cache itself.
    let by_memory = settings.room.fit(wanted_len, 2, step)?;
    let by_limit = sizes::fit_to_lock(by_memory.len, step)?;
    let arrays = settings.room.fit(3 * stream::ARRAY_LEN, 8, 3 * page)?;
    let len = by_limit.len;

    let data = Rc::new(Data::make(len, settings.seed)?);
    let reads = (READS_PER_GIB * len as u64) >> 30;
    let choose = |reads| Work::choose(&data, reads, settings.seed).map(Rc::new);
    let fast = choose(reads)?;
    let every = match settings.sizes {
        Sizes::Quick if reads > FEW_READS => choose(FEW_READS)?,
        _ => fast.clone(),
    };
    // Room for all reads is room for fewer of them.
    let needs = ways::STEPS.map(|(name, step)| (name, fast.mappings(step)));
    let room = RoomForMappings::make(&needs)?;

    let mut notes: Vec<String> = by_memory.note.into_iter().chain(by_limit.note).collect();
    notes.extend(arrays.note.map(|note| format!("The three arrays: {note}")));
    notes.push(
        "Plain mmap is the floor: nothing stays. total: set up + reads. The reference makes \
         15,000,000 reads in 5 GiB, cold (--full)."
            .to_owned(),
    );
    notes.push(if data.can_be_cold {
        "Cold: the file is dropped from the page cache before each sample. What faults bring in \
         is kept in small pieces, which cost more to map and to lock than the large ones that \
         reading makes, where the kernel has them."
            .to_owned()
    } else {
        "Nothing is cold: the file system under TMPDIR keeps the file in memory (a tmpfs?)."
            .to_owned()
    });
    notes.extend(room.notes());
    Ok(Experiment {
        title: format!(
            "random reads in a mapped file of {}, locking what is read",
            bytes_text(len as f64)
        ),
        notes,
        compared: ways::TOTAL,
        better: Better::Less,
        cases: cases(settings.sizes, &every, &fast, &room, arrays.len / 3),
        conclude: conclusion::conclude,
    })
}

fn cases(
    sizes: Sizes,
    every: &Rc<Work>,
    fast: &Rc<Work>,
    room: &RoomForMappings,
    array_len: usize,
) -> Vec<Case> {
    let data = &fast.data;
    // Many rounds tell the ways that compete apart.
    let caches: &[Cache] = match sizes {
        Sizes::Middle | Sizes::Full if data.can_be_cold => {
            &[Cache::Cold, Cache::Faulted, Cache::Read]
        }
        _ => &[Cache::Faulted],
    };
    let mut cases = Vec::new();
    for &cache in caches {
        let competing = ways::all(fast, cache).into_iter();
        let competing = competing.filter(|way| ways::COMPETING.contains(&way.name));
        cases.push(case("", fast, cache, room, competing));
    }
    // As the reference has them, all ways: the file comes from the disk.
    let cache = if data.can_be_cold {
        Cache::Cold
    } else {
        Cache::Faulted
    };
    let all = ways::all(every, cache).into_iter();
    cases.push(case("All ways, ", every, cache, room, all).long());
    cases.push(stream::case(data, array_len));
    cases
}

/// Makes a case of those of the `ways` that can finish.
fn case(
    which: &str,
    work: &Work,
    cache: Cache,
    room: &RoomForMappings,
    ways: impl Iterator<Item = Way>,
) -> Case {
    let ways = ways.filter(|way| room.lets_finish(way.name));
    let ways = ways.map(|way| way.holding(room.limit()));
    let reads = count_text(work.reads as f64);
    let title = format!("{which}{reads} reads, page cache {}", cache.as_str());
    Case::new(cache.as_str(), ways.collect()).in_table(&title)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::{
        clock::MonotonicClock,
        runner::{self, Repeats},
        sizes::Room,
    };

    #[test]
    fn every_way_finds_the_right_answer() {
        let settings = Settings {
            seed: 1,
            sizes: Sizes::Middle,
            room: Room::of_bytes(4 << 20),
        };
        let mut experiment = experiment(&settings).unwrap();
        let clock = MonotonicClock::start();
        let cases = runner::measure(&mut experiment, Repeats::ONCE, &clock, &mut || ()).unwrap();
        let all = cases.iter().find(|case| case.table.starts_with("All ways"));
        let names: Vec<_> = all.unwrap().ways.iter().map(|way| way.name).collect();
        assert_eq!(names.len(), 7);
        assert_eq!((names[0], names[6]), (ways::PLAIN, ways::TENURE));
        let text = (experiment.conclude)(&cases);
        assert!(text.contains("(mlock of the whole in "), "{text}");
        assert!(text.contains("beside a locked file"), "{text}");
    }
}
