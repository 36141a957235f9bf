//! An installed C library, a C compiler, and programs whose exit status 77 means "skipped".

// Each test file uses only some of these items.
#![allow(dead_code)]

#[path = "../../../../tests/support/mod.rs"]
mod support;

pub use support::*;

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use libtest_mimic::{Arguments, Completion, Trial};
use tempfile::TempDir;

/// A test and its name.
pub type Test = (&'static str, fn(&Installed) -> Verdict);

/// Returns the tests as trials, which share one installed library.
pub fn trials(installed: &'static Installed, tests: &[Test]) -> Vec<Trial> {
    let trial = |&(name, test): &Test| {
        Trial::ignorable_test(name, move || test(installed)).with_kind("grouped")
    };
    tests.iter().map(trial).collect()
}

pub const CXX17: &str = "-std=gnu++17";

/// Returns the folder of tenure-c.
pub fn crate_folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns a folder of the project.
pub fn project(folder: &str) -> PathBuf {
    crate_folder().join("../..").join(folder)
}

/// Runs the tests that `trials` returns, one at a time. If a tool is missing, one skipped
/// test in their place has the reason.
pub fn run(trials: impl FnOnce(&'static Installed) -> Vec<Trial>) -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(1);
    let trials = match missing() {
        Some(reason) => {
            let skip = move || Ok(Completion::ignored_with(reason.clone()));
            vec![Trial::ignorable_test("c_library", skip)]
        }
        // Statics are not dropped, so the temporary folder is removed by hand.
        None => {
            let installed = Box::leak(Box::new(Installed::new(!arguments.list)));
            let trials = trials(installed);
            let conclusion = libtest_mimic::run(&arguments, trials);
            installed.remove();
            return conclusion.exit_code();
        }
    };
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// Returns why no C program can be compiled, if none can.
fn missing() -> Option<String> {
    if let Err(error) = fs::read(crate_folder().join("Makefile")) {
        return Some(format!("this user cannot read the source: {error}"));
    }
    let tools = ["cc", "c++", "make", "pkg-config", "nm"];
    let absent = tools.iter().find(|tool| find(tool).is_none())?;
    Some(format!("{absent} is unavailable"))
}

/// The C library, installed below a temporary folder as `make install` does it.
pub struct Installed {
    folder: TempDir,
}

impl Installed {
    fn new(installs: bool) -> Self {
        let installed = Self {
            folder: tempfile::tempdir().unwrap(),
        };
        if installs {
            installed.make("install", &installed.prefix(), Path::new(""));
        }
        installed
    }

    pub fn prefix(&self) -> PathBuf {
        self.folder.path().join("prefix")
    }

    pub fn shared_library(&self) -> PathBuf {
        self.prefix().join("lib/libtenure.so.0")
    }

    /// Runs make in the folder of the C library. Later calls reuse the linked library.
    pub fn make(&self, target: &str, prefix: &Path, destdir: &Path) {
        self.make_with(target, prefix, destdir, &[]);
    }

    /// As [`make`](Self::make), with other variables besides.
    pub fn make_with(
        &self,
        target: &str,
        prefix: &Path,
        destdir: &Path,
        variables: &[(&str, &Path)],
    ) {
        let built = self.folder.path().join("built");
        fs::create_dir_all(&built).unwrap();
        let mut make = Command::new("make");
        make.arg("--silent").arg("--directory").arg(crate_folder());
        make.arg(target);
        let archive = archive();
        let usual = [
            ("PREFIX", prefix),
            ("DESTDIR", destdir),
            ("ARCHIVE", archive.as_path()),
            ("BUILD", built.as_path()),
        ];
        for (name, value) in usual.iter().chain(variables) {
            make.arg(format!("{name}={}", value.display()));
        }
        // An outer make passes these to inner ones.
        make.env_remove("MAKEFLAGS").env_remove("MAKELEVEL");
        ok(&mut make);
    }

    /// Returns a path for a program.
    pub fn program(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Returns the output of `pkg-config` for the library installed below `prefix`.
    pub fn pkg_config(&self, prefix: &Path, arguments: &[&str]) -> Vec<String> {
        let mut command = Command::new("pkg-config");
        command.args(arguments).arg("tenure");
        command.env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig"));
        let output = ok(&mut command);
        let text = String::from_utf8(output.stdout).unwrap();
        text.split_whitespace().map(str::to_owned).collect()
    }

    /// Compiles one source file, links it with the shared library, and returns its path.
    pub fn compile(&self, source: &Path, name: &str, flags: &[&str]) -> PathBuf {
        let program = self.program(name);
        let is_cxx = source.extension() == Some(OsStr::new("cpp"));
        let mut compiler = Command::new(if is_cxx { "c++" } else { "cc" });
        compiler.arg(if is_cxx { CXX17 } else { C11 });
        compiler.args(STRICT).args(flags).arg("-pthread");
        compiler.arg("-o").arg(&program).arg(source);
        compiler.args(self.pkg_config(&self.prefix(), &["--cflags", "--libs"]));
        ok(&mut compiler);
        program
    }

    /// Returns a command whose environment names the shared library.
    pub fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.env("LD_LIBRARY_PATH", self.prefix().join("lib"));
        command.env("TENURE_LIBRARY", self.shared_library());
        command
    }

    fn remove(&self) {
        let _ = fs::remove_dir_all(self.folder.path());
    }
}

/// Returns the static library that cargo has built for this test: the newest beside it.
fn archive() -> PathBuf {
    let program = std::env::current_exe().unwrap();
    let entries = fs::read_dir(program.parent().unwrap()).unwrap();
    let archives = entries.map(|entry| entry.unwrap().path()).filter(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("libtenure_c") && name.ends_with(".a")
    });
    archives
        .max_by_key(|path| fs::metadata(path).unwrap().modified().unwrap())
        .expect("cargo makes the static library")
}
