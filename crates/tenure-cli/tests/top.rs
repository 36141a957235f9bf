//! `tenure top` on a terminal: a pseudo-terminal of the test's.

use std::{
    fs::{File, OpenOptions},
    io::{Read, Write},
    os::fd::{AsFd, OwnedFd},
    process::{Child, Command, Stdio},
};

use assert_cmd::cargo::cargo_bin_cmd;
use rustix::{
    process::{Pid, Signal, kill_process},
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
    termios::{Termios, Winsize, tcgetattr, tcsetwinsize},
};

const SHOW_CURSOR: &str = "\x1b[?25h";
const ENTER_SCREEN: &str = "\x1b[?1049h";
const LEAVE_SCREEN: &str = "\x1b[?1049l";

/// A terminal with `tenure top` in it.
struct Top {
    child: Child,
    /// Our end: what is typed, and what is shown.
    ours: File,
    /// Kept open, because the last output is lost with its last descriptor.
    theirs: File,
    shown: String,
    before: Termios,
}

impl Top {
    fn start() -> Self {
        Self::start_on(80, 24)
    }

    fn start_on(columns: u16, rows: u16) -> Self {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let ours = openpt(flags).unwrap();
        grantpt(&ours).unwrap();
        unlockpt(&ours).unwrap();
        let path = ptsname(&ours, Vec::new()).unwrap();
        let theirs = OpenOptions::new()
            .read(true)
            .write(true)
            .open(path.to_str().unwrap());
        let theirs = theirs.unwrap();
        resize(&theirs, columns, rows);
        let end = || Stdio::from(OwnedFd::from(theirs.try_clone().unwrap()));
        let before = tcgetattr(&theirs).unwrap();
        let child = Command::new(env!("CARGO_BIN_EXE_tenure"))
            .args(["top", "--interval=0.05", &std::process::id().to_string()])
            .env("TERM", "xterm")
            .stdin(end())
            .stdout(end())
            .stderr(end())
            .spawn()
            .unwrap();
        Self {
            child,
            ours: ours.into(),
            theirs,
            shown: String::new(),
            before,
        }
    }

    /// Reads until this has been shown: a word, because blanks between words are no change
    /// of an empty screen, and not written. The runner's limit ends a test in which it never is.
    fn wait_for(&mut self, text: &str) {
        let mut part = [0; 4096];
        while !self.shown.contains(text) {
            let len = self.ours.read(&mut part).unwrap();
            self.shown += &String::from_utf8_lossy(&part[..len]);
        }
    }

    fn press(&mut self, keys: &str) {
        self.ours.write_all(keys.as_bytes()).unwrap();
    }

    /// Asserts that the command ends with status 0 and leaves the terminal as it was.
    fn assert_ends(mut self) {
        self.wait_for(LEAVE_SCREEN);
        self.wait_for(SHOW_CURSOR);
        assert_eq!(self.child.wait().unwrap().code(), Some(0));
        let after = tcgetattr(&self.theirs).unwrap();
        assert_eq!(after.local_modes, self.before.local_modes);
        assert_eq!(after.input_modes, self.before.input_modes);
        assert_eq!(after.output_modes, self.before.output_modes);
    }
}

impl Drop for Top {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn resize(terminal: impl AsFd, columns: u16, rows: u16) {
    let size = Winsize {
        ws_row: rows,
        ws_col: columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    tcsetwinsize(terminal, size).unwrap();
}

#[test]
fn q_and_ctrl_c_quit_and_restore_the_terminal() {
    for key in ["q", "\x03"] {
        let mut top = Top::start();
        top.wait_for(ENTER_SCREEN);
        top.wait_for("volatile");
        let raw = tcgetattr(&top.theirs).unwrap();
        assert_ne!(raw.local_modes, top.before.local_modes);
        top.press(key);
        top.assert_ends();
    }
}

#[test]
fn signal_restores_the_terminal() {
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let mut top = Top::start();
        top.wait_for("volatile");
        kill_process(Pid::from_child(&top.child), signal).unwrap();
        top.assert_ends();
    }
}

/// Such as a terminal sends in parts, or somebody types.
#[test]
fn half_a_key_does_not_hold_up_refreshing_and_signals() {
    let mut top = Top::start();
    top.wait_for("pending");
    top.press("\x1b[<");
    resize(&top.theirs, 200, 50);
    top.wait_for("swapped");
    kill_process(Pid::from_child(&top.child), Signal::TERM).unwrap();
    top.assert_ends();
}

#[test]
fn terminal_of_any_size_is_drawn_on() {
    for (columns, rows) in [(u16::MAX, u16::MAX), (0, 0), (1, 1)] {
        let mut top = Top::start_on(columns, rows);
        top.wait_for(ENTER_SCREEN);
        resize(&top.theirs, 200, 50);
        top.wait_for("swapped");
        top.press("q");
        top.assert_ends();
    }
}

#[test]
fn resized_terminal_shows_more_columns() {
    let mut top = Top::start();
    top.wait_for("pending");
    assert!(!top.shown.contains("swapped"));
    resize(&top.theirs, 200, 50);
    top.wait_for("swapped");
    top.press("q");
    top.assert_ends();
}

/// Without a signal, because the terminal does not control the process.
#[test]
fn terminal_that_is_gone_ends_it() {
    let mut top = Top::start();
    top.wait_for("volatile");
    top.ours = File::open("/dev/null").unwrap();
    assert_eq!(top.child.wait().unwrap().code(), Some(0));
}

#[test]
fn output_that_is_no_terminal_is_one_line_and_status_1() {
    let assert = cargo_bin_cmd!("tenure")
        .arg("top")
        .assert()
        .code(1)
        .stdout("");
    let errors = String::from_utf8_lossy(&assert.get_output().stderr).into_owned();
    assert!(
        errors.starts_with("tenure: standard output is not a terminal: "),
        "{errors}"
    );
    assert_eq!(errors.lines().count(), 1, "{errors}");
}
