//! The axis of a plot: from nothing on in even steps, or in powers where the
//! values differ too much for that.

use crate::{
    bench::Unit,
    text::{bytes_text, count_text, significant, time_unit},
};

/// Values that differ by more than this are drawn in powers.
const MOST_LINEAR: f64 = 30.0;
/// More labels than this do not stand beside one another on a phone.
const MOST_LABELS: usize = 6;

/// An axis.
#[derive(Clone, Debug)]
pub struct Scale {
    /// Whether equal distances are equal ratios.
    pub is_logarithmic: bool,
    /// Where it begins.
    pub from: f64,
    /// Where it ends.
    pub to: f64,
    /// Labelled places.
    pub ticks: Vec<(f64, String)>,
}

impl Scale {
    /// Makes an axis for values from `least` to `most`.
    pub fn new(unit: Unit, least: f64, most: f64) -> Self {
        if least > 0.0 && most / least > MOST_LINEAR {
            Self::logarithmic(unit, least, most)
        } else {
            Self::linear(unit, most)
        }
    }

    fn linear(unit: Unit, most: f64) -> Self {
        let most = if most > 0.0 { most } else { 1.0 };
        // Steps are round in the unit that people read.
        let factor = match unit {
            Unit::Seconds => 1.0 / time_unit(most).1,
            Unit::Bytes => binary_unit(most),
            _ => 1.0,
        };
        let step = round_step(most / factor / 4.0) * factor;
        let steps = (most / step - 1e-9).ceil().max(1.0);
        let to = steps * step;
        let mut ticks = Vec::new();
        let mut place = 0.0;
        while place <= steps {
            let value = place * step;
            let text = if place == 0.0 {
                "0".to_owned()
            } else {
                tick_text(unit, value, to)
            };
            ticks.push((value, text));
            place += 1.0;
        }
        Self {
            is_logarithmic: false,
            from: 0.0,
            to,
            ticks,
        }
    }

    fn logarithmic(unit: Unit, least: f64, most: f64) -> Self {
        let base: f64 = if unit == Unit::Bytes { 1024.0 } else { 10.0 };
        let power = |value: f64| value.ln() / base.ln();
        let first = (power(least) + 1e-9).floor();
        let last = (power(most) - 1e-9).ceil();
        let mut ticks = Vec::new();
        let mut exponent = first;
        while exponent <= last {
            let value = base.powf(exponent);
            ticks.push((value, tick_text(unit, value, value)));
            exponent += 1.0;
        }
        let (from, to) = (base.powf(first), base.powf(last));
        // Where there is no room for all, the labels of some.
        let each = ticks.len().div_ceil(MOST_LABELS);
        for (index, tick) in ticks.iter_mut().enumerate() {
            if index % each != 0 {
                tick.1.clear();
            }
        }
        Self {
            is_logarithmic: true,
            from,
            to,
            ticks,
        }
    }

    /// Returns where `value` stands, from 0 to 1.
    pub fn place(&self, value: f64) -> f64 {
        let place = if self.is_logarithmic {
            (value / self.from).ln() / (self.to / self.from).ln()
        } else {
            value / self.to
        };
        place.clamp(0.0, 1.0)
    }
}

/// Returns the smallest of 1, 2, 2.5 and 5 times a power of ten that is at least
/// `step`.
fn round_step(step: f64) -> f64 {
    let power = 10f64.powf(step.log10().floor());
    let factors = [1.0, 2.0, 2.5, 5.0, 10.0];
    let enough = |factor: &&f64| **factor * power >= step * (1.0 - 1e-9);
    factors.iter().find(enough).unwrap_or(&10.0) * power
}

fn binary_unit(bytes: f64) -> f64 {
    let units = [30, 20, 10].map(|shift| f64::from(1u32 << shift));
    let fits = |unit: &&f64| bytes >= **unit;
    *units.iter().find(fits).unwrap_or(&1.0)
}

/// Writes `value` without digits that say nothing, in the unit that suits `whole`.
fn tick_text(unit: Unit, value: f64, whole: f64) -> String {
    match unit {
        Unit::Seconds => {
            // A power of ten is not quite one in floating point.
            let (name, factor) = time_unit(whole * (1.0 + 1e-9));
            format!("{} {name}", short(value * factor))
        }
        Unit::PerSecond => format!("{}/s", count_text(value)),
        Unit::Bytes => bytes_text(value),
        Unit::BytesPerSecond => format!("{} GB/s", short(value / 1e9)),
        Unit::Count | Unit::Ratio if value >= 1.0 && value.fract() == 0.0 => count_text(value),
        Unit::Count | Unit::Ratio => short(value),
    }
}

fn short(value: f64) -> String {
    if (value.round() - value).abs() < 1e-6 {
        return count_text(value);
    }
    let text = significant(value);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(scale: &Scale) -> Vec<&str> {
        scale.ticks.iter().map(|(_, text)| text.as_str()).collect()
    }

    #[test]
    fn near_values_have_even_steps_from_nothing() {
        let scale = Scale::new(Unit::Seconds, 0.197, 0.642);
        assert!(!scale.is_logarithmic);
        assert_eq!(
            labels(&scale),
            ["0", "200 ms", "400 ms", "600 ms", "800 ms"]
        );
        assert!((scale.place(0.4) - 0.5).abs() < 1e-9);
        let scale = Scale::new(Unit::PerSecond, 4815.0, 10985.0);
        assert_eq!(labels(&scale), ["0", "5,000/s", "10,000/s", "15,000/s"]);
        let mib = 1048576.0;
        let scale = Scale::new(Unit::Bytes, 0.0, 512.0 * mib);
        assert_eq!(labels(&scale), ["0", "200 MiB", "400 MiB", "600 MiB"]);
        assert_eq!(labels(&Scale::new(Unit::Count, 0.0, 0.0)).len(), 5);
        let scale = Scale::new(Unit::Ratio, 0.5, 2.2);
        assert_eq!(labels(&scale), ["0", "1", "2", "3"]);
    }

    #[test]
    fn far_values_stand_in_powers() {
        let scale = Scale::new(Unit::Seconds, 102e-6, 0.469);
        assert!(scale.is_logarithmic);
        assert_eq!(labels(&scale), ["100 µs", "1 ms", "10 ms", "100 ms", "1 s"]);
        assert!((scale.place(10e-3) - 0.5).abs() < 1e-9);
        let wide = Scale::new(Unit::Seconds, 1e-8, 100.0);
        let shown = labels(&wide).iter().filter(|text| !text.is_empty()).count();
        assert!(shown <= MOST_LABELS, "{wide:?}");
        assert_eq!(wide.ticks.len(), 11);
    }

    #[test]
    fn nothing_stands_beside_the_axis() {
        let scale = Scale::new(Unit::Seconds, 1e-6, 1.0);
        assert_eq!((scale.place(0.0), scale.place(9.0)), (0.0, 1.0));
    }
}
