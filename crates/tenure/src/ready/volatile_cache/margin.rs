//! How much memory the cache leaves to others.

use std::cmp::Reverse;
use std::time::{Duration, Instant};

use crate::observation::room::Bounds;

/// The part of the memory (the machine's, or a limited cgroup's) that is left
/// unused or to the page cache, and how much that is at most: a quarter more than
/// what is left when pressure begins (`pressure::Level::Some`), so that a cache
/// that fills its memory is not what makes it short.
const KEPT: (usize, usize) = (8, 5 << 30);

/// What is left to others even if there is nothing to give up for it: where
/// severe pressure begins.
const LEAST: (usize, usize) = (32, 1 << 30);

/// How long a look lasts, of 0.2 ms each.
const LASTS: Duration = Duration::from_millis(250);

/// What is known of the memory there is: by the last look, and by what has been
/// taken and given up since.
#[derive(Debug)]
pub(super) struct Margin {
    looked_at: Option<Instant>,
    /// What may be taken before the next look.
    unlooked_bytes: usize,
    tightest: Bound,
}

/// What bounds the memory: the machine or a cgroup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Bound {
    size_bytes: usize,
    /// What of it is unused or page cache.
    spare_bytes: usize,
}

fn part((part, most): (usize, usize), size_bytes: usize) -> usize {
    (size_bytes / part).min(most)
}

impl Bound {
    /// By how much there is more than is to be left.
    fn slack_bytes(self) -> usize {
        self.spare_bytes.saturating_sub(part(KEPT, self.size_bytes))
    }

    /// By how much there is less.
    fn lack_bytes(self) -> usize {
        part(KEPT, self.size_bytes).saturating_sub(self.spare_bytes)
    }
}

impl Margin {
    pub(super) const fn new() -> Self {
        Self {
            looked_at: None,
            unlooked_bytes: 0,
            tightest: Bound {
                size_bytes: 0,
                spare_bytes: 0,
            },
        }
    }

    /// How much is to be given up before `bytes` are taken.
    pub(super) fn wanted(&mut self, bytes: usize) -> usize {
        let is_fresh = self.looked_at.is_some_and(|at| at.elapsed() < LASTS);
        if !is_fresh || self.unlooked_bytes < bytes {
            self.look(look());
        }
        let Bound {
            size_bytes,
            spare_bytes,
        } = self.tightest;
        let short_of = |left| (part(left, size_bytes) + bytes).saturating_sub(spare_bytes);
        // What is missing comes back step by step, lest one caller pay for all of
        // it; but what must not be missing, at once.
        short_of(KEPT).min(bytes.saturating_mul(4).max(short_of(LEAST)))
    }

    /// Whether `bytes` may be taken, after so much has been given up.
    pub(super) fn take(&mut self, bytes: usize, freed_bytes: usize) -> bool {
        let spare_bytes = self.tightest.spare_bytes.saturating_add(freed_bytes);
        let least_bytes = part(LEAST, self.tightest.size_bytes);
        let taken = spare_bytes.checked_sub(bytes);
        let left_bytes = taken.filter(|&left_bytes| left_bytes >= least_bytes);
        self.tightest.spare_bytes = left_bytes.unwrap_or(spare_bytes);
        self.unlooked_bytes = self.unlooked_bytes.saturating_sub(bytes);
        left_bytes.is_some()
    }

    fn look(&mut self, tightest: Bound) {
        self.looked_at = Some(Instant::now());
        let kept_bytes = part(KEPT, tightest.size_bytes);
        // Others take memory as well.
        self.unlooked_bytes = (tightest.slack_bytes() / 4).max(kept_bytes / 4);
        self.tightest = tightest;
    }
}

/// What bounds the memory most. Where nothing can be read, nothing does.
fn look() -> Bound {
    let bounds = Bounds::now().ok();
    let bounds = bounds.iter().flat_map(Bounds::spare);
    let bounds = bounds.map(|(size_bytes, spare_bytes)| Bound {
        size_bytes,
        spare_bytes,
    });
    // In bytes, for it is bytes that are taken: not in parts of a bound.
    let tightest = bounds.min_by_key(|bound| (bound.slack_bytes(), Reverse(bound.lack_bytes())));
    tightest.unwrap_or(Bound {
        size_bytes: 0,
        spare_bytes: usize::MAX,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    /// With a look that is just over, at a group of 256 MiB: 32 are kept, and 8 at
    /// the least.
    fn with_spare(spare: usize) -> Margin {
        let mut margin = Margin::new();
        margin.look(Bound {
            size_bytes: 256 * MIB,
            spare_bytes: spare * MIB,
        });
        margin.unlooked_bytes = usize::MAX;
        margin
    }

    #[test]
    fn nothing_is_given_up_while_there_is_plenty() {
        let mut margin = with_spare(100);
        assert_eq!(margin.wanted(68 * MIB), 0);
        assert!(margin.take(68 * MIB, 0));
        assert_eq!(margin.tightest.spare_bytes, 32 * MIB);
        assert_eq!(margin.wanted(MIB), MIB, "each byte for another");
        assert!(margin.take(MIB, MIB));
        assert_eq!(margin.wanted(MIB), MIB);
    }

    #[test]
    fn what_is_missing_comes_back_step_by_step() {
        let mut margin = with_spare(20);
        for step in 1..=4 {
            assert_eq!(margin.wanted(MIB), 4 * MIB, "{step}");
            assert!(margin.take(MIB, 4 * MIB));
        }
        assert_eq!(margin.tightest.spare_bytes, 32 * MIB);
        assert_eq!(margin.wanted(MIB), MIB);
    }

    #[test]
    fn what_must_not_be_missing_comes_at_once_or_nothing_is_taken() {
        let mut margin = with_spare(2);
        assert_eq!(margin.wanted(MIB), 7 * MIB);
        assert!(!margin.take(MIB, 6 * MIB));
        assert!(margin.take(MIB, MIB), "what was given up counts");
        assert!(!margin.take(MIB, 0));
        assert!(!with_spare(0).take(1, 0));
    }

    #[test]
    fn looks_are_rarer_with_more_to_spare() {
        let mut margin = with_spare(232);
        margin.look(margin.tightest);
        assert_eq!(margin.unlooked_bytes, 50 * MIB);
        margin.look(with_spare(20).tightest);
        assert_eq!(margin.unlooked_bytes, 8 * MIB);
    }

    #[test]
    fn looks_at_this_machine() {
        let bound = look();
        assert!(bound.spare_bytes <= bound.size_bytes);
        let mut margin = Margin::new();
        let _ = margin.wanted(1);
        assert!(margin.looked_at.is_some());
    }
}
