//! docs/DEPENDENCIES.md: every crate that tenure is built with. The file's reasons are
//! kept, and everything else comes from cargo; a dependency without a reason is an
//! error.

use std::{
    collections::{BTreeMap, BTreeSet},
    env, fs,
    path::Path,
    process::Command,
};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

const FILE: &str = "docs/DEPENDENCIES.md";
/// The platform whose dependencies are listed; others differ in the system crates of
/// `std`.
const PLATFORM: &str = "x86_64-unknown-linux-gnu";

const HEAD: &str = "\
# Dependencies

Every crate that is built into tenure, its tools and its tests on Linux. All come from
crates.io; `Cargo.lock` has the versions. `cargo xtask dependencies` writes this file,
except for the reasons, which are written here by hand. `make check` fails for a direct
dependency without a reason, and if this file is stale. `fuzz/` is a workspace of its
own, and needs libfuzzer-sys (libFuzzer; MIT or Apache-2.0, and NCSA) besides.

The core library's dependencies need no C compiler. The heap's do, and make: so do the
preloaded library and the Python package, which contain it.

## Direct dependencies

In brackets: for tests only.

| crate | by | licence | why |
| --- | --- | --- | --- |
";

const PULLED_IN: &str = "
## Indirect dependencies

| crate | licence | needed by |
| --- | --- | --- |
";

/// Writes the file, or, with `check`, only compares it. Returns whether it is up to
/// date and complete.
pub fn run(root: &Path, check: bool) -> Result<bool> {
    let file = root.join(FILE);
    let before = fs::read_to_string(&file).unwrap_or_default();
    let crates = crates(&metadata(root)?)?;
    let text = document(&crates, &reasons(&before));
    for name in without_reason(&text) {
        println!("{FILE}: {name} has no reason");
    }
    if check {
        if text != before {
            println!("{FILE} is stale; update it with: cargo xtask dependencies");
        }
    } else {
        fs::write(&file, &text).with_context(|| format!("writing {FILE}"))?;
    }
    Ok(without_reason(&text).next().is_none() && (text == before || !check))
}

fn metadata(root: &Path) -> Result<Value> {
    let output = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .current_dir(root)
        .args(["metadata", "--format-version=1", "--locked"])
        .args(["--filter-platform", PLATFORM])
        .output()
        .context("starting cargo")?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "cargo metadata: {}", errors.trim());
    serde_json::from_slice(&output.stdout).context("reading what cargo metadata says")
}

/// A crate from outside the workspace.
#[derive(Debug, Default, PartialEq)]
struct Crate {
    licence: String,
    /// The workspace's crates that depend on it; in brackets if only their tests do.
    ours: BTreeSet<String>,
    others: BTreeSet<String>,
}

/// Returns the outside crates that are built, by name.
fn crates(metadata: &Value) -> Result<BTreeMap<String, Crate>> {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let packages: BTreeMap<String, Value> = list(&metadata["packages"])
        .into_iter()
        .map(|package| (text(&package["id"]), package))
        .collect();
    let ours: BTreeSet<String> = list(&metadata["workspace_members"])
        .iter()
        .map(text)
        .collect();
    ensure!(!ours.is_empty(), "no workspace members");
    let mut crates = BTreeMap::<String, Crate>::new();
    for node in list(&metadata["resolve"]["nodes"]) {
        let id = text(&node["id"]);
        let by = text(&packages[&id]["name"]);
        for dependency in list(&node["deps"]) {
            let package = &packages[&text(&dependency["pkg"])];
            if ours.contains(&text(&dependency["pkg"])) {
                continue;
            }
            let entry = crates.entry(text(&package["name"])).or_default();
            entry.licence = text(&package["license"]).replace('/', " OR ");
            if !ours.contains(&id) {
                entry.others.insert(by.clone());
                continue;
            }
            let kinds = list(&dependency["dep_kinds"]);
            let is_for_tests = kinds.iter().all(|kind| kind["kind"] == "dev");
            entry.ours.insert(if is_for_tests {
                format!("({by})")
            } else {
                by.clone()
            });
        }
    }
    Ok(crates)
}

fn document(crates: &BTreeMap<String, Crate>, reasons: &BTreeMap<String, String>) -> String {
    let join = |names: &BTreeSet<String>| names.iter().cloned().collect::<Vec<_>>().join(", ");
    let mut text = HEAD.to_owned();
    for (name, found) in crates.iter().filter(|(_, found)| !found.ours.is_empty()) {
        let why = reasons.get(name).map_or("", String::as_str);
        let (ours, licence) = (join(&found.ours), &found.licence);
        text.push_str(&format!("| {name} | {ours} | {licence} | {why} |\n"));
    }
    text.push_str(PULLED_IN);
    for (name, found) in crates.iter().filter(|(_, found)| found.ours.is_empty()) {
        let (others, licence) = (join(&found.others), &found.licence);
        text.push_str(&format!("| {name} | {licence} | {others} |\n"));
    }
    text
}

/// Returns the cells of the first table's rows.
fn rows(text: &str) -> impl Iterator<Item = [&str; 4]> {
    text.lines().filter_map(|line| {
        let cells = line
            .strip_prefix('|')?
            .strip_suffix('|')?
            .split('|')
            .map(str::trim);
        cells.collect::<Vec<_>>().try_into().ok()
    })
}

fn reasons(text: &str) -> BTreeMap<String, String> {
    let reason = |[name, _, _, why]: [&str; 4]| (name.to_owned(), why.to_owned());
    rows(text).map(reason).collect()
}

fn without_reason(text: &str) -> impl Iterator<Item = &str> {
    let lacks = |row: &[&str; 4]| row[3].is_empty();
    rows(text).filter(lacks).map(|[name, ..]| name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn recorded() -> Value {
        let package =
            |name| json!({"id": format!("id {name}"), "name": name, "license": "MIT/Apache-2.0"});
        let needs = |name, kind: Option<&str>| json!({"pkg": format!("id {name}"), "dep_kinds": [{"kind": kind}]});
        let packages = ["tenure", "tenure-c", "libc", "loom", "slab"].map(package);
        json!({
            "packages": packages,
            "workspace_members": ["id tenure", "id tenure-c"],
            "resolve": {"nodes": [
                {"id": "id tenure", "deps": [needs("libc", None), needs("loom", Some("dev"))]},
                {"id": "id tenure-c", "deps": [needs("tenure", None), needs("libc", None)]},
                {"id": "id loom", "deps": [needs("slab", None)]},
            ]},
        })
    }

    #[test]
    fn document_keeps_reasons_and_leaves_new_ones_empty() {
        let crates = crates(&recorded()).unwrap();
        let before = "| libc | tenure | MIT | as ever |\n| gone | tenure | MIT | no more |\n";
        let text = document(&crates, &reasons(before));
        assert!(text.contains("| libc | tenure, tenure-c | MIT OR Apache-2.0 | as ever |\n"));
        assert!(text.contains("| loom | (tenure) | MIT OR Apache-2.0 |  |\n"));
        assert!(text.contains("| slab | MIT OR Apache-2.0 | loom |\n"));
        assert!(!text.contains("gone"));
        assert!(without_reason(&text).eq(["loom"]));
        let mended = text.replace("|  |", "| why not |");
        assert_eq!(document(&crates, &reasons(&mended)), mended);
        assert!(without_reason(&mended).next().is_none());
    }
}
