//! The axis of a plot: even steps from zero, or powers where the values differ too
//! much for that.

use crate::record::Unit;
use crate::text::{bytes_text, count_text, significant, time_unit};

/// Values that differ by more than this stand on a logarithmic axis.
const MAX_LINEAR: f64 = 30.0;
/// More labels than this do not fit beside one another on a phone.
const MAX_LABELS: usize = 6;

/// An axis.
#[derive(Clone, Debug)]
pub struct Axis {
    /// Whether equal distances are equal ratios.
    pub is_logarithmic: bool,
    pub from: f64,
    pub to: f64,
    /// Labelled places.
    pub ticks: Vec<(f64, String)>,
}

impl Axis {
    /// Makes an axis for values from `min` to `max`.
    pub fn new(unit: Unit, min: f64, max: f64) -> Self {
        if min > 0.0 && max / min > MAX_LINEAR {
            Self::logarithmic(unit, min, max)
        } else {
            Self::linear(unit, if max > 0.0 { max } else { 1.0 })
        }
    }

    fn linear(unit: Unit, max: f64) -> Self {
        // Steps are round in the unit that people read.
        let factor = match unit {
            Unit::Seconds => 1.0 / time_unit(max).1,
            Unit::Bytes => binary_unit(max),
            _ => 1.0,
        };
        let step = round_step(max / factor / 4.0) * factor;
        let steps = (max / step - 1e-9).ceil().max(1.0) as u32;
        let to = f64::from(steps) * step;
        let tick = |place: u32| match f64::from(place) * step {
            0.0 => (0.0, "0".to_owned()),
            value => (value, tick_text(unit, value, to)),
        };
        Self {
            is_logarithmic: false,
            from: 0.0,
            to,
            ticks: (0..=steps).map(tick).collect(),
        }
    }

    fn logarithmic(unit: Unit, min: f64, max: f64) -> Self {
        let base: f64 = if unit == Unit::Bytes { 1024.0 } else { 10.0 };
        let power = |value: f64| value.ln() / base.ln();
        let first = (power(min) + 1e-9).floor() as i32;
        let last = (power(max) - 1e-9).ceil() as i32;
        // With too many labels for the width, only each so manieth.
        let each = (last - first + 1) as usize;
        let each = each.div_ceil(MAX_LABELS);
        let ticks = (first..=last).enumerate().map(|(index, exponent)| {
            let value = base.powi(exponent);
            let is_labelled = index % each == 0;
            let text = is_labelled.then(|| tick_text(unit, value, value));
            (value, text.unwrap_or_default())
        });
        Self {
            is_logarithmic: true,
            from: base.powi(first),
            to: base.powi(last),
            ticks: ticks.collect(),
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
    let is_enough = |factor: &f64| factor * power >= step * (1.0 - 1e-9);
    let factor = [1.0, 2.0, 2.5, 5.0].into_iter().find(is_enough);
    factor.unwrap_or(10.0) * power
}

fn binary_unit(bytes: f64) -> f64 {
    let units = [30, 20, 10].map(|shift| f64::from(1u32 << shift));
    units.into_iter().find(|unit| bytes >= *unit).unwrap_or(1.0)
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
        Unit::Count | Unit::Ratio | Unit::Share => short(value),
    }
}

fn short(value: f64) -> String {
    if value >= 1.0 && (value.round() - value).abs() < 1e-6 {
        return count_text(value);
    }
    let text = significant(value);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
#[path = "../../tests/unit/report/axis.rs"]
mod tests;
