//! Shows processes that hang or are left behind, and kills them.

use std::{
    fmt::Write as _,
    fs,
    io::Read as _,
    process::{Command, Stdio},
};

use rustix::process::{Pid, Signal, kill_process};

/// gdb's time limit for one process. A gdb that waits for a process in the middle of a
/// vfork takes no SIGTERM: it is killed a moment later.
const GDB_LIMIT: [&str; 3] = ["--kill-after", "5", "60"];

/// How often those that a process has left are looked for again, to kill them: a process
/// may have started another since the last look.
const LOOKS: usize = 1000;

/// The entries of a folder that are numbers; none of one that is gone.
fn numbers_in(folder: &str) -> impl Iterator<Item = u32> + use<> {
    let entries = fs::read_dir(folder).into_iter().flatten();
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
}

/// Describes a process and all that come from it.
pub fn show_with_children(pid: Pid) -> String {
    with_children(pid).into_iter().map(show).collect()
}

/// Describes all that come from a process and kills them, parents first: none can start
/// others meanwhile or go on without its child.
pub fn show_and_kill_children(of: Pid) -> String {
    let children = || with_children(of).split_off(1);
    let shown = children().into_iter().map(show).collect();
    // To show them takes long: others may have taken their place.
    for _ in 0..LOOKS {
        let children = children();
        if children.is_empty() {
            break;
        }
        for pid in children {
            // It may have ended by itself, or with its parent.
            let _ = Pid::from_raw(pid.cast_signed()).map(|pid| kill_process(pid, Signal::KILL));
        }
    }
    shown
}

/// A process and all that come from it, parents first.
fn with_children(pid: Pid) -> Vec<u32> {
    let mut family = vec![pid.as_raw_pid().cast_unsigned()];
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

/// Says what each thread waits for, and where it is, if there is a gdb.
fn show(pid: u32) -> String {
    let read = |path: String| fs::read_to_string(path).unwrap_or_default();
    let command = read(format!("/proc/{pid}/cmdline")).replace('\0', " ");
    let mut text = format!("process {pid}: {command}\n");
    for task in tasks(pid) {
        let [comm, stat, call, stack] = ["comm", "stat", "syscall", "stack"]
            .map(|file| read(format!("/proc/{pid}/task/{task}/{file}")));
        let state = stat.rsplit_once(") ").map_or("?", |(_, rest)| &rest[..1]);
        let (comm, call) = (comm.trim(), call.trim());
        let _ = writeln!(text, "  thread {task} ({comm}) {state}, system call {call}");
        for line in stack.lines() {
            let _ = writeln!(text, "    {line}");
        }
    }
    match stacks(pid) {
        Some(stacks) => text.push_str(&stacks),
        None => text.push_str("  (without gdb there are no stacks)\n"),
    }
    text
}

/// Asks gdb for the stacks of all threads.
fn stacks(pid: u32) -> Option<String> {
    let mut gdb = Command::new("timeout")
        .args(GDB_LIMIT)
        .args(["gdb", "-p", &pid.to_string(), "-batch"])
        .args(["-ex", "thread apply all bt 30"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    let mut output = Vec::new();
    let read = gdb.stdout.take()?.read_to_end(&mut output);
    // A supervisor waits for all its children, and may have taken gdb's status.
    let _ = gdb.wait();
    let output = String::from_utf8_lossy(&output).into_owned();
    (read.is_ok() && output.contains("\n#0 ")).then_some(output)
}

#[cfg(test)]
mod tests {
    use std::{
        thread,
        time::{Duration, Instant},
    };

    use super::*;

    #[test]
    fn children_of_a_process_are_shown_and_killed() {
        let mut parent = Command::new("sh")
            .args(["-c", "sleep 1000; exit $?"])
            .spawn()
            .unwrap();
        let pid = Pid::from_child(&parent);
        let begun = Instant::now();
        while with_children(pid).len() < 2 || !show_with_children(pid).contains("sleep 1000") {
            assert!(begun.elapsed() < Duration::from_secs(60));
            thread::sleep(Duration::from_millis(1));
        }
        let shown = show_and_kill_children(pid);
        assert!(shown.contains("sleep 1000"), "{shown}");
        // It tells how its child has ended.
        assert!(!parent.wait().unwrap().success());
    }
}
