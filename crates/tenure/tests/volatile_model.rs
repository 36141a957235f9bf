//! volatile: random steps on real memory, each compared with a plain model of
//! single pages.

#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "tests use memory that they have mapped themselves"
)]

mod common;

use common::volatile::{HandOver, Memory, can_offer, lazily_freed_and_taken};
use common::*;
use proptest::prelude::*;
use tenure::{Priority, VolatileArena};

tests!(
    agrees_with_a_model_of_single_pages,
    agrees_without_userfaultfd;
    children:
    without_userfaultfd,
);

const PLAIN_PAGES: usize = 20;
const OBJECT_PAGES: [usize; 3] = [6, 3, 3];

#[derive(Clone, Debug)]
struct Step {
    what: What,
    /// Which memory, and which pages of it.
    memory: usize,
    first: usize,
    count: usize,
}

#[derive(Clone, Debug)]
enum What {
    Mark(Priority),
    Unmark,
    Write,
    Read,
    Purge,
    Discard,
    PageOut,
    Lock,
    Unlock,
    /// Unmapped, and mapped anew.
    Renew,
    Fork,
}

fn any_what() -> impl Strategy<Value = What> {
    let mark = (0..4usize).prop_map(|index| What::Mark(Priority::ALL[index]));
    prop_oneof![
        8 => mark,
        6 => Just(What::Unmark),
        6 => Just(What::Write),
        5 => Just(What::PageOut),
        2 => Just(What::Read),
        2 => Just(What::Purge),
        1 => Just(What::Discard),
        1 => Just(What::Lock),
        1 => Just(What::Unlock),
        1 => Just(What::Renew),
        1 => Just(What::Fork),
    ]
}

fn any_step() -> impl Strategy<Value = Step> {
    // The plain range more often than each of the others.
    let memory = (0..6usize).prop_map(|index| index.saturating_sub(2));
    let part = (0..PLAIN_PAGES).prop_flat_map(|first| (Just(first), 1..=PLAIN_PAGES - first));
    (any_what(), memory, part).prop_map(|(what, memory, (first, count))| Step {
        what,
        memory,
        first,
        count,
    })
}

/// A plain range, a buffer, and two buffers of an arena.
struct World {
    arena: VolatileArena,
    hand_over: HandOver,
    all: Vec<Memory>,
}

impl World {
    fn new(hand_over: HandOver) -> Self {
        hand_over.set();
        let arena =
            VolatileArena::new(OBJECT_PAGES[1..].iter().sum::<usize>() * tenure::page_size());
        let mut world = Self {
            arena: arena.unwrap(),
            hand_over,
            all: Vec::new(),
        };
        for index in 0..=OBJECT_PAGES.len() {
            world.all.push(world.make(index));
        }
        world
    }

    fn make(&self, index: usize) -> Memory {
        match index {
            0 => Memory::plain(anonymous(PLAIN_PAGES), self.hand_over),
            1 => Memory::buffer(anonymous(OBJECT_PAGES[0]), self.hand_over),
            _ => Memory::in_arena(&self.arena, OBJECT_PAGES[index - 1], self.hand_over),
        }
    }

    fn run(&mut self, steps: &[Step]) {
        for (index, step) in steps.iter().enumerate() {
            self.take(step, &steps[index + 1..]);
            for memory in &mut self.all {
                memory.check(0, memory.page_count());
            }
        }
    }

    fn take(&mut self, step: &Step, rest: &[Step]) {
        let memory = &mut self.all[step.memory];
        let first = step.first % memory.page_count();
        let count = step.count.min(memory.page_count() - first);
        match step.what {
            What::Mark(priority) => memory.mark(first, count, priority),
            What::Unmark => unmark(memory, first, count),
            What::Write => memory.write(first, count),
            What::Read => {
                let offset = first * tenure::page_size() + 7;
                memory.read(offset, count * tenure::page_size() - 9);
            }
            What::Purge => memory.purge(first, count),
            What::Discard => {
                memory.unlock();
                memory.discard(first, count);
            }
            What::PageOut => memory.page_out(first, count),
            What::Lock => memory.lock(first, count),
            What::Unlock => memory.unlock(),
            What::Renew => {
                memory.unlock();
                // Gone before another comes, which may get its place.
                drop(self.all.remove(step.memory));
                let new = self.make(step.memory);
                self.all.insert(step.memory, new);
            }
            What::Fork => {
                let status = fork(|| {
                    self.go_on_in_a_child(rest);
                    0
                });
                assert_eq!(status, 0, "the child does not agree");
            }
        }
    }

    /// The child's memory is as the parent's was, and its own from here on.
    fn go_on_in_a_child(&mut self, steps: &[Step]) {
        for memory in &mut self.all {
            memory.forget_locks();
            memory.check(0, memory.page_count());
        }
        let a_few = &steps[..steps.len().min(5)];
        let alone = |step: &&Step| !matches!(step.what, What::Fork);
        for step in a_few.iter().filter(alone) {
            self.take(step, &[]);
        }
        for memory in &mut self.all {
            unmark(memory, 0, memory.page_count());
            memory.write(0, memory.page_count());
            memory.check(0, memory.page_count());
        }
    }
}

/// What is reported is what was missing before. (The kernel may take more of it
/// at any time: its own count tells whether it has.)
fn unmark(memory: &mut Memory, first: usize, count: usize) {
    let before = lazily_freed_and_taken();
    let lost = memory.unmark(first, count);
    if lost.unforeseen > 0 && before.is_some() {
        assert_ne!(lazily_freed_and_taken(), before, "{lost:?}");
    }
}

fn agree(cases: u32) {
    let config = ProptestConfig {
        cases: match std::env::var_os("PROPTEST_CASES") {
            Some(_) => ProptestConfig::default().cases,
            None => cases,
        },
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    let hand_over = (0..HandOver::ALL.len()).prop_map(|index| HandOver::ALL[index]);
    let steps = proptest::collection::vec(any_step(), 1..30);
    proptest!(config, |(hand_over in hand_over, steps in steps)| {
        World::new(hand_over).run(&steps);
    });
}

fn agrees_with_a_model_of_single_pages() {
    agree(1200);
}

fn without_userfaultfd() {
    assert!(!can_offer());
    agree(200);
}

fn agrees_without_userfaultfd() {
    for features in [
        "userfaultfd",
        "userfaultfd,madv_guard",
        "userfaultfd,pagemap_scan",
        "madv_populate",
    ] {
        in_child_without(features, "without_userfaultfd");
    }
}
