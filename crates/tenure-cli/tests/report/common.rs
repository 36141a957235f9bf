//! The parts that the tests of the page share.

use std::fs;

use assert_cmd::cargo::cargo_bin_cmd;

/// A record with all verbs, an experiment that nobody knows, and one that failed.
pub fn record() -> String {
    include_str!("record.json").replace("VERSION", env!("CARGO_PKG_VERSION"))
}

/// The page of records that are called r0, r1, ...
pub fn page_of(records: &[&str]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let mut tenure = cargo_bin_cmd!("tenure");
    tenure.arg("report");
    for (place, record) in records.iter().enumerate() {
        let path = folder.path().join(format!("r{place}.json"));
        fs::write(&path, record).unwrap();
        tenure.arg(path);
    }
    let assert = tenure.assert().code(0).stderr("");
    String::from_utf8(assert.get_output().stdout.clone()).unwrap()
}

/// Undoes what maud does to text.
pub fn unescape(text: &str) -> String {
    let names = [
        ("&lt;", "<"),
        ("&gt;", ">"),
        ("&quot;", "\""),
        ("&amp;", "&"),
    ];
    let replace = |text: String, (from, to): (&str, &str)| text.replace(from, to);
    names.into_iter().fold(text.to_owned(), replace)
}
