//! The arguments of `tenure top`.

use std::{path::PathBuf, time::Duration};

use clap::{ArgGroup, Args};

use super::interval;
use tenure_bench::EXIT_STATUS;

/// Show processes by what their memory is, full-screen
///
/// A row has a process's resident memory (RSS), what of it is lazily free, what is
/// volatile, what is locked, and what was released and is not freed yet ("pending").
/// Volatile and pending memory is known of processes that use tenure. A line above the
/// table draws how much of the time tasks have waited for memory.
///
/// Without PID and --cgroup it shows this user's processes, and as root those of all
/// users. Keys: r, l, v, k, p and n sort by resident, lazily free, volatile, locked and
/// pending memory, and by name; the same key again turns the order round. Arrows, Page
/// Up, Page Down, Home and End scroll. q, Escape and Ctrl-C quit.
///
/// To count, the kernel visits every page of the processes: about 30 ms for each GiB.
#[derive(Args, Debug)]
#[command(
    after_help = EXIT_STATUS,
    group(ArgGroup::new("subject").args(["pids", "cgroup"]))
)]
pub struct TopArguments {
    /// Processes to show
    #[arg(
        value_name = "PID",
        value_parser = clap::value_parser!(u32).range(1..=i64::from(i32::MAX))
    )]
    pub pids: Vec<u32>,

    /// Show the processes of a memory cgroup, as for tenure stat
    #[arg(long, value_name = "PATH")]
    pub cgroup: Option<PathBuf>,

    /// The time between two readings
    #[arg(long, value_name = "SECONDS", default_value = "2", value_parser = interval)]
    pub interval: Duration,
}
