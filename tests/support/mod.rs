//! Runs programs for the tests of several crates: C programs that exit with 77 when they
//! are skipped, and commands that must succeed.

use std::ffi::OsStr;
use std::fs;
use std::io::{Read as _, Seek as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use libtest_mimic::{Completion, Failed};

/// The result of a test: completed, skipped, or failed with a message.
pub type Verdict = Result<Completion, Failed>;

/// Compiler flags that make every warning an error.
pub const STRICT: [&str; 4] = ["-Wall", "-Wextra", "-Wpedantic", "-Werror"];
/// The C standard, with the extensions of POSIX and Linux.
pub const C11: &str = "-std=gnu11";

/// Looks a program up in PATH.
pub fn find(tool: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let found = std::env::split_paths(&path).map(|folder| folder.join(tool));
    found.into_iter().find(|file| file.is_file())
}

/// Runs a command that must succeed.
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

/// Runs a test program. Exit status 77 is a skip, with the last line as the reason.
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

/// Runs a command to its end, in a process group of its own. A command that hangs is killed
/// with every process that it has started.
pub fn output_in_time(command: &mut Command) -> Output {
    const MAX: Duration = Duration::from_secs(300);
    let mut texts = [tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap()];
    let [stdout, stderr] = texts.each_ref().map(|file| file.try_clone().unwrap());
    command.stdin(Stdio::null()).stdout(stdout).stderr(stderr);
    let mut child = command.process_group(0).spawn().unwrap();
    let begun = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if begun.elapsed() > MAX {
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

/// Returns the files of a folder with this extension, sorted.
pub fn files(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap();
    let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension() == Some(OsStr::new(extension)));
    files.sort();
    files
}

/// Returns a file's name without its extension.
pub fn stem(path: &Path) -> String {
    path.file_stem().unwrap().to_string_lossy().into_owned()
}
