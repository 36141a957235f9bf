//! What an experiment is made of, and what comes out of it.

use std::rc::Rc;

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

use super::{
    choice::Choice,
    clock::Clock,
    statistics::{Better, Series},
};

/// What a figure counts.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// Time.
    Seconds,
    /// Work done in a second.
    PerSecond,
    /// Memory.
    Bytes,
    /// Memory read and written in a second.
    BytesPerSecond,
    /// A number of things.
    Count,
    /// One figure divided by another.
    Ratio,
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

    /// Records a figure.
    pub fn record(&mut self, name: &'static str, unit: Unit, value: f64) {
        self.figures.push((name, unit, value));
    }
}

/// A figure as it was recorded: its name, unit and value.
pub type Figure = (&'static str, Unit, f64);

type TakeSample = Box<dyn FnMut(&mut Recorder<'_>) -> Result<()>>;

/// One way of doing the work of a case.
pub struct Way {
    /// What this way is called.
    pub name: &'static str,
    /// Whether this is tenure's way.
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
        name: &'static str,
        mut set_up: impl FnMut() -> Result<S> + 'static,
        mut work: impl FnMut(S, &mut Recorder<'_>) -> Result<A> + 'static,
        mut check: impl FnMut(A, &mut Recorder<'_>) -> Result<()> + 'static,
    ) -> Self {
        Self {
            name,
            is_tenure: false,
            is_baseline: false,
            is_choice: false,
            take_sample: Box::new(move |recorder| {
                let made = set_up().context("setting up")?;
                let answer = work(made, recorder)?;
                check(answer, recorder).context("checking the answer")
            }),
        }
    }

    /// Takes one sample.
    pub fn take_sample(&mut self, clock: &dyn Clock) -> Result<Vec<Figure>> {
        let mut recorder = Recorder {
            clock,
            figures: Vec::new(),
        };
        (self.take_sample)(&mut recorder)?;
        Ok(recorder.figures)
    }

    /// Says that this is tenure's way.
    pub fn tenure(mut self) -> Self {
        self.is_tenure = true;
        self
    }

    /// Says that the other ways of the case are compared with this one.
    pub fn baseline(mut self) -> Self {
        self.is_baseline = true;
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

    /// Says that tenure's way chooses between this way and others like it.
    pub fn choice(mut self) -> Self {
        self.is_choice = true;
        self
    }
}

/// How long a round of a case takes, and so how many of them there are.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Pace {
    /// So long that there are few, and no warm-up.
    Long,
    /// Neither long nor short.
    Usual,
    /// So short that there are many.
    Short,
}

/// The same work, done in several ways that are compared.
pub struct Case {
    /// The table that the case stands in; empty where the experiment has one.
    pub table: String,
    /// What is worked on.
    pub name: String,
    /// The ways; at most one is the baseline.
    pub ways: Vec<Way>,
    /// How long a round takes.
    pub pace: Pace,
    /// The figure that is compared, and which direction of it is better, where
    /// that is not what the experiment compares.
    pub compared: Option<(&'static str, Better)>,
}

impl Case {
    /// Makes a case.
    pub fn new(name: impl Into<String>, ways: Vec<Way>) -> Self {
        Self {
            table: String::new(),
            name: name.into(),
            ways,
            pace: Pace::Usual,
            compared: None,
        }
    }

    /// Puts the case into the table of that title, with the cases beside it.
    pub fn in_table(mut self, title: &str) -> Self {
        self.table = title.to_owned();
        self
    }

    /// Says which figure is compared, and which direction of it is better, where
    /// that is not what the experiment compares.
    pub fn comparing(mut self, figure: &'static str, better: Better) -> Self {
        self.compared = Some((figure, better));
        self
    }

    /// Says that a round takes long: the case gets no warm-up, which another
    /// one has to be for it, and a small, fixed number of rounds.
    pub fn long(mut self) -> Self {
        self.pace = Pace::Long;
        self
    }

    /// Says that a round is short: the case gets many of them, as far as they
    /// fit into its time. For ratios that are near 1.
    pub fn short(mut self) -> Self {
        self.pace = Pace::Short;
        self
    }
}

/// Some cases and what is compared in them.
pub struct Experiment {
    /// What is measured, and how much memory it works on.
    pub title: String,
    /// What a reader must know to judge the figures.
    pub notes: Vec<String>,
    /// The figure whose ratio to the baseline is reported.
    pub compared: &'static str,
    /// Which direction of that figure is better.
    pub better: Better,
    /// The cases, measured one after the other.
    pub cases: Vec<Case>,
    /// Says in a sentence what the data say.
    pub conclude: fn(&[CaseResult]) -> String,
}

/// The samples of one figure of one way.
#[derive(Clone, Debug, Serialize)]
pub struct FigureResult {
    /// What was measured.
    pub name: &'static str,
    /// In which unit.
    pub unit: Unit,
    /// The samples and their summary.
    #[serde(flatten)]
    pub series: Series,
}

/// All figures of one way.
#[derive(Clone, Debug, Serialize)]
pub struct WayResult {
    /// The name of the way.
    pub name: &'static str,
    /// Whether this is tenure's way.
    pub is_tenure: bool,
    /// Whether the others are compared with this way.
    pub is_baseline: bool,
    /// Whether tenure's way chooses between this way and others like it.
    pub is_choice: bool,
    /// The figures, in the order in which they were recorded.
    pub figures: Vec<FigureResult>,
    /// How many times as good as the baseline the compared figure is, round by
    /// round; more is better. Absent for the baseline itself.
    pub times_as_good: Option<Series>,
    /// How many times as good as this way tenure's way is, round by round.
    /// Absent for tenure's way itself.
    pub tenure_times_as_good: Option<Series>,
}

impl WayResult {
    /// Returns the figure called `name`.
    pub fn figure(&self, name: &str) -> Option<&FigureResult> {
        self.figures.iter().find(|figure| figure.name == name)
    }
}

/// All ways of one case.
#[derive(Clone, Debug, Serialize)]
pub struct CaseResult {
    /// The table that the case stands in.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub table: String,
    /// What was worked on.
    pub name: String,
    /// How many rounds were measured.
    pub rounds: u32,
    /// The figure whose ratio to the baseline is `times_as_good`.
    pub compared: &'static str,
    /// The ways, in the order in which they took turns.
    pub ways: Vec<WayResult>,
    /// What tenure could have chosen; absent where it had no choice.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub choice: Option<Choice>,
}

impl CaseResult {
    /// Returns the way called `name`.
    pub fn way(&self, name: &str) -> Option<&WayResult> {
        self.ways.iter().find(|way| way.name == name)
    }

    /// Returns how many times as good as the baseline tenure's way is.
    pub fn tenure(&self) -> Option<&Series> {
        let way = self.ways.iter().find(|way| way.is_tenure)?;
        way.times_as_good.as_ref()
    }
}
