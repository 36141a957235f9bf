//! The parts of an experiment: cases, ways, and the recorder of their figures.

use std::rc::Rc;

use anyhow::{Context as _, Result};

use super::headroom::{Headroom, Sizes};
use crate::machine::clock::Clock;
use crate::record::Unit;

pub struct Settings {
    /// The seed of random contents and offsets.
    pub seed: u64,
    pub sizes: Sizes,
    /// Whether the experiment is asked for by name, and has time for more.
    pub is_named: bool,
    pub headroom: Headroom,
}

pub struct Experiment {
    pub title: String,
    /// Facts without which the figures mislead.
    pub notes: Vec<String>,
    /// The figure whose ratio to the baseline is reported.
    pub compared: &'static str,
    pub cases: Vec<Case>,
}

/// The same work, done in several ways that are compared.
pub struct Case {
    /// The table that the case stands in; empty where the experiment has one.
    pub table: String,
    pub name: String,
    /// The ways; at most one is the baseline.
    pub ways: Vec<Way>,
    pub pace: Pace,
    /// The figure that is compared, where that is not what the experiment compares.
    pub compared: Option<&'static str>,
}

/// How long a round of a case takes, and so how many of them there are.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Pace {
    /// So long that there are few, and no warm-up.
    Long,
    Usual,
    /// So short that there are many.
    Short,
}

impl Case {
    pub fn new(name: impl Into<String>, ways: Vec<Way>) -> Self {
        Self {
            table: String::new(),
            name: name.into(),
            ways,
            pace: Pace::Usual,
            compared: None,
        }
    }

    pub fn in_table(mut self, title: &str) -> Self {
        self.table = title.to_owned();
        self
    }

    pub fn comparing(mut self, figure: &'static str) -> Self {
        self.compared = Some(figure);
        self
    }

    /// Gives the case no warm-up, which another one has to be for it, and a small,
    /// fixed number of rounds.
    pub fn long(mut self) -> Self {
        self.pace = Pace::Long;
        self
    }

    /// Gives the case many rounds, as far as they fit into its time: for ratios near 1.
    pub fn short(mut self) -> Self {
        self.pace = Pace::Short;
        self
    }
}

/// A figure as it was recorded: its name, unit and value.
pub type Figure = (&'static str, Unit, f64);

type TakeSample = Box<dyn FnMut(&mut Recorder<'_>) -> Result<()>>;

/// One way of doing the work of a case.
pub struct Way {
    pub name: String,
    pub is_tenure: bool,
    /// Whether the other ways of the case are compared with this one.
    pub is_baseline: bool,
    /// Whether tenure's way chooses between this way and others like it.
    pub is_choice: bool,
    take_sample: TakeSample,
}

impl Way {
    /// Makes a way from its three parts. Only `work` is timed, by itself, with
    /// the recorder it gets. What `set_up` makes is handed to `work`, and what
    /// `work` leaves to `check`, so that all of it is dropped when one of them
    /// fails. `check` fails when the answer is wrong; it may record figures that
    /// are not times.
    pub fn new<S, A>(
        name: impl Into<String>,
        mut set_up: impl FnMut() -> Result<S> + 'static,
        mut work: impl FnMut(S, &mut Recorder<'_>) -> Result<A> + 'static,
        mut check: impl FnMut(A, &mut Recorder<'_>) -> Result<()> + 'static,
    ) -> Self {
        Self {
            name: name.into(),
            is_tenure: false,
            is_baseline: false,
            is_choice: false,
            take_sample: Box::new(move |recorder| {
                let made = set_up().context("setting up")?;
                let answer = work(made, recorder)?;
                check(answer, recorder).context("checking the answer")?;
                // Nothing may be left to free while the next way is timed.
                Ok(tenure::drain(None)?)
            }),
        }
    }

    pub fn tenure(mut self) -> Self {
        self.is_tenure = true;
        self
    }

    pub fn baseline(mut self) -> Self {
        self.is_baseline = true;
        self
    }

    pub fn choice(mut self) -> Self {
        self.is_choice = true;
        self
    }

    /// Keeps `held` for as long as the way lives: a setting of the machine that
    /// the way needs and that dropping puts back.
    pub fn holding<T: 'static>(mut self, held: Rc<T>) -> Self {
        let mut take_sample = self.take_sample;
        self.take_sample = Box::new(move |recorder| {
            let _held = &held;
            take_sample(recorder)
        });
        self
    }

    pub fn take_sample(&mut self, clock: &dyn Clock) -> Result<Vec<Figure>> {
        let mut recorder = Recorder {
            clock,
            figures: Vec::new(),
        };
        (self.take_sample)(&mut recorder)?;
        Ok(recorder.figures)
    }
}

/// Takes down the figures of one sample.
pub struct Recorder<'a> {
    clock: &'a dyn Clock,
    figures: Vec<Figure>,
}

impl<'a> Recorder<'a> {
    /// Returns the clock, for work that times something on another thread.
    pub fn clock(&self) -> &'a dyn Clock {
        self.clock
    }

    /// Does `work` and returns its answer and how long it took, in seconds.
    pub fn measure<T>(&self, work: impl FnOnce() -> T) -> (T, f64) {
        let before = self.clock.now();
        let answer = work();
        let after = self.clock.now();
        (answer, (after - before).as_secs_f64())
    }

    /// Does `work` and records how long it took as the figure `name`.
    pub fn time<T>(&mut self, name: &'static str, work: impl FnOnce() -> T) -> T {
        let (answer, seconds) = self.measure(work);
        self.record(name, Unit::Seconds, seconds);
        answer
    }

    /// Does `work`, which gives memory up, and records how long it took as `name`;
    /// then waits `until` all is freed and records how long that took from the start.
    pub fn freed<T>(
        &mut self,
        name: &'static str,
        work: impl FnOnce() -> Result<T>,
        until: impl FnOnce() -> Result<()>,
    ) -> Result<T> {
        let (answer, seconds) = self.measure(work);
        let (freed, more_seconds) = self.measure(until);
        freed?;
        self.record(name, Unit::Seconds, seconds);
        self.record("all is freed after", Unit::Seconds, seconds + more_seconds);
        answer
    }

    pub fn record(&mut self, name: &'static str, unit: Unit, value: f64) {
        self.figures.push((name, unit, value));
    }
}
