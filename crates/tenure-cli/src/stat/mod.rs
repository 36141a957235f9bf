//! `tenure stat`: how much memory processes or a cgroup really use.

mod counters;
mod group;
mod preload;
mod process;
mod report;
mod users;

use std::{
    io::{self, IsTerminal as _, Write},
    thread,
};

use anyhow::{Result, bail};

use self::process::Processes;
use crate::cli::StatArguments;
use crate::metrics;
use tenure_bench::text::printable_json;

#[cfg(test)]
pub use self::counters::Counters;
pub use self::{
    group::{Group, GroupReport},
    process::{ProcessReport, name_of},
    report::{Report, Target},
    users::{pids_of_user, read as read_users},
};

/// Shows the processes or the cgroup, once or until they have ended.
pub fn run(arguments: &StatArguments, out: &mut impl Write) -> Result<()> {
    let mut subject = match &arguments.cgroup {
        Some(path) => match Group::find(path) {
            Ok(group) => Subject::Group(group),
            Err(error) => {
                if arguments.openmetrics {
                    print(Report::of_absent_group(path), arguments, out)?;
                }
                return Err(error);
            }
        },
        None if arguments.pids.is_empty() => Subject::Users,
        None => Subject::Processes(Processes::of(&arguments.pids)),
    };
    // An old file would show figures of processes that have ended.
    let is_shown = |report: &Report| arguments.openmetrics || !report.is_empty();
    let Some(interval) = arguments.watch else {
        let (report, failures) = subject.read()?;
        if is_shown(&report) {
            print(report, arguments, out)?;
        }
        return match failures.as_slice() {
            [] => Ok(()),
            failures => bail!(failures.join("; ")),
        };
    };
    let is_text = !arguments.json && !arguments.openmetrics;
    let is_terminal = io::stdout().is_terminal() && is_text;
    for round in 0_u64.. {
        let (report, failures) = subject.read()?;
        if round == 0 && !failures.is_empty() {
            if arguments.openmetrics {
                print(report, arguments, out)?;
            }
            bail!(failures.join("; "));
        }
        if is_terminal {
            // Moves the cursor home and clears the screen.
            write!(out, "\x1b[H\x1b[J")?;
        } else if round > 0 && is_text && !report.is_empty() {
            writeln!(out)?;
        }
        if is_shown(&report) {
            print(report, arguments, out)?;
        }
        out.flush()?;
        for ended in &failures {
            crate::complain(ended);
        }
        if subject.has_ended() {
            break;
        }
        thread::sleep(interval);
    }
    Ok(())
}

fn print(report: Report, arguments: &StatArguments, out: &mut impl Write) -> Result<()> {
    if arguments.openmetrics {
        let document = metrics::document(vec![report])?;
        match &arguments.output {
            Some(file) => metrics::replace(file, &metrics::in_text_format(&document))?,
            None => out.write_all(document.as_bytes())?,
        }
        return Ok(());
    }
    if !arguments.json {
        write!(out, "{}", report.text())?;
        return Ok(());
    }
    let json = match arguments.watch {
        Some(_) => serde_json::to_string(&report)?,
        None => serde_json::to_string_pretty(&report)?,
    };
    writeln!(out, "{}", printable_json(&json))?;
    Ok(())
}

/// The processes or the cgroup to show.
enum Subject {
    Processes(Processes),
    Group(Group),
    /// This user's processes that use tenure.
    Users,
}

impl Subject {
    /// Returns the figures, and an error for each process that cannot be read or has ended.
    fn read(&mut self) -> Result<(Report, Vec<String>)> {
        match self {
            Self::Processes(processes) => Ok(processes.read()),
            Self::Group(group) => group.read(),
            Self::Users => Ok((users::read(), Vec::new())),
        }
    }

    fn has_ended(&self) -> bool {
        match self {
            Self::Processes(processes) => processes.have_ended(),
            Self::Group(group) => group.is_gone(),
            Self::Users => false,
        }
    }
}
