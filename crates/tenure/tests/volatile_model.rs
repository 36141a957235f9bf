//! volatile: random steps on real memory, each compared with a model of single pages.

#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "tests use memory that they have mapped themselves"
)]

mod common;

use common::volatile::{Memory, OfferTiming, can_offer, lazyfree_reclaimed_pages};
use common::*;
use proptest::prelude::*;
use tenure::{VolatileArena, volatile::Priority};

tests!(
    random_steps_match_page_model,
    random_steps_without_userfaultfd_match_page_model;
    children:
    match_model_without_userfaultfd,
);

const PLAIN_PAGES: usize = 20;
const OBJECT_PAGES: [usize; 3] = [6, 3, 3];

#[derive(Clone, Debug)]
struct Step {
    action: Action,
    /// The index of the memory, and the pages of it.
    memory: usize,
    first: usize,
    count: usize,
}

#[derive(Clone, Debug)]
enum Action {
    Mark(Priority),
    Unmark,
    Write,
    Read,
    Purge,
    Discard,
    PageOut,
    Lock,
    Unlock,
    /// Unmaps the memory and maps it anew.
    Remap,
    Fork,
}

fn any_action() -> impl Strategy<Value = Action> {
    let mark = (0..4usize).prop_map(|index| Action::Mark(Priority::ALL[index]));
    prop_oneof![
        8 => mark,
        6 => Just(Action::Unmark),
        6 => Just(Action::Write),
        5 => Just(Action::PageOut),
        2 => Just(Action::Read),
        2 => Just(Action::Purge),
        1 => Just(Action::Discard),
        1 => Just(Action::Lock),
        1 => Just(Action::Unlock),
        1 => Just(Action::Remap),
        1 => Just(Action::Fork),
    ]
}

fn any_step() -> impl Strategy<Value = Step> {
    // The plain range is chosen more often than each of the others.
    let memory = (0..6usize).prop_map(|index| index.saturating_sub(2));
    let part = (0..PLAIN_PAGES).prop_flat_map(|first| (Just(first), 1..=PLAIN_PAGES - first));
    (any_action(), memory, part).prop_map(|(action, memory, (first, count))| Step {
        action,
        memory,
        first,
        count,
    })
}

/// A plain range, a buffer, and two buffers of an arena.
struct World {
    arena: VolatileArena,
    timing: OfferTiming,
    all: Vec<Memory>,
}

impl World {
    fn new(timing: OfferTiming) -> Self {
        timing.set();
        let arena =
            VolatileArena::new(OBJECT_PAGES[1..].iter().sum::<usize>() * tenure::page_size());
        let mut world = Self {
            arena: arena.unwrap(),
            timing,
            all: Vec::new(),
        };
        for index in 0..=OBJECT_PAGES.len() {
            world.all.push(world.make(index));
        }
        world
    }

    fn make(&self, index: usize) -> Memory {
        match index {
            0 => Memory::plain(anonymous(PLAIN_PAGES), self.timing),
            1 => Memory::buffer(anonymous(OBJECT_PAGES[0]), self.timing),
            _ => Memory::in_arena(&self.arena, OBJECT_PAGES[index - 1], self.timing),
        }
    }

    fn run(&mut self, steps: &[Step]) {
        for (index, step) in steps.iter().enumerate() {
            self.apply(step, &steps[index + 1..]);
            for memory in &mut self.all {
                memory.check(0, memory.page_count());
            }
        }
    }

    fn apply(&mut self, step: &Step, rest: &[Step]) {
        let memory = &mut self.all[step.memory];
        let first = step.first % memory.page_count();
        let count = step.count.min(memory.page_count() - first);
        match step.action {
            Action::Mark(priority) => memory.mark(first, count, priority),
            Action::Unmark => unmark(memory, first, count),
            Action::Write => memory.write(first, count),
            Action::Read => {
                let offset = first * tenure::page_size() + 7;
                memory.read(offset, count * tenure::page_size() - 9);
            }
            Action::Purge => memory.purge(first, count),
            Action::Discard => {
                memory.unlock();
                memory.discard(first, count);
            }
            Action::PageOut => memory.page_out(first, count),
            Action::Lock => memory.lock(first, count),
            Action::Unlock => memory.unlock(),
            Action::Remap => {
                memory.unlock();
                // The old memory is unmapped before the new one is mapped, which may get
                // its place.
                drop(self.all.remove(step.memory));
                let new = self.make(step.memory);
                self.all.insert(step.memory, new);
            }
            Action::Fork => {
                let status = fork(|| {
                    self.continue_in_child(rest);
                    0
                });
                assert_eq!(status, 0, "the child does not match the model");
            }
        }
    }

    /// The child's memory begins as a copy of the parent's, and is separate from here on.
    fn continue_in_child(&mut self, steps: &[Step]) {
        for memory in &mut self.all {
            memory.forget_locks();
            memory.check(0, memory.page_count());
        }
        let a_few = &steps[..steps.len().min(5)];
        let alone = |step: &&Step| !matches!(step.action, Action::Fork);
        for step in a_few.iter().filter(alone) {
            self.apply(step, &[]);
        }
        for memory in &mut self.all {
            unmark(memory, 0, memory.page_count());
            memory.write(0, memory.page_count());
            memory.check(0, memory.page_count());
        }
    }
}

/// Checks that the reported pages are those that were absent before. (The kernel may purge
/// more at any time; its own count shows whether it has.)
fn unmark(memory: &mut Memory, first: usize, count: usize) {
    let before = lazyfree_reclaimed_pages();
    let purges = memory.unmark(first, count);
    if purges.unforeseen > 0 && before.is_some() {
        assert_ne!(lazyfree_reclaimed_pages(), before, "{purges:?}");
    }
}

fn match_model(cases: u32) {
    let config = ProptestConfig {
        cases: match std::env::var_os("PROPTEST_CASES") {
            Some(_) => ProptestConfig::default().cases,
            None => cases,
        },
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    let timing = (0..OfferTiming::ALL.len()).prop_map(|index| OfferTiming::ALL[index]);
    let steps = proptest::collection::vec(any_step(), 1..30);
    proptest!(config, |(timing in timing, steps in steps)| {
        World::new(timing).run(&steps);
    });
}

fn random_steps_match_page_model() {
    match_model(1200);
}

fn match_model_without_userfaultfd() {
    assert!(!can_offer());
    match_model(200);
}

fn random_steps_without_userfaultfd_match_page_model() {
    for features in [
        "userfaultfd",
        "userfaultfd,madv_guard",
        "userfaultfd,pagemap_scan",
        "madv_populate",
    ] {
        in_child_without(features, "match_model_without_userfaultfd");
    }
}
