//! Detects that the kernel reclaims lazily freed memory before it is reused.
//!
//! The watcher detects that by stalls, which takes it up to three seconds, in
//! one process later than in another. A thread that frees lazily can detect it
//! earlier: after some MiB it reads how many lazily free pages the kernel has
//! reclaimed.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::judge::is_full;
use super::watcher;
use crate::ground::sys::cgroup::Limit;
use crate::ground::sys::page_size;
use crate::ground::sys::process::Reclaims;

/// The bytes to free lazily before a reading is worth its cost, ...
const MIN_FREED_BYTES: usize = 16 << 20;
/// ... and the minimum time between two readings, each of which takes some 50
/// µs.
const MIN_INTERVAL: Duration = Duration::from_millis(10);

/// The maximum time between two readings that can be compared: an older one
/// says nothing about what is freed now.
const MAX_INTERVAL: Duration = Duration::from_secs(1);

/// The kernel reclaims too much if it reclaims what this process frees lazily,
/// divided by this.
const RECLAIMED_DIVISOR: usize = 8;

/// The bytes freed lazily since a thread last collected them.
static FREED_BYTES: AtomicUsize = AtomicUsize::new(0);

/// Records that so many bytes were freed lazily. Raises the level if the kernel
/// reclaims many lazily free pages because a bound of this process hits its
/// limit.
pub(crate) fn record_lazy_free(bytes: usize) {
    let freed = FREED_BYTES.fetch_add(bytes, Ordering::Relaxed);
    if freed.saturating_add(bytes) < MIN_FREED_BYTES {
        return;
    }
    // Of several threads, one collects all.
    let freed = FREED_BYTES.swap(0, Ordering::Relaxed);
    if freed > 0 {
        watcher::record_freed(freed);
    }
}

/// Compares consecutive readings.
pub(super) struct ReclaimMeter {
    limits: Option<Arc<Vec<Limit>>>,
    /// Freed since the last reading.
    freed_bytes: usize,
    last_read: Option<Instant>,
    previous: Option<(Instant, Counts)>,
}

impl ReclaimMeter {
    pub(super) const fn new() -> Self {
        Self {
            limits: None,
            freed_bytes: 0,
            last_read: None,
            previous: None,
        }
    }

    /// Sets the limits that apply from now on.
    pub(super) fn set_limits(&mut self, limits: Vec<Limit>) {
        if self.limits.as_deref() != Some(&limits) {
            self.limits = Some(Arc::new(limits));
            self.previous = None;
        }
    }

    /// Records that so many bytes were freed, and returns a [`Due`] if it is
    /// time for a reading.
    pub(super) fn due(&mut self, at: Instant, freed_bytes: usize) -> Option<Due> {
        self.freed_bytes = self.freed_bytes.saturating_add(freed_bytes);
        let is_recent = |last_read| at.duration_since(last_read) < MIN_INTERVAL;
        if self.freed_bytes < MIN_FREED_BYTES || self.last_read.is_some_and(is_recent) {
            return None;
        }
        // Before the watcher's first reading the limits are unknown.
        let limits = Arc::clone(self.limits.as_ref()?);
        self.last_read = Some(at);
        Some(Due {
            at,
            freed_bytes: std::mem::take(&mut self.freed_bytes),
            limits,
        })
    }

    /// Returns whether the kernel reclaimed much of what was freed since the
    /// previous reading.
    pub(super) fn update(&mut self, due: &Due, counts: Counts) -> bool {
        let is_reclaimed = self.previous.as_ref().is_some_and(|(then, before)| {
            let elapsed = due.at.saturating_duration_since(*then);
            elapsed <= MAX_INTERVAL && counts.show_reclaim(before, due.freed_bytes)
        });
        self.previous = Some((due.at, counts));
        is_reclaimed
    }
}

/// A reading that is due.
pub(super) struct Due {
    at: Instant,
    freed_bytes: usize,
    limits: Arc<Vec<Limit>>,
}

