//! Formatting of sizes for error messages.

use std::fmt;

/// A number of bytes, formatted in the largest binary unit that it reaches,
/// with at most two decimals (`4 KiB`, `1.5 GiB`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bytes(pub usize);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 5] = ["bytes", "KiB", "MiB", "GiB", "TiB"];
        let unit = (1..UNITS.len())
            .take_while(|&unit| self.0 >> (10 * unit) > 0)
            .last()
            .unwrap_or(0);
        let hundredths = (self.0 as u128 * 100) >> (10 * unit);
        match (hundredths / 100, hundredths % 100) {
            (whole, 0) => write!(f, "{whole} {}", UNITS[unit]),
            (whole, part) if part % 10 == 0 => write!(f, "{whole}.{} {}", part / 10, UNITS[unit]),
            (whole, part) => write!(f, "{whole}.{part:02} {}", UNITS[unit]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Bytes;

    #[test]
    fn bytes_are_shown_in_largest_unit_reached() {
        let text = |bytes| Bytes(bytes).to_string();
        assert_eq!(text(0), "0 bytes");
        assert_eq!(text(1023), "1023 bytes");
        assert_eq!(text(4096), "4 KiB");
        assert_eq!(text(3 << 29), "1.5 GiB");
        assert_eq!(text((1 << 20) + (1 << 14)), "1.01 MiB");
        assert_eq!(text(usize::MAX), "16777215.99 TiB");
    }
}
