//! Loads of small blocks, in the manner of the usual benchmarks of allocators.

use std::collections::VecDeque;
use std::iter;
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::{Context as _, Result};
use fastrand::Rng;

use super::super::job::{Done, Load, Manner};
use super::marked::{Marked, skewed};
use super::{Parent, pass, rate};
use crate::machine::{clock::MonotonicClock, threads::in_threads};

/// Waits, and makes blocks for a time.
pub fn run(load: Load, parent: &mut Parent) -> Result<Done> {
    let mut rng = Rng::with_seed(load.seed);
    let shelf = match load.manner {
        Manner::Larson => Shelf::of(2 * load.threads, &mut rng)?,
        _ => Shelf::default(),
    };
    let rngs: Vec<Rng> = (0..load.threads).map(|_| rng.fork()).collect();
    let begin = parent.wait()?;
    let clock = &MonotonicClock::SHARED;
    let threads = match load.manner {
        Manner::Larson => in_threads(rngs, |rng| {
            rate::count(&load, begin, clock, larson(&shelf, rng))
        }),
        Manner::Cfrac => in_threads(rngs, |rng| rate::count(&load, begin, clock, cfrac(rng))),
        Manner::Sh6bench => in_threads(rngs, |rng| rate::count(&load, begin, clock, sh6bench(rng))),
        Manner::Queue => pass::run(&load, begin, rngs, pass::block),
        Manner::Xmalloc => pass::run(&load, begin, rngs, pass::batch),
    };
    let done = rate::sum(&threads?);
    Ok(Done {
        wrong: done.wrong + shelf.wrong(),
        ..done
    })
}

/// The blocks of a thread of larson.
type Slots = Vec<Option<Marked>>;

/// Slots that no thread has now. There are twice as many as threads, so that a thread gets
/// slots that another has filled.
#[derive(Default)]
pub struct Shelf(Mutex<VecDeque<Slots>>);

impl Shelf {
    const SLOTS: usize = 1000;

    /// Fills slots.
    pub fn of(count: usize, rng: &mut Rng) -> Result<Self> {
        let block = |rng: &mut Rng| larson_block(rng).map(Some);
        let slots = |_| (0..Self::SLOTS).map(|_| block(rng)).collect();
        let all: Result<_> = (0..count).map(slots).collect();
        Ok(Self(Mutex::new(all?)))
    }

    fn all(&self) -> MutexGuard<'_, VecDeque<Slots>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wrong(&self) -> u64 {
        let all = self.all();
        all.iter().flatten().flatten().map(Marked::wrong).sum()
    }
}

fn larson_block(rng: &mut Rng) -> Result<Marked> {
    Marked::new(rng.usize(16..=1000))
}

/// A step takes slots, replaces blocks in them, and puts them behind all others.
pub fn larson(shelf: &Shelf, mut rng: Rng) -> impl FnMut(&mut Done) -> Result<()> {
    const STEP: usize = 4000;
    move |done| {
        let taken = shelf.all().pop_front();
        let mut slots = taken.context("each thread has slots")?;
        for _ in 0..STEP {
            let slot = rng.usize(..slots.len());
            done.wrong += slots[slot].take().map_or(0, |old| old.wrong());
            slots[slot] = Some(larson_block(&mut rng)?);
        }
        done.all_records += STEP as u64;
        shelf.all().push_back(slots);
        Ok(())
    }
}

/// A step makes numbers, each in the place of one of the last.
pub fn cfrac(mut rng: Rng) -> impl FnMut(&mut Done) -> Result<()> {
    const LIVE: usize = 32;
    const STEP: usize = 4000;
    let mut live: [Option<Marked>; LIVE] = [const { None }; LIVE];
    move |done| {
        for _ in 0..STEP {
            let result = Marked::new(rng.usize(16..=64))?;
            let operand = live[rng.usize(..LIVE)].replace(result);
            done.wrong += operand.map_or(0, |operand| operand.wrong());
        }
        done.all_records += STEP as u64;
        Ok(())
    }
}

/// A step makes a batch and frees it, in the order of allocation or in reverse. Each fourth
/// block stays until the next batch has been made.
pub fn sh6bench(mut rng: Rng) -> impl FnMut(&mut Done) -> Result<()> {
    const BATCH: usize = 1000;
    let mut stay: Vec<Marked> = Vec::new();
    move |done| {
        let block = || Marked::new(skewed(&mut rng, 16, 6));
        let batch: Vec<Marked> = iter::repeat_with(block)
            .take(BATCH)
            .collect::<Result<_>>()?;
        done.wrong += stay.drain(..).map(|block| block.wrong()).sum::<u64>();
        let free = |(index, block): (usize, Marked)| {
            done.wrong += block.wrong();
            if index.is_multiple_of(4) {
                stay.push(block);
            }
        };
        let batch = batch.into_iter().enumerate();
        match rng.bool() {
            true => batch.for_each(free),
            false => batch.rev().for_each(free),
        }
        done.all_records += BATCH as u64;
        Ok(())
    }
}
