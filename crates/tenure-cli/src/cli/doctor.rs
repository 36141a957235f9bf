//! `tenure doctor`: its arguments.

use clap::Args;

const EXIT_STATUS: &str = "\
Exit status:
  0  everything is there
  1  something failed; one line on standard error names it
  2  the command line was wrong
  3  something is missing or limited: the output says what, and what to change
The status is the same where the reader of the output closes it early.";

/// Tell what this kernel, container and their limits allow tenure to do
///
/// The command tries the kernel's features and reads limits, sysctls and the
/// memory cgroup, as they are for this user in this container: run it where the
/// program will run. Each line names something that tenure depends on and says
/// what was found, what tenure therefore does, and what to change for more.
///
/// A line is "ok", "limited" (slower, less memory, or another way) or "missing"
/// (calls that need it fail). The command changes nothing.
///
/// The environment variable TENURE_WITHOUT names kernel features that tenure
/// must not use: TENURE_WITHOUT=userfaultfd tenure doctor.
#[derive(Args, Debug)]
#[command(after_help = EXIT_STATUS)]
pub struct DoctorArguments {
    /// Print one JSON document and nothing else on standard output
    #[arg(long)]
    pub json: bool,
}
