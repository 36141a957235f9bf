//! Median, extremes, and ratios taken pair by pair.

use serde::{Deserialize, Serialize};

/// The samples of one figure, in the order of the rounds, and what they say.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Series {
    /// The middle sample, or the mean of the two in the middle.
    pub median: f64,
    /// The smallest sample.
    pub minimum: f64,
    /// The largest sample.
    pub maximum: f64,
    /// One sample for each round.
    pub samples: Vec<f64>,
}

impl Series {
    /// Summarises `samples`; `None` when there are none or one is not finite.
    pub fn new(samples: Vec<f64>) -> Option<Self> {
        if samples.is_empty() || samples.iter().any(|sample| !sample.is_finite()) {
            return None;
        }
        let mut sorted = samples.clone();
        sorted.sort_by(f64::total_cmp);
        let middle = sorted.len() / 2;
        let median = if sorted.len() % 2 == 1 {
            sorted[middle]
        } else {
            (sorted[middle - 1] + sorted[middle]) / 2.0
        };
        Some(Self {
            median,
            minimum: sorted[0],
            maximum: sorted[sorted.len() - 1],
            samples,
        })
    }

    /// Computes how many times as good each sample is as the baseline's sample
    /// of the same round. Comparing within a round cancels what changes slowly
    /// between rounds: clock speed, the neighbours of a virtual machine.
    pub fn times_as_good(&self, baseline: &Self, better: Better) -> Option<Self> {
        let ratios = self
            .samples
            .iter()
            .zip(&baseline.samples)
            .map(|(own, baseline)| match better {
                Better::Less => baseline / own,
                Better::More => own / baseline,
            })
            .collect();
        Self::new(ratios)
    }
}

/// Which direction of a figure is the better one.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Better {
    /// Times: less is better.
    Less,
    /// Rates: more is better.
    More,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(samples: &[f64]) -> Series {
        Series::new(samples.to_vec()).unwrap()
    }

    #[test]
    fn an_odd_number_of_samples_has_a_middle_one() {
        let series = series(&[5.0, 1.0, 3.0]);
        assert_eq!(
            (series.median, series.minimum, series.maximum),
            (3.0, 1.0, 5.0)
        );
        assert_eq!(series.samples, [5.0, 1.0, 3.0], "rounds stay in order");
    }

    #[test]
    fn an_even_number_has_the_mean_of_two() {
        assert_eq!(series(&[4.0, 1.0, 2.0, 100.0]).median, 3.0);
    }

    #[test]
    fn nothing_and_nonsense_have_no_summary() {
        assert_eq!(Series::new(vec![]), None);
        assert_eq!(Series::new(vec![1.0, f64::NAN]), None);
        assert_eq!(Series::new(vec![1.0, f64::INFINITY]), None);
    }

    #[test]
    fn ratios_are_taken_within_a_round() {
        // Round 2 ran on a machine twice as slow; the ratio does not see it.
        let own = series(&[1.0, 2.0, 1.0]);
        let baseline = series(&[3.0, 6.0, 3.0]);
        let ratio = own.times_as_good(&baseline, Better::Less).unwrap();
        assert_eq!(ratio.samples, [3.0, 3.0, 3.0]);
    }

    #[test]
    fn a_rate_is_better_when_it_is_higher() {
        let ratio = series(&[10.0]).times_as_good(&series(&[4.0]), Better::More);
        assert_eq!(ratio.unwrap().median, 2.5);
    }

    #[test]
    fn a_time_of_zero_has_no_ratio() {
        let ratio = series(&[0.0]).times_as_good(&series(&[1.0]), Better::Less);
        assert_eq!(ratio, None);
    }
}
