//! A program that works on its live blocks and takes much more memory from time to time, in
//! a cgroup that has too little for that and the program beside it.

use std::time::Duration;

use anyhow::{Result, ensure};
use fastrand::Rng;

use super::super::job::{Done, Neighbour};
use super::Parent;
use super::marked::{Marked, skewed};
use crate::machine::clock::{Clock, MonotonicClock};

/// Blocks of 1 to 256 KiB.
const MIN_BLOCK: usize = 1 << 10;
const DOUBLINGS: u32 = 8;
/// How long the live blocks are worked on after each burst.
const BETWEEN: Duration = Duration::from_secs(2);
/// The blocks that are read between two looks at the clock. One in four is made anew.
const READ: usize = 64;

/// Fills its live memory, waits, and works.
pub fn run(neighbour: Neighbour, parent: &mut Parent) -> Result<Done> {
    let mut rng = Rng::with_seed(neighbour.seed);
    let live = blocks(neighbour.live_bytes, &mut rng)?;
    parent.wait()?;
    work(neighbour, live, &mut rng, &MonotonicClock::start())
}

/// Works until the time is over. A record is a block that was made or read.
pub fn work(
    neighbour: Neighbour,
    mut live: Vec<Marked>,
    rng: &mut Rng,
    clock: &dyn Clock,
) -> Result<Done> {
    ensure!(!live.is_empty(), "nothing is live");
    let mut done = Done::default();
    while clock.now() < neighbour.counted {
        let burst = blocks(neighbour.burst_bytes, rng)?;
        done.all_records += burst.len() as u64;
        done.wrong += burst.iter().map(Marked::wrong).sum::<u64>();
        drop(burst);
        let until = neighbour.counted.min(clock.now() + BETWEEN);
        while clock.now() < until {
            for index in 0..READ {
                let block = rng.choice(&mut live).expect("some blocks are live");
                done.wrong += block.wrong();
                if index % 4 == 0 {
                    *block = Marked::new(block.len())?;
                }
            }
            done.all_records += READ as u64;
        }
    }
    done.wrong += live.iter().map(Marked::wrong).sum::<u64>();
    done.rate = done.all_records as f64 / neighbour.counted.as_secs_f64();
    Ok(done)
}

/// Makes blocks of `bytes` in all.
pub fn blocks(bytes: usize, rng: &mut Rng) -> Result<Vec<Marked>> {
    let (mut made, mut blocks) = (0, Vec::new());
    while made < bytes {
        let block = Marked::new(skewed(rng, MIN_BLOCK, DOUBLINGS))?;
        made += block.len();
        blocks.push(block);
    }
    Ok(blocks)
}
