//! `tenure exporter`: the figures of `tenure stat` over HTTP, for Prometheus.

mod http;
mod server;

use std::{
    io::{ErrorKind, Write},
    net::TcpListener,
    path::PathBuf,
    sync::Mutex,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Error, Result};
use signal_hook::{
    consts::{SIGINT, SIGTERM},
    iterator::Signals,
};

use self::http::{Body, Response};
use crate::cli::ExporterArguments;
use crate::metrics;
use crate::stat::{Group, ProcessReport, Report, Target, read_users};

/// Serves the figures until a signal ends it.
pub fn run(arguments: &ExporterArguments, out: &mut impl Write) -> Result<()> {
    // Before the first thread, and before anybody can know that the command runs. Where it
    // is the first process of a container, the kernel ignores SIGTERM without a handler.
    let mut signals = Signals::new([SIGTERM, SIGINT]).context("waiting for signals")?;
    let address = arguments.listen;
    let listener = TcpListener::bind(address).map_err(|error| {
        let hint = match error.kind() {
            ErrorKind::AddrInUse => ": another program has the port; name another with --listen",
            ErrorKind::PermissionDenied => ": ports below 1024 need CAP_NET_BIND_SERVICE",
            ErrorKind::AddrNotAvailable => ": this machine does not have the address",
            _ => "",
        };
        Error::msg(format!("listening on {address}: {error}{hint}"))
    })?;
    let address = listener.local_addr().context("listening")?;
    let subjects = Subjects::of(arguments);
    for path in &subjects.cgroups {
        if let Err(error) = Group::find(path) {
            crate::complain(&format!("{error:#}; waiting for it"));
        }
    }
    let figures = Figures::default();
    let answer = move |path: &str| match path {
        "/metrics" => figures.response(&subjects),
        "/" => Response::ok(Body::html(INDEX)),
        _ => Response::not_found(),
    };
    server::start(listener, answer)?;
    // The command goes on where nobody reads its output.
    let _ = writeln!(out, "listening on http://{address}/metrics").and_then(|()| out.flush());
    signals.forever().next();
    Ok(())
}

const INDEX: &str = "<!DOCTYPE html><html lang=en><title>tenure exporter</title>\
                     <p><a href=\"/metrics\">Metrics</a></html>\n";

/// The processes and cgroups to show; none for this user's.
struct Subjects {
    pids: Vec<u32>,
    cgroups: Vec<PathBuf>,
}

impl Subjects {
    fn of(arguments: &ExporterArguments) -> Self {
        Self {
            pids: arguments.pids.clone(),
            cgroups: arguments.cgroup.clone(),
        }
    }

    /// Reads those that exist: a service that restarts gets its cgroup anew.
    fn read(&self) -> Vec<Report> {
        if self.pids.is_empty() && self.cgroups.is_empty() {
            return vec![read_users()];
        }
        let processes = self.pids.iter().map(|&pid| read_process(pid));
        let groups = self.cgroups.iter().map(|path| {
            let read = Group::find(path).and_then(|group| group.read());
            read.map_or_else(|_| Report::of_absent_group(path), |(report, _)| report)
        });
        groups.chain(processes).collect()
    }
}

fn read_process(pid: u32) -> Report {
    let read = ProcessReport::of(pid);
    let is_gone = matches!(read, Err(tenure::Error::NoProcess { .. }));
    Report {
        targets: vec![Target::process(pid, read.is_ok())],
        unreadable: usize::from(read.is_err() && !is_gone),
        ..Report::of_processes(read.into_iter().collect())
    }
}

/// The last document.
#[derive(Default)]
struct Figures(Mutex<Option<(Instant, String)>>);

impl Figures {
    /// A reading takes the kernel time for each page, so many requests share one.
    const VALID_FOR: Duration = Duration::from_secs(1);

    fn response(&self, subjects: &Subjects) -> Response {
        // A thread that panicked meanwhile has left a whole document.
        let mut last = self.0.lock().unwrap_or_else(|error| error.into_inner());
        if let Some((at, document)) = &*last
            && at.elapsed() < Self::VALID_FOR
        {
            return Response::ok(Body::metrics(document.clone()));
        }
        match metrics::document(subjects.read()) {
            Ok(document) => {
                *last = Some((Instant::now(), document.clone()));
                Response::ok(Body::metrics(document))
            }
            Err(error) => Response::failed(&format!("{error:#}")),
        }
    }
}
