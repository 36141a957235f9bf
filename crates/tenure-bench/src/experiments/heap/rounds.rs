//! Rounds of which several cases record a part each. The allocators work one after the
//! other, in their order, and are idle at the same time. tenure comes last: what its threads
//! do while the program is idle takes no CPU from another allocator's work.

use std::sync::mpsc::{Sender, channel};
use std::{cell::RefCell, rc::Rc, thread};

use super::{allocators::Allocator, cases::marked};
use crate::measure::prelude::*;

/// The figures of one part of a round.
pub type Figures = Vec<(&'static str, Unit, f64)>;

/// Dropped when a worker is idle, so that the next can start.
pub struct Turn {
    _over: Sender<()>,
}

/// Watches a worker with that allocator and returns the figures of each part.
type Watch = Box<dyn Fn(&Allocator, Turn) -> Result<Vec<Figures>> + Sync>;

pub struct Rounds {
    allocators: Vec<Allocator>,
    watch: Watch,
    /// The parts, by round and allocator, that no case has recorded yet.
    left: Vec<Vec<Vec<Option<Figures>>>>,
}

/// A part of each round: the name of its case, and the figure that is compared.
pub type Part = (String, &'static str);

impl Rounds {
    pub fn new(
        allocators: &[Allocator],
        watch: impl Fn(&Allocator, Turn) -> Result<Vec<Figures>> + Sync + 'static,
    ) -> Self {
        Self {
            allocators: allocators.to_vec(),
            watch: Box::new(watch),
            left: Vec::new(),
        }
    }

    /// Makes a case for each part.
    pub fn cases(self, table: &str, parts: Vec<Part>) -> Vec<Case> {
        let allocators = self.allocators.clone();
        let rounds = Rc::new(RefCell::new(self));
        let case = |(part, (name, compared)): (usize, Part)| {
            let way = |(index, allocator): (usize, &Allocator)| {
                let rounds = rounds.clone();
                let take = move |(), recorder: &mut Recorder<'_>| {
                    let figures = rounds.borrow_mut().take(index, part)?;
                    let record = |(name, unit, value)| recorder.record(name, unit, value);
                    figures.into_iter().for_each(record);
                    Ok(())
                };
                let way = Way::new(allocator.name, || Ok(()), take, |(), _| Ok(()));
                marked(way, allocator)
            };
            let ways = allocators.iter().enumerate().map(way);
            let case = Case::new(name, ways.collect()).in_table(table);
            case.comparing(compared).long()
        };
        parts.into_iter().enumerate().map(case).collect()
    }

    fn take(&mut self, allocator: usize, part: usize) -> Result<Figures> {
        let mut left = self.left.iter_mut();
        if let Some(figures) = left.find_map(|round| round[allocator][part].take()) {
            return Ok(figures);
        }
        let mut round = self.watch_all()?;
        let figures = round[allocator][part].take();
        self.left.push(round);
        figures.context("a round without this allocator")
    }

    fn watch_all(&self) -> Result<Vec<Vec<Option<Figures>>>> {
        let watch = &self.watch;
        thread::scope(|scope| {
            let mut threads = Vec::new();
            for allocator in &self.allocators {
                let (over, next) = channel();
                let work = move || {
                    let parts = watch(allocator, Turn { _over: over });
                    parts.with_context(|| allocator.name)
                };
                let thread = thread::Builder::new().spawn_scoped(scope, work);
                threads.push(thread.context("starting a thread")?);
                // Nothing is ever sent: this waits until the turn is dropped.
                let _ = next.recv();
            }
            let parts = threads.into_iter().map(|thread| {
                let parts = thread.join().expect("the work does not panic")?;
                Ok(parts.into_iter().map(Some).collect())
            });
            parts.collect()
        })
    }
}
