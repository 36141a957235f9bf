//! Figures as people read them.

/// Bytes in the largest binary unit that leaves a number of at least 1.
pub fn bytes_text(bytes: f64) -> String {
    const UNITS: [(&str, u32); 4] = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
    for (name, shift) in UNITS {
        let scaled = bytes / (1u64 << shift) as f64;
        if scaled >= 1.0 {
            let text = significant(scaled);
            // "4 GiB", not "4.00 GiB".
            let short = text.trim_end_matches('0').trim_end_matches('.');
            let text = if text.contains('.') { short } else { &text };
            return format!("{text} {name}");
        }
    }
    format!("{bytes} bytes")
}

/// A time in the unit that suits it.
pub fn seconds_text(seconds: f64) -> String {
    let (unit, factor) = time_unit(seconds);
    format!("{} {unit}", significant(seconds * factor))
}

/// The unit that suits a time, and how many of it a second has.
pub fn time_unit(seconds: f64) -> (&'static str, f64) {
    match seconds {
        1.0.. => ("s", 1.0),
        1e-3.. => ("ms", 1e3),
        1e-6.. => ("µs", 1e6),
        _ => ("ns", 1e9),
    }
}

/// A whole number with thousands separators.
pub fn count_text(count: f64) -> String {
    let digits = format!("{count:.0}");
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A ratio with as many digits as mean something.
pub fn ratio_text(ratio: f64) -> String {
    significant(ratio)
}

/// A difference as a part of the whole, with its sign.
pub fn percent_text(part: f64) -> String {
    let percent = (part * 1000.0).round() / 10.0;
    let sign = match percent {
        0.0 => "",
        0.0.. => "+",
        _ => "−",
    };
    match percent.abs() {
        percent @ 10.0.. => format!("{sign}{percent:.0} %"),
        percent => format!("{sign}{percent:.1} %"),
    }
}

/// Three significant digits, and all digits before the point.
pub fn significant(value: f64) -> String {
    match value {
        _ if value.is_nan() => "?".to_owned(),
        99.95.. => count_text(value),
        9.995.. => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_have_the_unit_that_suits() {
        assert_eq!(bytes_text(0.0), "0 bytes");
        assert_eq!(bytes_text(4096.0), "4 KiB");
        assert_eq!(bytes_text(1.5 * 1048576.0), "1.5 MiB");
        assert_eq!(bytes_text(100.0 * 1048576.0), "100 MiB");
        assert_eq!(bytes_text(4.0 * 1073741824.0), "4 GiB");
        assert_eq!(bytes_text(1024.0 * 1073741824.0), "1 TiB");
    }

    #[test]
    fn times_have_the_unit_that_suits() {
        assert_eq!(seconds_text(0.0000421), "42.1 µs");
        assert_eq!(seconds_text(0.000000041), "41.0 ns");
        assert_eq!(seconds_text(0.31), "310 ms");
        assert_eq!(seconds_text(2.0), "2.00 s");
    }

    #[test]
    fn thousands_are_separated() {
        assert_eq!(count_text(7.0), "7");
        assert_eq!(count_text(999.0), "999");
        assert_eq!(count_text(15_000_000.0), "15,000,000");
    }

    #[test]
    fn ratios_have_three_digits() {
        assert_eq!(ratio_text(1.873), "1.87");
        assert_eq!(ratio_text(31.26), "31.3");
        assert_eq!(ratio_text(6120.4), "6,120");
        assert_eq!(ratio_text(f64::NAN), "?");
    }

    #[test]
    fn a_difference_has_its_sign() {
        assert_eq!(percent_text(0.124), "+12 %");
        assert_eq!(percent_text(-0.03), "−3.0 %");
        assert_eq!(percent_text(0.0514), "+5.1 %");
        assert_eq!(percent_text(-0.0001), "0.0 %");
    }
}
