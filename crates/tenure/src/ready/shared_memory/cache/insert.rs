//! Inserting values, and making those that are missing.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::entries::Seen;
use super::flights::{Flight, Missing, Progress};
use super::put::{New, Put};
use super::{SharedCache, SharedValue, count, record};
use crate::ground::error::Result;
use crate::ground::sys::Errno;
use crate::ground::sys::process::monotonic_coarse_nanos;
use crate::ready::shared_memory::core::Attached;
use crate::ready::shared_memory::processes::Attachment;
use crate::ready::shared_memory::table::pages_of;
use crate::verbs::volatile::Priority;

/// How long a thread that waits for a value sleeps before it looks.
const MIN_PAUSE: Duration = Duration::from_micros(50);
const MAX_PAUSE: Duration = Duration::from_millis(4);

/// A thread makes a value itself that so many others have made, and the cache did not keep.
const MAX_FAILURES: u32 = 2;

impl SharedCache {
    /// Inserts a copy of the bytes, and replaces the key's previous value in all processes.
    ///
    /// It also succeeds if memory for the value is unavailable, a limit does not allow it, or
    /// other processes insert values all the time: then the key has no value, and
    /// [`CacheStats::refused`](crate::CacheStats::refused) counts it.
    ///
    /// # Errors
    ///
    /// [`Error::SharedMemory`](crate::Error::SharedMemory) if the file was truncated, or the
    /// program has closed its descriptor.
    pub fn insert(&self, key: &[u8], value: &[u8], priority: Priority) -> Result<()> {
        let attached = self.core.attached_to_change()?;
        self.core.table.outdate(Some(self.hash(key)));
        self.replace(attached, key, value, priority, &|| true);
        Ok(())
    }

    /// Returns the value that was inserted; `None` if it was refused, or another process has
    /// removed or replaced it at the same time. `is_wanted` is asked before it is found.
    fn replace(
        &self,
        attached: &Attached,
        key: &[u8],
        value: &[u8],
        priority: Priority,
        is_wanted: &dyn Fn() -> bool,
    ) -> Option<Seen> {
        let start = record::start(key, monotonic_coarse_nanos());
        let new = New {
            hash: self.hash(key),
            parts: [&start, value],
            priority: u64::from(priority.as_u8()),
            is_wanted,
        };
        let attachment = &attached.caller();
        let put = self.put(attachment, &new);
        match put {
            Some(_) => count(&self.counts.insertions),
            None => {
                count(&self.counts.refused);
                // The previous value is out of date.
                self.remove_found(attachment, new.hash);
            }
        }
        match put? {
            Put::Inserted(seen) => Some(seen),
            Put::Overtaken | Put::Changed => None,
        }
    }

    /// Returns `None` if the value was refused.
    fn put(&self, attachment: &Attachment, new: &New<'_>) -> Option<Put> {
        let table = &self.core.table;
        let len = new.len();
        if len > table.geometry.max_bytes() {
            return None;
        }
        let bytes = pages_of(len);
        self.reserve(attachment, bytes, new)?;
        let admission = self.core.admit(attachment, bytes, new.priority).ok()?;
        let put = || {
            let mut turn = table.turn(attachment).ok_or(Errno::AGAIN)?;
            table.put(&mut turn, attachment, new)
        };
        let result = match put() {
            // The file system is full, or dead processes have claimed the whole set.
            Err(errno @ (Errno::NOSPC | Errno::BUSY)) => {
                let wanted = if errno == Errno::NOSPC { bytes } else { 0 };
                table.evict(attachment, wanted, new.priority);
                put()
            }
            result => result,
        };
        let put = result.ok()?;
        admission.mark_resident(usize::MAX);
        Some(put)
    }

