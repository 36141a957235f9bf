//! `tenure cache`, as people and scripts see it.

use std::process::Output;

use assert_cmd::cargo::cargo_bin_cmd;
use libtest_mimic::{Arguments, Completion, Failed, Trial};
use serde_json::Value;
use tenure::volatile::Priority;
use tenure::{CacheOptions, SharedCache};

fn main() -> std::process::ExitCode {
    let body = || Ok::<_, Failed>(name_is_listed_and_dropped_when_nobody_uses_it());
    let trial = Trial::ignorable_test("name_is_listed_and_dropped_when_nobody_uses_it", body);
    libtest_mimic::run(&Arguments::from_args(), vec![trial]).exit_code()
}

fn cache(arguments: &[&str]) -> Output {
    let mut command = cargo_bin_cmd!("tenure");
    command.arg("cache").args(arguments).output().unwrap()
}

/// Returns the row of a name. Other tests may have names, too, and corrupt ones among them.
fn row(name: &str) -> Option<Value> {
    let output = cache(&["list", "--json"]);
    let rows: Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = rows.as_array().unwrap();
    rows.iter().find(|row| row["name"] == name).cloned()
}

fn name_is_listed_and_dropped_when_nobody_uses_it() -> Completion {
    let name = format!("test.cli.{}", std::process::id());
    let options = CacheOptions::new().max_bytes(1 << 20);
    let cache_of_test = match SharedCache::open(&name, options) {
        Ok(cache) => cache,
        Err(error) => return Completion::ignored_with(format!("needs /dev/shm: {error}")),
    };
    cache_of_test
        .insert(b"key", b"value", Priority::High)
        .unwrap();
    let listed = row(&name).unwrap();
    assert_eq!(listed["kind"], "cache");
    assert_eq!(listed["processes"], 1);
    let text = cache(&["list"]).stdout;
    assert!(String::from_utf8(text).unwrap().contains(&name));
    let output = cache(&["drop", &name]);
    assert_eq!(output.status.code(), Some(1));
    let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(complaint.contains("live processes use it"), "{complaint}");
    drop(cache_of_test);
    // The rest is done, whatever fails first.
    assert_eq!(cache(&["drop", "no/name", &name]).status.code(), Some(1));
    assert_eq!(row(&name), None);
    assert_eq!(cache(&["drop", &name]).status.code(), Some(1));
    assert_eq!(cache(&["drop"]).status.code(), Some(2));
    Completion::Completed
}
