//! volatile: threads mark, unmark, write, check and fork, while others read and
//! have the kernel take what it may, for as long as `TENURE_SOAK_SECONDS` says.
//! Not one byte is wrong, no loss goes unreported, and none is reported that did
//! not happen (tests/common/volatile.rs tells what is compared).

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
use tenure::{HugePages, Mapping, Priority, VolatileArena, page_size, stats};

tests!(
    nothing_is_wrong,
    nothing_is_wrong_without_userfaultfd,
    nothing_is_wrong_at_a_cgroup_limit;
    children:
    soak_freely,
    soak_at_a_limit,
);

const MIB: usize = 1 << 20;
const OWNERS: usize = 3;
const READERS: usize = 2;
const TAKERS: usize = 2;
const LIMIT: usize = 192 * MIB;

fn seconds() -> f64 {
    let given = std::env::var("TENURE_SOAK_SECONDS").ok();
    given.map_or(2.5, |seconds| seconds.parse().expect("a number of seconds"))
}

/// What a soak is about.
#[derive(Clone, Copy)]
struct Plan {
    /// How large each thread's large buffers are.
    large_bytes: usize,
    /// Everything is volatile but for what is being worked at, and there is no
    /// copy of it in a child: what cannot be taken has to fit below a limit.
    is_tight: bool,
}

#[derive(Default)]
struct Tally {
    rounds: AtomicUsize,
    intact: AtomicUsize,
    purged: AtomicUsize,
    lost_pages: AtomicUsize,
    /// Of those: taken between the last look and the call.
    unforeseen_pages: AtomicUsize,
    reads: AtomicUsize,
    reads_of_lost: AtomicUsize,
    forks: AtomicUsize,
    page_outs: AtomicUsize,
}

fn nothing_is_wrong() {
    soak_freely();
}

fn nothing_is_wrong_without_userfaultfd() {
    for features in ["userfaultfd", "userfaultfd,madv_guard"] {
        in_child_without(features, "soak_freely");
    }
}

fn nothing_is_wrong_at_a_cgroup_limit() -> Completion {
    if !can_offer() {
        return skip("needs userfaultfd and MADV_POPULATE_WRITE");
    }
    match Group::with_limit(LIMIT) {
        Ok(group) => group.run("soak_at_a_limit"),
        Err(reason) => return skip(&reason),
    }
    Completion::Completed
}

fn soak_freely() {
    let plan = Plan {
        large_bytes: 2 * MIB,
        is_tight: false,
    };
    for (hand_over, share) in [
        (HandOver::AtOnce, 0.4),
        (HandOver::Soon, 0.4),
        (HandOver::Never, 0.2),
    ] {
        plan.soak(hand_over, seconds() * share);
    }
}

fn soak_at_a_limit() {
    enter_group();
    // Three threads with 18 of them: half as much again as the limit.
    let plan = Plan {
        large_bytes: 6 * MIB,
        is_tight: true,
    };
    for hand_over in [HandOver::AtOnce, HandOver::Soon] {
        plan.soak(hand_over, seconds() / 2.0);
    }
}

impl Plan {
    fn soak(self, hand_over: HandOver, seconds: f64) {
        hand_over.set();
        let before = Counted::now();
        let arena = VolatileArena::new(256 * MIB).unwrap();
        let owners: Vec<Owner> = (0..OWNERS)
            .map(|_| Owner::new(self, hand_over, &arena))
            .collect();
        let (tally, over) = (Tally::default(), AtomicBool::new(false));
        let end = Instant::now() + Duration::from_secs_f64(seconds);
        let all: Vec<_> = owners.iter().flat_map(|owner| &owner.held).collect();
        std::thread::scope(|scope| {
            let (all, tally, over) = (&all, &tally, &over);
            for _ in 0..READERS {
                scope.spawn(move || read(all, tally, over));
            }
            for _ in 0..TAKERS {
                scope.spawn(move || take(all, tally, over));
            }
            let threads: Vec<_> = owners
                .iter()
                .map(|owner| scope.spawn(move || owner.run(end, tally)))
                .collect();
            // Whatever has become of them, the others must not go on for ever.
            let ended: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
            over.store(true, Relaxed);
            ended.into_iter().for_each(|ended| ended.unwrap());
        });
        drop(owners);
        let done = Counted::now().since(&before);
        println!("{hand_over:?}: {}", tally.text());
        done.check();
    }
}

