//! Samples as people read them.

use super::{experiment::Unit, statistics::Series};
use crate::text::{bytes_text, count_text, ratio_text, significant, time_unit};

/// The median and, in parentheses, the extremes, all in the median's unit.
pub fn spread_text(unit: Unit, median: f64, minimum: f64, maximum: f64) -> String {
    let all = |text: &dyn Fn(f64) -> String, unit: &str| {
        let (median, minimum, maximum) = (text(median), text(minimum), text(maximum));
        let spread = if minimum == maximum {
            String::new()
        } else {
            format!(" ({minimum}–{maximum})")
        };
        format!("{median}{spread}{unit}")
    };
    match unit {
        Unit::Seconds => {
            let (name, factor) = time_unit(median);
            all(
                &|seconds| significant(seconds * factor),
                &format!(" {name}"),
            )
        }
        Unit::PerSecond => all(&count_text, "/s"),
        Unit::Bytes => all(&bytes_text, ""),
        Unit::BytesPerSecond => all(&|rate| significant(rate / 1e9), " GB/s"),
        Unit::Count => all(&count_text, ""),
        Unit::Ratio => all(&ratio_text, ""),
    }
}

/// The median and, behind ±, half of the distance between the extremes in per
/// cent of it.
pub fn short_spread_text(unit: Unit, series: &Series) -> String {
    let Series {
        median,
        minimum,
        maximum,
        ..
    } = *series;
    let text = spread_text(unit, median, median, median);
    if minimum == maximum {
        return text;
    }
    let percent = (maximum - minimum) / 2.0 / median * 100.0;
    format!("{text} ±{percent:.0}%")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_spread_is_in_per_cent() {
        let text = |samples: &[f64]| {
            let series = Series::new(samples.to_vec()).unwrap();
            short_spread_text(Unit::Seconds, &series)
        };
        assert_eq!(text(&[0.9, 1.0, 1.2]), "1.00 s ±15%");
        assert_eq!(text(&[0.0625]), "62.5 ms");
    }

    #[test]
    fn a_spread_has_one_unit() {
        assert_eq!(
            spread_text(Unit::Seconds, 0.002, 0.0015, 0.0123),
            "2.00 (1.50–12.3) ms"
        );
        assert_eq!(spread_text(Unit::Count, 3.0, 3.0, 3.0), "3");
        assert_eq!(
            spread_text(Unit::BytesPerSecond, 12.34e9, 9e9, 13e9),
            "12.3 (9.00–13.0) GB/s"
        );
        assert_eq!(
            spread_text(Unit::PerSecond, 4000.0, 3000.0, 5000.0),
            "4,000 (3,000–5,000)/s"
        );
    }
}
