//! Median, extremes, and ratios taken pair by pair.

use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    Seconds,
    /// Work done in a second.
    PerSecond,
    Bytes,
    /// Memory read and written in a second.
    BytesPerSecond,
    Count,
    /// One figure divided by another.
    Ratio,
    /// A part of all, of which more is better.
    Share,
}

/// Which direction of a figure is the better one.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Better {
    Less,
    More,
}

impl Unit {
    /// Returns which direction of a figure in this unit is better.
    pub fn better(self) -> Better {
        match self {
            Self::PerSecond | Self::BytesPerSecond | Self::Share => Better::More,
            _ => Better::Less,
        }
    }

    /// Returns the word for being better in a figure of this unit.
    pub fn good(self) -> &'static str {
        match self {
            Self::Seconds | Self::PerSecond | Self::BytesPerSecond => "fast",
            Self::Bytes | Self::Count | Self::Ratio | Self::Share => "good",
        }
    }
}

/// The samples of one figure, in the order of the rounds, and their summary.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Series {
    /// The middle sample, or the mean of the two in the middle.
    pub median: f64,
    pub minimum: f64,
    pub maximum: f64,
    pub samples: Vec<f64>,
}

impl Series {
    /// Summarises `samples`; `None` when there are none or one is not finite.
    pub fn new(samples: Vec<f64>) -> Option<Self> {
        let mut sorted = samples.clone();
        sorted.sort_by(f64::total_cmp);
        let (&minimum, &maximum) = (sorted.first()?, sorted.last()?);
        let middle = sorted.len() / 2;
        let below = sorted[middle - usize::from(sorted.len().is_multiple_of(2))];
        samples
            .iter()
            .all(|sample| sample.is_finite())
            .then_some(Self {
                median: (below + sorted[middle]) / 2.0,
                minimum,
                maximum,
                samples,
            })
    }

    /// Computes how many times as good each sample is as the baseline's sample
    /// of the same round. Comparing within a round cancels what changes slowly
    /// between rounds: clock speed, the neighbours of a virtual machine.
    pub fn times_as_good(&self, baseline: &Self, better: Better) -> Option<Self> {
        let pairs = self.samples.iter().zip(&baseline.samples);
        let ratios = pairs.map(|(own, baseline)| match better {
            Better::Less => baseline / own,
            Better::More => own / baseline,
        });
        Self::new(ratios.collect())
    }
}
