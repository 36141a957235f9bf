//! `SharedCache`: a cache that processes share.

mod entries;
mod flights;
mod hash;
mod insert;
mod put;
mod record;
mod remove;
mod value;

pub use value::SharedValue;

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use self::record::Record;
use super::core::Core;
use super::file;
use super::layout::{Geometry, Kind, SET};
use super::table::Table;
use crate::ground::error::Result;
use crate::ground::sys::Errno;
use crate::ground::sys::process::{mem_total_bytes, monotonic_coarse_nanos};
use crate::observation::stats::{CACHE_HITS, CACHE_MISSES};
use crate::ready::volatile_cache::{CacheOptions, CacheStats};

/// A cache that several processes share: what one of them has inserted, all find, without a
/// server, and without a size. It keeps as many values as memory allows; under
/// [pressure](crate::pressure) any of the processes gives values up.
///
/// ```
/// use tenure::{CacheOptions, SharedCache, volatile::Priority};
/// # if std::fs::exists("/dev/shm")? {
/// # let name = &format!("example.{}", std::process::id());
///
/// let cache = SharedCache::open(name, CacheOptions::new())?;
/// cache.insert(b"answer", b"42", Priority::Normal)?;
///
/// // In another process:
/// let cache = SharedCache::open(name, CacheOptions::new())?;
/// let answer = cache.get_or_insert_with(b"answer", || b"42".to_vec())?;
/// assert_eq!(&answer[..], b"42");
/// # tenure::SharedArena::remove(name)?;
/// # }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// A value that is found is copied to memory of the process ([`SharedValue`]), so that it does
/// not change, and nobody waits for its reader: a look-up waits for no lock and pins nothing. Of
/// small values (2 KiB) that it finds repeatedly a process keeps up to 4,096 copies (8 MiB) until
/// there is pressure, which makes finding them several times as fast. A value
/// that replaces another is written beside it, and takes its place in one step: until then the
/// previous one is found, also if the process is killed meanwhile, and afterwards never again.
///
/// # What it keeps
///
/// A value takes whole pages, with its key and 16 bytes. Values of more than 4 GiB (with pages of
/// 4 KiB) are refused. The number of values is limited by the table that is made with the file:
/// one for 8 KiB of the machine's memory, 2^18 at most, each of which takes 56 bytes. A key can
/// be in one of 8 places; if there is a value in each, the one of the lowest priority that was
/// used least recently goes.
///
/// Values are given up as the buffers of a [`SharedArena`](super::SharedArena) are purged. Names,
/// what is checked of a file, processes that end, and forks are as described there. A
/// value that a process was inserting when it was killed is dropped.
pub struct SharedCache {
    core: Core,
    options: CacheOptions,
    counts: Counts,
}

/// How often a call begins anew because other processes have changed what it has seen.
const MAX_TRIES: usize = 16;

/// A look-up copies the key of a larger value before it takes memory for the value.
const LARGE_BYTES: u64 = 1 << 20;

