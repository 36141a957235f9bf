//! volatile: threads mark, unmark, write, check and fork while others read and make the
//! kernel reclaim what it may, for as long as `TENURE_SOAK_SECONDS` says. No byte may be
//! wrong, no purge unreported, and no purge reported that did not happen
//! (tests/common/volatile.rs says what is compared).

#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "tests use memory that they have mapped themselves"
)]

mod common;

use std::sync::RwLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use common::cgroup::{Group, enter_group};
use common::volatile::*;
use common::*;
use fastrand::Rng;
use libtest_mimic::Completion;
use tenure::{HugePages, Mapping, VolatileArena, page_size, stats, volatile::Priority};

tests!(
    [thorough] soak_has_no_wrong_byte_or_unreported_purge,
    [thorough] soak_without_userfaultfd_has_no_wrong_byte_or_unreported_purge,
    [thorough] soak_at_cgroup_limit_has_no_wrong_byte_or_unreported_purge;
    children:
    soak_freely,
    soak_at_limit,
);

const MIB: usize = 1 << 20;
const OWNERS: usize = 3;
const READERS: usize = 2;
const RECLAIMERS: usize = 2;
const LIMIT: usize = 192 * MIB;

fn seconds() -> f64 {
    let given = std::env::var("TENURE_SOAK_SECONDS").ok();
    given.map_or(2.5, |seconds| seconds.parse().expect("a number of seconds"))
}

/// The parameters of a soak.
#[derive(Clone, Copy)]
struct Plan {
    /// The size of each thread's large buffers.
    large_bytes: usize,
    /// All memory is volatile except the object being worked on, and no child has a copy of
    /// it: only memory that cannot be purged must fit below the limit.
    is_tight: bool,
}

#[derive(Default)]
struct Totals {
    rounds: AtomicUsize,
    intact: AtomicUsize,
    purged: AtomicUsize,
    purged_pages: AtomicUsize,
    /// Purged pages that were reclaimed between the last check and the call.
    unforeseen_pages: AtomicUsize,
    reads: AtomicUsize,
    reads_of_purged: AtomicUsize,
    forks: AtomicUsize,
    page_outs: AtomicUsize,
}

fn soak_has_no_wrong_byte_or_unreported_purge() {
    soak_freely();
}

fn soak_without_userfaultfd_has_no_wrong_byte_or_unreported_purge() {
    for features in ["userfaultfd", "userfaultfd,madv_guard"] {
        in_child_without(features, "soak_freely");
    }
}

fn soak_at_cgroup_limit_has_no_wrong_byte_or_unreported_purge() -> Completion {
    if !can_offer() {
        return skip("needs userfaultfd and MADV_POPULATE_WRITE");
    }
    match Group::with_limit(LIMIT) {
        Ok(group) => group.run("soak_at_limit"),
        Err(reason) => return skip(&reason),
    }
    Completion::Completed
}

fn soak_freely() {
    let plan = Plan {
        large_bytes: 2 * MIB,
        is_tight: false,
    };
    for (timing, share) in [
        (OfferTiming::InCall, 0.4),
        (OfferTiming::ByThread, 0.4),
        (OfferTiming::Never, 0.2),
    ] {
        plan.soak(timing, seconds() * share);
    }
}

fn soak_at_limit() {
    enter_group();
    // Three threads with 18 large buffers each: one and a half times the limit.
    let plan = Plan {
        large_bytes: 6 * MIB,
        is_tight: true,
    };
    for timing in [OfferTiming::InCall, OfferTiming::ByThread] {
        plan.soak(timing, seconds() / 2.0);
    }
}

