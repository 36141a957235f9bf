//! Inserting values, and making those that are missing.

use std::hash::Hash;

use super::VolatileCache;
use super::flight::{End, Missing};
use super::pinned::Pinned;
use crate::ground::error::Result;
use crate::verbs::volatile::Priority;

impl<K: Hash + Eq> VolatileCache<K> {
    /// Inserts a copy of the bytes, with the default priority, and replaces the
    /// previous value of the key.
    ///
    /// It also succeeds if memory to keep the bytes is unavailable, or if they exceed the
    /// cache's [limit](super::CacheOptions::max_bytes): a value may be given up at any time, and
    /// this one is given up at once. [`CacheStats::refused`](super::CacheStats::refused) counts such values.
    ///
    /// # Errors
    ///
    /// As for [`VolatileArena::new`](crate::VolatileArena::new) and
    /// [`VolatileArena::buffer`](crate::VolatileArena::buffer), when address space for
    /// the value is unavailable; the key then has no value.
    pub fn insert(&self, key: K, bytes: &[u8]) -> Result<()> {
        self.insert_with(key, bytes.len(), Priority::default(), |value| {
            value.copy_from_slice(bytes);
        })
    }

    /// Inserts a value of `len` bytes that `fill` writes in place, with a priority:
    /// lower priorities are purged and evicted first. `fill` receives zeroed bytes, all of
    /// them resident and, of a value that has pages of its own, on a page boundary; it is
    /// not called if memory to keep them is unavailable.
    ///
    /// # Errors
    ///
    /// As for [`insert`](VolatileCache::insert).
    ///
    /// ```
    /// use tenure::{VolatileCache, volatile::Priority};
    ///
    /// let cache = VolatileCache::new();
    /// cache.insert_with(1, 4096, Priority::High, |value| value.fill(7))?;
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn insert_with(
        &self,
        key: K,
        len: usize,
        priority: Priority,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<()> {
        self.insert_counted(key, 0, len, priority, fill)
    }

    /// Does what [`insert_with`](Self::insert_with) does, and has memory admitted for the
    /// key as well: for keys that the caller has copied.
    #[doc(hidden)]
    pub fn insert_counted(
        &self,
        key: K,
        key_bytes: usize,
        len: usize,
        priority: Priority,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<()> {
        let Some(shared) = self.ours() else {
            return Ok(());
        };
        let place @ (hash, shard) = shared.shard(&key);
        match shared.make(place, (len, key_bytes), priority, fill) {
            Ok(Some(making)) => {
                drop(making.commit(key, hash, None));
                Ok(())
            }
            result => {
                // The previous value is out of date.
                if self.ours().is_some() {
                    shard.remove(hash, &key);
                }
                result.map(drop)
            }
        }
    }

    /// Pins the value of the key and returns it. On a miss `rebuild` makes the value,
    /// which is inserted with the default priority.
    ///
    /// Each missing value is made once, however many threads ask for it: one makes it, and
    /// the others wait. If `rebuild` panics, one of those that wait makes the value. No lock
    /// is held while `rebuild` runs: it may use the cache, but two makers must not ask for
    /// each other's values.
    ///
    /// If the key is inserted or removed while `rebuild` runs, or the cache is cleared or
    /// [`retain`](VolatileCache::retain) called, the value of `rebuild` may be out of date: the
    /// caller gets it, but it is not cached. The threads that wait look for the key once more.
    ///
    /// If memory to keep the value is unavailable, the bytes of `rebuild` are returned
    /// without being cached, and each of the threads makes its own.
    pub fn get_or_insert_with(&self, key: K, rebuild: impl FnOnce() -> Vec<u8>) -> Pinned {
        let made = self.get_or_try_insert_with(key, || Ok(rebuild()));
        made.unwrap_or_else(|never: std::convert::Infallible| match never {})
    }

    /// Pins the value of the key and returns it, like
    /// [`get_or_insert_with`](VolatileCache::get_or_insert_with), where making the value
    /// may fail. If `rebuild` fails, nothing is inserted, and one of the threads that wait
    /// tries next.
    ///
    /// # Errors
    ///
    /// Those of `rebuild`.
    pub fn get_or_try_insert_with<E>(
        &self,
        key: K,
        rebuild: impl FnOnce() -> Result<Vec<u8>, E>,
    ) -> Result<Pinned, E> {
        let Some(shared) = self.ours() else {
            return rebuild().map(Pinned::uncached);
        };
        let place @ (hash, shard) = shared.shard(&key);
        let mut maker = None;
        loop {
            if let Some(pinned) = shard.get(hash, &key, &shared.lookups) {
                return Ok(pinned);
            }
            // Between that look-up and this another thread may have inserted the value.
            if maker.is_some() {
                break;
            }
            match shard.flights.enter(hash) {
                Missing::Make(making) => maker = Some(making),
                Missing::MakeAgain(making) => {
                    maker = Some(making);
                    break;
                }
                Missing::Made(End::Refused) => break,
                Missing::Made(_) => {}
            }
        }
        let mut maker = maker.unwrap_or_else(|| shard.flights.enter_alone(hash));
        shared.lookups.count_miss();
        let bytes = rebuild()?;
        let fill = |value: &mut [u8]| value.copy_from_slice(&bytes);
        let making = match self.ours().filter(|_| !maker.is_outdated()) {
            Some(shared) => shared.make(place, (bytes.len(), 0), Priority::default(), fill),
            None => Ok(None),
        };
        let making = making.ok().flatten();
        let pinned = making.and_then(|making| making.commit(key, hash, Some(&maker)));
        maker.set_end(match pinned {
            Some(_) => End::Inserted,
            None if maker.is_outdated() => End::Failed,
            None => End::Refused,
        });
        Ok(pinned.unwrap_or_else(|| Pinned::uncached(bytes)))
    }
}
