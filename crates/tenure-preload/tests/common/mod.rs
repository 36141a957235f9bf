//! The library, the sets of options with which it is tested, and a folder for C
//! programs.

// Each test file uses its own part of this.
#![allow(dead_code)]

#[path = "../../../../tests/support/mod.rs"]
mod support;

pub use support::*;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Mutex;

use libtest_mimic::{Arguments, Completion, Trial};
use tempfile::TempDir;

/// Options, as environment variables.
pub type Options = &'static [(&'static str, &'static str)];

/// The sets of options with which everything is tested. One threshold is low, because
/// few blocks reach the default.
pub const SETS: [(&str, Options); 9] = [
    ("nothing", &[]),
    ("heap", &[HEAP]),
    ("low threshold", &[LOW_THRESHOLD]),
    ("munmap", &[MUNMAP]),
    ("discard", &[DISCARD]),
    ("exit", &[EXIT]),
    ("stats", &[STATS]),
    ("populate", &[POPULATE]),
    (
        "all",
        &[LOW_THRESHOLD, MUNMAP, DISCARD, EXIT, STATS, POPULATE],
    ),
];

pub const HEAP: (&str, &str) = ("TENURE_HEAP", "1");
pub const LOW_THRESHOLD: (&str, &str) = ("TENURE_HEAP_THRESHOLD", "64K");
pub const MUNMAP: (&str, &str) = ("TENURE_MUNMAP", "background");
pub const DISCARD: (&str, &str) = ("TENURE_DISCARD", "background");
pub const EXIT: (&str, &str) = ("TENURE_EXIT", "background");
pub const STATS: (&str, &str) = ("TENURE_STATS", "1");
pub const VERBOSE: (&str, &str) = ("TENURE_VERBOSE", "1");
pub const LOCK: (&str, &str) = ("TENURE_LOCK", "onfault");
pub const POPULATE: (&str, &str) = ("TENURE_POPULATE", "1M");

/// Returns the library that cargo has built for this test, beside the test program.
pub fn library() -> PathBuf {
    let program = std::env::current_exe().unwrap();
    let library = program.parent().unwrap().join("libtenure_preload.so");
    assert!(library.is_file(), "cargo makes {}", library.display());
    library
}

/// Preloads the library into a command, before other libraries.
pub fn put_under<'a>(
    command: &'a mut Command,
    options: Options,
    others: &[&Path],
) -> &'a mut Command {
    let libraries = [library()]
        .into_iter()
        .chain(others.iter().map(|path| path.to_path_buf()));
    let list: Vec<_> = libraries
        .map(|path| path.to_str().unwrap().to_owned())
        .collect();
    command.env("LD_PRELOAD", list.join(":"));
    command.envs(options.iter().copied())
}

/// Returns a folder of the project.
pub fn project(folder: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .join(folder)
}

/// A temporary folder in which C programs are compiled.
pub struct Workshop {
    folder: TempDir,
    /// Held during a compilation, because several tests use the same programs.
    compiling: Mutex<()>,
}

impl Workshop {
    pub fn new() -> Self {
        Self {
            folder: tempfile::tempdir().unwrap(),
            compiling: Mutex::new(()),
        }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Compiles one source file, unless that has been done.
    pub fn compile(&self, source: &Path, flags: &[&str]) -> PathBuf {
        self.compile_as(&stem(source), source, flags)
    }

    /// As [`Self::compile`], to a program of this name.
    pub fn compile_as(&self, name: &str, source: &Path, flags: &[&str]) -> PathBuf {
        let _compiling = self.compiling.lock().unwrap();
        let program = self.path(name);
        if program.exists() {
            return program;
        }
        let mut compiler = Command::new("cc");
        compiler.arg(C11).args(STRICT).args(flags).arg("-pthread");
        ok(compiler.arg("-o").arg(&program).arg(source));
        program
    }

    /// Compiles a shared library.
    pub fn compile_library(&self, name: &str) -> PathBuf {
        let source = project("tests/preload/libraries").join(name);
        self.compile(&source, &["-shared", "-fPIC"])
    }
}

/// Finds a library as the compiler does.
pub fn find_library(name: &str) -> Option<PathBuf> {
    let mut compiler = Command::new("cc");
    let output = ok(compiler.arg(format!("-print-file-name={name}")));
    let path = PathBuf::from(String::from_utf8(output.stdout).ok()?.trim_end());
    path.is_absolute().then_some(path)
}

/// Runs the tests, two at a time, because most only wait for one program. Without a
/// compiler or access to the sources, one skipped test in their place gives the reason.
pub fn run(trials: impl FnOnce() -> Vec<Trial>) -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(2);
    let reason = match fs::read_dir(project("tests/preload")) {
        Err(error) => Some(format!("the source is closed to this user: {error}")),
        Ok(_) => ["cc", "nm"]
            .into_iter()
            .find(|tool| find(tool).is_none())
            .map(|tool| format!("there is no {tool} here")),
    };
    let trials = match reason {
        Some(reason) => {
            let why = move || Ok(Completion::ignored_with(reason));
            vec![Trial::ignorable_test("the_preloaded_library", why)]
        }
        None => trials(),
    };
    libtest_mimic::run(&arguments, trials).exit_code()
}
