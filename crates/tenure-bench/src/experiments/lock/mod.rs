//! Experiment: read a mapped file at random while what has been read stays locked in
//! memory.

mod data;
mod handler;
mod mappings;
mod stream;
mod wait;
mod ways;

use std::rc::Rc;

use self::data::{Cache, Data, Reads};
use self::mappings::MappingHeadroom;
use crate::measure::prelude::*;

/// As in the reference: 15,000,000 reads in 5 GiB.
const READS_PER_GIB: u64 = 3_000_000;
/// So few that the slow ways end within the minute for all experiments.
const FEW_READS: u64 = 10_000;

/// Prepares the experiment.
pub fn experiment(settings: &Settings) -> Result<Experiment> {
    let (sizes, headroom, seed) = (settings.sizes, &settings.headroom, settings.seed);
    let wanted_len = sizes.pick(&[256 << 20, 512 << 20, 5 << 30]);
    let page = tenure::page_size();
    let step = 16 * page;
    // The file is in memory once: what is locked is the page cache itself.
    let by_memory = headroom.fit(wanted_len, 2, step)?;
    let by_limit = fit_to_lock(by_memory.len, step)?;
    let arrays = headroom.fit(3 * stream::ARRAY_LEN, 8, 3 * page)?;
    let data = Rc::new(Data::make(by_limit.len, seed)?);
    let size = bytes_text(data.len as f64);

    let reads = (READS_PER_GIB * data.len as u64) >> 30;
    let fast = Rc::new(Reads::choose(&data, reads, seed)?);
    let every = match sizes {
        Sizes::Quick if reads > FEW_READS => Rc::new(Reads::choose(&data, FEW_READS, seed)?),
        _ => fast.clone(),
    };
    // Headroom for all reads is headroom for fewer of them.
    let needs = ways::STEPS.map(|(name, step)| (name, fast.mappings(step)));
    let mappings = MappingHeadroom::make(needs.into())?;

    let mut notes: Vec<String> = by_memory.note.into_iter().chain(by_limit.note).collect();
    notes.extend(arrays.note.map(|note| format!("The three arrays: {note}")));
    notes.push("total: set up + reads.".to_owned());
    if !data.can_be_cold {
        let note = "Nothing is cold: TMPDIR keeps the file in memory (a tmpfs?).";
        notes.push(note.to_owned());
    }
    notes.extend(mappings.notes());
    // Makes a case of those ways that can finish.
    let case = |which: &str, reads: &Rc<Reads>, cache: Cache, is_shown: fn(&Way) -> bool| {
        let mut ways = ways::all(reads, cache);
        ways.retain(|way| is_shown(way) && mappings.lets_finish(&way.name));
        let ways = ways.into_iter().map(|way| way.holding(mappings.limit()));
        let (cache, reads) = (cache.as_str(), count_text(reads.count as f64));
        let title = format!("{which}{reads} reads, page cache {cache}");
        Case::new(cache, ways.collect()).in_table(&title)
    };
    let mut caches = vec![Cache::Faulted];
    if data.can_be_cold {
        caches = vec![Cache::Cold, Cache::Faulted, Cache::Read];
    }
    // All ways, as the reference has them: the file comes from the disk.
    let all = case("All ways, ", &every, caches[0], |_| true).long();
    // Many rounds tell the ways that compete apart.
    caches.retain(|&cache| sizes != Sizes::Quick || cache == Cache::Faulted);
    let is_competing = |way: &Way| ways::COMPETING.contains(&&*way.name);
    let competing = |cache| case("", &fast, cache, is_competing);
    let mut cases: Vec<Case> = caches.into_iter().map(competing).collect();
    cases.push(all);
    cases.push(stream::case(&data, arrays.len / 3));
    cases.push(wait::case(&data));
    Ok(Experiment {
        title: format!("random reads in a mapped file of {size}, locking what is read"),
        notes,
        compared: ways::TOTAL,
        cases,
    })
}

#[cfg(test)]
#[path = "../../../tests/unit/lock.rs"]
mod tests;