    /// Gives values up until the limit of this process allows for the bytes, in the place of
    /// those of the previous value. (While one replaces the other, there are both.)
    fn reserve(&self, attachment: &Attachment, bytes: u64, new: &New<'_>) -> Option<()> {
        let Some(max_bytes) = self.options.max_bytes else {
            return Some(());
        };
        let (max_bytes, table) = (max_bytes as u64, &self.core.table);
        loop {
            let all = table.header().bytes.load(Ordering::Relaxed);
            let previous = table.find(new.hash).next();
            let previous_bytes = previous.map_or(0, |seen| table.bytes(seen));
            let all = all.saturating_add(bytes).saturating_sub(previous_bytes);
            if all <= max_bytes {
                return Some(());
            }
            // Others may insert as fast as this call evicts.
            if attachment.is_late() {
                return None;
            }
            let evicted = table.evict(attachment, all - max_bytes, new.priority);
            if evicted == Some(0) {
                return None;
            }
            // Another process evicts.
            if evicted.is_none() {
                std::thread::sleep(MIN_PAUSE);
            }
        }
    }

    /// Returns a copy of the key's value. On a miss `rebuild` makes the value, which is
    /// inserted with the default priority.
    ///
    /// Of all threads of all processes that miss it, one makes it, and the others wait for that:
    /// they look every few milliseconds, and wait neither for a process that has ended nor for
    /// one that is stopped. (Whether one of another PID namespace is, cannot be told.) If the
    /// key is inserted or removed meanwhile, the value is returned, but does not stay.
    /// Nor does it while 256 others are being made.
    /// `rebuild` may not ask for a value that waits for its own.
    ///
    /// # Errors
    ///
    /// As for [`insert`](Self::insert).
    pub fn get_or_insert_with(
        &self,
        key: &[u8],
        rebuild: impl FnOnce() -> Vec<u8>,
    ) -> Result<SharedValue> {
        if let Some(found) = self.get(key) {
            return Ok(found);
        }
        let attached = self.core.attached_to_change()?;
        let (table, hash) = (&self.core.table, self.hash(key));
        let (mut pause, mut failures) = (MIN_PAUSE, 0);
        let flight = loop {
            let (at, word) = match table.enter(attached, hash) {
                Missing::Make(flight) => break Some(flight),
                Missing::MakeAlone => break table.enter_alone(attached, hash),
                Missing::Wait { at, word } => (at, word),
            };
            let mut has_waited = false;
            loop {
                std::thread::sleep(jitter(pause));
                pause = (pause * 2).min(MAX_PAUSE);
                self.core.attached()?;
                match table.progress(&attached.attachment, at, word) {
                    Progress::Running => has_waited = true,
                    Progress::Died => break,
                    Progress::Stopped => {
                        failures = MAX_FAILURES;
                        break;
                    }
                    Progress::Ended => {
                        // One that gave way to another was never seen running.
                        failures += u32::from(has_waited);
                        break;
                    }
                }
            }
            if let Some(found) = self.look_up(key) {
                return Ok(found);
            }
            if failures >= MAX_FAILURES {
                break table.enter_alone(attached, hash);
            }
            pause = MIN_PAUSE;
        };
        self.make(attached, key, flight.as_ref(), rebuild)
    }

    fn make(
        &self,
        attached: &Attached,
        key: &[u8],
        flight: Option<&Flight<'_>>,
        rebuild: impl FnOnce() -> Vec<u8>,
    ) -> Result<SharedValue> {
        // Another has made it between the look and the entry.
        if flight.is_some()
            && let Some(found) = self.look_up(key)
        {
            return Ok(found);
        }
        let bytes = rebuild();
        // The maker may have forked, or closed descriptors.
        let now = self.core.attached_to_change()?;
        if !std::ptr::eq(now, attached) {
            return Ok(SharedValue::new(bytes, 0));
        }
        if let Some(flight) = flight.filter(|flight| !flight.is_outdated()) {
            let is_wanted = || !flight.is_outdated();
            let put = self.replace(attached, key, &bytes, Priority::default(), &is_wanted);
            if let Some(seen) = put
                && flight.is_outdated()
            {
                self.core.table.remove(&attached.attachment, seen);
            }
        }
        Ok(SharedValue::new(bytes, 0))
    }
}

/// Returns a time of half to the whole length, so that two threads do not look at the same time
/// again and again.
fn jitter(pause: Duration) -> Duration {
    let now = std::time::SystemTime::UNIX_EPOCH
        .elapsed()
        .unwrap_or_default();
    let half = pause.as_nanos() as u64 / 2;
    Duration::from_nanos(half + u64::from(now.subsec_nanos()) % half)
}
