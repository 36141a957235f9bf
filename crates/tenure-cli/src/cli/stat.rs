//! The arguments of `tenure stat`.

use std::{path::PathBuf, time::Duration};

use clap::{ArgGroup, Args};

use tenure_bench::EXIT_STATUS;

/// Show how much memory processes or a cgroup really use
///
/// RSS counts lazily freed pages (MADV_FREE) until the kernel reclaims them, so
/// that a program can seem to leak memory that is as good as free. The table
/// shows RSS, the lazily free pages, and RSS without them. PSS is RSS with each
/// shared page divided among the processes that share it. Swapped pages, locked
/// pages (as RLIMIT_MEMLOCK counts them) and transparent huge pages follow, and
/// hugetlb pages, which RSS leaves out, where there are any.
///
/// To count, the kernel visits every page of the process: about 30 ms for each
/// GiB. Each CPU collects lazily freed pages in batches of 31, and pages in a
/// batch that is not full are not counted yet.
///
/// Below the table stands whether the library of `tenure run` is in each process, and the
/// options in the environment that the process was started with, and what tenure's
/// counters there say. A table of its own has the memory of tenure's heap (`tenure run
/// --heap`) by the size of blocks, or of free ranges: small up to 28 KiB, medium up to
/// 4 MiB, large. Free pages are dirty (kept for reuse), then muzzy (the kernel may reclaim
/// them), then retained (addresses without memory). These figures are a tenth of a second
/// old at most while the program frees memory, and appear once the heap has about 8 MiB.
///
/// To see other users' processes, run the command as root or with CAP_SYS_PTRACE.
#[derive(Args, Debug)]
#[command(
    after_help = EXIT_STATUS,
    group(ArgGroup::new("subject").args(["pids", "cgroup"]))
)]
pub struct StatArguments {
    /// Processes to show, a row for each
    #[arg(
        value_name = "PID",
        required_unless_present_any = ["cgroup", "openmetrics"],
        value_parser = clap::value_parser!(u32).range(1..=i64::from(i32::MAX))
    )]
    pub pids: Vec<u32>,

    /// Show a memory cgroup, version 1 or 2, and the processes in it and below: a
    /// folder, or a path as in /proc/PID/cgroup. "working set" is usage without the
    /// inactive file list, as kubelet computes it. "lazily free" is the sum over the
    /// processes, unknown where one of them may not be read; the cgroup's own figures
    /// count these pages as anonymous memory and, on the kernel's lists, as inactive
    /// file pages
    #[arg(long, value_name = "PATH")]
    pub cgroup: Option<PathBuf>,

    /// Print JSON and nothing else on standard output: one document, or with
    /// --watch one on each line. Figures that the kernel does not report are null;
    /// reserved_bytes are addresses without any access (PROT_NONE), which use no memory
    /// and are left out of mapped_bytes
    #[arg(long)]
    pub json: bool,

    /// Print OpenMetrics text and nothing else on standard output: for Prometheus.
    /// Without PID and --cgroup it has this user's processes that use tenure; as root,
    /// those of all users. Figures that are unknown have no sample;
    /// tenure_scrape_errors counts what could not be read, and tenure_target_up is 0 for a
    /// process or cgroup that is not there
    #[arg(long, conflicts_with = "json")]
    pub openmetrics: bool,

    /// Write the same to FILE, in the older text format of Prometheus, for the textfile
    /// collector of node_exporter: another file beside it is written and renamed. It is also
    /// written where the processes have ended, without their figures
    #[arg(long, value_name = "FILE", requires = "openmetrics")]
    pub output: Option<PathBuf>,

    /// Repeat every SECONDS, in place on a terminal, until the processes have ended
    /// or the cgroup is gone (then the exit status is 0), or Ctrl-C
    #[arg(
        long,
        value_name = "SECONDS",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "2",
        value_parser = interval
    )]
    pub watch: Option<Duration>,
}

/// Parses a number of seconds.
pub fn interval(text: &str) -> Result<Duration, String> {
    /// Reading the figures takes the processes time, too.
    const MIN_SECONDS: f64 = 0.01;
    match text.parse() {
        Ok(seconds @ MIN_SECONDS..=1e6) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err(format!("give a number of seconds, at least {MIN_SECONDS}")),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::super::{Cli, Command};
    use super::*;

    fn stat(line: &[&str]) -> Option<StatArguments> {
        let line = ["tenure", "stat"].iter().chain(line);
        match Cli::try_parse_from(line).ok()?.command {
            Command::Stat(arguments) => Some(arguments),
            _ => None,
        }
    }

    #[test]
    fn arguments_without_a_process_or_cgroup_are_refused() {
        assert!(stat(&[]).is_none());
        assert!(stat(&["--json"]).is_none());
        assert!(stat(&["0"]).is_none());
        assert!(stat(&["x"]).is_none());
        assert!(stat(&["1", "--cgroup", "/a"]).is_none());
        assert_eq!(stat(&["1", "2"]).unwrap().pids, [1, 2]);
        assert!(stat(&["--cgroup", "/a"]).unwrap().pids.is_empty());
    }

    #[test]
    fn openmetrics_needs_no_process_and_goes_to_a_file() {
        assert!(stat(&["--openmetrics"]).unwrap().pids.is_empty());
        assert!(stat(&["--openmetrics", "--json"]).is_none());
        assert!(stat(&["--output", "a", "1"]).is_none());
        let arguments = stat(&["--openmetrics", "--output", "a", "1"]).unwrap();
        assert_eq!(arguments.output, Some("a".into()));
    }

    #[test]
    fn watch_interval_defaults_to_2_s_and_is_bounded() {
        let watch = |line: &[&str]| stat(line).map(|arguments| arguments.watch);
        assert_eq!(watch(&["1"]), Some(None));
        assert_eq!(watch(&["--watch", "1"]), Some(Some(Duration::from_secs(2))));
        let half = Some(Some(Duration::from_millis(500)));
        assert_eq!(watch(&["--watch=0.5", "1"]), half);
        for wrong in [
            "--watch=0",
            "--watch=-1",
            "--watch=x",
            "--watch=inf",
            "--watch=NaN",
        ] {
            assert_eq!(watch(&[wrong, "1"]), None, "{wrong}");
        }
    }
}
