//! The Python package: each file `test_*.py` is a test, run by pytest with the package as
//! cargo has built it. Files that need what is not installed skip as a whole.

use std::{
    env, fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use libtest_mimic::{Arguments, Completion, Failed, Trial};
use tempfile::TempDir;

/// The files that take minutes.
const SLOW: [&str; 2] = ["soak", "wheel"];

/// The folder of this package.
const CRATE: &str = env!("CARGO_MANIFEST_DIR");

fn main() -> ExitCode {
    let tests = Path::new(CRATE).join("tests");
    let names = fs::read_dir(tests)
        .expect("the folder of the tests")
        .flatten();
    let names = names.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let mut names: Vec<_> = names
        .filter_map(|name| Some(name.strip_prefix("test_")?.strip_suffix(".py")?.to_owned()))
        .collect();
    names.sort();
    let trials = names.into_iter().map(|name| {
        let is_slow = SLOW.contains(&name.as_str());
        let kind = if is_slow { "thorough" } else { "" };
        let file = format!("tests/test_{name}.py");
        Trial::ignorable_test(name, move || run(&file)).with_kind(kind)
    });
    libtest_mimic::run(&Arguments::from_args(), trials.collect()).exit_code()
}

/// The library that cargo has built beside this program.
fn library() -> PathBuf {
    let program = env::current_exe().expect("the path of this program");
    program.with_file_name("libtenure_python.so")
}

/// Makes a folder with the package, to import it from.
fn package() -> std::io::Result<TempDir> {
    let folder = TempDir::new()?;
    let package = folder.path().join("tenure");
    fs::create_dir(&package)?;
    for entry in fs::read_dir(Path::new(CRATE).join("python/tenure"))? {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            symlink(entry.path(), package.join(entry.file_name()))?;
        }
    }
    symlink(library(), package.join("_native.abi3.so"))?;
    Ok(folder)
}

fn run(file: &str) -> Result<Completion, Failed> {
    let has = |code: &str| {
        let status = Command::new("python3").args(["-c", code]).output();
        status.is_ok_and(|it| it.status.success())
    };
    if !has("import sys; sys.exit(sys.version_info < (3, 11))") {
        return Ok(Completion::ignored_with(
            "no python3 of version 3.11 or later",
        ));
    }
    if !has("import pytest") {
        return Ok(Completion::ignored_with("python3 has no pytest"));
    }
    let folder = package()?;
    let output = Command::new("python3")
        .args([
            "-B",
            "-m",
            "pytest",
            "-q",
            "-rs",
            "-p",
            "no:cacheprovider",
            file,
        ])
        .current_dir(CRATE)
        .env("PYTHONPATH", folder.path())
        .env("HYPOTHESIS_STORAGE_DIRECTORY", folder.path())
        .output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let skipped = text.lines().find_map(|line| line.strip_prefix("SKIPPED "));
    match (output.status.code(), skipped) {
        (Some(0), None) => Ok(Completion::Completed),
        // A file without what it needs, as a whole.
        (Some(0 | 5), Some(line)) => {
            let reason = line.rsplit_once(".py:").map_or(line, |it| it.1);
            let reason = reason.split_once(": ").map_or(reason, |it| it.1);
            Ok(Completion::ignored_with(reason.to_owned()))
        }
        _ => Err(format!(
            "{}\n{text}{}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        )
        .into()),
    }
}
