//! The ways to give memory up.

use rustix::mm::Advice;
use tenure::Mapping;

use super::before::{Before, check_zero};
use super::parallel::{CHUNK, Workers};
use crate::measure::prelude::*;

pub const CALLER: &str = "caller waits";
pub const OTHERS: &str = "another thread's mmap waits at most";

pub const MUNMAP: &str = "munmap";
const DONT_NEED: &str = "MADV_DONTNEED";
const DONT_NEED_FIRST: &str = "MADV_DONTNEED, munmap";
const CHUNKED: &str = "in chunks of 64 MiB";
pub const TENURE: &str = "tenure";
/// The numbers of threads that free in parallel.
pub const PARALLEL: [usize; 6] = [1, 2, 4, 8, 16, 32];

/// The length that the other thread maps and unmaps.
pub const PROBE_LEN: usize = 64 << 10;
/// The memory freed before a sample: more than tenure frees in the call itself.
const WARM_UP_LEN: usize = 16 << 20;

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Figures {
    /// How long the caller waits, and until all is freed.
    Times,
    /// How long another thread waits meanwhile.
    Wait,
    /// Both at once, where there is no time for more samples.
    Both,
}

/// The memory that a way gives up, and the figures of it.
#[derive(Clone, Copy, Debug)]
pub struct Work {
    pub blocks: usize,
    pub block_len: usize,
    pub pages: Pages,
    pub figures: Figures,
}

#[derive(Clone, Copy)]
enum GiveUp {
    Unmap,
    /// Frees all pages before it unmaps,
    FreeAndUnmap,
    /// chunk by chunk,
    InChunks,
    /// with so many threads, for which the caller waits.
    Parallel(usize),
    /// The range stays and its contents go.
    Discard,
}

impl Work {
    pub fn munmap(self) -> Way {
        self.way(MUNMAP, Owner::Raw, GiveUp::Unmap).baseline()
    }

    pub fn tenure(self) -> Way {
        self.tenure_named(TENURE).tenure()
    }

    pub fn tenure_named(self, name: &'static str) -> Way {
        self.way(name, Owner::Tenure, GiveUp::Unmap)
    }

    pub fn dont_need_first(self) -> Way {
        self.way(DONT_NEED_FIRST, Owner::Raw, GiveUp::FreeAndUnmap)
    }

    /// All ways to unmap, with up to `max_threads` threads.
    pub fn unmapping(self, max_threads: usize) -> Vec<Way> {
        let mut ways = vec![self.munmap(), self.dont_need_first()];
        if self.block_len > CHUNK {
            ways.push(self.way(CHUNKED, Owner::Raw, GiveUp::InChunks));
            let parallel = PARALLEL
                .into_iter()
                .filter(|&threads| threads <= max_threads);
            ways.extend(parallel.map(|threads| {
                let name = format!("in chunks, {}", threads_text(threads));
                self.way(name, Owner::Raw, GiveUp::Parallel(threads))
            }));
        }
        ways.push(self.tenure());
        ways
    }

    pub fn discarding(self) -> Vec<Way> {
        let way = |name, owner| self.way(name, owner, GiveUp::Discard);
        vec![
            way(DONT_NEED, Owner::Raw).baseline(),
            way(TENURE, Owner::Tenure).tenure(),
        ]
    }

    /// Makes a way that fills blocks, gives one after the other up and waits until
    /// all are freed.
    fn way(self, name: impl Into<String>, owner: Owner, give_up: GiveUp) -> Way {
        Way::new(
            name,
            move || {
                let full = Before::fill(owner, self.blocks, self.block_len, self.pages)?;
                let workers = match give_up {
                    GiveUp::Parallel(threads) => Some(Workers::start(threads)?),
                    _ => None,
                };
                if owner == Owner::Tenure {
                    warm_up()?;
                }
                Ok((full, workers))
            },
            move |((blocks, before), mut workers), recorder| {
                let give_all_up = || {
                    let blocks = blocks.into_iter();
                    let rests = blocks.map(|memory| give_up.run(memory, &mut workers));
                    rests.collect::<Result<Vec<_>>>()
                };
                let drain = || Ok(tenure::drain(None)?);
                let clock = recorder.clock();
                let work = || match self.figures {
                    Figures::Wait => give_all_up().and_then(|rests| drain().map(|()| rests)),
                    Figures::Times | Figures::Both => recorder.freed(CALLER, give_all_up, drain),
                };
                if self.figures == Figures::Times {
                    return Ok((work()?, before));
                }
                let (rests, longest) = probe::longest_wait(clock, PROBE_LEN, work)?;
                recorder.record(OTHERS, Unit::Seconds, longest);
                Ok((rests?, before))
            },
            move |(rests, before): (Vec<Option<Memory>>, Before), _| {
                before.check_freed()?;
                match rests.iter().flatten().next() {
                    Some(_) => rests.iter().flatten().try_for_each(check_zero)?,
                    None => before.check_unmapped()?,
                }
                Ok(tenure::drain(None)?)
            },
        )
    }
}

impl GiveUp {
    /// Gives the memory up and returns what is left of it.
    fn run(self, mut memory: Memory, workers: &mut Option<Workers>) -> Result<Option<Memory>> {
        match self {
            Self::Unmap => {}
            Self::FreeAndUnmap => memory.discard()?,
            Self::InChunks => {
                let len = memory.bytes().len();
                for start in (0..len).step_by(CHUNK) {
                    memory.advise(start..len.min(start + CHUNK), Advice::LinuxDontNeed)?;
                }
            }
            Self::Parallel(_) => workers.take().context("no threads")?.free(&mut memory)?,
            Self::Discard => {
                memory.discard()?;
                return Ok(Some(memory));
            }
        }
        memory.unmap().map(|()| None)
    }
}

/// Has tenure's thread be there already, which stays for a while after its work:
/// otherwise a sample would pay for it or not, as the time since the last one is.
pub fn warm_up() -> Result<()> {
    let mut memory = Mapping::anonymous(WARM_UP_LEN).map()?;
    memory.as_mut_slice()?[0] = 1;
    memory.munmap()?;
    Ok(tenure::drain(None)?)
}
