//! A pool for a test, and memory for it.

use std::time::{Duration, Instant};

use libtest_mimic::Completion;
use tenure::pool::{self, PoolOptions};
use tenure::pressure::{self, Level};
use tenure::{Features, HugePages, Mapping, MappingBuilder};

use super::{is_zero, skip};

pub const MIB: usize = 1 << 20;
pub const LEN: usize = 32 * MIB;
pub const LIMIT: Duration = Duration::from_secs(60);

/// UFFDIO_MOVE.
const FEATURE_MOVE: u64 = 1 << 16;

/// Returns the reason why released memory cannot enter a pool here.
pub fn missing() -> Option<&'static str> {
    let features = Features::get();
    let moves = features
        .userfaultfd
        .is_ok_and(|features| features & FEATURE_MOVE != 0);
    if !moves || features.pagemap_scan.is_err() {
        return Some("needs UFFDIO_MOVE (Linux 6.8)");
    }
    let mode = std::fs::read_to_string("/proc/sys/vm/overcommit_memory").unwrap();
    (mode.trim() == "2").then_some("nothing is deferred under strict overcommit")
}

/// Turns the pool off at the end, also of a test that fails.
pub struct Pool;

impl Pool {
    pub fn of(bytes: usize) -> Self {
        // Memory that another test has released is not for this pool.
        tenure::drain(Some(LIMIT)).unwrap();
        pool::configure(&PoolOptions::new().max_bytes(bytes)).unwrap();
        Self
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        pool::configure(&PoolOptions::new()).unwrap();
    }
}

pub fn base_pages(len: usize) -> Mapping {
    filled(Mapping::anonymous(len).huge_pages(HugePages::Never))
}

/// Memory as this machine makes it without advice: in huge pages where they are always on.
pub fn pages_without_advice(len: usize) -> Mapping {
    filled(Mapping::anonymous(len))
}

fn filled(memory: MappingBuilder<'_>) -> Mapping {
    let mut memory = memory.map().unwrap();
    memory.as_mut_slice().unwrap().fill(7);
    memory
}

pub fn recycle(memory: Mapping) {
    memory.recycle().unwrap();
    tenure::drain(Some(LIMIT)).unwrap();
}

/// Recycles filled memory until the pool has kept so much of it. An error is the reason why
/// it keeps none here.
pub fn fill_pool(bytes: usize) -> Result<(), Completion> {
    fill_pool_with(bytes, base_pages)
}

fn fill_pool_with(bytes: usize, map: fn(usize) -> Mapping) -> Result<(), Completion> {
    let start = Instant::now();
    while (pool::stats().bytes as usize) < bytes {
        if start.elapsed() > LIMIT {
            assert_ne!(pressure::level(), Level::None, "the pool has kept nothing");
            return Err(skip("memory is short, and the pool keeps nothing"));
        }
        recycle(map(LEN));
    }
    Ok(())
}

pub fn given_bytes() -> u64 {
    pool::stats().given_bytes
}

pub fn map_populated(len: usize) -> Mapping {
    let memory = Mapping::anonymous(len).huge_pages(HugePages::Never);
    memory.map_populated().unwrap()
}

/// Runs `populate` after the pool was filled, until it was given something: other threads of
/// the machine may have taken the memory meanwhile.
pub fn until_given<T>(populate: impl FnMut() -> T) -> Result<T, Completion> {
    until_given_of(base_pages, populate)
}

/// Does the same with a pool of such memory: a block of base pages suits no memory that the
/// kernel would make of huge pages, nor the other way round.
pub fn until_given_of<T>(
    map: fn(usize) -> Mapping,
    mut populate: impl FnMut() -> T,
) -> Result<T, Completion> {
    let start = Instant::now();
    loop {
        fill_pool_with(LEN, map)?;
        let before = given_bytes();
        let answer = populate();
        if given_bytes() > before {
            return Ok(answer);
        }
        assert!(start.elapsed() < LIMIT, "the pool gives nothing");
    }
}

pub fn completion(result: Result<(), Completion>) -> Completion {
    result.err().unwrap_or(Completion::Completed)
}

pub fn is_all_zero(memory: &Mapping) -> bool {
    is_zero(memory.range())
}

pub fn wait_until(mut condition: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    while !condition() {
        if start.elapsed() > LIMIT {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    true
}

/// Whether the pool prefills itself here, by the headroom that it demands.
pub fn prefill(bytes: usize) -> Result<Pool, Completion> {
    let options = PoolOptions::new().max_bytes(bytes).prefill_bytes(bytes);
    pool::configure(&options).unwrap();
    let pool = Pool;
    match wait_until(|| pool::stats().prefilled_bytes >= bytes as u64) {
        true => Ok(pool),
        false => Err(skip(
            "several GiB of memory must be left to prefill the pool",
        )),
    }
}
