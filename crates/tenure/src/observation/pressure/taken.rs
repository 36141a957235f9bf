//! Notices that what is freed lazily is taken before it is used again.
//!
//! The watcher notices by stalls, which take it up to three seconds, and one
//! process later than another. Who frees lazily meanwhile can notice earlier:
//! after some MiB it looks how much the kernel has taken of what was lazily free.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::judge::is_full;
use super::watcher;
use crate::ground::sys::cgroup::Limit;
use crate::ground::sys::page_size;
use crate::ground::sys::process::Reclaims;

/// After freeing so much lazily a look is worth its price, ...
const WORTH_A_LOOK: usize = 16 << 20;
/// ... but not more often than this: it takes some 50 µs.
const SOONEST: Duration = Duration::from_millis(10);

/// Less frequent looks say nothing about what is freed now.
const LONGEST: Duration = Duration::from_secs(1);

/// From which part of what this process frees lazily the kernel takes too much.
const PART: usize = 8;

/// What was freed lazily since somebody last took note of it.
static FREED_BYTES: AtomicUsize = AtomicUsize::new(0);

/// Takes note that so many bytes were freed lazily. If the kernel takes much of
/// what is lazily free, because a bound of this process is met, the level rises.
pub(crate) fn freed_lazily(bytes: usize) {
    let freed = FREED_BYTES.fetch_add(bytes, Ordering::Relaxed);
    if freed.saturating_add(bytes) < WORTH_A_LOOK {
        return;
    }
    // Of several threads one gets it all.
    let freed = FREED_BYTES.swap(0, Ordering::Relaxed);
    if freed > 0 {
        watcher::note_freed(freed);
    }
}

/// Compares one look with the next.
pub(super) struct Meter {
    limits: Option<Arc<Vec<Limit>>>,
    /// Since the last look.
    freed_bytes: usize,
    looked: Option<Instant>,
    previous: Option<(Instant, Counts)>,
}

impl Meter {
    pub(super) const fn new() -> Self {
        Self {
            limits: None,
            freed_bytes: 0,
            looked: None,
            previous: None,
        }
    }

    /// These limits hold from now on.
    pub(super) fn follow(&mut self, limits: Vec<Limit>) {
        if self.limits.as_deref() != Some(&limits) {
            self.limits = Some(Arc::new(limits));
            self.previous = None;
        }
    }

    /// Takes note that so much was freed, and says whether it is time to look.
    pub(super) fn due(&mut self, at: Instant, freed_bytes: usize) -> Option<Due> {
        self.freed_bytes = self.freed_bytes.saturating_add(freed_bytes);
        let is_soon = |looked| at.duration_since(looked) < SOONEST;
        if self.freed_bytes < WORTH_A_LOOK || self.looked.is_some_and(is_soon) {
            return None;
        }
        // Before the watcher's first look nobody knows the limits.
        let limits = Arc::clone(self.limits.as_ref()?);
        self.looked = Some(at);
        Some(Due {
            at,
            freed_bytes: std::mem::take(&mut self.freed_bytes),
            limits,
        })
    }

    /// Says whether much of what was freed has been taken.
    pub(super) fn take(&mut self, due: &Due, counts: Counts) -> bool {
        let is_taken = self.previous.as_ref().is_some_and(|(then, before)| {
            let elapsed = due.at.saturating_duration_since(*then);
            elapsed <= LONGEST && counts.tell_of_loss(before, due.freed_bytes)
        });
        self.previous = Some((due.at, counts));
        is_taken
    }
}

/// A look that is to be made.
pub(super) struct Due {
    at: Instant,
    freed_bytes: usize,
    limits: Arc<Vec<Limit>>,
}

impl Due {
    /// Looks; `None` where `/proc/vmstat` cannot be read.
    pub(super) fn look(&self) -> Option<Counts> {
        let count = |limit: &Limit| {
            let hits = limit.hits();
            let is_full = || {
                limit
                    .unused()
                    .is_some_and(|(size, unused)| is_full(size, unused))
            };
            Count {
                hits,
                is_full: hits == 0 && is_full(),
            }
        };
        Some(Counts {
            machine: Reclaims::now()?,
            groups: self.limits.iter().map(count).collect(),
        })
    }
}

/// What one look reads.
pub(super) struct Counts {
    machine: Reclaims,
    groups: Vec<Count>,
}

