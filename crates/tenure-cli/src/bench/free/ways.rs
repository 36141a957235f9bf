//! The ways to give memory up.

use anyhow::Result;
use rustix::mm::Advice;
use tenure::Mapping;

use super::{
    super::{
        experiment::{Recorder, Unit, Way},
        probe,
        raw::RawMapping,
    },
    memory::{Before, Full, Memory, Pages, check_zero},
    parallel::Workers,
};

pub const CALLER: &str = "caller waits";
pub const FREED: &str = "all is freed after";
pub const OTHERS: &str = "another thread's mmap waits at most";

pub const MUNMAP: &str = "munmap";
pub const DONT_NEED: &str = "MADV_DONTNEED";
pub const DONT_NEED_FIRST: &str = "MADV_DONTNEED, munmap";
pub const CHUNKED: &str = "in chunks of 64 MiB";
pub const TENURE: &str = "tenure";
/// Tenure's way with two ranges that are compared with each other.
pub const SMALLER: &str = "the smaller";
pub const LARGER: &str = "the larger";
/// The numbers of threads that free in parallel.
pub const PARALLEL: [(usize, &str); 6] = [
    (1, "in chunks, 1 thread"),
    (2, "in chunks, 2 threads"),
    (4, "in chunks, 4 threads"),
    (8, "in chunks, 8 threads"),
    (16, "in chunks, 16 threads"),
    (32, "in chunks, 32 threads"),
];

/// What is freed in one call, where it is not all.
pub const CHUNK: usize = 64 << 20;
/// What the other thread maps and unmaps.
pub const PROBE_LEN: usize = 64 << 10;
/// Enough for tenure not to free it itself.
const WARM_UP_LEN: usize = 16 << 20;

/// Which figures a sample yields. The other thread needs time that the caller or
/// the workers could have had, so it is not there where times are compared.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Figures {
    /// How long it takes.
    Times,
    /// How long another thread waits meanwhile.
    Wait,
    /// Both at once, where there is no time for more samples.
    Both,
}

/// What is given up, and what is measured.
#[derive(Clone, Copy, Debug)]
pub struct Work {
    pub blocks: usize,
    pub block_len: usize,
    pub pages: Pages,
    pub figures: Figures,
}

impl Work {
    /// The baseline where memory is unmapped.
    pub fn munmap(self) -> Way {
        let give_up = |(): &(), mapping: RawMapping| mapping.unmap();
        self.unmapping(MUNMAP, || Ok(()), give_up).baseline()
    }

    /// Frees all pages before it unmaps.
    pub fn dont_need_first(self) -> Way {
        let give_up = |(): &(), mut mapping: RawMapping| {
            mapping.advise(Advice::LinuxDontNeed)?;
            mapping.unmap()
        };
        self.unmapping(DONT_NEED_FIRST, || Ok(()), give_up)
    }

    /// Does so chunk by chunk.
    pub fn chunked(self) -> Way {
        let give_up = |(): &(), mut mapping: RawMapping| {
            let len = mapping.len();
            for start in (0..len).step_by(CHUNK) {
                let chunk = start..len.min(start + CHUNK);
                mapping.advise_part(chunk, Advice::LinuxDontNeed)?;
            }
            mapping.unmap()
        };
        self.unmapping(CHUNKED, || Ok(()), give_up)
    }

