//! A time limit for a process that may hang with all signals blocked.

use std::fs;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::slowness;

/// Runs a command in a process group of its own, which must end well within the limit.
/// Otherwise prints where every thread of the group waits, and kills the group.
pub fn ends_well_within(limit: Duration, name: &str, command: &mut Command) {
    let limit = limit * slowness();
    command.process_group(0).stdin(Stdio::null());
    let mut leader = command.spawn().unwrap();
    let group = leader.id();
    let end = Instant::now() + limit;
    let status = loop {
        if let Some(status) = leader.try_wait().unwrap() {
            break Some(status);
        }
        if Instant::now() > end {
            break None;
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    if status.is_none() {
        members(group).into_iter().for_each(print_threads);
    }
    // Also children that a failed leader has left.
    unsafe { libc::kill(-(group as i32), libc::SIGKILL) };
    let _ = leader.wait();
    let Some(status) = status else {
        panic!("{name} hangs: not at its end after {limit:?}");
    };
    assert!(status.success(), "{name}: {status}");
}

/// Returns the processes of a group.
fn members(group: u32) -> Vec<u32> {
    let all = fs::read_dir("/proc").unwrap().flatten();
    let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|&pid| unsafe { libc::getpgid(pid as i32) } == group as i32)
        .collect()
}

fn print_threads(pid: u32) {
    for thread in fs::read_dir(format!("/proc/{pid}/task"))
        .into_iter()
        .flatten()
        .flatten()
    {
        let read = |file| fs::read_to_string(thread.path().join(file)).unwrap_or_default();
        let (name, place, call) = (read("comm"), read("wchan"), read("syscall"));
        eprintln!(
            "{:?} {}: {place}, {}",
            thread.path(),
            name.trim(),
            call.trim()
        );
    }
    let backtraces = [
        "--pid",
        &pid.to_string(),
        "-batch",
        "-ex",
        "thread apply all bt 30",
    ];
    // Without a debugger the lines above must do.
    if let Ok(output) = Command::new("gdb")
        .args(backtraces)
        .stdin(Stdio::null())
        .output()
    {
        eprintln!("{}", String::from_utf8_lossy(&output.stdout));
    }
}
