//! release: threads map, fill, release, fork and check concurrently, for as long as
//! `TENURE_SOAK_SECONDS` says.

#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "tests use memory that they have mapped themselves"
)]

mod common;

use std::time::{Duration, Instant};

use common::*;
use fastrand::Rng;
use tenure::{Mapping, PageRange, drain, page_size};

tests!([thorough] soak_has_no_wrong_byte_and_leaves_no_memory);

const THREADS: u64 = 4;
const MIB: usize = 1 << 20;
/// The maximum that one thread has mapped.
const MAX_PAGES: usize = 192 * MIB / 4096;

fn seconds() -> u64 {
    let given = std::env::var("TENURE_SOAK_SECONDS").ok();
    given.map_or(4, |seconds| seconds.parse().expect("a number of seconds"))
}

fn soak_has_no_wrong_byte_and_leaves_no_memory() {
    let until = |seconds| Instant::now() + Duration::from_secs(seconds);
    // The first soak warms up threads, allocators and workers.
    soak(until(1));
    let before_kib = status_kib("VmRSS");
    let rounds = soak(until(seconds()));
    println!("{rounds} rounds");
    assert!(rounds > 0);
    let after_kib = status_kib("VmRSS");
    assert!(
        after_kib < before_kib + 16 * 1024,
        "{before_kib} KiB before, {after_kib} KiB after"
    );
}

/// Returns how many mappings were made and released.
fn soak(end: Instant) -> usize {
    let rounds = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|seed| scope.spawn(move || Soaker::new(seed).run(end)))
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .sum()
    });
    drain(Some(Duration::from_secs(60))).unwrap();
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    for flags in smaps
        .lines()
        .filter_map(|line| line.strip_prefix("VmFlags:"))
    {
        let has = |flag| flags.split_whitespace().any(|other| other == flag);
        // Neither the soak's mappings nor pending memory is dumped; otherwise only the
        // kernel's own pages are not.
        assert!(!has("dd") || has("io"), "pending memory is left: {flags}");
    }
    rounds
}

struct Soaker {
    random: Rng,
    held: Vec<Mapping>,
}

impl Soaker {
    fn new(seed: u64) -> Self {
        Self {
            random: Rng::with_seed(seed),
            held: Vec::new(),
        }
    }

    fn below(&mut self, end: usize) -> usize {
        self.random.usize(..end)
    }

    fn run(mut self, end: Instant) -> usize {
        let mut rounds = 0;
        while Instant::now() < end {
            self.map();
            if self.below(8) == 0 {
                self.fork();
            }
            self.release_one();
            rounds += 1;
        }
        for memory in self.held {
            assert!(is_filled(memory.range()));
        }
        rounds
    }

    /// Maps and fills memory, of sizes below and above the limit for deferred frees.
    fn map(&mut self) {
        let held_pages: usize = self.held.iter().map(|held| held.range().pages()).sum();
        let page_count = 1 + match self.below(3) {
            0 => self.below(64),
            1 => self.below(8 * MIB / 4096),
            _ => self.below(64 * MIB / 4096),
        };
        if held_pages + page_count > MAX_PAGES {
            return;
        }
        let builder = match self.below(4) {
            0 => Mapping::shared_anonymous(page_count * page_size()),
            _ => Mapping::anonymous(page_count * page_size()),
        };
        let builder = builder.no_dump().huge_pages(tenure::HugePages::Never);
        let memory = builder.map().unwrap();
        assert!(is_zero(memory.range()), "fresh memory is not zero");
        fill(memory.range());
        self.held.push(memory);
    }

    fn release_one(&mut self) {
        if self.held.is_empty() {
            return;
        }
        let at = self.below(self.held.len());
        let mut memory = self.held.swap_remove(at);
        let range = memory.range();
        assert!(is_filled(range));
        match self.below(5) {
            0 => memory.munmap().unwrap(),
            1 => drop(memory),
            2 => memory.munmap_sync().unwrap(),
            3 => {
                let (before, middle, after) = self.cut(range);
                let bounds = middle.start() - range.start()..middle.end() - range.start();
                // Shared memory is punched instead, with the same result.
                if memory.discard(bounds.clone()).is_err() {
                    memory.punch(bounds).unwrap();
                }
                assert!(is_filled(before) && is_zero(middle) && is_filled(after));
                fill(middle);
                self.held.push(memory);
            }
            _ => {
                let (before, middle, after) = self.cut(range);
                std::mem::forget(memory);
                unsafe { middle.munmap() }.unwrap();
                assert!(is_filled(before) && is_filled(after));
                unsafe { before.munmap() }.unwrap();
                unsafe { after.munmap() }.unwrap();
            }
        }
    }

    /// Cuts a range into three parts, each of which may be empty.
    fn cut(&mut self, range: PageRange) -> (PageRange, PageRange, PageRange) {
        let first = self.below(range.pages() + 1);
        let second = first + self.below(range.pages() - first + 1);
        (
            pages(range, 0, first),
            pages(range, first, second - first),
            pages(range, second, range.pages() - second),
        )
    }

    /// Forks. The child has a copy of what its parent's thread holds, and releases it
    /// itself.
    fn fork(&mut self) {
        let status = fork(|| {
            let all_right = self.held.iter().all(|memory| is_filled(memory.range()));
            self.held.clear();
            let drained = drain(Some(Duration::from_secs(60))).is_ok();
            i32::from(!all_right || !drained)
        });
        assert_eq!(status, 0, "the child's memory is wrong");
    }
}
