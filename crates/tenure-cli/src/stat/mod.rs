//! `tenure stat`: how much memory processes or a cgroup really use.

mod counters;
mod group;
mod preload;
mod process;
mod report;

use std::{
    io::{self, IsTerminal as _, Write},
    thread,
};

use anyhow::{Result, bail};

use self::{group::Group, process::Processes, report::Report};
use crate::cli::StatArguments;
use tenure_bench::text::{printable, printable_json};

/// Shows the processes or the cgroup, once or until they have ended.
pub fn run(arguments: &StatArguments, out: &mut impl Write) -> Result<()> {
    let mut subject = match &arguments.cgroup {
        Some(path) => Subject::Group(Group::find(path)?),
        None => Subject::Processes(Processes::of(&arguments.pids)),
    };
    let Some(interval) = arguments.watch else {
        let (report, failures) = subject.read()?;
        if !report.is_empty() {
            print(&report, arguments, out)?;
        }
        return match failures.as_slice() {
            [] => Ok(()),
            failures => bail!(failures.join("; ")),
        };
    };
    let is_terminal = io::stdout().is_terminal() && !arguments.json;
    for round in 0_u64.. {
        let (report, failures) = subject.read()?;
        if round == 0 && !failures.is_empty() {
            bail!(failures.join("; "));
        }
        if is_terminal {
            // Moves the cursor home and clears the screen.
            write!(out, "\x1b[H\x1b[J")?;
        } else if round > 0 && !arguments.json && !report.is_empty() {
            writeln!(out)?;
        }
        if !report.is_empty() {
            print(&report, arguments, out)?;
        }
        out.flush()?;
        for ended in &failures {
            eprintln!("tenure: {}", printable(ended));
        }
        if subject.has_ended() {
            break;
        }
        thread::sleep(interval);
    }
    Ok(())
}

fn print(report: &Report, arguments: &StatArguments, out: &mut impl Write) -> Result<()> {
    if !arguments.json {
        write!(out, "{}", report.text())?;
        return Ok(());
    }
    let json = match arguments.watch {
        Some(_) => serde_json::to_string(report)?,
        None => serde_json::to_string_pretty(report)?,
    };
    writeln!(out, "{}", printable_json(&json))?;
    Ok(())
}

/// The processes or the cgroup to show.
enum Subject {
    Processes(Processes),
    Group(Group),
}

impl Subject {
    /// Returns the figures, and an error for each process that cannot be read or has ended.
    fn read(&mut self) -> Result<(Report, Vec<String>)> {
        match self {
            Self::Processes(processes) => Ok(processes.read()),
            Self::Group(group) => group.read(),
        }
    }

    fn has_ended(&self) -> bool {
        match self {
            Self::Processes(processes) => processes.have_ended(),
            Self::Group(group) => group.is_gone(),
        }
    }
}
