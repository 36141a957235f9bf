//! `tenure doctor`: its arguments.

use clap::Args;

const EXIT_STATUS: &str = "\
Exit status:
  0  everything is there (also when whoever reads the output has closed it)
  1  something failed; one line on standard error says what
  2  the command line was wrong
  3  something is missing or limited: the output says what, and what to change";

/// Tell what this kernel, container and their limits allow tenure to do
///
/// Looks at the kernel's features by trying them, at limits, sysctls and the
/// memory cgroup, as they are for this user in this place: run it where the
/// program will run. For each thing that changes what tenure does it says what
/// was found, what tenure therefore does, and what to change for more.
///
/// A line is "ok", "limited" (slower, less of it, or in another way) or
/// "missing" (a call that answers with an error). Nothing is changed.
///
/// The environment variable TENURE_WITHOUT names kernel features that tenure
/// then does without: TENURE_WITHOUT=userfaultfd tenure doctor.
#[derive(Args, Debug)]
#[command(after_help = EXIT_STATUS)]
pub struct DoctorArguments {
    /// Print one JSON document and nothing else on standard output
    #[arg(long)]
    pub json: bool,
}
