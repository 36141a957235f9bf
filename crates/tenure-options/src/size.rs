//! Sizes as people write them.

/// Parses a size: a whole number of bytes, or of the unit that follows it, which is K,
/// M, G or T (powers of 1024), alone or with "iB", in either case. Returns `None` for
/// other text, and for a size that overflows.
///
/// ```
/// use tenure_options::parse_size;
///
/// assert_eq!(parse_size("65536"), Some(65536));
/// assert_eq!(parse_size("256K"), Some(256 << 10));
/// assert_eq!(parse_size("4MiB"), Some(4 << 20));
/// assert_eq!(parse_size("4 M"), None);
/// ```
pub fn parse_size(text: &str) -> Option<usize> {
    let end = text.find(|c: char| !c.is_ascii_digit());
    let (digits, unit) = text.split_at(end.unwrap_or(text.len()));
    let number: usize = digits.parse().ok()?;
    let is = |names: [&str; 2]| names.iter().any(|name| unit.eq_ignore_ascii_case(name));
    let shift = match unit {
        "" => 0,
        _ if is(["K", "KiB"]) => 10,
        _ if is(["M", "MiB"]) => 20,
        _ if is(["G", "GiB"]) => 30,
        _ if is(["T", "TiB"]) => 40,
        _ => return None,
    };
    number.checked_mul(1 << shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn size_units_are_powers_of_1024() {
        for (text, bytes) in [
            ("0", 0),
            ("1", 1),
            ("3k", 3 << 10),
            ("3KiB", 3 << 10),
            ("3mib", 3 << 20),
            ("3G", 3 << 30),
            ("3t", 3 << 40),
        ] {
            assert_eq!(parse_size(text), Some(bytes), "{text}");
        }
    }

    #[test]
    fn size_of_other_text_is_none() {
        let wrong = [
            "",
            "M",
            "-1",
            "+1",
            "1.5M",
            "1 M",
            " 1",
            "1MB",
            "0x10",
            "1Mi",
            "1é",
            "18446744073709551616",
            "16777216T",
        ];
        for text in wrong {
            assert_eq!(parse_size(text), None, "{text}");
        }
    }
}
