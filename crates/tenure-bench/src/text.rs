//! Figures as people read them.

use crate::record::{Figure, Series, Unit};

/// Text that comes from outside (a name, a path, a record), harmless on a terminal and in a
/// page: what moves the cursor, changes colours, breaks lines or reorders other text appears
/// as an escape, such as `\u{1b}`.
pub fn printable(text: &str) -> String {
    let escaped = |c: char| match is_control(c) {
        true => c.escape_default().to_string(),
        false => c.to_string(),
    };
    text.chars().map(escaped).collect()
}

/// The same for text of several lines, whose line breaks stay.
pub fn printable_lines(text: &str) -> String {
    let lines: Vec<String> = text.split('\n').map(printable).collect();
    lines.join("\n")
}

/// JSON with the characters escaped that serde leaves as they are, from U+007F on.
pub fn printable_json(json: &str) -> String {
    let escaped = |c: char| match is_control(c) && c != '\n' {
        true => format!("\\u{:04x}", u32::from(c)),
        false => c.to_string(),
    };
    json.chars().map(escaped).collect()
}

/// Control characters (C0, DEL, C1), separators of lines, and those that change the
/// direction of text. All have four hexadecimal digits at most.
pub fn is_control(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}'
        )
        || matches!(c, '\u{2066}'..='\u{2069}')
}

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

/// A number of threads.
pub fn threads_text(threads: usize) -> String {
    format!("{threads} thread{}", if threads == 1 { "" } else { "s" })
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

/// The median and, in parentheses, the extremes, all in the median's unit.
pub fn spread_text(unit: Unit, median: f64, minimum: f64, maximum: f64) -> String {
    let all = |text: &dyn Fn(f64) -> String, unit: &str| {
        let [median, minimum, maximum] = [median, minimum, maximum].map(text);
        match minimum == maximum {
            true => format!("{median}{unit}"),
            false => format!("{median} ({minimum}–{maximum}){unit}"),
        }
    };
    let (time, factor) = time_unit(median);
    match unit {
        Unit::Seconds => all(
            &|seconds| significant(seconds * factor),
            &format!(" {time}"),
        ),
        Unit::PerSecond => all(&count_text, "/s"),
        Unit::Bytes => all(&bytes_text, ""),
        Unit::BytesPerSecond => all(&|rate| significant(rate / 1e9), " GB/s"),
        Unit::Count => all(&count_text, ""),
        Unit::Ratio | Unit::Share => all(&significant, ""),
    }
}

/// The median alone.
pub fn median_text(figure: &Figure) -> String {
    let median = figure.series.median;
    spread_text(figure.unit, median, median, median)
}

/// The median and, behind ±, half of the distance between the extremes in per
/// cent of it.
pub fn short_spread_text(figure: &Figure) -> String {
    let Series {
        median,
        minimum,
        maximum,
        ..
    } = figure.series;
    let text = median_text(figure);
    let percent = (maximum - minimum) / 2.0 / median * 100.0;
    match minimum == maximum {
        true => text,
        false => format!("{text} ±{percent:.0}%"),
    }
}

#[cfg(test)]
#[path = "../tests/unit/text.rs"]
mod tests;
