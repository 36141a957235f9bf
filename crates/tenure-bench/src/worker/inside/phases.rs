//! Phases that allocate blocks of other sizes, and free nearly all of them, as a program
//! with several stages does. The threads live on, with what the allocator keeps for them.

use std::sync::mpsc::channel;
use std::thread;

use anyhow::{Context as _, Result};
use fastrand::Rng;

use super::super::job::{Done, PHASES, Phase, Phases};
use super::Parent;
use super::marked::{Marked, skewed};

/// One block in so many stays to the end.
const STAYS: u8 = 100;

/// Waits before each phase and behind the last.
pub fn run(phases: Phases, parent: &mut Parent) -> Result<Done> {
    let mut rng = Rng::with_seed(phases.seed);
    let bytes = phases.bytes / phases.threads;
    let wrong = thread::scope(|scope| {
        let (answer, answers) = channel();
        let (mut begin, mut threads) = (Vec::new(), Vec::new());
        for _ in 0..phases.threads {
            let (begin_phase, begun) = channel::<Phase>();
            let mut thread = Thread::new(rng.fork());
            let answer = answer.clone();
            let work = move || {
                for phase in begun {
                    // Nobody hears the answer when another thread has failed.
                    let _ = answer.send(thread.phase(phase, bytes));
                }
                thread.wrong()
            };
            let spawned = thread::Builder::new().spawn_scoped(scope, work);
            threads.push(spawned.context("starting a thread")?);
            begin.push(begin_phase);
        }
        drop(answer);
        parent.wait()?;
        let mut wrong = 0;
        for phase in PHASES {
            for thread in &begin {
                thread.send(phase).context("a thread has ended")?;
            }
            for answer in answers.iter().take(phases.threads) {
                wrong += answer?;
            }
            parent.wait()?;
        }
        // A thread ends when no phase can come.
        drop(begin);
        let threads = threads.into_iter();
        let left = threads.map(|thread| thread.join().expect("the work does not panic"));
        anyhow::Ok(wrong + left.sum::<u64>())
    })?;
    Ok(Done {
        wrong,
        ..Done::default()
    })
}

pub struct Thread {
    rng: Rng,
    stay: Vec<Marked>,
}

impl Thread {
    pub fn new(rng: Rng) -> Self {
        let stay = Vec::new();
        Self { rng, stay }
    }

    /// Allocates `bytes` in blocks, then checks all, then frees nearly all. Returns how many
    /// marks were wrong.
    pub fn phase(&mut self, phase: Phase, bytes: usize) -> Result<u64> {
        let mut blocks = Vec::new();
        let mut left = bytes;
        while left > 0 {
            let block = Marked::new(self.draw(phase))?;
            left = left.saturating_sub(block.len());
            blocks.push(block);
        }
        let wrong = blocks.iter().map(Marked::wrong).sum();
        for block in blocks {
            if self.rng.u8(..STAYS) == 0 {
                self.stay.push(block);
            }
        }
        Ok(wrong)
    }

    fn draw(&mut self, phase: Phase) -> usize {
        match phase.doublings {
            0 => phase.min_bytes,
            doublings => skewed(&mut self.rng, phase.min_bytes, doublings),
        }
    }

    /// Counts the wrong marks of the blocks that stay.
    pub fn wrong(&self) -> u64 {
        self.stay.iter().map(Marked::wrong).sum()
    }
}
