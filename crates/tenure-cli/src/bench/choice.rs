//! Whether tenure chose well between the ways that it can choose from.

use serde::Serialize;

use super::experiment::WayResult;

/// How much worse than the best of its choices tenure's way may be.
pub const TOLERANCE: f64 = 0.05;

/// The best of the ways that tenure's way chooses from, and how near it came.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Choice {
    /// The way that was best.
    pub best: &'static str,
    /// How much worse than that tenure's way is, as a part of it: 0.12 is 12 %
    /// worse, and less than 0 is better. The median of the rounds.
    pub tenure_worse_by: f64,
    /// Whether that is at most 5 %.
    pub is_within_5_percent: bool,
}

/// Looks for the best choice: the way compared with which tenure's is worst.
/// `None` where tenure has nothing to choose from.
pub fn of(ways: &[WayResult]) -> Option<Choice> {
    let ratio = |way: &WayResult| Some(way.tenure_times_as_good.as_ref()?.median);
    let (best, ratio) = ways
        .iter()
        .filter(|way| way.is_choice)
        .filter_map(|way| Some((way.name, ratio(way)?)))
        .min_by(|a, b| a.1.total_cmp(&b.1))?;
    let tenure_worse_by = 1.0 / ratio - 1.0;
    Some(Choice {
        best,
        tenure_worse_by,
        is_within_5_percent: tenure_worse_by <= TOLERANCE,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::statistics::Series;

    fn way(name: &'static str, is_choice: bool, tenure_times_as_good: f64) -> WayResult {
        WayResult {
            name,
            is_tenure: false,
            is_baseline: false,
            is_choice,
            figures: Vec::new(),
            times_as_good: None,
            tenure_times_as_good: Series::new(vec![tenure_times_as_good]),
        }
    }

    #[test]
    fn the_best_choice_is_the_one_that_tenure_beats_least() {
        let ways = [
            way("older", false, 0.5),
            way("Populate", true, 1.5),
            way("Touch", true, 0.8),
        ];
        let choice = of(&ways).unwrap();
        assert_eq!(choice.best, "Touch");
        assert!((choice.tenure_worse_by - 0.25).abs() < 1e-9);
        assert!(!choice.is_within_5_percent);
    }

    #[test]
    fn better_than_the_best_is_within_the_tolerance() {
        let choice = of(&[way("Populate", true, 1.25)]).unwrap();
        assert!((choice.tenure_worse_by + 0.2).abs() < 1e-9);
        assert!(choice.is_within_5_percent);
        assert!(
            of(&[way("Populate", true, 0.96)])
                .unwrap()
                .is_within_5_percent
        );
        assert!(
            !of(&[way("Populate", true, 0.95)])
                .unwrap()
                .is_within_5_percent
        );
    }

    #[test]
    fn without_choices_there_is_nothing_to_say() {
        assert_eq!(of(&[way("older", false, 2.0)]), None);
    }
}
