//! The library, the sets of options that it is tried with, and a folder for programs.

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

/// Options, as the environment has them.
pub type Options = &'static [(&'static str, &'static str)];

/// What everything is tried with. The threshold is low, for little is as large as the
/// default.
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

/// The library that cargo has made for this test: it lies beside it.
pub fn library() -> PathBuf {
    let program = std::env::current_exe().unwrap();
    let library = program.parent().unwrap().join("libtenure_preload.so");
    assert!(library.is_file(), "cargo makes {}", library.display());
    library
}

/// Puts the library under a command, before other libraries.
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

/// A folder of the project.
pub fn project(folder: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .join(folder)
}

/// A temporary folder in which C programs are compiled.
pub struct Workshop {
    folder: TempDir,
    /// Held while something is compiled: several tests use the same programs.
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

    /// Compiles one source file, if that has not been done.
    pub fn compile(&self, source: &Path, flags: &[&str]) -> PathBuf {
        let _compiling = self.compiling.lock().unwrap();
        let program = self.path(&stem(source));
        if program.exists() {
            return program;
        }
        let mut compiler = Command::new("cc");
        compiler.arg(C11).args(STRICT).args(flags).arg("-pthread");
        ok(compiler.arg("-o").arg(&program).arg(source));
        program
    }

    /// The same, of a library.
    pub fn compile_library(&self, name: &str) -> PathBuf {
        let source = project("tests/preload/libraries").join(name);
        self.compile(&source, &["-shared", "-fPIC"])
    }
}

/// Runs tests, two at a time: most are one program that is waited for. Without a
/// compiler, or closed to this user, one in their place says why there are none.
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
