//! Names that others chose reach no terminal and no page as they are.

use std::fs;

use assert_cmd::cargo::cargo_bin_cmd;
use serde_json::Value;

#[path = "report/common.rs"]
mod common;
use common::{page_of, record, unescape};

/// Sets the title of a terminal, clears it, deletes, reverses text, begins a line, and is HTML.
const HOSTILE: &str = "\u{1b}]0;x\u{7}\u{9b}2J\u{7f}\u{202e}\r\u{85}<script>alert(1)</script>";

#[track_caller]
fn assert_harmless(text: &[u8]) {
    let text = str::from_utf8(text).unwrap();
    let is_hostile = |c: char| (c.is_control() && c != '\n') || c == '\u{202e}';
    let found = text.find(is_hostile);
    let around = found.map(|at| &text[..at + 1]);
    assert_eq!(around.map(|text| text.lines().last()), None);
}

/// A process with a hostile name and a memfd of a hostile name; ended when it is dropped.
struct Hostile(libc::pid_t);

impl Hostile {
    fn start() -> Self {
        let (ready, child_ready) = std::io::pipe().unwrap();
        let memfd = c"tenure-stats-\x1b]0;x\x07\xc2\x9b2J\xe2\x80\xae";
        let name = c"a\x1b[2J\xc2\x9b1m\x7f";
        // SAFETY: the child makes only system calls, none of which touches memory but the
        // two strings and a new mapping.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0);
        if pid == 0 {
            // SAFETY: as above.
            unsafe {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                let file = libc::memfd_create(memfd.as_ptr(), libc::MFD_CLOEXEC);
                let page = std::ptr::null_mut();
                let page = libc::mmap(page, 4096, libc::PROT_READ, libc::MAP_PRIVATE, file, 0);
                libc::prctl(libc::PR_SET_NAME, name.as_ptr());
                if page == libc::MAP_FAILED {
                    libc::_exit(1);
                }
                drop(child_ready);
                drop(ready);
                loop {
                    libc::pause();
                }
            }
        }
        drop(child_ready);
        // The end of the file comes when the child has closed its end.
        std::io::read_to_string(ready).unwrap();
        Self(pid)
    }
}

impl Drop for Hostile {
    fn drop(&mut self) {
        // SAFETY: the process is a child of this one that nobody has waited for.
        unsafe {
            libc::kill(self.0, libc::SIGKILL);
            libc::waitpid(self.0, std::ptr::null_mut(), 0);
        }
    }
}

#[test]
fn stat_of_process_with_hostile_names_prints_escapes() {
    let process = Hostile::start();
    let pid = process.0.to_string();
    let stat = |arguments: &[&str]| {
        let mut stat = cargo_bin_cmd!("tenure");
        let assert = stat.arg("stat").args(arguments).arg(&pid).assert().code(0);
        assert_harmless(&assert.get_output().stderr);
        assert_harmless(&assert.get_output().stdout);
        String::from_utf8(assert.get_output().stdout.clone()).unwrap()
    };
    let text = stat(&[]);
    assert!(text.contains("a\\u{1b}[2J\\u{9b}1m\\u{7f}"), "{text}");
    assert!(text.contains("tenure-stats-\\u{1b}]0;x\\u{7}"), "{text}");
    let report: Value = serde_json::from_str(&stat(&["--json"])).unwrap();
    assert_eq!(report["processes"][0]["name"], "a\u{1b}[2J\u{9b}1m\u{7f}");
}

/// Makes every text of a record hostile, but for the words that a record must have.
fn make_hostile(value: &mut Value) {
    match value {
        Value::String(text) => text.push_str(HOSTILE),
        Value::Array(values) => values.iter_mut().for_each(make_hostile),
        Value::Object(fields) => {
            let words = ["unit", "better"];
            let values = fields.iter_mut();
            let values = values.filter(|(key, _)| !words.contains(&key.as_str()));
            values.for_each(|(_, value)| make_hostile(value));
        }
        _ => {}
    }
}

#[test]
fn report_of_hostile_record_prints_escapes() {
    let mut hostile: Value = serde_json::from_str(&record()).unwrap();
    make_hostile(&mut hostile);
    hostile["environment"][HOSTILE] = HOSTILE.into();
    let hostile = hostile.to_string();
    let page = page_of(&[&hostile, &hostile]);
    assert_harmless(page.as_bytes());
    let script = "<script>alert(1)</script>";
    assert!(
        !page.contains("<script") && unescape(&page).contains(script),
        "{page}"
    );
    assert!(page.contains("populate\\u{1b}]0;x\\u{7}"), "{page}");

    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a\u{1b}[2J\u{202e}.json");
    fs::write(&file, &hostile).unwrap();
    let report = |arguments: &[&str], status| {
        let mut report = cargo_bin_cmd!("tenure");
        let assert = report.arg("report").args(arguments).arg(&file).assert();
        let assert = assert.code(status);
        assert_harmless(&assert.get_output().stdout);
        assert_harmless(&assert.get_output().stderr);
        assert.get_output().clone()
    };
    let page = report(&["--markdown"], 0).stdout;
    let page = String::from_utf8_lossy(&page).into_owned();
    assert!(
        page.contains("\\<script\\>") && !page.replace("\\<", "").contains('<'),
        "{page}"
    );
    // Errors name the file, and what is in it.
    fs::write(&file, "{").unwrap();
    let error = report(&[], 1).stderr;
    let error = String::from_utf8_lossy(&error).into_owned();
    assert!(error.contains("a\\u{1b}[2J\\u{202e}"), "{error}");
}
