//! An installed C library, a C compiler, and programs whose 77 means "skipped".

// Each test file uses its own part of this.
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

/// Makes the tests ready to run.
pub fn trials(installed: &'static Installed, tests: &[Test]) -> Vec<Trial> {
    let trial = |&(name, test): &Test| Trial::ignorable_test(name, move || test(installed));
    tests.iter().map(trial).collect()
}

pub const CXX17: &str = "-std=gnu++17";

/// The folder of tenure-c.
pub fn crate_folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// A folder of the project.
pub fn project(folder: &str) -> PathBuf {
    crate_folder().join("../..").join(folder)
}

/// Runs the tests that `trials` makes, one at a time; without what they need, one
/// test in their place says why there are none.
pub fn run(trials: impl FnOnce(&'static Installed) -> Vec<Trial>) -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(1);
    let trials = match missing() {
        Some(reason) => {
            let why = move || Ok(Completion::ignored_with(reason.clone()));
            vec![Trial::ignorable_test("the_c_library", why)]
        }
        // The temporary folder goes at the end, by hand: statics are not dropped.
        None => {
            let installed = Box::leak(Box::new(Installed::new()));
            let trials = trials(installed);
            let conclusion = libtest_mimic::run(&arguments, trials);
            installed.remove();
            return conclusion.exit_code();
        }
    };
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// Why nothing can be compiled here.
fn missing() -> Option<String> {
    if let Err(error) = fs::read(crate_folder().join("Makefile")) {
        return Some(format!("the source is closed to this user: {error}"));
    }
    let tools = ["cc", "c++", "make", "pkg-config", "nm"];
    let absent = tools.iter().find(|tool| find(tool).is_none())?;
    Some(format!("there is no {absent} here"))
}

/// The C library, installed below a temporary folder as `make install` does it.
pub struct Installed {
    folder: TempDir,
}

impl Installed {
    fn new() -> Self {
        let installed = Self {
            folder: tempfile::tempdir().unwrap(),
        };
        installed.make("install", &installed.prefix(), Path::new(""));
        installed
    }

    pub fn prefix(&self) -> PathBuf {
        self.folder.path().join("prefix")
    }

    pub fn shared_library(&self) -> PathBuf {
        self.prefix().join("lib/libtenure.so.0")
    }

    /// Calls make for the C library. What it links is kept from call to call.
    pub fn make(&self, target: &str, prefix: &Path, destdir: &Path) {
        let built = self.folder.path().join("built");
        fs::create_dir_all(&built).unwrap();
        let mut make = Command::new("make");
        make.arg("--silent").arg("--directory").arg(crate_folder());
        make.arg(target);
        for (name, value) in [
            ("PREFIX", prefix),
            ("DESTDIR", destdir),
            ("ARCHIVE", &archive()),
            ("BUILD", &built),
        ] {
            make.arg(format!("{name}={}", value.display()));
        }
        // What an outer make tells its own.
        make.env_remove("MAKEFLAGS").env_remove("MAKELEVEL");
        ok(&mut make);
    }

    /// A new path for a program.
    pub fn program(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// What pkg-config answers, for a library that lies below `prefix`.
    pub fn pkg_config(&self, prefix: &Path, arguments: &[&str]) -> Vec<String> {
        let mut command = Command::new("pkg-config");
        command.args(arguments).arg("tenure");
        command.env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig"));
        let output = ok(&mut command);
        let text = String::from_utf8(output.stdout).unwrap();
        text.split_whitespace().map(str::to_owned).collect()
    }

    /// Compiles one source file and links it with the shared library.
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

    /// A command that finds the shared library.
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

/// The static library that cargo has made for this test: the newest beside it.
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