/// The use of this value of [`SharedCache`].
#[derive(Debug, Default)]
struct Counts {
    hits: AtomicU64,
    misses: AtomicU64,
    insertions: AtomicU64,
    refused: AtomicU64,
    removed: AtomicU64,
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl SharedCache {
    /// Makes a cache without a name, whose descriptor can be passed on: `memfd_create(2)`.
    ///
    /// # Errors
    ///
    /// As for [`SharedArena::new`](super::SharedArena::new).
    pub fn new(options: CacheOptions) -> Result<Self> {
        Self::of(file::create_memfd(geometry(options)?)?, options)
    }

    /// Opens the cache of a name, or makes one. The options are those of this process.
    ///
    /// # Errors
    ///
    /// As for [`SharedArena::open`](super::SharedArena::open).
    pub fn open(name: &str, options: CacheOptions) -> Result<Self> {
        let geometry = geometry(options)?;
        Self::of(file::open_or_create(name, || geometry)?, options)
    }

    /// Attaches the cache of a descriptor that another process has passed on.
    ///
    /// # Errors
    ///
    /// As for [`SharedArena::from_fd`](super::SharedArena::from_fd).
    pub fn from_fd(fd: OwnedFd, options: CacheOptions) -> Result<Self> {
        Self::of(file::open_memfd(fd)?, options)
    }

    fn of(table: Table, options: CacheOptions) -> Result<Self> {
        if table.geometry.kind != Kind::Cache {
            return Err(table.refused("it is an arena, and no cache", Errno::PROTO));
        }
        Ok(Self {
            core: Core::new(table)?,
            options,
            counts: Counts::default(),
        })
    }

    /// Returns a copy of the key's value; `None` if there is none, if it has expired, or if
    /// the file was truncated.
    pub fn get(&self, key: &[u8]) -> Option<SharedValue> {
        let found = self.look_up(key);
        match found {
            Some(_) => {
                CACHE_HITS.count();
                count(&self.counts.hits);
            }
            None => {
                CACHE_MISSES.count();
                count(&self.counts.misses);
            }
        }
        found
    }

    fn look_up(&self, key: &[u8]) -> Option<SharedValue> {
        let attached = self.core.attached().ok()?;
        let (table, hash) = (&self.core.table, self.hash(key));
        for tries in 1..=MAX_TRIES {
            // Others replace the value faster than it is copied: they wait for one copy.
            let is_last = tries == MAX_TRIES;
            let _turn = is_last.then(|| table.turn(&attached.caller()));
            let mut has_changed = false;
            let mut values = table.find(hash);
            while let Some(seen) = values.next() {
                // Memory is taken for the key's value only, whatever the table says.
                let is_small = || table.bytes(seen) <= LARGE_BYTES;
                let has_key = || table.has_key(seen, key);
                let known = attached.copies.get(seen.generation);
                let found = match known.filter(|_| table.is_unchanged(seen)) {
                    Some(bytes) => Some(bytes),
                    None if is_small() || has_key() => table.copy(seen).inspect(|bytes| {
                        attached.copies.keep(seen.generation, bytes);
                    }),
                    None => None,
                };
                let Some(bytes) = found else {
                    has_changed |= !table.is_unchanged(seen);
                    continue;
                };
                // Once the newer value was found, the older one is never found again.
                table.doom_older(seen, values);
                let record = Record::parse(&bytes)?;
                if record.key != key || self.is_expired(record.made_at) {
                    return None;
                }
                table.record_use(seen);
                let value_at = record.value_at;
                return Some(SharedValue::new(bytes, value_at));
            }
            // It was purged, or replaced: then there is another one.
            if !has_changed {
                break;
            }
        }
        None
    }

    /// Whether [`get`](Self::get) would find a value at this moment. It copies the value, too,
    /// and counts as a use.
    pub fn contains_key(&self, key: &[u8]) -> bool {
        self.look_up(key).is_some()
    }

    /// Returns what this value was used for (hits, misses, insertions, refused, removed); what
    /// all processes have given up (evicted); and what the cache has now.
    ///
    /// # Errors
    ///
    /// As for [`insert`](Self::insert).
    pub fn stats(&self) -> Result<CacheStats> {
        self.core.attached()?;
        let table = &self.core.table;
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (values, bytes) = table.count_values();
        Ok(CacheStats {
            hits: read(&self.counts.hits),
            misses: read(&self.counts.misses),
            insertions: read(&self.counts.insertions),
            refused: read(&self.counts.refused),
            removed: read(&self.counts.removed),
            evicted: read(&table.header().purged),
            evicted_bytes: read(&table.header().purged_bytes),
            values,
            bytes,
            ..CacheStats::default()
        })
    }

    fn hash(&self, key: &[u8]) -> u64 {
        hash::hash(self.core.table.geometry.seed, key)
    }

    fn is_expired(&self, made_at: u64) -> bool {
        self.options.time_to_live.is_some_and(|lifetime| {
            let age = monotonic_coarse_nanos().saturating_sub(made_at);
            u128::from(age) >= lifetime.as_nanos()
        })
    }
}

fn geometry(options: CacheOptions) -> Result<Geometry> {
    let memory_bytes = mem_total_bytes().unwrap_or(1 << 30);
    let max_bytes = options.max_bytes.unwrap_or(memory_bytes).min(memory_bytes);
    let random = || {
        use std::hash::{BuildHasher, RandomState};
        RandomState::new().hash_one(0)
    };
    Ok(Geometry {
        kind: Kind::Cache,
        count: (max_bytes >> 13)
            .next_power_of_two()
            .clamp(128 * SET, 1 << 18),
        seed: [random(), random()],
    })
}

impl AsFd for SharedCache {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.core.table.fd()
    }
}

impl fmt::Debug for SharedCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedCache")
            .field("name", &self.core.table.name)
            .finish_non_exhaustive()
    }
}
