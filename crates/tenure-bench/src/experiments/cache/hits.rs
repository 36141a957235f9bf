//! Hits on values that were used lately, in several threads, of tenure's cache and of caches
//! with a fixed size, which keep their values on the heap.

use std::sync::{Arc, Barrier};
use std::time::Duration;

use fastrand::Rng;
use rustix::time::{ClockId, clock_gettime};
use tenure::VolatileCache;

use super::{HIT, byte_of};
use crate::machine::threads::in_threads;
use crate::measure::prelude::*;

const HITS: &str = "hits";
const LEN: usize = 256;
const FEW: usize = 10_000;
const MANY: usize = 100_000;

/// Makes a case for each number of threads, and with many values for the fewest and the most.
pub fn cases(settings: &Settings, notes: &mut Vec<String>) -> Result<Vec<Case>> {
    notes.push(
        "Hits: each thread asks for random keys, all of which are cached, and reads a byte of the \
         value. A hit is CPU time of the thread; hits are those of all threads in a second."
            .to_owned(),
    );
    let hits = settings.sizes.pick(&[100_000, 1_000_000, 2_000_000]);
    let fitted = settings.headroom.fit(MANY * LEN, 8, page_size())?;
    ensure!(fitted.note.is_none(), "too little memory for a cache");
    let case = |(values, threads): (usize, usize)| {
        let work = Work {
            threads,
            values,
            hits,
            seed: settings.seed,
        };
        let ways = vec![
            work.way::<quick_cache::sync::Cache<u64, Arc<[u8]>>>("quick_cache")
                .baseline(),
            work.way::<moka::sync::Cache<u64, Arc<[u8]>>>("moka"),
            work.way::<VolatileCache<u64>>("tenure").tenure(),
        ];
        let table = format!(
            "Hits on {} values of {LEN} bytes",
            count_text(values as f64)
        );
        Case::new(threads_text(threads), ways).in_table(&table)
    };
    let few = [1, 2, 4, 8].map(|threads| (FEW, threads));
    let many = [1, 8].map(|threads| (MANY, threads));
    Ok(few.into_iter().chain(many).map(case).collect())
}

/// A cache that has a value for each key below a number.
trait Filled: Sized + Sync {
    fn filled(values: usize) -> Result<Self>;

    /// Returns a byte of the value.
    fn hit(&self, key: u64) -> Option<u8>;
}

fn value(key: usize) -> Arc<[u8]> {
    vec![byte_of(key); LEN].into()
}

impl Filled for VolatileCache<u64> {
    fn filled(values: usize) -> Result<Self> {
        let cache = Self::new();
        for key in 0..values {
            cache.insert(key as u64, &value(key))?;
        }
        Ok(cache)
    }

    fn hit(&self, key: u64) -> Option<u8> {
        Some(self.get(&key)?[LEN / 2])
    }
}

impl Filled for quick_cache::sync::Cache<u64, Arc<[u8]>> {
    fn filled(values: usize) -> Result<Self> {
        // Twice the number, so that no shard is full.
        let cache = Self::new(2 * values);
        (0..values).for_each(|key| cache.insert(key as u64, value(key)));
        Ok(cache)
    }

    fn hit(&self, key: u64) -> Option<u8> {
        Some(self.get(&key)?[LEN / 2])
    }
}

impl Filled for moka::sync::Cache<u64, Arc<[u8]>> {
    fn filled(values: usize) -> Result<Self> {
        let cache = Self::new(2 * values as u64);
        (0..values).for_each(|key| cache.insert(key as u64, value(key)));
        cache.run_pending_tasks();
        Ok(cache)
    }

    fn hit(&self, key: u64) -> Option<u8> {
        Some(self.get(&key)?[LEN / 2])
    }
}

#[derive(Clone, Copy)]
struct Work {
    threads: usize,
    values: usize,
    /// Of all threads.
    hits: usize,
    seed: u64,
}

impl Work {
    fn way<C: Filled + 'static>(self, name: &str) -> Way {
        Way::new(
            name,
            move || C::filled(self.values),
            move |cache, recorder| self.hit_all(&cache, recorder),
            move |misses, _| {
                // The kernel may have purged some.
                let max_misses = self.hits as u64 / 100;
                ensure!(misses <= max_misses, "{misses} of {} missed", self.hits);
                Ok(())
            },
        )
    }

    /// Returns how many look-ups missed.
    fn hit_all<C: Filled>(self, cache: &C, recorder: &mut Recorder<'_>) -> Result<u64> {
        let clock = recorder.clock();
        let begin = Barrier::new(self.threads);
        let count = self.hits / self.threads;
        let done = in_threads(0..self.threads, |number| {
            let mut rng = Rng::with_seed(self.seed ^ (number as u64) << 32);
            let mut misses = 0;
            begin.wait();
            let (start, cpu_start) = (clock.now(), thread_time());
            for _ in 0..count {
                let key = rng.usize(..self.values);
                match cache.hit(key as u64) {
                    Some(byte) => ensure!(byte == byte_of(key), "a wrong value"),
                    None => misses += 1,
                }
            }
            Ok((start, clock.now(), thread_time() - cpu_start, misses))
        })?;
        let start = done.iter().map(|one| one.0).min().unwrap_or_default();
        let end = done.iter().map(|one| one.1).max().unwrap_or_default();
        let cpu: Duration = done.iter().map(|one| one.2).sum();
        let hits = (count * self.threads) as f64;
        recorder.record(HIT, Unit::Seconds, cpu.as_secs_f64() / hits);
        let rate = hits / (end - start).as_secs_f64();
        recorder.record(HITS, Unit::PerSecond, rate);
        Ok(done.iter().map(|one| one.3).sum())
    }
}

fn thread_time() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}
