//! A hit on a value that another process may have made: tenure's shared cache, in a memfd and
//! by name, a database in memory, and servers behind a local socket.

mod lmdb;
mod server;

use std::os::fd::AsFd as _;

use fastrand::Rng;
use tenure::volatile::Priority;
use tenure::{CacheOptions, SharedArena, SharedCache};

use self::lmdb::Lmdb;
use self::server::{MEMCACHED, REDIS, Server};
use super::{HIT, byte_of};
use crate::measure::prelude::*;

const LEN: usize = 1 << 10;
/// So many values a process finds again and again, of which tenure keeps copies; and so many
/// that it has copies of few.
const COUNTS: [usize; 2] = [4_000, 30_000];
/// The figure of all hits: the clock adds less to their median than to their mean.
const MEDIAN: &str = "median of hits";

/// Makes the cases, with those of the others that are installed.
pub fn cases(settings: &Settings, notes: &mut Vec<String>) -> Result<Vec<Case>> {
    let all = COUNTS.map(|count| case(settings, count, notes));
    notes.dedup();
    all.into_iter().collect()
}

fn case(settings: &Settings, count: usize, notes: &mut Vec<String>) -> Result<Case> {
    let hits = settings.sizes.pick(&[50_000, 100_000, 200_000]);
    let seed = settings.seed;
    let mut others = Vec::new();
    for software in [&MEMCACHED, &REDIS] {
        let name = software.name;
        match Server::start(software) {
            Ok(_) => others.push(way(
                &format!("{name}, a local socket"),
                (count, hits),
                seed,
                move || filled(Server::start(software)?, count),
            )),
            Err(why) => notes.push(format!("No {name}: {why:#}.")),
        }
    }
    match Lmdb::open() {
        Ok(_) => others.push(way("LMDB in /dev/shm", (count, hits), seed, move || {
            filled(Lmdb::open()?, count)
        })),
        Err(why) => notes.push(format!("No LMDB: {why:#}.")),
    }
    let mut others = others.into_iter();
    let mut ways: Vec<Way> = others.next().map(Way::baseline).into_iter().collect();
    ways.extend(others);
    match Named::open() {
        Ok(_) => ways.push(way(
            "tenure, a name in /dev/shm",
            (count, hits),
            seed,
            move || filled(Named::open()?, count),
        )),
        Err(why) => notes.push(format!("No name in /dev/shm: {why:#}.")),
    }
    let start = move || filled(Memfd::new()?, count);
    ways.push(way("tenure", (count, hits), seed, start).tenure());
    let name = format!("{count} values of {}", bytes_text(LEN as f64));
    Ok(Case::new(name, ways)
        .in_table("A hit on a value that processes share")
        .comparing(MEDIAN))
}

fn filled<C: Copies>(mut cache: C, count: usize) -> Result<C> {
    (0..count).try_for_each(|key| cache.set(key))?;
    Ok(cache)
}

/// A cache that returns a copy of a value, or nothing.
trait Copies {
    /// Inserts the value of the key.
    fn set(&mut self, key: usize) -> Result<()>;

    /// Copies the value of the key, and returns whether there is one.
    fn copy(&mut self, key: usize, into: &mut Vec<u8>) -> Result<bool>;
}

fn key_of(key: usize) -> [u8; 8] {
    let mut text = [b'0'; 8];
    let mut rest = key;
    for digit in text.iter_mut().rev() {
        *digit += (rest % 10) as u8;
        rest /= 10;
    }
    text
}

fn way<C: Copies + 'static>(
    name: &str,
    (count, hits): (usize, usize),
    seed: u64,
    start: impl Fn() -> Result<C> + 'static,
) -> Way {
    Way::new(
        name,
        start,
        move |mut cache, recorder| {
            let mut rng = Rng::with_seed(seed);
            let mut value = Vec::new();
            let mut times = Vec::with_capacity(hits);
            let mut missed = 0;
            for _ in 0..hits {
                let key = rng.usize(..count);
                let (is_hit, seconds) = recorder.measure(|| cache.copy(key, &mut value));
                match is_hit? {
                    true => {
                        let is_right = value.len() == LEN && value[LEN / 2] == byte_of(key);
                        ensure!(is_right, "a wrong value");
                        times.push(seconds);
                    }
                    false => missed += 1,
                }
            }
            times.sort_by(f64::total_cmp);
            let median = times.get(times.len() / 2).context("nothing was found")?;
            recorder.record(MEDIAN, Unit::Seconds, *median);
            let mean = times.iter().sum::<f64>() / times.len() as f64;
            recorder.record(HIT, Unit::Seconds, mean);
            Ok((missed, cache))
        },
        move |(missed, _cache), _| {
            // A set of the shared cache's table may be full, and memory may be short.
            ensure!(missed <= hits / 20, "{missed} of {hits} look-ups missed");
            Ok(())
        },
    )
}

/// A cache that is attached twice, as two processes attach it: one inserts, one finds.
struct Memfd {
    maker: SharedCache,
    user: SharedCache,
}

impl Memfd {
    fn new() -> Result<Self> {
        let maker = SharedCache::new(CacheOptions::new())?;
        let fd = maker.as_fd().try_clone_to_owned()?;
        let user = SharedCache::from_fd(fd, CacheOptions::new())?;
        Ok(Self { maker, user })
    }
}

fn copy_from(cache: &SharedCache, key: usize, into: &mut Vec<u8>) -> bool {
    let found = cache.get(&key_of(key));
    into.clear();
    into.extend_from_slice(found.as_deref().unwrap_or_default());
    found.is_some()
}

impl Copies for Memfd {
    fn set(&mut self, key: usize) -> Result<()> {
        let value = [byte_of(key); LEN];
        Ok(self.maker.insert(&key_of(key), &value, Priority::Normal)?)
    }

    fn copy(&mut self, key: usize, into: &mut Vec<u8>) -> Result<bool> {
        Ok(copy_from(&self.user, key, into))
    }
}

/// A cache by name, which is removed in the end.
struct Named {
    name: String,
    cache: SharedCache,
}

impl Named {
    fn open() -> Result<Self> {
        let name = format!("bench.{}.{:x}", std::process::id(), fastrand::u64(..));
        let cache = SharedCache::open(&name, CacheOptions::new())?;
        Ok(Self { name, cache })
    }
}

impl Drop for Named {
    fn drop(&mut self) {
        // It only fails when the name was removed already.
        let _ = SharedArena::remove(&self.name);
    }
}

impl Copies for Named {
    fn set(&mut self, key: usize) -> Result<()> {
        let value = [byte_of(key); LEN];
        Ok(self.cache.insert(&key_of(key), &value, Priority::Normal)?)
    }

    fn copy(&mut self, key: usize, into: &mut Vec<u8>) -> Result<bool> {
        Ok(copy_from(&self.cache, key, into))
    }
}
