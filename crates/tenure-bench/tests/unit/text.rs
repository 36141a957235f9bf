use super::*;

#[test]
fn printable_text_has_no_control_or_bidi_characters() {
    let hostile = "a\u{1b}[2J\r\n\u{7f}\u{9b}1m\u{202e}\u{2066}\u{2028}ü→\\";
    let escaped = "a\\u{1b}[2J\\r\\n\\u{7f}\\u{9b}1m\\u{202e}\\u{2066}\\u{2028}ü→\\";
    assert_eq!(printable(hostile), escaped);
    assert_eq!(printable_lines("a\n\tb\n"), "a\n\\tb\n");
}

#[test]
fn printable_json_means_the_same_text() {
    let hostile = "\u{1b}\n\u{7f}\u{85}\u{9b}\u{202e}\u{2069}ü→\"\\";
    let json = printable_json(&serde_json::to_string(hostile).unwrap());
    assert!(!json.contains(is_control), "{json}");
    assert_eq!(serde_json::from_str::<String>(&json).unwrap(), hostile);
}

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
    assert_eq!(significant(1.873), "1.87");
    assert_eq!(significant(31.26), "31.3");
    assert_eq!(significant(6120.4), "6,120");
    assert_eq!(significant(f64::NAN), "?");
}

#[test]
fn percent_has_a_sign() {
    assert_eq!(percent_text(0.124), "+12 %");
    assert_eq!(percent_text(-0.03), "−3.0 %");
    assert_eq!(percent_text(0.0514), "+5.1 %");
    assert_eq!(percent_text(-0.0001), "0.0 %");
}

#[test]
fn short_spread_is_in_per_cent() {
    let text = |samples: &[f64]| {
        let way = crate::fixture::way("", &[("time", Unit::Seconds, samples)]);
        short_spread_text(&way.figures[0])
    };
    assert_eq!(text(&[0.9, 1.0, 1.2]), "1.00 s ±15%");
    assert_eq!(text(&[0.0625]), "62.5 ms");
}

#[test]
fn spread_has_one_unit() {
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
