//! A burst, and what is still held when the program has done nothing for a while.

use std::{
    cell::RefCell,
    collections::VecDeque,
    rc::Rc,
    sync::{Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use tenure::Residency;

use super::{
    super::{
        experiment::{Case, Recorder, Unit, Way},
        group::Group,
        statistics::Better,
        threads::in_threads,
    },
    allocators::{Allocator, Allocators},
    job::{Burst, Job},
    process::Worker,
    scale::Scale,
    ways::marked,
};
use crate::text::{bytes_text, seconds_text};

/// What the table's title begins with.
pub const TABLE: &str = "Burst and idle";
/// What is charged and not lazily free, in times of what is live.
pub const HELD: &str = "held / live";
/// The moment that is judged.
pub const JUDGED: Duration = Duration::from_secs(2);

/// Makes a case for each moment.
pub fn cases(scale: &Scale, seed: u64, allocators: &Allocators) -> Vec<Case> {
    let burst = Burst {
        live_bytes: scale.live_bytes,
        burst_bytes: scale.burst_bytes,
        least_block: 256 << 10,
        most_block: 4 << 20,
        seed,
    };
    let table = format!(
        "{TABLE}: {} stay, {} are freed",
        bytes_text(burst.live_bytes as f64),
        bytes_text(burst.burst_bytes as f64)
    );
    let rounds = Rc::new(RefCell::new(Rounds {
        burst,
        allocators: allocators.all.iter().map(|one| (**one).clone()).collect(),
        moments: scale.moments.clone(),
        taken: Vec::new(),
    }));
    let case = |(moment, &after): (usize, &Duration)| {
        let ways = allocators.all.iter().enumerate();
        let way = |(index, allocator): (usize, &Rc<Allocator>)| {
            let way = way_of(allocator, &rounds, index, moment);
            marked(way, allocator)
        };
        Case::new(name(after), ways.map(way).collect())
            .in_table(&table)
            .comparing(HELD, Better::Less)
            .long()
    };
    scale.moments.iter().enumerate().map(case).collect()
}

/// The name of the case of that moment.
pub fn name(after: Duration) -> String {
    format!("{} after", seconds_text(after.as_secs_f64()))
}

fn way_of(allocator: &Allocator, rounds: &Rc<RefCell<Rounds>>, index: usize, moment: usize) -> Way {
    let rounds = rounds.clone();
    Way::new(
        allocator.name,
        || Ok(()),
        move |(), recorder: &mut Recorder<'_>| {
            let mut rounds = rounds.borrow_mut();
            let held = rounds.take(index, moment)?;
            let live_bytes = rounds.burst.live_bytes as f64;
            let (lazily_free, counted) = (held.lazily_free_bytes, held.counted_bytes());
            recorder.record(
                HELD,
                Unit::Ratio,
                counted.saturating_sub(lazily_free) as f64 / live_bytes,
            );
            if let Some(charged) = held.charged_bytes {
                recorder.record("charged", Unit::Bytes, charged as f64);
            }
            recorder.record("in memory", Unit::Bytes, held.resident_bytes as f64);
            recorder.record("lazily free", Unit::Bytes, lazily_free as f64);
            Ok(())
        },
        |(), _| Ok(()),
    )
}

/// What a worker holds at a moment.
#[derive(Clone, Copy, Debug)]
struct Held {
    resident_bytes: u64,
    lazily_free_bytes: u64,
    /// Where it has a cgroup.
    charged_bytes: Option<u64>,
}

impl Held {
    fn counted_bytes(self) -> u64 {
        self.charged_bytes.unwrap_or(self.resident_bytes)
    }

    fn now(worker: &Worker, group: Option<&Group>) -> Result<Self> {
        let residency = Residency::of_process(worker.pid())?;
        let lazily_free = residency.lazily_free_bytes;
        let lazily_free = lazily_free.context("this kernel does not tell what is lazily free")?;
        Ok(Self {
            resident_bytes: residency.resident_bytes as u64,
            lazily_free_bytes: lazily_free as u64,
            charged_bytes: group.map(Group::charged_bytes).transpose()?,
        })
    }
}

/// Rounds of all allocators at once, since to be idle takes no CPU, and what of
/// them no case has asked for yet.
struct Rounds {
    burst: Burst,
    allocators: Vec<Allocator>,
    moments: Vec<Duration>,
    /// For each allocator and each moment those of the rounds that are left.
    taken: Vec<Vec<VecDeque<Held>>>,
}

impl Rounds {
    fn take(&mut self, allocator: usize, moment: usize) -> Result<Held> {
        let left = |rounds: &mut Self| rounds.taken.get_mut(allocator)?[moment].pop_front();
        if let Some(held) = left(self) {
            return Ok(held);
        }
        self.measure()?;
        left(self).context("a round without this allocator")
    }

    fn measure(&mut self) -> Result<()> {
        let nobody_else = Mutex::new(());
        let all = self.allocators.iter().collect();
        let round = in_threads(all, |allocator: &Allocator| {
            self.idle(allocator, &nobody_else)
                .with_context(|| allocator.name)
        })?;
        self.taken
            .resize(round.len(), vec![VecDeque::new(); self.moments.len()]);
        for (taken, held) in self.taken.iter_mut().zip(round) {
            taken
                .iter_mut()
                .zip(held)
                .for_each(|(taken, held)| taken.push_back(held));
        }
        Ok(())
    }

    /// Lets a worker have its burst while nobody else has one, and looks at it at
    /// each moment.
    fn idle(&self, allocator: &Allocator, nobody_else: &Mutex<()>) -> Result<Vec<Held>> {
        let turn = nobody_else.lock().unwrap_or_else(PoisonError::into_inner);
        let group = Group::without_limit().ok();
        let job = Job::Burst(self.burst.clone());
        let mut worker = Worker::start(allocator, &job, group.as_ref())?;
        worker.wait_until_ready()?;
        worker.go_on()?;
        // It has freed.
        worker.wait_until_ready()?;
        let freed = Instant::now();
        drop(turn);
        let at = |&moment: &Duration| {
            thread::sleep(moment.saturating_sub(freed.elapsed()));
            Held::now(&worker, group.as_ref())
        };
        let held = self.moments.iter().map(at).collect::<Result<_>>()?;
        worker.go_on()?;
        let done = worker.done()?;
        ensure!(
            done.wrong == 0,
            "{} pages of what stays were wrong",
            done.wrong
        );
        // The worker ends before its cgroup goes.
        drop(worker);
        Ok(held)
    }
}
