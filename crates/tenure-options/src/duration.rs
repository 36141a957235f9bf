//! Durations as people write them.

use core::fmt;
use core::time::Duration;

/// The reason why a text is not a duration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DurationError;

impl fmt::Display for DurationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("give a duration in whole ms, s, min or h, such as 500ms or 5s, or 0")
    }
}

impl core::error::Error for DurationError {}

/// Parses a duration: a whole number of the unit that follows it (ms, s, min or h), or 0.
///
/// ```
/// use std::time::Duration;
/// use tenure_options::parse_duration;
///
/// assert_eq!(parse_duration("250ms"), Ok(Duration::from_millis(250)));
/// assert_eq!(parse_duration("0"), Ok(Duration::ZERO));
/// assert!(parse_duration("5").is_err());
/// ```
///
/// # Errors
///
/// [`DurationError`] for other text, and for more than 2⁶⁴ ms.
pub fn parse_duration(text: &str) -> Result<Duration, DurationError> {
    let end = text.find(|c: char| !c.is_ascii_digit());
    let (number, unit) = text.split_at(end.unwrap_or(text.len()));
    let number: u64 = number.parse().map_err(|_| DurationError)?;
    let unit_ms = match unit {
        "" if number == 0 => 1,
        "ms" => 1,
        "s" => 1000,
        "min" => 60_000,
        "h" => 3_600_000,
        _ => return Err(DurationError),
    };
    let ms = number.checked_mul(unit_ms).ok_or(DurationError)?;
    Ok(Duration::from_millis(ms))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_with_unit_is_a_duration() {
        for (text, ms) in [
            ("0", 0),
            ("0s", 0),
            ("1ms", 1),
            ("5s", 5000),
            ("2min", 120_000),
            ("1h", 3_600_000),
            ("18446744073709551615ms", u64::MAX),
        ] {
            assert_eq!(
                parse_duration(text),
                Ok(Duration::from_millis(ms)),
                "{text}"
            );
        }
    }

    #[test]
    fn other_text_is_refused() {
        for text in [
            "",
            "5",
            "s",
            "5 s",
            "1.5s",
            "-1s",
            "+1s",
            "5S",
            "5sec",
            "18446744073709551615s",
        ] {
            assert_eq!(parse_duration(text), Err(DurationError), "{text}");
        }
    }
}