impl Due {
    /// Takes the reading; `None` where `/proc/vmstat` cannot be read.
    pub(super) fn read(&self) -> Option<Counts> {
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

/// The figures of one reading.
pub(super) struct Counts {
    machine: Reclaims,
    groups: Vec<Count>,
}

impl Counts {
    /// Returns whether the kernel reclaimed many lazily free pages while
    /// `freed_bytes` were freed, and a bound of this process hit its limit.
    /// (Otherwise they were a neighbour's, whose limits do not apply here.)
    fn show_reclaim(&self, before: &Self, freed_bytes: usize) -> bool {
        let (now, then) = (self.machine, before.machine);
        let reclaimed_pages = now.lazily_free_pages.saturating_sub(then.lazily_free_pages);
        let reclaimed_pages = usize::try_from(reclaimed_pages).unwrap_or(usize::MAX);
        let mut groups = self.groups.iter().zip(&before.groups);
        let is_hit = |(now, then): (&Count, &Count)| now.is_full || now.hits > then.hits;
        reclaimed_pages.saturating_mul(page_size()) >= freed_bytes / RECLAIMED_DIVISOR
            && (now.direct > then.direct || groups.any(is_hit))
    }
}

/// The figures of a group.
struct Count {
    hits: u64,
    /// Whether the group is nearly full; only where hits are not counted.
    is_full: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    /// A machine and its one group, whose figures a test changes, and a clock.
    struct Scene {
        meter: ReclaimMeter,
        now: Instant,
        reclaimed_mib: usize,
        direct: u64,
        hits: u64,
        is_full: bool,
    }

    fn scene() -> Scene {
        let mut meter = ReclaimMeter::new();
        meter.set_limits(Vec::new());
        let mut scene = Scene {
            meter,
            now: Instant::now(),
            reclaimed_mib: 1000,
            direct: 7,
            hits: 9,
            is_full: false,
        };
        // The first reading has nothing to compare with.
        assert!(!scene.free(16));
        scene
    }

    impl Scene {
        /// Frees so much in a tenth of a second. Returns whether that counts as
        /// reclaimed.
        fn free(&mut self, mib: usize) -> bool {
            self.free_in(Duration::from_millis(100), mib)
        }

        fn free_in(&mut self, time: Duration, mib: usize) -> bool {
            self.now += time;
            let due = self
                .meter
                .due(self.now, mib * MIB)
                .expect("a reading is due");
            let counts = Counts {
                machine: Reclaims {
                    direct: self.direct,
                    lazily_free_pages: (self.reclaimed_mib * MIB / page_size()) as u64,
                },
                groups: vec![Count {
                    hits: self.hits,
                    is_full: self.is_full,
                }],
            };
            self.meter.update(&due, counts)
        }
    }

    #[test]
    fn reclaim_at_own_limit_is_detected() {
        let bounds: [fn(&mut Scene); 3] = [
            |scene| scene.hits += 1,
            |scene| scene.is_full = true,
            |scene| scene.direct += 1,
        ];
        for hit in bounds {
            let mut scene = scene();
            scene.reclaimed_mib += 2;
            hit(&mut scene);
            assert!(scene.free(16));
        }
    }

    #[test]
    fn reclaim_of_little_or_elsewhere_is_ignored() {
        let mut scene = scene();
        scene.hits += 1;
        scene.reclaimed_mib += 1;
        assert!(!scene.free(16));
        // None of this process's bounds hits its limit.
        scene.reclaimed_mib += 100;
        assert!(!scene.free(16));
        // Only page cache is reclaimed at the limit.
        scene.hits += 1000;
        assert!(!scene.free(16));
    }

    #[test]
    fn reclaim_since_old_reading_is_ignored() {
        let mut scene = scene();
        scene.hits += 1;
        scene.reclaimed_mib += 100;
        assert!(!scene.free_in(MAX_INTERVAL + Duration::from_millis(1), 16));
    }

    #[test]
    fn due_after_min_bytes_and_min_interval() {
        let mut meter = ReclaimMeter::new();
        let now = Instant::now();
        assert!(meter.due(now, MIN_FREED_BYTES).is_none(), "limits unknown");
        meter.set_limits(Vec::new());
        assert!(meter.due(now, 0).is_some(), "freed before");
        let later = now + MIN_INTERVAL;
        assert!(meter.due(later, MIN_FREED_BYTES - 1).is_none());
        assert!(meter.due(later, 1).is_some());
        assert!(meter.due(later, MIN_FREED_BYTES).is_none());
        let due = meter.due(later + MIN_INTERVAL, 0).unwrap();
        assert_eq!(due.freed_bytes, MIN_FREED_BYTES);
    }

    #[test]
    fn due_read_on_this_machine_succeeds() {
        let mut meter = ReclaimMeter::new();
        meter.set_limits(Vec::new());
        let due = meter.due(Instant::now(), MIN_FREED_BYTES).unwrap();
        assert!(due.read().is_some());
    }
}