impl Plan {
    fn soak(self, timing: OfferTiming, seconds: f64) {
        timing.set();
        let before = Counters::now();
        let arena = VolatileArena::new(256 * MIB).unwrap();
        let owners: Vec<Owner> = (0..OWNERS)
            .map(|_| Owner::new(self, timing, &arena))
            .collect();
        let (totals, over) = (Totals::default(), AtomicBool::new(false));
        let end = Instant::now() + Duration::from_secs_f64(seconds);
        let all: Vec<_> = owners.iter().flat_map(|owner| &owner.held).collect();
        std::thread::scope(|scope| {
            let (all, totals, over) = (&all, &totals, &over);
            for _ in 0..READERS {
                scope.spawn(move || read(all, totals, over));
            }
            for _ in 0..RECLAIMERS {
                scope.spawn(move || reclaim(all, totals, over));
            }
            let threads: Vec<_> = owners
                .iter()
                .map(|owner| scope.spawn(move || owner.run(end, totals)))
                .collect();
            // The other threads must end whatever has become of these.
            let ended: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
            over.store(true, Relaxed);
            ended.into_iter().for_each(|ended| ended.unwrap());
        });
        drop(owners);
        let done = Counters::now().since(&before);
        println!("{timing:?}: {}", totals.text());
        done.check();
    }
}

