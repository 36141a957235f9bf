//! The arguments of `tenure exporter`.

use std::{net::SocketAddr, path::PathBuf};

use clap::Args;

use tenure_bench::EXIT_STATUS;

/// Serve the figures of tenure stat to Prometheus
///
/// The command answers GET /metrics on an address with OpenMetrics text, until it gets
/// SIGTERM or Ctrl-C. It shows the processes and cgroups that the command line names;
/// without any, this user's processes that use tenure, and as root those of all users.
/// A process or cgroup that does not exist has no samples but tenure_target_up 0, until it
/// does. tenure_scrape_errors counts what could not be read.
///
/// To count, the kernel visits every page of a process: about 30 ms for each GiB. One
/// reading serves the requests of a second.
///
/// There is no encryption and nobody is asked for a password: beyond the loopback
/// address, put a proxy in front, or a firewall.
#[derive(Args, Debug)]
#[command(after_help = EXIT_STATUS)]
pub struct ExporterArguments {
    /// Processes to show
    #[arg(
        value_name = "PID",
        value_parser = clap::value_parser!(u32).range(1..=i64::from(i32::MAX))
    )]
    pub pids: Vec<u32>,

    /// A memory cgroup to show, as for tenure stat; may be repeated
    #[arg(long, value_name = "PATH")]
    pub cgroup: Vec<PathBuf>,

    /// The address and port to listen on, an IPv6 address in brackets; port 0 is one that
    /// is free
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9847")]
    pub listen: SocketAddr,
}