impl Plan {
    /// What is marked and not yet offered the kernel cannot take: on a busy machine
    /// the keeper may need a while, in which that must not come up to a limit.
    fn wait_for_the_keeper(self) {
        let end = Instant::now() + Duration::from_secs(60);
        let is_behind = || {
            let stats = stats();
            stats.volatile_bytes.saturating_sub(stats.offered_bytes) > (LIMIT / 4) as u64
        };
        while self.is_tight && is_behind() {
            assert!(Instant::now() < end, "the keeper offers nothing");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// What this process has been told, and what tenure and the kernel have counted.
struct Counted {
    reported_bytes: u64,
    reported_huge_bytes: u64,
    by_kernel_bytes: u64,
    by_tenure_bytes: u64,
    under_pressure_bytes: u64,
    unprotected_bytes: u64,
    lazily_freed_and_taken: u64,
}

impl Counted {
    fn now() -> Self {
        let stats = stats();
        Self {
            reported_bytes: REPORTED_BYTES.load(Relaxed),
            reported_huge_bytes: REPORTED_HUGE_BYTES.load(Relaxed),
            by_kernel_bytes: stats.purged_by_kernel_bytes,
            by_tenure_bytes: stats.purged_on_request_bytes,
            under_pressure_bytes: stats.purged_under_pressure_bytes,
            unprotected_bytes: stats.unprotected_bytes,
            lazily_freed_and_taken: lazily_freed_and_taken().unwrap_or(u64::MAX),
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
            lazily_freed_and_taken: self
                .lazily_freed_and_taken
                .saturating_sub(before.lazily_freed_and_taken),
        }
    }

    /// Every loss has one cause, and the kernel's own count has no fewer.
    fn check(&self) {
        let mib = |bytes: u64| bytes as f64 / MIB as f64;
        println!(
            "    lost {:.1} MiB: by the kernel {:.1}, purged {:.1}, under pressure {:.1}; \
             the kernel took {:.1} lazily freed",
            mib(self.reported_bytes),
            mib(self.by_kernel_bytes),
            mib(self.by_tenure_bytes),
            mib(self.under_pressure_bytes),
            mib(self
                .lazily_freed_and_taken
                .saturating_mul(page_size() as u64)),
        );
        let counted = self.by_kernel_bytes + self.by_tenure_bytes + self.under_pressure_bytes;
        assert_eq!((self.reported_bytes, self.unprotected_bytes), (counted, 0));
        if !has_swap() {
            // The kernel's own count leaves out what it takes of a huge page and
            // then keeps the rest, and memory that was swapped out when it was
            // offered.
            let at_least_bytes = self
                .by_kernel_bytes
                .saturating_sub(self.reported_huge_bytes);
            let taken_bytes = self
                .lazily_freed_and_taken
                .saturating_mul(page_size() as u64);
            assert!(
                at_least_bytes <= taken_bytes,
                "the kernel took less than was reported"
            );
        }
    }
}

impl Tally {
    fn text(&self) -> String {
        let Self {
            rounds,
            intact,
            purged,
            lost_pages,
            unforeseen_pages,
            reads,
            reads_of_lost,
            forks,
            page_outs,
        } = self;
        let [rounds, intact, purged] = [rounds, intact, purged].map(|count| count.load(Relaxed));
        assert!(rounds > 0);
        format!(
            "{rounds} rounds; unmarked intact {intact} times, purged {purged} times \
             ({} pages, {} of them at the last moment); {} reads of volatile memory, \
             {} met a loss; {} forks; {} page-outs",
            lost_pages.load(Relaxed),
            unforeseen_pages.load(Relaxed),
            reads.load(Relaxed),
            reads_of_lost.load(Relaxed),
            forks.load(Relaxed),
            page_outs.load(Relaxed),
        )
    }

    fn add(count: &AtomicUsize) {
        count.fetch_add(1, Relaxed);
    }
}

/// One thread's memory. Others may read it, and have it taken.
struct Owner {
    plan: Plan,
    hand_over: HandOver,
    arena: VolatileArena,
    held: Vec<RwLock<Memory>>,
}

impl Owner {
    const PLAIN: usize = 2;
    const LARGE: usize = 18;
    const IN_ARENA: usize = 12;

    fn new(plan: Plan, hand_over: HandOver, arena: &VolatileArena) -> Self {
        let mut owner = Self {
            plan,
            hand_over,
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
            plan.wait_for_the_keeper();
        }
        owner
    }

    fn make(&self, index: usize, random: &mut Rng) -> Memory {
        if index < Self::PLAIN {
            return Memory::plain(anonymous(random.usize(64..512)), self.hand_over);
        }
        if index >= Self::PLAIN + Self::LARGE {
            return Memory::in_arena(&self.arena, random.usize(1..40), self.hand_over);
        }
        if index.is_multiple_of(2) {
            let page_count = self.plan.large_bytes / page_size();
            return Memory::buffer(anonymous(page_count), self.hand_over);
        }
        let mapping = Mapping::anonymous(self.plan.large_bytes);
        let mapping = mapping.huge_pages(HugePages::Always).map().unwrap();
        Memory::huge_buffer(mapping, self.hand_over)
    }

    fn run(&self, end: Instant, tally: &Tally) {
        let mut random = Rng::new();
        loop {
            self.plan.wait_for_the_keeper();
            let index = random.usize(..self.held.len());
            self.work_at(index, &mut random, tally);
            if random.usize(..50) == 0 {
                self.fork(&mut random, tally);
            }
            Tally::add(&tally.rounds);
            // Once at least, however slow the machine is.
            if Instant::now() >= end {
                break;
            }
        }
        for memory in &self.held {
            let mut memory = memory.write().unwrap();
            let whole = memory.page_count();
            unmark(&mut memory, (0, whole), tally);
        }
    }

    fn work_at(&self, index: usize, random: &mut Rng, tally: &Tally) {
        let memory = &mut self.held[index].write().unwrap();
        let part = |random: &mut Rng, memory: &Memory| {
            let first = random.usize(..memory.page_count());
            (first, random.usize(1..=memory.page_count() - first))
        };
        for _ in 0..random.usize(1..6) {
            let (first, count) = part(random, memory);
            match random.usize(..20) {
                0..5 => memory.mark(first, count, Priority::ALL[random.usize(..4)]),
                5..10 => unmark(memory, (first, count), tally),
                10..14 => memory.write(first, count),
                14..17 => memory.check(first, count),
                17 => memory.purge(first, count),
                18 => {
                    // What was purged is asked for, so that the figures add up.
                    unmark(memory, (first, count), tally);
                    memory.discard(first, count);
                }
                _ => {
                    let whole = memory.page_count();
                    unmark(memory, (0, whole), tally);
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

    /// A child's memory is as its parent's was, and its own from here on.
    fn fork(&self, random: &mut Rng, tally: &Tally) {
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
        Tally::add(&tally.forks);
    }
}

fn unmark(memory: &mut Memory, (first, count): (usize, usize), tally: &Tally) {
    let lost = memory.unmark(first, count);
    match lost.pages {
        0 => Tally::add(&tally.intact),
        _ => Tally::add(&tally.purged),
    }
    tally.lost_pages.fetch_add(lost.pages, Relaxed);
    tally.unforeseen_pages.fetch_add(lost.unforeseen, Relaxed);
}

/// Reads what is volatile, while the kernel takes it.
fn read(all: &[&RwLock<Memory>], tally: &Tally, over: &AtomicBool) {
    let mut random = Rng::new();
    while !over.load(Relaxed) {
        let memory = &all[random.usize(..all.len())];
        let Ok(memory) = memory.read() else {
            return; // Its owner has panicked.
        };
        let len = memory.page_count() * page_size();
        let offset = random.usize(..len);
        let most = (len - offset).min(64 << 10);
        Tally::add(match memory.read(offset, random.usize(1..=most)) {
            true => &tally.reads,
            false => &tally.reads_of_lost,
        });
        drop(memory);
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// Has the kernel take what it may, also in the middle of everything.
fn take(all: &[&RwLock<Memory>], tally: &Tally, over: &AtomicBool) {
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
        // Many times, so that it happens while its owner works at it.
        for _ in 0..random.usize(1..20) {
            page_out_if_there(part);
            std::thread::yield_now();
        }
        Tally::add(&tally.page_outs);
    }
}
