//! `cargo xtask test` with programs that stand for cargo and for test programs.

use std::{
    fs,
    io::Read as _,
    os::unix::{fs::symlink, process::CommandExt as _},
    path::Path,
    process::{Child, Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

const SOURCES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/runner");

/// The setting of the machine that the program `waits` changes.
const CHANGED: &str = "changed\n";
const RESTORED: &str = "restored\n";

/// A package with test programs, and a folder for temporary files.
struct Fake(TempDir);

impl Fake {
    fn new() -> Self {
        let fake = Self(TempDir::new().unwrap());
        fs::create_dir(fake.temporary()).unwrap();
        fake
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn temporary(&self) -> std::path::PathBuf {
        self.path().join("tmp")
    }

    fn command(&self, programs: &[&str], arguments: &[&str]) -> Command {
        for name in programs {
            // It is there from an earlier run.
            let _ = symlink(format!("{SOURCES}/program"), self.path().join(name));
        }
        // A shell has what it starts in the background ignore SIGINT.
        let mut command = Command::new("env");
        command.args(["--default-signal", env!("CARGO_BIN_EXE_xtask"), "test"]);
        command.args(arguments);
        command.env("CARGO", format!("{SOURCES}/cargo"));
        command.env("FAKE", self.path());
        command.env("FAKE_PROGRAMS", programs.join(" "));
        command.env("RESTORE_DELAY", "0.2");
        command.env("TMPDIR", self.temporary());
        command
    }

    /// Runs the programs' tests. Returns whether all is well, and the output.
    fn run(&self, programs: &[&str], arguments: &[&str]) -> (bool, String) {
        let output = self.command(programs, arguments).output().unwrap();
        let Output { stdout, stderr, .. } = &output;
        let text = [stdout, stderr].map(|text| String::from_utf8_lossy(text));
        (output.status.success(), text.concat())
    }

    /// Starts a run of the program `waits`, which takes so many seconds to restore what it
    /// changes.
    fn start(&self, restore_delay: &str) -> Child {
        let mut command = self.command(&["waits"], &[]);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        command.env("RESTORE_DELAY", restore_delay);
        // A group of its own, as in a shell.
        let runner = command.process_group(0).spawn().unwrap();
        // Until env has set the default, SIGINT may be ignored.
        wait_until("env starts the runner", || {
            let line = fs::read(format!("/proc/{}/cmdline", runner.id())).unwrap_or_default();
            line.starts_with(env!("CARGO_BIN_EXE_xtask").as_bytes())
        });
        runner
    }

    fn start_and_wait_until_changed(&self, restore_delay: &str) -> Child {
        let runner = self.start(restore_delay);
        wait_until("the test runs", || self.setting() == CHANGED);
        runner
    }

    fn setting(&self) -> String {
        fs::read_to_string(self.path().join("setting")).unwrap_or_default()
    }

    /// The live processes that belong to a run, with their command lines.
    fn processes(&self) -> Vec<(Pid, String)> {
        let variable = format!("FAKE={}", self.path().display());
        let all = fs::read_dir("/proc").unwrap().flatten();
        let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let read = |pid: i32, file| fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
        let belongs = |pid: &i32| {
            let environment = read(*pid, "environ");
            environment
                .split(|&byte| byte == 0)
                .any(|it| it == variable.as_bytes())
        };
        let described = |pid| {
            let line = String::from_utf8_lossy(&read(pid, "cmdline")).replace('\0', " ");
            Some((Pid::from_raw(pid)?, line))
        };
        pids.filter(belongs).filter_map(described).collect()
    }

    fn wait_until_nothing_is_left(&self) {
        wait_until("all processes have ended", || self.processes().is_empty());
        assert_eq!(folders(&self.temporary()), [] as [String; 0]);
        assert_ne!(self.setting(), CHANGED);
    }

    fn supervisor(&self) -> Pid {
        let all = self.processes().into_iter();
        let is_one = |line: &str| line.contains(" supervise ") && line.contains("--exact");
        all.filter(|(_, line)| is_one(line))
            .map(|(pid, _)| pid)
            .next()
            .unwrap()
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        for (pid, _) in self.processes() {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

fn folders(of: &Path) -> Vec<String> {
    let entries = fs::read_dir(of).unwrap().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.collect()
}

fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(
            begun.elapsed() < Duration::from_secs(60),
            "waiting until {what}"
        );
        thread::sleep(Duration::from_millis(2));
    }
}

fn end(runner: &mut Child, signal: Signal) {
    kill_process(Pid::from_child(runner), signal).unwrap();
    assert!(!runner.wait().unwrap().success());
}

#[test]
fn run_of_a_passing_test_is_well_and_leaves_nothing() {
    let fake = Fake::new();
    let (is_well, text) = fake.run(&["passes", "empty"], &[]);
    assert!(
        is_well && text.contains("1 passed, 0 failed, 0 skipped"),
        "{text}"
    );
    fake.wait_until_nothing_is_left();
}

#[test]
fn test_that_says_ok_and_ends_otherwise_fails() {
    let fake = Fake::new();
    for (name, how) in [
        (
            "says_ok_and_is_killed",
            "signal: 9 (SIGKILL), with 0 failed tests",
        ),
        ("says_ok_and_fails", "exit status: 101, with 0 failed tests"),
        ("ends_early", "ended early: exit status: 0"),
    ] {
        let (is_well, text) = fake.run(&[name], &[]);
        assert!(!is_well && text.contains("0 passed, 1 failed"), "{text}");
        assert!(text.contains(how), "{text}");
    }
}

#[test]
fn failed_test_that_passes_each_repetition_is_unstable() {
    let fake = Fake::new();
    let (is_well, text) = fake.run(&["fails_in_run_1"], &["--repeat-failed"]);
    let unstable = "::fails_in_run_1::a failed, and passed 5 times by itself";
    assert!(
        is_well && text.contains("unstable: ") && text.contains(unstable),
        "{text}"
    );
    assert!(text.contains("\nFAILED "), "{text}");
    assert!(text.contains("1 passed, 0 failed"), "{text}");
}

#[test]
fn failed_test_that_fails_a_repetition_is_failed() {
    let fake = Fake::new();
    for name in ["fails_in_run_1_2", "fails_in_run_1_6", "says_ok_and_fails"] {
        let (is_well, text) = fake.run(&[name], &["--repeat-failed"]);
        assert!(!is_well && !text.contains("unstable"), "{text}");
        assert!(text.contains("0 passed, 1 failed"), "{text}");
    }
    let (is_well, text) = fake.run(&["fails_in_run_1_x"], &[]);
    assert!(!is_well && !text.contains("unstable"), "{text}");
}

#[test]
fn group_that_dies_in_the_middle_passes_nothing() {
    let (is_well, text) = Fake::new().run(&["group_that_dies"], &[]);
    assert!(!is_well && text.contains("0 passed, 3 failed"), "{text}");
    assert_eq!(text.matches("running 3 tests").count(), 1, "{text}");
}

#[test]
fn name_that_matches_no_test_is_an_error() {
    let fake = Fake::new();
    let (is_well, text) = fake.run(&["passes"], &["passes::", "another"]);
    assert!(
        !is_well && text.contains(r#"no test is named so: {"another"}"#),
        "{text}"
    );
    let (is_well, text) = fake.run(&["empty"], &[]);
    assert!(!is_well && text.contains("no test has run"), "{text}");
}

#[test]
fn program_that_hides_its_tests_is_an_error() {
    let (is_well, text) = Fake::new().run(&["unlistable", "passes"], &[]);
    assert!(
        !is_well && text.contains("unlistable lists no tests, and"),
        "{text}"
    );
}

#[test]
fn process_left_behind_without_output_fails_its_test_and_is_killed() {
    let fake = Fake::new();
    let (is_well, text) = fake.run(&["leaves_a_process"], &[]);
    assert!(!is_well && text.contains("0 passed, 1 failed"), "{text}");
    assert!(
        text.contains("leaves_a_process::a left a process behind"),
        "{text}"
    );
    // It has an empty environment; this is what it reads.
    let all = fs::read_dir("/proc").unwrap().flatten();
    let mut inputs = all.filter_map(|it| fs::read_link(it.path().join("fd/0")).ok());
    assert!(!inputs.any(|input| input == fake.path()));
    assert!(text.contains("sleep 1000"), "{text}");
}

#[test]
fn process_left_behind_that_goes_on_in_a_child_is_killed() {
    let fake = Fake::new();
    let (is_well, text) = fake.run(&["goes_on_in_a_child"], &[]);
    let how = "goes_on_in_a_child::a left a process behind";
    assert!(!is_well && text.contains(how), "{text}");
    // One that has just started is not seen at each look.
    for _ in 0..100 {
        assert_eq!(fake.processes(), []);
        thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn hung_command_is_killed_where_it_cannot_be_shown() {
    let fake = Fake::new();
    let full = fs::OpenOptions::new().write(true).open("/dev/full");
    let mut supervisor = Command::new(env!("CARGO_BIN_EXE_xtask"));
    supervisor
        .arg("supervise")
        .arg(fake.path())
        .args(["0", "--"]);
    supervisor.args(["sh", "-c", "sleep 1000; exit 0"]);
    supervisor.env("FAKE", fake.path());
    supervisor.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut supervisor = supervisor.stderr(full.unwrap()).spawn().unwrap();
    let _alive = supervisor.stdin.take();
    let output = supervisor.wait_with_output().unwrap();
    let record = String::from_utf8_lossy(&output.stdout);
    assert!(record.contains(r#""status":9,"#), "{record}");
    assert_eq!(fake.processes(), []);
}

#[test]
fn process_that_restores_a_setting_after_its_test_may_end() {
    let fake = Fake::new();
    let (is_well, text) = fake.run(&["restores_late"], &[]);
    assert!(is_well, "{text}");
    assert_eq!(fake.setting(), RESTORED);
}

#[test]
fn tests_end_with_a_killed_runner_and_settings_are_restored() {
    for signal in [Signal::INT, Signal::TERM, Signal::KILL] {
        let fake = Fake::new();
        end(&mut fake.start_and_wait_until_changed("0.2"), signal);
        fake.wait_until_nothing_is_left();
        assert_eq!(fake.setting(), RESTORED, "{signal:?}");
    }
}

#[test]
fn tests_end_with_a_runner_killed_at_any_moment() {
    let fake = Fake::new();
    let begun = Instant::now();
    let mut runner = fake.start_and_wait_until_changed("0.2");
    let usual = begun.elapsed();
    end(&mut runner, Signal::KILL);
    let signals = [Signal::KILL, Signal::INT, Signal::TERM]
        .into_iter()
        .cycle();
    for (round, signal) in (1..=24).zip(signals) {
        let mut runner = fake.start("0");
        thread::sleep(usual * round / 20);
        end(&mut runner, signal);
        wait_until("all processes have ended", || fake.processes().is_empty());
        assert_ne!(fake.setting(), CHANGED);
    }
    // The next run removes what there was no guard for yet.
    let (is_well, text) = fake.run(&["passes"], &[]);
    assert!(is_well, "{text}");
    fake.wait_until_nothing_is_left();
}

#[test]
fn test_ends_with_its_killed_supervisor_and_is_failed() {
    let fake = Fake::new();
    let mut command = fake.command(&["waits"], &[]);
    let mut runner = command.stdout(Stdio::piped()).spawn().unwrap();
    wait_until("the test runs", || fake.setting() == CHANGED);
    kill_process(fake.supervisor(), Signal::KILL).unwrap();
    assert!(!runner.wait().unwrap().success());
    let mut text = String::new();
    runner.stdout.unwrap().read_to_string(&mut text).unwrap();
    assert!(
        text.contains("waits::a the supervisor has ended: signal: 9"),
        "{text}"
    );
    wait_until("the setting is restored", || fake.setting() == RESTORED);
}

#[test]
fn run_beside_another_leaves_its_folder_alone() {
    let fake = Fake::new();
    let mut runner = fake.start_and_wait_until_changed("6");
    let owned = folders(&fake.temporary());
    assert_eq!(owned.len(), 1);
    assert!(fake.run(&["passes"], &[]).0);
    assert_eq!(folders(&fake.temporary()), owned);
    // The runner has ended, and a process of its test has not.
    end(&mut runner, Signal::KILL);
    assert!(fake.run(&["passes"], &[]).0);
    assert_eq!(fake.setting(), CHANGED);
    assert_eq!(folders(&fake.temporary()), owned);
    fake.wait_until_nothing_is_left();
}
