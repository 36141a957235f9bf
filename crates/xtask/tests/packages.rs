//! The crates that are published: what their packages contain, the oldest Rust that builds
//! them, and their interface beside that of the last release.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Output};

use libtest_mimic::{Arguments, Completion, Failed, Trial};
use serde_json::Value;

type Verdict = Result<Completion, Failed>;

fn main() -> ExitCode {
    let trial =
        |name, test: fn() -> Verdict| Trial::ignorable_test(name, test).with_kind("thorough");
    let trials = vec![
        trial("packages_have_readme_licences_and_no_paths", contents),
        trial("oldest_rust_builds_the_published_crates", oldest_rust),
        trial("interface_is_compatible_with_the_last_release", semver),
    ];
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn cargo() -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(root());
    cargo
}

fn ok(command: &mut Command) -> Result<Output, Failed> {
    let output = command.output()?;
    let errors = String::from_utf8_lossy(&output.stderr);
    match output.status.success() {
        true => Ok(output),
        false => Err(format!("{command:?}: {}\n{errors}", output.status).into()),
    }
}

/// Returns what cargo knows of the crates of this workspace that are published.
fn published() -> Result<Vec<Value>, Failed> {
    let mut cargo = cargo();
    cargo.args(["metadata", "--format-version=1", "--no-deps", "--offline"]);
    let metadata: Value = serde_json::from_slice(&ok(&mut cargo)?.stdout)?;
    let packages = metadata["packages"].as_array().into_iter().flatten();
    // `publish = false` is an empty list of registries.
    let is_published = |package: &&Value| package["publish"].is_null();
    let mut packages: Vec<Value> = packages.filter(is_published).cloned().collect();
    packages.sort_by(|a, b| a["name"].as_str().cmp(&b["name"].as_str()));
    Ok(packages)
}

fn names(packages: &[Value]) -> impl Iterator<Item = &str> {
    packages
        .iter()
        .filter_map(|package| package["name"].as_str())
}

fn arguments(packages: &[Value]) -> impl Iterator<Item = String> {
    names(packages).map(|name| format!("--package={name}"))
}

/// A folder of its own for each run: cargo keeps what it has unpacked of a version.
fn contents() -> Verdict {
    let packages = published()?;
    let all = [
        "tenure",
        "tenure-bench",
        "tenure-cli",
        "tenure-heap",
        "tenure-options",
        "tenure-sqlite",
    ];
    assert!(
        names(&packages).eq(all),
        "the published crates have changed"
    );
    let folder = tempfile::tempdir()?;
    let mut cargo = cargo();
    cargo.args([
        "package",
        "--no-verify",
        "--allow-dirty",
        "--offline",
        "--target-dir",
    ]);
    ok(cargo.arg(folder.path()).args(arguments(&packages)))?;
    for package in &packages {
        let name = package["name"].as_str().unwrap_or_default();
        let full = format!("{name}-{}", package["version"].as_str().unwrap_or_default());
        let archive = folder.path().join("package").join(format!("{full}.crate"));
        let mut tar = Command::new("tar");
        ok(tar.arg("-xzf").arg(&archive).arg("-C").arg(folder.path()))?;
        let unpacked = folder.path().join(&full);
        for file in ["LICENSE-MIT", "LICENSE-APACHE", "README.md"] {
            let text = fs::read_to_string(unpacked.join(file))?;
            assert!(text.len() > 100, "{name}: {file}: {text}");
        }
        for field in ["description", "license", "documentation", "rust_version"] {
            assert!(package[field].is_string(), "{name} has no {field}");
        }
        for field in ["keywords", "categories"] {
            let is_there = package[field]
                .as_array()
                .is_some_and(|list| !list.is_empty());
            assert!(is_there, "{name} has no {field}");
        }
        let docs = &package["metadata"]["docs"]["rs"]["default-target"];
        assert_eq!(docs, "x86_64-unknown-linux-gnu", "{name}");
        // Targets have paths in the package; a dependency has none.
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            let is_local = dependency["path"].is_string() && dependency["kind"].is_null();
            assert!(
                !is_local || dependency["req"] != "*",
                "{name}: {dependency}"
            );
        }
    }
    Ok(Completion::Completed)
}

/// The version that Cargo.toml declares, as a toolchain of rustup's.
fn oldest_rust() -> Verdict {
    let packages = published()?;
    let version = packages[0]["rust_version"].as_str().unwrap_or_default();
    let patch = format!("{version}.0");
    let toolchains = [version, &patch].map(|name| format!("+{name}"));
    // The rustup proxy, which knows other toolchains than the one that runs this.
    let cargo = |toolchain: &str| {
        let mut cargo = Command::new("cargo");
        cargo.current_dir(root()).arg(toolchain);
        for variable in ["CARGO", "RUSTC", "RUSTUP_TOOLCHAIN", "CARGO_TARGET_DIR"] {
            cargo.env_remove(variable);
        }
        cargo.env("RUSTUP_AUTO_INSTALL", "0");
        cargo
    };
    let is_there = |toolchain: &&String| {
        let output = cargo(toolchain).arg("--version").output();
        output.is_ok_and(|output| {
            let told = String::from_utf8_lossy(&output.stdout).into_owned();
            output.status.success() && told.starts_with(&format!("cargo {version}."))
        })
    };
    let Some(toolchain) = toolchains.iter().find(is_there) else {
        let reason = format!("Rust {version} is unavailable (rustup toolchain install {version})");
        return Ok(Completion::ignored_with(reason));
    };
    let folder = tempfile::tempdir()?;
    let mut check = cargo(toolchain);
    check.args(["check", "--quiet", "--locked", "--target-dir"]);
    ok(check.arg(folder.path()).args(arguments(&packages)))?;
    Ok(Completion::Completed)
}

/// The last release is the newest tag that git reaches. Without one the last commit takes
/// its place: that shows that the tool can read the interface, and is told as a skip.
fn semver() -> Verdict {
    let skip = |reason: &str| Ok(Completion::ignored_with(reason));
    let mut tool = cargo();
    let is_there = tool.args(["semver-checks", "--version"]).output();
    if !is_there.is_ok_and(|output| output.status.success()) {
        return skip("cargo-semver-checks is unavailable (cargo install cargo-semver-checks)");
    }
    let mut git = Command::new("git");
    git.current_dir(root())
        .args(["describe", "--tags", "--abbrev=0", "--match=v*"]);
    let tag = git.output()?;
    let is_released = tag.status.success();
    let tag = String::from_utf8(tag.stdout)?;
    let baseline = if is_released { tag.trim() } else { "HEAD" };
    let folder = tempfile::tempdir()?;
    let mut check = cargo();
    check.args(["semver-checks", "--baseline-rev", baseline]);
    check.env("CARGO_TARGET_DIR", folder.path());
    // The command is no library.
    let libraries = ["tenure", "tenure-heap", "tenure-options", "tenure-sqlite"];
    ok(check.args(libraries.map(|name| format!("--package={name}"))))?;
    match is_released {
        true => Ok(Completion::Completed),
        false => skip("nothing is released yet: compatible with the last commit"),
    }
}
