//! Purging under memory pressure.

use std::sync::Arc;

use crate::observation::stats;
use crate::verbs::volatile::arenas::{self, LiveArenas};
use crate::verbs::volatile::candidates::VolatileCandidates;
use crate::verbs::volatile::registry::{ENGINE, Object, purge_if_partial};

/// How much is purged at least before the pressure is read again.
const MIN_PURGE_BYTES: usize = 64 << 20;

/// Which part of all that is volatile is purged before that.
const PURGE_DIVISOR: usize = 8;

/// Purges a part of what is volatile: the lowest priority first, and within one priority
/// what was marked least recently.
pub(super) fn purge_lru(live: &LiveArenas) {
    let mut candidates = VolatileCandidates::unpurged(live);
    candidates.sort_by_purge_order();
    let enough_bytes = MIN_PURGE_BYTES.max(ENGINE.lock().volatile_bytes() / PURGE_DIVISOR);
    // A candidate that cannot be purged stays.
    let _ = candidates.purge(stats::PURGED_UNDER_PRESSURE_BYTES, enough_bytes);
}

/// Purges the rest of each object of which the kernel has purged a page, because the
/// program can no longer use it. (Of a plain range it may use single pages.)
pub(super) fn purge_partial_objects(live: &LiveArenas) {
    for memory in live.iter() {
        // An arena whose pages cannot be looked at stays.
        let _ = arenas::purge_partial(memory);
    }
    let objects: Vec<Arc<Object>> = ENGINE.lock().objects.volatile().cloned().collect();
    for object in objects {
        // An object that cannot be purged stays.
        let _ = purge_if_partial(&object);
    }
}
