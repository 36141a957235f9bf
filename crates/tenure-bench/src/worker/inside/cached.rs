//! A cache without a size, and a process that takes memory for a while.

use rustix::mm::MapFlags;
use tenure::VolatileCache;

use super::super::job::{Cached, Done, Job};
use super::Parent;
use crate::machine::clock::{Clock as _, MonotonicClock};
use crate::machine::zipf::Zipf;
use crate::measure::prelude::*;

/// Fills the cache by look-ups that are not counted, and then counts hits three times, each
/// time after the parent has said so.
pub fn run(cached: Cached, parent: &mut Parent) -> Result<Done> {
    let cache = VolatileCache::new();
    let mut zipf = Zipf::new(cached.keys, Cached::EXPONENT, cached.seed);
    let mut done = Done::default();
    look_up(&cache, cached, &mut zipf, &mut done)?;
    for phase in 0..done.hit_rates.len() {
        parent.wait()?;
        let hits = look_up(&cache, cached, &mut zipf, &mut done)?;
        done.hit_rates[phase] = hits as f64 / cached.lookups as f64;
    }
    Ok(done)
}

/// Looks keys up, and inserts the missing values. Returns the number of hits.
fn look_up(
    cache: &VolatileCache<usize>,
    cached: Cached,
    zipf: &mut Zipf,
    done: &mut Done,
) -> Result<usize> {
    let mut hits = 0;
    for _ in 0..cached.lookups {
        let key = zipf.draw();
        let byte = (key % 251) as u8 + 1;
        match cache.get(&key) {
            Some(value) => {
                hits += 1;
                let is_right = value.len() == cached.len
                    && (value.first(), value.last()) == (Some(&byte), Some(&byte));
                done.wrong += u64::from(!is_right);
            }
            None => {
                cache.insert_with(key, cached.len, tenure::volatile::Priority::Normal, |new| {
                    new.fill(byte);
                })?
            }
        }
    }
    Ok(hits)
}

/// Takes memory, reads it [`Job::PASSES`] times, and keeps it until the parent says.
pub fn take_and_read(len: usize, parent: &mut Parent) -> Result<Done> {
    parent.wait()?;
    let clock = MonotonicClock::start();
    let mut memory = RawMapping::anonymous(len, MapFlags::PRIVATE)?;
    memory.bytes_mut().fill(1);
    let read = |_| {
        memory
            .bytes()
            .iter()
            .map(|&byte| u64::from(byte))
            .sum::<u64>()
    };
    let sum: u64 = (0..Job::PASSES).map(read).sum();
    let seconds = clock.now().as_secs_f64();
    parent.wait()?;
    Ok(Done {
        wrong: u64::from(sum != (Job::PASSES * len) as u64),
        seconds,
        ..Done::default()
    })
}
