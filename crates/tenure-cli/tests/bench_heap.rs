//! `tenure bench heap` as a whole: its workers, the allocators that are there, and
//! what it says of them.

use std::{collections::BTreeSet, path::Path, process::Command};

use assert_cmd::cargo::cargo_bin_cmd;
use serde_json::Value;

const GLIBC: &str = "glibc";
const MMAP_ALWAYS: &str = "glibc, mmap always";

/// Whether tenure's library is where the command looks for it.
fn has_library() -> bool {
    let command = Path::new(env!("CARGO_BIN_EXE_tenure"));
    let places = ["../lib", "deps", "."];
    let library = |place: &str| command.with_file_name(place).join("libtenure_preload.so");
    places.iter().any(|place| library(place).is_file())
}

fn names(case: &Value) -> BTreeSet<&str> {
    let ways = case["ways"].as_array().unwrap();
    ways.iter()
        .map(|way| way["name"].as_str().unwrap())
        .collect()
}

fn figure<'a>(case: &'a Value, way: &str, figure: &str) -> &'a Value {
    let named = |list: &'a Value, name: &str| {
        let list = list.as_array().unwrap();
        list.iter().find(|one| one["name"] == name).unwrap()
    };
    named(&named(&case["ways"], way)["figures"], figure)
}

fn median(case: &Value, way: &str, name: &str) -> f64 {
    figure(case, way, name)["median"].as_f64().unwrap()
}

#[test]
fn quick_heap_measures_each_load_with_every_installed_allocator() {
    let assert = cargo_bin_cmd!("tenure")
        .args(["bench", "heap", "--quick", "--rounds", "1", "--json"])
        .assert()
        .code(0)
        .stderr("");
    let report: Value = serde_json::from_slice(&assert.get_output().stdout).unwrap();
    let experiment = &report["experiments"][0];
    assert_eq!(experiment["name"], "heap");
    let cases = experiment["cases"].as_array().unwrap();
    let case = |table: &str, name: &str| {
        let is_it = |case: &&Value| {
            case["table"].as_str().unwrap().starts_with(table) && case["name"] == name
        };
        cases.iter().find(is_it).unwrap()
    };

    let search = case("Copy a chunk", "4 threads");
    let installed = names(search);
    assert!(installed.is_superset(&BTreeSet::from([GLIBC, MMAP_ALWAYS])));
    let notes = experiment["notes"].to_string();
    for other in ["jemalloc", "mimalloc", "tcmalloc", "tenure"] {
        let is_said_to_be_missing = notes.contains(&format!("{other} ("));
        assert_ne!(installed.contains(other), is_said_to_be_missing, "{notes}");
    }
    assert_eq!(installed.contains("tenure"), has_library());
    assert_eq!(search["compared"], "records");
    for way in &installed {
        assert!(median(search, way, "records") > 0.0);
        assert!(median(search, way, "peak memory") > 16e6, "the chunks");
    }
    let faults = "page faults a record";
    assert!(median(search, MMAP_ALWAYS, faults) > 1.0);
    assert!(median(search, GLIBC, faults) < median(search, MMAP_ALWAYS, faults));

    let idle = case("Burst and idle", "2.00 s after");
    assert_eq!(names(idle), installed);
    let held = median(idle, MMAP_ALWAYS, "held / live");
    assert!((0.95..1.5).contains(&held), "all but what is live: {held}");
    let in_table = |table| cases.iter().filter(move |case| case["table"] == table);
    assert_eq!(in_table("free() of one block").count(), 1);
    let kills = in_table("Kill a process, wait for it").count();
    assert_eq!(kills, usize::from(has_library()));

    let conclusion = experiment["conclusion"].as_str().unwrap();
    for said in [
        "To free one block of ",
        "2.00 s after a burst, is ",
        "The rate of records with 4 threads is ",
        "To kill a process with ",
    ] {
        assert_eq!(conclusion.contains(said), has_library(), "{conclusion}");
    }
}

#[test]
fn worker_without_a_parent_fails() {
    let worker = Command::new(env!("CARGO_BIN_EXE_tenure"))
        .arg("heap-bench-worker")
        .output()
        .unwrap();
    assert_eq!(worker.status.code(), Some(1));
    assert!(worker.stdout.is_empty());
}
