//! The experiments of `tenure bench`, and the page that `tenure report` makes of
//! their records.

#![cfg(target_os = "linux")]

#[cfg(test)]
#[path = "../tests/unit/alone.rs"]
mod alone;
mod arguments;
mod budget;
mod experiments;
#[cfg(test)]
#[path = "../tests/unit/fixture.rs"]
mod fixture;
pub mod library;
mod machine;
mod measure;
mod present;
mod record;
mod report;
mod run;
pub mod table;
pub mod text;
mod worker;

pub use arguments::{BenchArguments, ReportArguments};
pub use machine::group::Group;
pub use report::run as run_report;
pub use run::run as run_bench;
pub use worker::{is_worker, work};

/// The exit statuses, for the help of a command.
pub const EXIT_STATUS: &str = "\
Exit status:
  0  done (also when the reader of the output has closed it)
  1  something failed; one line on standard error says what
  2  the command line was wrong";