impl Plan {
    /// Waits for the offer thread at a limit: the kernel cannot reclaim memory that is
    /// marked and not yet offered, and on a busy machine the offer thread may fall behind.
    /// Such memory must not reach the limit.
    fn wait_for_offer_thread(self) {
        let end = Instant::now() + Duration::from_secs(60);
        let is_behind = || {
            let stats = stats();
            stats.volatile_bytes.saturating_sub(stats.offered_bytes) > (LIMIT / 4) as u64
        };
        while self.is_tight && is_behind() {
            assert!(Instant::now() < end, "the offer thread offers nothing");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Purges as reported to this process, as counted by tenure, and as counted by the kernel.
struct Counters {
    reported_bytes: u64,
    reported_huge_bytes: u64,
    by_kernel_bytes: u64,
    by_tenure_bytes: u64,
    under_pressure_bytes: u64,
    unprotected_bytes: u64,
    lazyfree_reclaimed_pages: u64,
}

impl Counters {
    fn now() -> Self {
        let stats = stats();
        Self {
            reported_bytes: REPORTED_BYTES.load(Relaxed),
            reported_huge_bytes: REPORTED_HUGE_BYTES.load(Relaxed),
            by_kernel_bytes: stats.purged_by_kernel_bytes,
            by_tenure_bytes: stats.purged_on_request_bytes,
            under_pressure_bytes: stats.purged_under_pressure_bytes,
            unprotected_bytes: stats.unprotected_bytes,
            lazyfree_reclaimed_pages: lazyfree_reclaimed_pages().unwrap_or(u64::MAX),
        }
    }

    fn since(&self, before: &Self) -> Self {
        Self {
            reported_bytes: self.reported_bytes - before.reported_bytes,
            reported_huge_bytes: self.reported_huge_bytes - before.reported_huge_bytes,
            by_kernel_bytes: self.by_kernel_bytes - before.by_kernel_bytes,
            by_tenure_bytes: self.by_tenure_bytes - before.by_tenure_bytes,
            under_pressure_bytes: self.under_pressure_bytes - before.under_pressure_bytes,
            unprotected_bytes: self.unprotected_bytes - before.unprotected_bytes,
            lazyfree_reclaimed_pages: self
                .lazyfree_reclaimed_pages
                .saturating_sub(before.lazyfree_reclaimed_pages),
        }
    }

    /// Checks that every purge has one cause, and that the kernel's own count is no lower.
    fn check(&self) {
        let mib = |bytes: u64| bytes as f64 / MIB as f64;
        println!(
            "    purged {:.1} MiB: by the kernel {:.1}, on request {:.1}, under pressure {:.1}; \
              the kernel reclaimed {:.1} lazily freed",
            mib(self.reported_bytes),
            mib(self.by_kernel_bytes),
            mib(self.by_tenure_bytes),
            mib(self.under_pressure_bytes),
            mib(self
                .lazyfree_reclaimed_pages
                .saturating_mul(page_size() as u64)),
        );
        let counted = self.by_kernel_bytes + self.by_tenure_bytes + self.under_pressure_bytes;
        assert_eq!((self.reported_bytes, self.unprotected_bytes), (counted, 0));
        if !has_swap() {
            // The kernel's own count omits pages that it reclaims of a huge page whose rest
            // it keeps, and memory that was in swap when it was offered.
            let min_bytes = self
                .by_kernel_bytes
                .saturating_sub(self.reported_huge_bytes);
            let reclaimed_bytes = self
                .lazyfree_reclaimed_pages
                .saturating_mul(page_size() as u64);
            assert!(
                min_bytes <= reclaimed_bytes,
                "the kernel reclaimed less than was reported"
            );
        }
    }
}

impl Totals {
    fn text(&self) -> String {
        let Self {
            rounds,
            intact,
            purged,
            purged_pages,
            unforeseen_pages,
            reads,
            reads_of_purged,
            forks,
            page_outs,
        } = self;
        let [rounds, intact, purged] = [rounds, intact, purged].map(|count| count.load(Relaxed));
        assert!(rounds > 0);
        format!(
            "{rounds} rounds; unmarked intact {intact} times, purged {purged} times \
             ({} pages, {} of them at the last moment); {} reads of volatile memory, \
             {} met purged pages; {} forks; {} page-outs",
            purged_pages.load(Relaxed),
            unforeseen_pages.load(Relaxed),
            reads.load(Relaxed),
            reads_of_purged.load(Relaxed),
            forks.load(Relaxed),
            page_outs.load(Relaxed),
        )
    }

    fn add(count: &AtomicUsize) {
        count.fetch_add(1, Relaxed);
    }
}

/// One thread's memory, which other threads may read and make the kernel reclaim.
struct Owner {
    plan: Plan,
    timing: OfferTiming,
    arena: VolatileArena,
    held: Vec<RwLock<Memory>>,
}

impl Owner {
    const PLAIN: usize = 2;
    const LARGE: usize = 18;
    const IN_ARENA: usize = 12;

    fn new(plan: Plan, timing: OfferTiming, arena: &VolatileArena) -> Self {
        let mut owner = Self {
            plan,
            timing,
            arena: arena.clone(),
            held: Vec::new(),
        };
        let mut random = Rng::new();
        for index in 0..Self::PLAIN + Self::LARGE + Self::IN_ARENA {
            let mut memory = owner.make(index, &mut random);
            let whole = memory.page_count();
            memory.write(0, whole);
            memory.mark(0, whole, Priority::Normal);
            owner.held.push(RwLock::new(memory));
            plan.wait_for_offer_thread();
        }
        owner
    }

    fn make(&self, index: usize, random: &mut Rng) -> Memory {
        if index < Self::PLAIN {
            return Memory::plain(anonymous(random.usize(64..512)), self.timing);
        }
        if index >= Self::PLAIN + Self::LARGE {
            return Memory::in_arena(&self.arena, random.usize(1..40), self.timing);
        }
        if index.is_multiple_of(2) {
            let page_count = self.plan.large_bytes / page_size();
            return Memory::buffer(anonymous(page_count), self.timing);
        }
        let mapping = Mapping::anonymous(self.plan.large_bytes);
        let mapping = mapping.huge_pages(HugePages::Always).map().unwrap();
        Memory::huge_buffer(mapping, self.timing)
    }

    fn run(&self, end: Instant, totals: &Totals) {
        let mut random = Rng::new();
        loop {
            self.plan.wait_for_offer_thread();
            let index = random.usize(..self.held.len());
            self.work_at(index, &mut random, totals);
            if random.usize(..50) == 0 {
                self.fork(&mut random, totals);
            }
            Totals::add(&totals.rounds);
            // Runs at least once, however slow the machine is.
            if Instant::now() >= end {
                break;
            }
        }
        for memory in &self.held {
            let mut memory = memory.write().unwrap();
            let whole = memory.page_count();
            unmark(&mut memory, (0, whole), totals);
        }
    }

    fn work_at(&self, index: usize, random: &mut Rng, totals: &Totals) {
        let memory = &mut self.held[index].write().unwrap();
        let part = |random: &mut Rng, memory: &Memory| {
            let first = random.usize(..memory.page_count());
            (first, random.usize(1..=memory.page_count() - first))
        };
        for _ in 0..random.usize(1..6) {
            let (first, count) = part(random, memory);
            match random.usize(..20) {
                0..5 => memory.mark(first, count, Priority::ALL[random.usize(..4)]),
                5..10 => unmark(memory, (first, count), totals),
                10..14 => memory.write(first, count),
                14..17 => memory.check(first, count),
                17 => memory.purge(first, count),
                18 => {
                    // Unmarking first has all purges reported, so that the figures add up.
                    unmark(memory, (first, count), totals);
                    memory.discard(first, count);
                }
                _ => {
                    let whole = memory.page_count();
                    unmark(memory, (0, whole), totals);
                    if random.usize(..4) == 0 {
                        **memory = self.make(index, random);
                    }
                }
            }
        }
        if self.plan.is_tight {
            let whole = memory.page_count();
            memory.mark(0, whole, Priority::Normal);
        }
    }

    /// Forks. A child's memory begins as a copy of its parent's and is separate from then
    /// on.
    fn fork(&self, random: &mut Rng, totals: &Totals) {
        let count = if self.plan.is_tight { 1 } else { 5 };
        let mut some = random.choose_multiple(&self.held, count);
        let mut some: Vec<_> = (some.iter_mut())
            .map(|memory| memory.write().unwrap())
            .collect();
        let status = fork(|| {
            for memory in &mut some {
                let whole = memory.page_count();
                memory.check(0, whole);
                memory.page_out(0, whole);
                let _ = memory.unmark(0, random.usize(1..=whole));
                memory.mark(0, whole, Priority::Normal);
                memory.page_out(0, whole);
                let _ = memory.unmark(0, whole);
            }
            0
        });
        assert_eq!(status, 0, "the child's memory is wrong");
        Totals::add(&totals.forks);
    }
}

fn unmark(memory: &mut Memory, (first, count): (usize, usize), totals: &Totals) {
    let purges = memory.unmark(first, count);
    match purges.pages {
        0 => Totals::add(&totals.intact),
        _ => Totals::add(&totals.purged),
    }
    totals.purged_pages.fetch_add(purges.pages, Relaxed);
    totals
        .unforeseen_pages
        .fetch_add(purges.unforeseen, Relaxed);
}

/// Reads volatile memory while the kernel reclaims it.
fn read(all: &[&RwLock<Memory>], totals: &Totals, over: &AtomicBool) {
    let mut random = Rng::new();
    while !over.load(Relaxed) {
        let memory = &all[random.usize(..all.len())];
        let Ok(memory) = memory.read() else {
            return; // Its owner has panicked.
        };
        let len = memory.page_count() * page_size();
        let offset = random.usize(..len);
        let max = (len - offset).min(64 << 10);
        Totals::add(match memory.read(offset, random.usize(1..=max)) {
            true => &totals.reads,
            false => &totals.reads_of_purged,
        });
        drop(memory);
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// Makes the kernel reclaim what it may, at any moment.
fn reclaim(all: &[&RwLock<Memory>], totals: &Totals, over: &AtomicBool) {
    let mut random = Rng::new();
    while !over.load(Relaxed) {
        let Ok(range) = all[random.usize(..all.len())]
            .read()
            .map(|memory| memory.range())
        else {
            return;
        };
        let first = random.usize(..range.pages());
        let part = pages(
            range,
            first,
            random.usize(1..=range.pages() - first).min(100),
        );
        // Repeats it, so that it happens while the owner works on the memory.
        for _ in 0..random.usize(1..20) {
            page_out_if_mapped(part);
            std::thread::yield_now();
        }
        Totals::add(&totals.page_outs);
    }
}
