//! Programs run by tests of several crates: C programs whose 77 means "skipped", and
//! commands that have to succeed.

use std::ffi::OsStr;
use std::fs;
use std::io::{Read as _, Seek as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use libtest_mimic::{Completion, Failed};

/// What a test answers: done, skipped, or what is wrong.
pub type Verdict = Result<Completion, Failed>;

/// Warnings are errors in all that is compiled here.
pub const STRICT: [&str; 4] = ["-Wall", "-Wextra", "-Wpedantic", "-Werror"];
/// With what POSIX and Linux have besides.
pub const C11: &str = "-std=gnu11";

/// Looks a program up in PATH.
pub fn find(tool: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let found = std::env::split_paths(&path).map(|folder| folder.join(tool));
    found.into_iter().find(|file| file.is_file())
}

/// Runs a command that has to succeed.
pub fn ok(command: &mut Command) -> Output {
    let output = command.output().unwrap();
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    output
}

/// Runs a test program: 77 is a skip, and its last line says why.
pub fn verdict(command: &mut Command) -> Verdict {
    let output = output_in_time(command);
    let stdout = String::from_utf8_lossy(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr);
    match output.status.code() {
        Some(0) => Ok(Completion::Completed),
        Some(77) => {
            let last = stdout.lines().last().unwrap_or("no reason given");
            let reason = last.strip_prefix("skipped: ").unwrap_or(last);
            Ok(Completion::ignored_with(reason))
        }
        _ => Err(format!("{command:?}: {}\n{stdout}{stderr}", output.status).into()),
    }
}

/// Runs a command to its end, in a process group of its own; one that hangs is killed
/// with all that it has started.
pub fn output_in_time(command: &mut Command) -> Output {
    const MOST: Duration = Duration::from_secs(300);
    let mut texts = [tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap()];
    let [stdout, stderr] = texts.each_ref().map(|file| file.try_clone().unwrap());
    command.stdin(Stdio::null()).stdout(stdout).stderr(stderr);
    let mut child = command.process_group(0).spawn().unwrap();
    let begun = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if begun.elapsed() > MOST {
            let group = format!("-{}", child.id());
            let _ = Command::new("kill").args(["-KILL", "--", &group]).status();
            let _ = child.kill();
        }
        sleep(Duration::from_millis(5));
    };
    let [stdout, stderr] = texts.each_mut().map(|file| {
        let mut text = Vec::new();
        file.rewind().unwrap();
        file.read_to_end(&mut text).unwrap();
        text
    });
    Output {
        status,
        stdout,
        stderr,
    }
}

/// The files of a folder with such an ending, sorted.
pub fn files(folder: &Path, ending: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap();
    let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension() == Some(OsStr::new(ending)));
    files.sort();
    files
}

/// A file's name without its ending.
pub fn stem(path: &Path) -> String {
    path.file_stem().unwrap().to_string_lossy().into_owned()
}
