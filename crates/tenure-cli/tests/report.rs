//! `tenure report`: the page says what the record says.

use std::{
    fs,
    path::{Path, PathBuf},
};

use assert_cmd::cargo::cargo_bin_cmd;
use serde_json::Value;

#[path = "report/common.rs"]
mod common;
use common::{page_of, record, unescape};

/// Every figure and ratio of a record: its key on the page, and its value.
fn figures(place: usize, record: &Value) -> Vec<(String, f64)> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut figures = Vec::new();
    for experiment in record["experiments"].as_array().unwrap() {
        for case in experiment["cases"].as_array().into_iter().flatten() {
            let worse_by = &case["choice"]["tenure_worse_by"];
            for way in case["ways"].as_array().unwrap() {
                let mut push = |name: String, series: &Value| {
                    let parts = [
                        place.to_string(),
                        text(&experiment["name"]),
                        text(&case["table"]),
                        text(&case["name"]),
                        text(&way["name"]),
                        name,
                    ];
                    figures.push((parts.join("|"), series["median"].as_f64().unwrap()));
                };
                for figure in way["figures"].as_array().unwrap() {
                    push(text(&figure["name"]), figure);
                }
                if way["is_tenure"] == true && !worse_by.is_null() {
                    let series = serde_json::json!({"median": worse_by});
                    push("tenure_worse_by".to_owned(), &series);
                }
                if !way["times_as_good"].is_null() {
                    push("times_as_good".to_owned(), &way["times_as_good"]);
                }
            }
        }
    }
    figures.sort_by(|a, b| a.0.cmp(&b.0));
    figures
}

/// Every figure of a page: its key, its exact value, and what people read.
fn figures_on(page: &str) -> Vec<(String, f64, String)> {
    let mut found = Vec::new();
    for part in page.split("<data value=\"").skip(1) {
        let (value, rest) = part.split_once('"').unwrap();
        let Some(rest) = rest.strip_prefix(" data-key=\"") else {
            continue;
        };
        let (key, rest) = rest.split_once("\">").unwrap();
        let (shown, _) = rest.split_once("</data>").unwrap();
        found.push((unescape(key), value.parse().unwrap(), unescape(shown)));
    }
    found.sort_by(|a, b| a.0.cmp(&b.0));
    found
}

/// Reads "62.0 (55.8–68.2) ms" as people do: the median, and how far from it the
/// value may be.
fn read_back(shown: &str) -> (f64, f64) {
    let end = |c: char| !c.is_ascii_digit() && !matches!(c, '.' | ',');
    let number = shown.split(end).next().unwrap();
    let next = shown[number.len()..].trim_start();
    // Bytes have a unit each, other figures one for all three.
    let unit = match next.split([' ', ')']).next() {
        Some(unit) if unit.ends_with("iB") => unit,
        _ => shown.rsplit([' ', ')']).next().unwrap(),
    };
    let factor = match unit {
        "s" => 1.0,
        "ms" => 1e-3,
        "µs" => 1e-6,
        "ns" => 1e-9,
        "KiB" => 1024.0,
        "MiB" => 1048576.0,
        "GiB" => 1073741824.0,
        "TiB" => 1099511627776.0,
        "GB/s" => 1e9,
        _ => 1.0,
    };
    let decimals = number.split_once('.').map_or(0, |(_, digits)| digits.len());
    let number: f64 = number.replace(',', "").parse().unwrap();
    // "1 GiB" is short for "1.00 GiB".
    let decimals = match number {
        _ if !unit.ends_with("iB") => decimals,
        100.0.. => 0,
        10.0.. => 1,
        _ => 2,
    };
    let last_digit = 0.1f64.powi(i32::try_from(decimals).unwrap());
    (number * factor, last_digit * factor * 0.501)
}

#[test]
fn page_of_one_record_has_exactly_its_figures() {
    let record = record();
    let page = page_of(&[&record]);
    let value: Value = serde_json::from_str(&record).unwrap();
    let (expected, found) = (figures(0, &value), figures_on(&page));
    assert!(expected.len() > 100, "{}", expected.len());
    let exact: Vec<(String, f64)> = found
        .iter()
        .map(|(key, value, _)| (key.clone(), *value))
        .collect();
    assert_eq!(exact, expected);
    for (key, value, shown) in found {
        if key.ends_with("|tenure_worse_by") {
            assert_eq!(shown, "+23 % (POPULATE_READ)");
            continue;
        }
        let (read, rounding) = read_back(&shown);
        assert!(
            (read - value).abs() <= rounding,
            "{key}: {shown} for {value}"
        );
    }
}

