//! `tenure fincore`.

use std::fs::File;

use libtest_mimic::Completion;
use serde_json::Value;

use super::{
    Case, Folder, MIB, cases, despite_reclaim, drop_cache, has_status, json, read_exactly, tenure,
    told,
};

pub const ALL: &[(&str, Case)] = cases![
    fincore_shows_what_is_resident_and_where,
    fincore_sums_folders_to_a_depth,
    fincore_top_shows_most_resident_files_first,
    fincore_of_sparse_terabyte_ends,
    fincore_text_has_a_line_for_each_file,
    fincore_without_cachestat_has_null_figures,
    fincore_names_what_it_cannot_examine_and_goes_on,
];

fn fincore(arguments: &[&str]) -> Value {
    let output = tenure(&[&["fincore", "--json"], arguments].concat());
    has_status(&output, 0);
    assert_eq!(told(&output), "");
    json(&output)
}

fn fincore_shows_what_is_resident_and_where(folder: &Folder) -> Completion {
    folder.write("a", 4 * MIB);
    despite_reclaim(|| {
        drop_cache(&folder.open("a")).unwrap();
        read_exactly(&folder.open("a"), 0..MIB);
        let cached = folder.cached_bytes("a");
        let report = fincore(&[folder.text()]);
        let file = &report["files"][0];
        assert_eq!(file["len_bytes"], 4 * MIB);
        let blocks = file["blocks"].as_array().unwrap();
        assert_eq!(blocks.len(), 40);
        assert_eq!(report["total"]["files"], 1);
        let is_right = file["resident_bytes"] == cached
            && cached == MIB
            && blocks[..10].iter().all(|share| share == 100.0)
            && blocks[10..].iter().all(|share| share == 0.0);
        is_right.then_some(()).ok_or(format!("{cached} {report}"))
    });
    Completion::Completed
}

fn fincore_sums_folders_to_a_depth(folder: &Folder) -> Completion {
    for name in ["a", "one/b", "one/two/c", "other/d"] {
        folder.write(name, MIB);
    }
    let report = fincore(&["--depth", "1", "--summarize", folder.text()]);
    assert_eq!(report["files"].as_array().unwrap().len(), 0);
    let folders = report["folders"].as_array().unwrap();
    let sums = folders.iter().map(|sum| {
        let path = sum["path"].as_str().unwrap().strip_prefix(folder.text());
        (
            path.unwrap(),
            sum["files"].as_u64().unwrap(),
            sum["len_bytes"].as_u64().unwrap(),
        )
    });
    let sums: Vec<_> = sums.collect();
    let mib = MIB as u64;
    assert_eq!(
        sums,
        [("", 4, 4 * mib), ("/one", 2, 2 * mib), ("/other", 1, mib)]
    );
    Completion::Completed
}

fn fincore_top_shows_most_resident_files_first(folder: &Folder) -> Completion {
    for name in ["a", "b", "c"] {
        folder.write(name, 2 * MIB);
    }
    despite_reclaim(|| {
        read_exactly(&folder.open("b"), 0..2 * MIB);
        read_exactly(&folder.open("c"), 0..MIB);
        let report = fincore(&["--top", "2", folder.text()]);
        let files = report["files"].as_array().unwrap();
        let names = files
            .iter()
            .map(|file| file["path"].as_str().unwrap().rsplit('/').next().unwrap());
        let names: Vec<_> = names.collect();
        assert_eq!(report["total"]["files"], 3);
        (names == ["b", "c"])
            .then_some(())
            .ok_or(format!("{report}"))
    });
    Completion::Completed
}

fn fincore_of_sparse_terabyte_ends(folder: &Folder) -> Completion {
    let file = File::create(folder.path("sparse")).unwrap();
    if let Err(error) = file.set_len(1 << 40) {
        return Completion::ignored_with(format!("the file system has no files of 1 TiB: {error}"));
    }
    let report = fincore(&[folder.text()]);
    assert_eq!(report["files"][0]["len_bytes"], 1_u64 << 40);
    assert_eq!(report["files"][0]["resident_bytes"], 0);
    Completion::Completed
}

fn fincore_text_has_a_line_for_each_file(folder: &Folder) -> Completion {
    folder.write("a", 1000);
    folder.write("empty", 0);
    let output = tenure(&["fincore", folder.text()]);
    has_status(&output, 0);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines.len(), 4, "{text}");
    assert!(
        lines[0].contains("resident") && lines[1].ends_with("/a"),
        "{text}"
    );
    assert!(
        lines[3].contains("sum of 2 files") && lines[3].ends_with(folder.text()),
        "{text}"
    );
    Completion::Completed
}

fn fincore_without_cachestat_has_null_figures(folder: &Folder) -> Completion {
    folder.write("a", MIB);
    despite_reclaim(|| {
        read_exactly(&folder.open("a"), 0..MIB);
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_tenure"));
        command.args(["fincore", "--json", folder.text()]);
        let output = command.env("TENURE_WITHOUT", "cachestat").output().unwrap();
        has_status(&output, 0);
        let report = json(&output);
        assert_eq!(report["files"][0]["dirty_bytes"], Value::Null);
        let is_right = report["total"]["resident_bytes"] == MIB;
        is_right.then_some(()).ok_or(format!("{report}"))
    });
    Completion::Completed
}

fn fincore_names_what_it_cannot_examine_and_goes_on(folder: &Folder) -> Completion {
    folder.write("a", MIB);
    let missing = folder.path("missing");
    let output = tenure(&[
        "fincore",
        "--json",
        missing.to_str().unwrap(),
        folder.text(),
    ]);
    has_status(&output, 1);
    assert!(
        told(&output).contains("/missing: does not exist"),
        "{}",
        told(&output)
    );
    assert_eq!(json(&output)["total"]["files"], 1);
    Completion::Completed
}