impl Counts {
    /// Whether the kernel took much of what is lazily free while so much was
    /// freed, and not only from neighbours, whose limits are not ours.
    fn tell_of_loss(&self, before: &Self, freed_bytes: usize) -> bool {
        let (now, then) = (self.machine, before.machine);
        let taken_pages = now.lazily_free_pages.saturating_sub(then.lazily_free_pages);
        let taken_pages = usize::try_from(taken_pages).unwrap_or(usize::MAX);
        let mut groups = self.groups.iter().zip(&before.groups);
        let is_met = |(now, then): (&Count, &Count)| now.is_full || now.hits > then.hits;
        taken_pages.saturating_mul(page_size()) >= freed_bytes / PART
            && (now.direct > then.direct || groups.any(is_met))
    }
}

/// What it reads of a group.
struct Count {
    hits: u64,
    /// Where hits are not counted.
    is_full: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    /// A machine and its one group, whose figures a test changes, and its time.
    struct Scene {
        meter: Meter,
        now: Instant,
        taken_mib: usize,
        direct: u64,
        hits: u64,
        is_full: bool,
    }

    fn scene() -> Scene {
        let mut meter = Meter::new();
        meter.follow(Vec::new());
        let mut scene = Scene {
            meter,
            now: Instant::now(),
            taken_mib: 1000,
            direct: 7,
            hits: 9,
            is_full: false,
        };
        // There is nothing to compare the first look with.
        assert!(!scene.free(16));
        scene
    }

    impl Scene {
        /// Frees so much in a tenth of a second. Says whether that is taken.
        fn free(&mut self, mib: usize) -> bool {
            self.free_in(Duration::from_millis(100), mib)
        }

        fn free_in(&mut self, time: Duration, mib: usize) -> bool {
            self.now += time;
            let due = self.meter.due(self.now, mib * MIB).expect("time to look");
            let counts = Counts {
                machine: Reclaims {
                    direct: self.direct,
                    lazily_free_pages: (self.taken_mib * MIB / page_size()) as u64,
                },
                groups: vec![Count {
                    hits: self.hits,
                    is_full: self.is_full,
                }],
            };
            self.meter.take(&due, counts)
        }
    }

    #[test]
    fn what_is_taken_at_a_bound_of_ours_is_noticed() {
        let bounds: [fn(&mut Scene); 3] = [
            |scene| scene.hits += 1,
            |scene| scene.is_full = true,
            |scene| scene.direct += 1,
        ];
        for meet in bounds {
            let mut scene = scene();
            scene.taken_mib += 2;
            meet(&mut scene);
            assert!(scene.free(16));
        }
    }

    #[test]
    fn little_of_it_and_what_neighbours_lose_is_not() {
        let mut scene = scene();
        scene.hits += 1;
        scene.taken_mib += 1;
        assert!(!scene.free(16));
        // None of our bounds is met.
        scene.taken_mib += 100;
        assert!(!scene.free(16));
        // Page cache alone is what the limit costs.
        scene.hits += 1000;
        assert!(!scene.free(16));
    }

    #[test]
    fn what_was_taken_long_ago_says_nothing() {
        let mut scene = scene();
        scene.hits += 1;
        scene.taken_mib += 100;
        assert!(!scene.free_in(LONGEST + Duration::from_millis(1), 16));
    }

    #[test]
    fn it_looks_after_some_mib_and_some_time() {
        let mut meter = Meter::new();
        let now = Instant::now();
        assert!(meter.due(now, WORTH_A_LOOK).is_none(), "limits unknown");
        meter.follow(Vec::new());
        assert!(meter.due(now, 0).is_some(), "freed before");
        let later = now + SOONEST;
        assert!(meter.due(later, WORTH_A_LOOK - 1).is_none());
        assert!(meter.due(later, 1).is_some());
        assert!(meter.due(later, WORTH_A_LOOK).is_none());
        let due = meter.due(later + SOONEST, 0).unwrap();
        assert_eq!(due.freed_bytes, WORTH_A_LOOK);
    }

    #[test]
    fn reads_this_machine() {
        let mut meter = Meter::new();
        meter.follow(Vec::new());
        let due = meter.due(Instant::now(), WORTH_A_LOOK).unwrap();
        assert!(due.look().is_some());
    }
}
