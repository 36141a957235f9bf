//! Purging under memory pressure.

use std::sync::Arc;

use crate::observation::stats;
use crate::verbs::volatile::registry::{ENGINE, Object};

/// How much is purged at least before the pressure is read again.
const MIN_PURGE_BYTES: usize = 64 << 20;

/// Which part of all that is volatile is purged before that.
const PURGE_DIVISOR: usize = 8;

/// Purges a part of what is volatile: the lowest priority first, and within one priority
/// what was marked least recently.
pub(super) fn purge_lru() {
    let (mut all, volatile_bytes) = {
        let registry = ENGINE.lock();
        let all = registry.volatile_candidates();
        let unpurged: Vec<_> = all
            .filter(|volatile| !registry.engine.has_purged(volatile.candidate.range()))
            .collect();
        (unpurged, registry.volatile_bytes())
    };
    all.sort_by_key(|volatile| (volatile.priority, volatile.timestamp));
    let enough_bytes = MIN_PURGE_BYTES.max(volatile_bytes / PURGE_DIVISOR);
    let mut purged_bytes = 0;
    for volatile in all {
        if purged_bytes >= enough_bytes {
            return;
        }
        // A lock for each, so that other threads get their turn. A candidate that cannot
        // be purged stays.
        let cause = stats::PURGED_UNDER_PRESSURE_BYTES;
        let purged = ENGINE.lock().purge_candidate(&volatile.candidate, cause);
        purged_bytes += purged.unwrap_or(0);
    }
}

/// Purges the rest of each object of which the kernel has purged a page, because the
/// program can no longer use it. (Of a plain range it may use single pages.)
pub(super) fn purge_partial_objects() {
    let objects: Vec<Arc<Object>> = ENGINE.lock().objects.volatile().cloned().collect();
    for object in objects {
        // An object that cannot be purged stays.
        let _ = ENGINE.lock().purge_if_partial(&object);
    }
}
