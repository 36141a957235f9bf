//! Lines about files that could not be used, while the command goes on with the others.

use std::cell::Cell;
use std::fmt::Display;
use std::io::Write as _;
use std::path::Path;

use indicatif::ProgressBar;
use tenure_bench::text::printable;

/// Prints complaints above the progress bar, and counts failures.
pub struct Complaints {
    /// `None` where nothing is told.
    bar: Option<ProgressBar>,
    failures: Cell<u64>,
}

impl Complaints {
    pub fn new(bar: ProgressBar) -> Self {
        let failures = Cell::new(0);
        let bar = Some(bar);
        Self { bar, failures }
    }

    /// Tells nothing: another walk will.
    pub fn silent() -> Self {
        let failures = Cell::new(0);
        Self {
            bar: None,
            failures,
        }
    }

    /// Without a progress bar.
    pub fn plain() -> Self {
        Self::new(ProgressBar::hidden())
    }

    /// Says what could not be done with a path: the exit status tells.
    pub fn fail(&self, path: &Path, why: impl Display) {
        self.failures.set(self.failures.get() + 1);
        self.note(path, why);
    }

    /// Prints a line that the exit status counts.
    pub fn fail_line(&self, line: &str) {
        self.failures.set(self.failures.get() + 1);
        self.line(line);
    }

    /// Says something about a path that is no failure.
    pub fn note(&self, path: &Path, what: impl Display) {
        let line = format!("tenure: {}: {what}", path.display());
        self.line(&line);
    }

    /// Prints a line on standard error.
    pub fn line(&self, line: &str) {
        // A closed standard error has no reader.
        if let Some(bar) = &self.bar {
            bar.suspend(|| {
                let _ = writeln!(std::io::stderr(), "{}", printable(line));
            });
        }
    }

    pub fn have_failed(&self) -> bool {
        self.failures.get() > 0
    }

    pub fn failures(&self) -> u64 {
        self.failures.get()
    }
}
