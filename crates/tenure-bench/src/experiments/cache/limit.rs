//! Which values a cache keeps below a memory limit, beside a process that takes memory and
//! gives it back: a cache without a size, and LRUs of a fixed size that fit.

use super::lru::Lru;
use crate::machine::group::Group;
use crate::machine::zipf::Zipf;
use crate::measure::prelude::*;
use crate::worker::job::{Cached, Done, Job};
use crate::worker::{Environment, Worker};

const MIB: usize = 1 << 20;
const BEFORE: &str = "hit rate before";
const DURING: &str = "hit rate beside it";
const AFTER: &str = "hit rate after it";
const OTHER: &str = "the other process";

/// The memory of a process besides the values of its cache.
const PROCESS_BYTES: usize = 16 * MIB;
/// The bytes that an LRU takes on the heap for a value besides the value.
const OVERHEAD_BYTES: usize = 64;

/// Makes the case, unless no cgroup can be made.
pub fn case(settings: &Settings, notes: &mut Vec<String>) -> Result<Option<Case>> {
    // An eighth of the memory is faster.
    let parts = settings.sizes.pick(&[1, 8, 8]);
    let scale = Scale {
        limit_bytes: 128 * MIB * parts,
        other_bytes: 75 * MIB * parts,
        cached: Cached {
            keys: 20_000 * parts,
            len: 16 << 10,
            lookups: settings.sizes.pick(&[100_000, 600_000, 1_000_000]),
            seed: settings.seed,
        },
    };
    let headroom = settings.headroom.fit_nearly_all(scale.limit_bytes, MIB)?;
    if let Some(note) = headroom.note {
        notes.push(format!("No limited cache: {note}"));
        return Ok(None);
    }
    if let Err(why) = Group::with_limit(scale.limit_bytes) {
        notes.push(format!("No limited cache: {why:#}."));
        return Ok(None);
    }
    let [limit, other] = [scale.limit_bytes, scale.other_bytes].map(|len| bytes_text(len as f64));
    notes.push(format!(
        "Below a limit: look-ups by Zipf's law (exponent {}), each miss inserts the value; a \
         second process takes {other}, reads it {} times, and ends. The LRUs are those that fit \
         without it, and beside it; their hit rates are computed from the same look-ups.",
        Cached::EXPONENT,
        Job::PASSES,
    ));
    let ways = vec![
        scale.lru(scale.fitting(scale.other_bytes), true).baseline(),
        scale.lru(scale.fitting(0), false),
        scale.tenure().tenure(),
    ];
    let name = format!(
        "{} values of {} in {limit}",
        count_text(scale.cached.keys as f64),
        bytes_text(scale.cached.len as f64)
    );
    let case = Case::new(name, ways).in_table("Beside a process that takes memory for a while");
    Ok(Some(case.comparing(AFTER).long()))
}

#[derive(Clone, Copy)]
struct Scale {
    limit_bytes: usize,
    other_bytes: usize,
    cached: Cached,
}

impl Scale {
    /// Returns the number of values that an LRU can have beside a process of so many bytes.
    fn fitting(&self, other_bytes: usize) -> usize {
        let left = self.limit_bytes.saturating_sub(other_bytes + PROCESS_BYTES);
        left / (self.cached.len + OVERHEAD_BYTES)
    }

    fn lru(self, capacity: usize, fits_beside: bool) -> Way {
        let Cached {
            keys,
            lookups,
            seed,
            ..
        } = self.cached;
        Way::new(
            format!("LRU of {} values", count_text(capacity as f64)),
            || Ok(()),
            move |(), recorder| {
                let mut zipf = Zipf::new(keys, Cached::EXPONENT, seed);
                let mut lru = Lru::new(keys, capacity);
                let mut run = || {
                    let hits = (0..lookups).filter(|_| lru.hit(zipf.draw())).count();
                    hits as f64 / lookups as f64
                };
                run();
                let rates = [run(), run(), run()];
                recorder.record(BEFORE, Unit::Share, rates[0]);
                if fits_beside {
                    recorder.record(DURING, Unit::Share, rates[1]);
                }
                recorder.record(AFTER, Unit::Share, rates[2]);
                Ok(rates)
            },
            |rates, _| {
                let is_right = rates.iter().all(|rate| (0.05..1.0).contains(rate));
                ensure!(is_right, "hit rates of {rates:?}");
                Ok(())
            },
        )
    }

    fn tenure(self) -> Way {
        Way::new(
            "tenure",
            move || {
                let group = Group::with_limit(self.limit_bytes)?;
                let other = Job::TakeAndRead(self.other_bytes);
                let start = || Worker::start(&Environment::new(), &other, Some(&group));
                let mut alone = start()?;
                alone.wait_until_ready()?;
                alone.go_on()?;
                alone.wait_until_ready()?;
                alone.go_on()?;
                let alone = alone.done()?.seconds;
                let cached = Job::Cached(self.cached);
                let mut cache = Worker::start(&Environment::new(), &cached, Some(&group))?;
                cache.wait_until_ready()?;
                let mut other = start()?;
                other.wait_until_ready()?;
                Ok((cache, other, alone, group))
            },
            |(mut cache, mut other, alone, group), recorder| {
                cache.go_on()?;
                cache.wait_until_ready()?;
                // Both at once: the one takes what the other has to give up.
                cache.go_on()?;
                other.go_on()?;
                other.wait_until_ready()?;
                cache.wait_until_ready()?;
                other.go_on()?;
                let seconds = other.done()?.seconds;
                cache.go_on()?;
                let done = cache.done()?;
                let [before, during, after] = done.hit_rates;
                recorder.record(BEFORE, Unit::Share, before);
                recorder.record(DURING, Unit::Share, during);
                recorder.record(AFTER, Unit::Share, after);
                recorder.record(OTHER, Unit::Seconds, seconds);
                recorder.record("it takes, against alone", Unit::Ratio, seconds / alone);
                Ok((done, group))
            },
            |(done, _group): (Done, Group), _| {
                ensure!(done.wrong == 0, "{} values are wrong", done.wrong);
                Ok(())
            },
        )
    }
}
