//! Sizes as people write them.

use core::fmt;

/// The reason why a text is not a size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SizeError {
    /// The text is no number, or no known unit follows it.
    NotASize,
    /// A fraction of a byte.
    FractionWithoutUnit,
    /// More bytes than there are addresses.
    TooLarge,
}

impl fmt::Display for SizeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotASize => "give a size in bytes, K, M, G or T, such as 65536, 64K or 1.5G",
            Self::FractionWithoutUnit => "a fraction needs a unit: K, M, G or T, as in 1.5G",
            Self::TooLarge => "the size is more bytes than there are addresses",
        })
    }
}

impl core::error::Error for SizeError {}

/// Parses a size: a number of bytes, or of the unit that follows it, which is K, M, G or T
/// (powers of 1024), alone or with "B" or "iB", in either case. Before a unit the number
/// may have a decimal fraction; a remaining fraction of a byte is dropped.
///
/// ```
/// use tenure_options::{SizeError, parse_size};
///
/// assert_eq!(parse_size("65536"), Ok(65536));
/// assert_eq!(parse_size("256K"), Ok(256 << 10));
/// assert_eq!(parse_size("1.5GB"), Ok(3 << 29));
/// assert_eq!(parse_size("4 M"), Err(SizeError::NotASize));
/// ```
///
/// # Errors
///
/// [`SizeError`] for other text, and for a size that overflows.
pub fn parse_size(text: &str) -> Result<usize, SizeError> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.');
    let (number, unit) = text.split_at(end.unwrap_or(text.len()));
    let is = |names: [&str; 3]| names.iter().any(|name| unit.eq_ignore_ascii_case(name));
    let shift = match unit {
        "" | "B" | "b" => 0,
        _ if is(["K", "KB", "KiB"]) => 10,
        _ if is(["M", "MB", "MiB"]) => 20,
        _ if is(["G", "GB", "GiB"]) => 30,
        _ if is(["T", "TB", "TiB"]) => 40,
        _ => return Err(SizeError::NotASize),
    };
    let (whole, fraction) = match number.split_once('.') {
        None => (number, None),
        Some((whole, fraction)) => (whole, Some(fraction)),
    };
    let is_number = |digits: &str| !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
    if !is_number(whole) || fraction.is_some_and(|digits| !is_number(digits)) {
        return Err(SizeError::NotASize);
    }
    if fraction.is_some() && shift == 0 {
        return Err(SizeError::FractionWithoutUnit);
    }
    let whole: usize = whole.parse().map_err(|_| SizeError::TooLarge)?;
    let bytes = whole.checked_mul(1 << shift).ok_or(SizeError::TooLarge)?;
    // Each digit counts a tenth of the one before it: after 13 not even a T has a byte left.
    let digits = fraction.unwrap_or("").bytes().take(13);
    let (parts, count) = digits.fold((0_u128, 1), |(parts, count), digit| {
        (parts * 10 + u128::from(digit - b'0'), count * 10)
    });
    let fraction_bytes = (parts << shift) / count;
    let fraction_bytes = usize::try_from(fraction_bytes).map_err(|_| SizeError::TooLarge)?;
    bytes.checked_add(fraction_bytes).ok_or(SizeError::TooLarge)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn size_units_are_powers_of_1024() {
        for (text, bytes) in [
            ("0", 0),
            ("1", 1),
            ("7B", 7),
            ("3k", 3 << 10),
            ("3KiB", 3 << 10),
            ("3kb", 3 << 10),
            ("3mib", 3 << 20),
            ("3G", 3 << 30),
            ("1GB", 1 << 30),
            ("3t", 3 << 40),
            ("16777215T", 16_777_215 << 40),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn fraction_is_of_the_unit() {
        for (text, bytes) in [
            ("1.5G", 3 << 29),
            ("0.25K", 256),
            ("2.0MiB", 2 << 20),
            ("0.001K", 1),
            ("0.99999999999999999999999K", 1023),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn size_of_other_text_is_an_error() {
        let wrong = [
            "", "M", "-1", "+1", "1.M", ".5M", "1.2.3M", "1 M", " 1", "0x10", "1Mi", "1é", ".",
        ];
        for text in wrong {
            assert_eq!(parse_size(text), Err(SizeError::NotASize), "{text}");
        }
        for text in ["1.5", "0.0", "1.5B"] {
            let error = parse_size(text);
            assert_eq!(error, Err(SizeError::FractionWithoutUnit), "{text}");
        }
        for text in ["18446744073709551616", "16777216T", "99999999T"] {
            assert_eq!(parse_size(text), Err(SizeError::TooLarge), "{text}");
        }
    }
}
