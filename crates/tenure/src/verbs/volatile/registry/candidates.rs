//! Volatile ranges and objects, as candidates to be offered or purged.

use std::sync::Arc;
use std::time::Duration;

use super::marks::Mark;
use super::objects::Object;
use super::state::Registry;
use crate::ground::range::PageRange;
use crate::verbs::volatile::priority::{Priority, Timestamp};

/// A volatile range or object that was found under an earlier lock: by now it may have
/// been unmarked.
#[derive(Clone, Debug)]
pub(crate) enum Candidate {
    Range(PageRange),
    Object(Arc<Object>),
}

impl Candidate {
    pub(crate) fn range(&self) -> PageRange {
        match self {
            Self::Range(range) => *range,
            Self::Object(object) => object.range,
        }
    }
}

/// A candidate with its place in the purge order.
pub(crate) struct VolatileCandidate {
    pub(crate) priority: Priority,
    pub(crate) timestamp: Timestamp,
    pub(crate) candidate: Candidate,
}

impl Registry {
    /// Returns what has been volatile for longer than `delay` and is not offered, or was
    /// marked again since. An object's backoff can make its delay longer.
    pub(crate) fn due(&self, delay: Duration) -> Vec<Candidate> {
        let now = Timestamp::now();
        let ranges = self
            .marks
            .volatile()
            .filter_map(|(range, mark)| match mark {
                Mark::Volatile {
                    due: true,
                    timestamp,
                    ..
                } if now.since(timestamp) >= delay => Some(Candidate::Range(range)),
                _ => None,
            });
        let is_due = |object: &&Arc<Object>| object.word.stamp(now).is_due(now, delay);
        let objects = self.objects.volatile().filter(is_due);
        ranges
            .chain(objects.cloned().map(Candidate::Object))
            .collect()
    }

    /// Returns all that is volatile, in no order.
    pub(crate) fn volatile_candidates(&self) -> impl Iterator<Item = VolatileCandidate> {
        let ranges = self
            .marks
            .volatile()
            .filter_map(|(range, mark)| match mark {
                Mark::Volatile {
                    priority,
                    timestamp,
                    ..
                } => Some(VolatileCandidate {
                    priority,
                    timestamp,
                    candidate: Candidate::Range(range),
                }),
                Mark::Validated => None,
            });
        let now = Timestamp::coarse();
        let objects = self.objects.volatile().map(move |object| {
            let reading = object.word.stamp(now);
            VolatileCandidate {
                priority: reading.priority(),
                timestamp: reading.timestamp(),
                candidate: Candidate::Object(object.clone()),
            }
        });
        ranges.chain(objects)
    }
}