    /// Does so with several threads, for which the caller waits.
    pub fn parallel(self, (threads, name): (usize, &'static str)) -> Way {
        let give_up = |workers: &Workers, mut mapping: RawMapping| {
            workers.free(&mut mapping)?;
            mapping.unmap()
        };
        self.unmapping(name, move || Workers::start(threads), give_up)
    }

    /// Tenure's way to unmap.
    pub fn tenure(self) -> Way {
        self.tenure_named(TENURE).tenure()
    }

    /// The same under another name.
    pub fn tenure_named(self, name: &'static str) -> Way {
        let give_up = |(): &(), mapping: Mapping| Ok(mapping.munmap()?);
        self.unmapping(name, warm_up, give_up)
    }

    /// The baseline where the range stays and its contents go.
    pub fn dont_need(self) -> Way {
        let give_up = |(): &(), mut mapping: RawMapping| {
            mapping.advise(Advice::LinuxDontNeed)?;
            Ok(mapping)
        };
        self.way(DONT_NEED, || Ok(()), give_up, check_discarded)
            .baseline()
    }

    /// Tenure's way to discard.
    pub fn tenure_discard(self) -> Way {
        let give_up = |(): &(), mut mapping: Mapping| {
            mapping.discard(..)?;
            Ok(mapping)
        };
        self.way(TENURE, warm_up, give_up, check_discarded).tenure()
    }

    fn unmapping<M: Memory + 'static, P: 'static>(
        self,
        name: &'static str,
        prepare: impl Fn() -> Result<P> + 'static,
        give_up: impl Fn(&P, M) -> Result<()> + 'static,
    ) -> Way {
        let check = |before: &Before, _gone: Vec<()>| before.check_unmapped();
        self.way(name, prepare, give_up, check)
    }

    /// Makes a way that fills blocks, gives one after the other up and waits until
    /// all are freed. `prepare` makes what `give_up` needs to be there already.
    fn way<M: Memory + 'static, P: 'static, R: 'static>(
        self,
        name: &'static str,
        prepare: impl Fn() -> Result<P> + 'static,
        give_up: impl Fn(&P, M) -> Result<R> + 'static,
        check: impl Fn(&Before, Vec<R>) -> Result<()> + 'static,
    ) -> Way {
        Way::new(
            name,
            move || {
                let full = Full::make(self.blocks, self.block_len, self.pages)?;
                Ok((full, prepare()?))
            },
            move |(Full { blocks, before }, prepared): (Full<M>, P), recorder| {
                let give_all_up = |recorder: &mut Recorder<'_>| {
                    let one = |block| give_up(&prepared, block);
                    let all = || blocks.into_iter().map(one).collect::<Result<Vec<R>>>();
                    self.times(recorder, all)
                };
                let rests = match self.figures {
                    Figures::Times => give_all_up(recorder),
                    Figures::Wait | Figures::Both => {
                        let clock = recorder.clock();
                        let work = || give_all_up(recorder);
                        let (rests, longest) = probe::longest_wait(clock, PROBE_LEN, work)?;
                        recorder.record(OTHERS, Unit::Seconds, longest);
                        rests
                    }
                };
                Ok((rests?, before))
            },
            move |(rests, before), _| {
                before.check_given_back()?;
                check(&before, rests)?;
                Ok(tenure::drain(None)?)
            },
        )
    }

    fn times<R>(
        self,
        recorder: &mut Recorder<'_>,
        give_up: impl FnOnce() -> Result<R>,
    ) -> Result<R> {
        let (rest, caller_seconds) = recorder.measure(give_up);
        let (drained, drain_seconds) = recorder.measure(|| tenure::drain(None));
        drained?;
        if self.figures != Figures::Wait {
            recorder.record(CALLER, Unit::Seconds, caller_seconds);
            recorder.record(FREED, Unit::Seconds, caller_seconds + drain_seconds);
        }
        rest
    }
}

fn check_discarded<M: Memory>(_before: &Before, rests: Vec<M>) -> Result<()> {
    rests.iter().try_for_each(check_zero)
}

/// Has tenure's thread be there already, which stays for a while after its work:
/// otherwise a sample would pay for it or not, as the time since the last one is.
pub fn warm_up() -> Result<()> {
    let mut memory = Mapping::anonymous(WARM_UP_LEN).map()?;
    memory.as_mut_slice()?[0] = 1;
    memory.munmap()?;
    Ok(tenure::drain(None)?)
}
