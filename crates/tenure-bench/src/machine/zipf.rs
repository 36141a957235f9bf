//! Keys that are asked for as often as Zipf's law has it.

use fastrand::Rng;

/// Draws keys below a number: the first is the most frequent, and the one at place `n` comes
/// with a probability in proportion to `n` to the power of `-exponent`.
pub struct Zipf {
    /// The sums of the weights up to each key.
    sums: Vec<f64>,
    rng: Rng,
}

impl Zipf {
    pub fn new(keys: usize, exponent: f64, seed: u64) -> Self {
        let mut sum = 0.0;
        let weights = (1..=keys).map(|place| (place as f64).powf(-exponent));
        let sums = weights.map(|weight| {
            sum += weight;
            sum
        });
        Self {
            sums: sums.collect(),
            rng: Rng::with_seed(seed),
        }
    }

    /// Returns the next key.
    pub fn draw(&mut self) -> usize {
        let end = self.sums.last().copied().unwrap_or_default();
        let drawn = self.rng.f64() * end;
        let key = self.sums.partition_point(|&sum| sum <= drawn);
        // Rounding may reach the end.
        key.min(self.sums.len() - 1)
    }
}

#[cfg(test)]
#[path = "../../tests/unit/machine/zipf.rs"]
mod tests;
