//! Runs a test program and sees that it ends: one that hangs is shown, with all
//! its children, and killed, so that the others get their turn.

use std::{
    ffi::OsString,
    fs,
    os::{fd::AsRawFd, unix::process::ExitStatusExt},
    path::{Path, PathBuf},
    process::{self, Command, ExitCode, Stdio},
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result};
use rustix::process::{Pid, Signal, kill_process};

use crate::summary;

/// Several times what the longest test program takes beside others.
pub const LIMIT: Duration = Duration::from_secs(600);

/// What a test program ends with that has named its failed tests.
const FAILED: i32 = 101;

/// What gdb may take for one process.
const GDB_SECONDS: u64 = 60;

/// Runs `command`, killed after `limit`. Returns its exit status, 128 and the
/// signal's number if one ended it.
pub fn run(command: &[OsString], limit: Duration) -> Result<ExitCode> {
    let [program, arguments @ ..] = command else {
        anyhow::bail!("no program to run");
    };
    let mut child = Command::new(program)
        .args(arguments)
        .spawn()
        .with_context(|| format!("starting {}", program.display()))?;
    let pid = child.id();
    let (ended, watched) = mpsc::channel::<()>();
    let watcher = thread::spawn(move || {
        if watched.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
            eprintln!("xtask: has not ended in {} s:", limit.as_secs());
            show_and_kill(pid);
        }
    });
    let status = child.wait().context("waiting for the test program")?;
    drop(ended);
    // It does not panic; and the status is known.
    let _ = watcher.join();
    if !status.success() && status.code() != Some(FAILED) {
        println!("{}{}: {status}", summary::ENDED, program.display());
    }
    let code = status.code().or(status.signal().map(|signal| 128 + signal));
    Ok(ExitCode::from(code.unwrap_or(1) as u8))
}

/// What tells a pipe from others, whoever has it open.
pub fn name_of(pipe: &impl AsRawFd) -> Result<PathBuf> {
    let path = format!("/proc/self/fd/{}", pipe.as_raw_fd());
    fs::read_link(path).context("looking for the name of a pipe")
}

/// Shows and kills all other processes that have a pipe open. Returns how many.
pub fn kill_who_holds(pipe: &Path) -> usize {
    let others = numbers_in("/proc").filter(|&pid| pid != process::id());
    let holds = |pid: &u32| {
        let folder = format!("/proc/{pid}/fd");
        numbers_in(&folder)
            .any(|fd| fs::read_link(format!("{folder}/{fd}")).is_ok_and(|it| it == pipe))
    };
    let holders: Vec<u32> = others.filter(holds).collect();
    for &pid in &holders {
        eprintln!("xtask: left behind by a test:");
        show_and_kill(pid);
    }
    holders.len()
}

/// The entries of a folder that are numbers; none of one that is gone.
fn numbers_in(folder: &str) -> impl Iterator<Item = u32> + use<> {
    let entries = fs::read_dir(folder).into_iter().flatten();
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
}

/// Shows a process and all that come from it, then kills them, parents first: none
/// can start others meanwhile or go on without its child.
fn show_and_kill(pid: u32) {
    let family = with_children(pid);
    for &pid in &family {
        show(pid);
    }
    for pid in family {
        // It may have ended by itself, or with its parent.
        let _ = Pid::from_raw(pid as i32).map(|pid| kill_process(pid, Signal::KILL));
    }
}

/// A process and all that come from it, parents first.
fn with_children(pid: u32) -> Vec<u32> {
    let mut family = vec![pid];
    let mut next = 0;
    while let Some(pid) = family.get(next) {
        let of_threads = tasks(*pid).filter_map(|task| {
            let path = format!("/proc/{pid}/task/{task}/children");
            fs::read_to_string(path).ok()
        });
        let children: Vec<u32> = of_threads
            .flat_map(|text| {
                text.split_whitespace()
                    .filter_map(|child| child.parse().ok())
                    .collect::<Vec<_>>()
            })
            .collect();
        family.extend(children);
        next += 1;
    }
    family
}

fn tasks(pid: u32) -> impl Iterator<Item = u32> {
    numbers_in(&format!("/proc/{pid}/task"))
}

/// Prints what each thread waits for, and where it is, if there is a gdb.
fn show(pid: u32) {
    let read = |path: String| fs::read_to_string(path).unwrap_or_default();
    let command = read(format!("/proc/{pid}/cmdline")).replace('\0', " ");
    eprintln!("process {pid}: {command}");
    for task in tasks(pid) {
        let [comm, stat, call, stack] = ["comm", "stat", "syscall", "stack"]
            .map(|file| read(format!("/proc/{pid}/task/{task}/{file}")));
        let state = stat.rsplit_once(") ").map_or("?", |(_, rest)| &rest[..1]);
        let (comm, call) = (comm.trim(), call.trim());
        eprintln!("  thread {task} ({comm}) {state}, system call {call}");
        stack.lines().for_each(|line| eprintln!("    {line}"));
    }
    let stacks = Command::new("timeout")
        .arg(GDB_SECONDS.to_string())
        .args(["gdb", "-p", &pid.to_string(), "-batch"])
        .args(["-ex", "thread apply all bt 30"])
        .stderr(Stdio::null())
        .output();
    match stacks {
        Ok(output) if output.status.success() => {
            eprintln!("{}", String::from_utf8_lossy(&output.stdout));
        }
        _ => eprintln!("  (without gdb there are no stacks)"),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    fn shell(script: &str) -> Vec<OsString> {
        ["sh", "-c", script].map(OsString::from).into()
    }

    #[test]
    fn what_ends_is_passed_on() {
        let code = |script| run(&shell(script), LIMIT).unwrap();
        assert_eq!(code("exit 0"), ExitCode::SUCCESS);
        assert_eq!(code("exit 7"), ExitCode::from(7));
        assert_eq!(code("kill -SEGV $$"), ExitCode::from(128 + 11));
    }

    #[test]
    fn what_hangs_is_killed_with_its_children() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("child");
        let script = format!("sleep 1000 & echo $! > {}; wait", path.display());
        let code = run(&shell(&script), Duration::from_secs(1)).unwrap();
        assert_eq!(code, ExitCode::from(128 + 9));
        let child = fs::read_to_string(path).unwrap();
        let stat = || fs::read_to_string(format!("/proc/{}/stat", child.trim()));
        // It may take a moment to end, and nobody may have waited for it yet.
        let is_there = || stat().is_ok_and(|stat| !stat.contains(") Z"));
        let begun = Instant::now();
        while is_there() {
            assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", stat());
            thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn who_holds_a_pipe_is_found_and_killed() {
        let mut parent = Command::new("sh")
            .args(["-c", "sleep 1000 & exit"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        assert!(parent.wait().unwrap().success());
        let mut output = parent.stdout.take().unwrap();
        assert_eq!(kill_who_holds(&name_of(&output).unwrap()), 1);
        // Nobody writes any more.
        assert_eq!(std::io::copy(&mut output, &mut std::io::sink()).unwrap(), 0);
    }
}