#[test]
fn page_begins_with_the_headline_and_the_worst_cases() {
    let page = page_of(&[&record()]);
    let (before, headline) = page.split_once("<table class=\"headline\">").unwrap();
    let (headline, _) = headline.split_once("</table>").unwrap();
    assert!(!before.contains("<h2") && !before.contains("<svg"));
    let rows = headline.matches("\n<tr").count();
    assert!((2..=12).contains(&rows), "{headline}");
    assert!(headline.contains("<td>at worst</td>"), "{headline}");
    assert!(headline.contains(" times as fast</data>"), "{headline}");
}

#[test]
fn page_of_two_records_has_all_figures_and_their_ratios() {
    let first = record();
    let mut value: Value = serde_json::from_str(&first).unwrap();
    // Another machine: all that has a median is half.
    halve(&mut value);
    let second = value.to_string();
    let page = page_of(&[&first, &second]);
    let mut expected = figures(0, &serde_json::from_str(&first).unwrap());
    expected.extend(figures(1, &value));
    let found = figures_on(&page);
    let exact: Vec<(String, f64)> = found
        .into_iter()
        .map(|(key, value, _)| (key, value))
        .collect();
    assert_eq!(exact, expected);
    // Times are twice as good, rates half as good.
    assert!(page.contains("r1: times as good as r0"));
    assert!(page.contains(r#"<data value="2">2.00</data>"#));
    assert!(page.contains(r#"<data value="0.5">0.50</data>"#));
    let plots = page_of(&[&first]).matches("<svg").count();
    assert_eq!(
        page.matches("<svg").count(),
        2 * plots,
        "a plot for each record"
    );
}

#[test]
fn page_of_records_with_different_experiments_names_the_record_of_each() {
    let mut parts: Vec<String> = Vec::new();
    for place in [0, 1] {
        let mut value: Value = serde_json::from_str(&record()).unwrap();
        let experiments = value["experiments"].as_array_mut().unwrap();
        *experiments = vec![experiments.swap_remove(place)];
        parts.push(value.to_string());
    }
    let page = page_of(&[&parts[0], &parts[1]]);
    assert_eq!(page.matches("<h2 id=\"populate\">").count(), 1);
    assert_eq!(page.matches("<h2 id=\"lock\">").count(), 1);
    // The name of the record stands above the findings, and not at every column.
    assert!(page.contains("<h4>r1</h4>"));
    assert!(!page.contains(", r1</th>"));
}

fn halve(value: &mut Value) {
    match value {
        Value::Array(values) => values.iter_mut().for_each(halve),
        Value::Object(fields) => {
            if fields.contains_key("unit") {
                for name in ["median", "minimum", "maximum"] {
                    let half = fields[name].as_f64().unwrap() / 2.0;
                    fields[name] = half.into();
                }
            } else {
                fields.values_mut().for_each(halve);
            }
        }
        _ => {}
    }
}

#[test]
fn plot_marks_stand_where_the_axis_says() {
    let page = page_of(&[&record()]);
    let attribute = |text: &str, name: &str| -> String {
        let start = text.find(&format!(" {name}=\"")).unwrap() + name.len() + 3;
        let (value, _) = text[start..].split_once('"').unwrap();
        unescape(value)
    };
    let mut marks = 0;
    for svg in page.split("<svg").skip(1) {
        let (svg, _) = svg.split_once("</svg>").unwrap();
        let number = |name: &str| attribute(svg, name).parse::<f64>().unwrap();
        let (from, to) = (number("data-from"), number("data-to"));
        let is_logarithmic = attribute(svg, "data-scale") == "logarithmic";
        for mark in svg.split("<g ").skip(1) {
            let (_, drawn) = mark.split_once("class=\"figure\"").unwrap();
            let (shown, _) = drawn[drawn.find('>').unwrap() + 1..]
                .split_once('<')
                .unwrap();
            let (element, name) = if is_logarithmic {
                ("<circle", "cx")
            } else {
                ("<rect", "width")
            };
            let element = &drawn[drawn.find(element).unwrap()..];
            let place = attribute(element, name);
            let place: f64 = place.trim_end_matches('%').parse::<f64>().unwrap() / 100.0;
            let (value, rounding) = read_back(shown);
            let (drawn, slack) = if is_logarithmic {
                let drawn = from * (to / from).powf(place);
                (drawn, drawn * (to / from).ln() * 1e-5)
            } else {
                (place * to, to * 1e-5)
            };
            assert!(
                (drawn - value).abs() <= rounding + slack,
                "{shown}: drawn at {drawn}"
            );
            marks += 1;
        }
    }
    assert!(marks > 30, "{marks}");
}

#[test]
fn page_of_the_fixture_is_the_recorded_one() {
    compare("page.html", &without_version(&page_of(&[&record()])));
}

#[test]
fn markdown_of_the_fixture_is_the_recorded_one() {
    let assert = cargo_bin_cmd!("tenure")
        .args(["report", "--markdown", "-"])
        .write_stdin(record())
        .assert()
        .code(0)
        .stderr("");
    let text = String::from_utf8(assert.get_output().stdout.clone()).unwrap();
    compare("page.md", &without_version(&text));
}

#[test]
fn results_in_the_documentation_are_those_of_the_record() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let assert = cargo_bin_cmd!("tenure")
        .args(["report", "--markdown"])
        .arg(root.join("benches/default.json"))
        .assert()
        .code(0)
        .stderr("");
    let text = String::from_utf8(assert.get_output().stdout.clone()).unwrap();
    let path = "../../../../docs/RESULTS.md";
    let results = fs::read_to_string(path_of(path)).unwrap();
    let demonstration = results.find("\n## What the demonstration prints").unwrap();
    compare(path, &(text + &results[demonstration..]));
}

/// Returns the path of a file, from its path in the folder of this test.
fn path_of(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/report")
        .join(name)
}

/// Makes `text` the same for all versions.
fn without_version(text: &str) -> String {
    text.replace(env!("CARGO_PKG_VERSION"), "VERSION")
}

/// Compares `text` with a file, which TENURE_RECORD=1 writes.
fn compare(name: &str, text: &str) {
    let path = path_of(name);
    if std::env::var_os("TENURE_RECORD").is_some() {
        fs::write(&path, text).unwrap();
    }
    let recorded = fs::read_to_string(&path).unwrap_or_default();
    if text != recorded {
        let is_other = |(_, (a, b)): &(usize, (&str, &str))| a != b;
        let mut pairs = text.lines().zip(recorded.lines()).enumerate();
        let first = pairs.find(is_other);
        panic!(
            "{name} differs, first in {first:?}; if it is meant to: \
             TENURE_RECORD=1 cargo test -p tenure-cli --test report"
        );
    }
}

#[test]
fn page_of_unknown_and_failed_experiments_shows_them_escaped() {
    let page = page_of(&[&record()]);
    assert!(page.contains("an experiment that nobody knows &lt;script&gt;"));
    assert!(!page.contains("<script"));
    assert!(page.contains("It was not measured: no headroom: at least 2 MiB needed."));
    assert!(page.contains(">spectre v2: Mitigation: IBRS<"));
}

#[test]
fn page_of_an_old_record_leaves_its_conclusion_out() {
    assert!(record().contains("(target 1.70: met)"));
    assert!(!page_of(&[&record()]).contains("1.70: met"));
}

#[test]
fn page_names_a_single_case_unless_its_title_does() {
    let page = page_of(&[&record()]);
    assert!(page.contains(">file, warm</text>") && page.contains("<td>file, warm</td>"));
    // "All ways, 20,000 reads, page cache cold"
    assert!(!page.contains(">cold</text>") && !page.contains("<td>cold</td>"));
}

#[test]
fn page_fetches_nothing() {
    let page = page_of(&[&record()]);
    for from_elsewhere in ["http:", "https:", "src=", "@import", "url("] {
        assert!(!page.contains(from_elsewhere), "{from_elsewhere}");
    }
    assert!(page.contains("default-src 'none'"));
}

#[test]
fn page_shows_published_ratios_beside_measured_ones() {
    let page = page_of(&[&record()]);
    // Lock on fault: 91.0 s there with mlock before each access, 17.9 s on fault.
    assert!(page.contains(">5.08</data>"));
    // Lazy free with one process and one thread, and volatile ranges under KVM.
    assert!(page.contains(">1.87</data>"));
    assert!(page.contains(">5.48</data>"));
    assert!(page.contains("10.8\u{a0}s\u{a0}→\u{a0}5.80\u{a0}s"));
    assert!(page.contains("22.5\u{a0}ms\u{a0}→\u{a0}18.4\u{a0}ms"));
}

#[test]
fn report_with_output_writes_the_file_and_prints_its_path() {
    let folder = tempfile::tempdir().unwrap();
    let (from, to) = (folder.path().join("a.json"), folder.path().join("a.html"));
    fs::write(&from, record()).unwrap();
    cargo_bin_cmd!("tenure")
        .arg("report")
        .arg(&from)
        .arg("-o")
        .arg(&to)
        .assert()
        .code(0)
        .stdout(format!("{}\n", to.display()));
    let page = fs::read_to_string(&to).unwrap();
    assert!(page.starts_with("<!DOCTYPE html>"));
}

#[test]
fn report_into_its_own_record_fails_and_leaves_the_record() {
    let folder = tempfile::tempdir().unwrap();
    let from = folder.path().join("a.json");
    let links = ["hard", "symbolic"].map(|name| folder.path().join(name));
    fs::write(&from, record()).unwrap();
    fs::hard_link(&from, &links[0]).unwrap();
    std::os::unix::fs::symlink(&from, &links[1]).unwrap();
    for to in [&from, &links[0], &links[1]] {
        let assert = cargo_bin_cmd!("tenure")
            .arg("report")
            .args([&from, Path::new("-o"), to])
            .assert()
            .code(1)
            .stdout("");
        let error = String::from_utf8_lossy(&assert.get_output().stderr).into_owned();
        assert!(error.contains("would overwrite the record"), "{error}");
        assert_eq!(fs::read_to_string(&from).unwrap(), record());
    }
    let mut from_stdin = std::process::Command::new(env!("CARGO_BIN_EXE_tenure"));
    from_stdin.args([Path::new("report"), Path::new("-o"), &from]);
    from_stdin.stdin(fs::File::open(&from).unwrap());
    assert_eq!(from_stdin.status().unwrap().code(), Some(1));
    assert_eq!(fs::read_to_string(&from).unwrap(), record());
}

#[test]
fn report_of_an_unreadable_record_fails_in_one_line_with_status_1() {
    let error = |input: &str, arguments: &[&str]| {
        let assert = cargo_bin_cmd!("tenure")
            .arg("report")
            .args(arguments)
            .write_stdin(input)
            .assert()
            .code(1)
            .stdout("");
        let text = String::from_utf8(assert.get_output().stderr.clone()).unwrap();
        assert_eq!(text.lines().count(), 1, "{text}");
        text
    };
    assert!(error("", &[]).contains("standard input is empty"));
    assert!(error("lock: 5 s", &["-"]).contains("standard input is not JSON"));
    let none = r#"{"environment": {}, "experiments": []}"#;
    assert!(error(none, &[]).contains("no experiments"));
    let other = r#"{"environment": {"tenure_version": "7.0.0"}, "experiments": [{"name": 1}]}"#;
    let text = error(other, &[]);
    assert!(
        text.contains("made by tenure 7.0.0") && text.contains("measure again"),
        "{text}"
    );
    assert!(error("", &["/proc/self/no/such.json"]).contains("reading /proc/self/no/such.json"));
    assert!(error("", &["-", "-"]).contains("once only"));
    let written = error(&record(), &["-o", "/proc/self/no/page.html"]);
    assert!(
        written.contains("writing /proc/self/no/page.html"),
        "{written}"
    );
}

#[test]
fn report_reads_what_bench_prints() {
    let assert = cargo_bin_cmd!("tenure")
        .args(["bench", "lazy_free", "--quick", "--rounds", "1", "--json"])
        .assert()
        .code(0);
    let record = String::from_utf8(assert.get_output().stdout.clone()).unwrap();
    let page = page_of(&[&record]);
    let value: Value = serde_json::from_str(&record).unwrap();
    let exact: Vec<(String, f64)> = figures_on(&page)
        .into_iter()
        .map(|(key, value, _)| (key, value))
        .collect();
    assert_eq!(exact, figures(0, &value));
    assert!(page.contains("without pressure (1.1) is "));
}
