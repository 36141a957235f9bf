//! Blocks that one half of the threads allocates and the other frees.

use std::iter;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use fastrand::Rng;

use super::super::job::{Done, Load};
use super::marked::{Marked, skewed};
use super::rate;
use crate::machine::{clock::MonotonicClock, threads::in_threads};

/// The bytes that wait in a queue are bounded, as the entries are.
const QUEUE_LEN: usize = 512;

/// An entry of a queue.
pub trait Entry: Send + Sized {
    fn blocks(&self) -> u64;
    fn wrong(&self) -> u64;
}

impl Entry for Marked {
    fn blocks(&self) -> u64 {
        1
    }

    fn wrong(&self) -> u64 {
        Marked::wrong(self)
    }
}

impl Entry for Vec<Marked> {
    fn blocks(&self) -> u64 {
        self.len() as u64
    }

    fn wrong(&self) -> u64 {
        self.iter().map(Marked::wrong).sum()
    }
}

/// Makes a block of 16 B to 64 KiB.
pub fn block(rng: &mut Rng) -> Result<Marked> {
    Marked::new(skewed(rng, 16, 12))
}

/// Makes small blocks, of at most 512 B.
pub fn batch(rng: &mut Rng) -> Result<Vec<Marked>> {
    const BATCH: usize = 128;
    let block = || Marked::new(skewed(rng, 16, 5));
    iter::repeat_with(block).take(BATCH).collect()
}

/// One end of a queue, or of all queues.
enum Role<E> {
    Allocates(Rng, Vec<SyncSender<E>>),
    Frees(Receiver<E>),
}

/// Lets half of the threads make entries, each for the next of the others in turn.
pub fn run<E: Entry>(
    load: &Load,
    begin: Duration,
    rngs: Vec<Rng>,
    make: impl Fn(&mut Rng) -> Result<E> + Sync,
) -> Result<Vec<Done>> {
    let pairs = load.threads / 2;
    ensure!(pairs > 0, "one thread has no other to pass blocks to");
    let queues = (0..pairs).map(|_| sync_channel(QUEUE_LEN));
    let (senders, receivers): (Vec<_>, Vec<_>) = queues.unzip();
    let rngs = rngs.into_iter().take(pairs);
    let mut roles: Vec<_> = rngs
        .map(|rng| Role::Allocates(rng, senders.clone()))
        .collect();
    // A queue ends when all threads that allocate have ended.
    drop(senders);
    roles.extend(receivers.into_iter().map(Role::Frees));
    in_threads(roles, |role| match role {
        Role::Allocates(rng, queues) => rate::count(
            load,
            begin,
            &MonotonicClock::SHARED,
            allocate(rng, queues, &make),
        ),
        Role::Frees(queue) => Ok(free(queue)),
    })
}

fn allocate<E: Entry>(
    mut rng: Rng,
    queues: Vec<SyncSender<E>>,
    make: &impl Fn(&mut Rng) -> Result<E>,
) -> impl FnMut(&mut Done) -> Result<()> {
    move |done| {
        for queue in &queues {
            let entry = make(&mut rng)?;
            done.all_records += entry.blocks();
            queue
                .send(entry)
                .ok()
                .context("a thread that frees has ended")?;
        }
        Ok(())
    }
}

/// Checks and frees all that comes. The rate is that of the threads that allocate.
fn free<E: Entry>(queue: Receiver<E>) -> Done {
    Done {
        wrong: queue.iter().map(|entry| entry.wrong()).sum(),
        ..Done::default()
    }
}
