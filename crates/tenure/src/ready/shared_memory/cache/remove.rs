//! Removing values.

use std::sync::atomic::Ordering;

use super::entries::Seen;
use super::{MAX_TRIES, SharedCache, count};
use crate::ready::shared_memory::processes::Attachment;
use crate::ready::shared_memory::table::Table;

impl SharedCache {
    /// Removes the key's value in all processes. Returns whether there was one.
    pub fn remove(&self, key: &[u8]) -> bool {
        let Ok(attached) = self.core.attached_to_change() else {
            return false;
        };
        self.core.table.outdate(Some(self.hash(key)));
        let is_removed = self.remove_found(&attached.caller(), self.hash(key));
        if is_removed {
            count(&self.counts.removed);
        }
        is_removed
    }

    /// Removes the values of a hash. Returns whether there was one.
    pub(super) fn remove_found(&self, attachment: &Attachment, hash: u64) -> bool {
        let table = &self.core.table;
        let mut is_removed = false;
        for _ in 0..MAX_TRIES {
            let mut has_changed = false;
            for seen in table.find(hash) {
                match table.remove(attachment, seen) {
                    true => is_removed = true,
                    false => has_changed = true,
                }
            }
            // Another process may have replaced a value at this moment.
            if !has_changed {
                break;
            }
        }
        is_removed
    }

    /// Removes the values for whose keys `keep` returns `false`. Returns how many.
    pub fn retain(&self, mut keep: impl FnMut(&[u8]) -> bool) -> usize {
        self.remove_where(|table, seen| {
            let key = table.copy_key(seen);
            key.is_some_and(|key| !keep(&key))
        })
    }

    /// Removes all values.
    pub fn clear(&self) {
        self.remove_where(|_, _| true);
    }

    fn remove_where(&self, mut is_removed: impl FnMut(&Table, Seen) -> bool) -> usize {
        let Ok(attached) = self.core.attached_to_change() else {
            return 0;
        };
        let table = &self.core.table;
        table.outdate(None);
        let values = table.values();
        let removed = values
            .filter(|&seen| is_removed(table, seen) && table.remove(&attached.attachment, seen));
        let removed = removed.count();
        let counter = &self.counts.removed;
        counter.fetch_add(removed as u64, Ordering::Relaxed);
        removed
    }
}
