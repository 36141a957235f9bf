//! `tenure stat` as people and scripts see it.

use std::{
    fs,
    io::{BufRead, BufReader, Read},
    path::PathBuf,
    process::{Child, Command, Stdio},
};

use assert_cmd::cargo::cargo_bin_cmd;
use serde_json::Value;
use tenure::{Mapping, Residency};

fn stat_json(arguments: &[&str]) -> Value {
    let assert = cargo_bin_cmd!("tenure")
        .args(["stat", "--json"])
        .args(arguments)
        .assert()
        .code(0)
        .stderr("");
    serde_json::from_slice(&assert.get_output().stdout).unwrap()
}

/// A process that does nothing, ended when it is dropped.
struct Idle(Child);

impl Idle {
    fn start() -> Self {
        Self(Command::new("sleep").arg("1000").spawn().unwrap())
    }

    fn pid(&self) -> String {
        self.0.id().to_string()
    }
}

impl Drop for Idle {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn watch(arguments: &[&str]) -> Child {
    Command::new(env!("CARGO_BIN_EXE_tenure"))
        .args(["stat", "--watch=0.01"])
        .args(arguments)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

#[test]
fn lazily_free_bytes_are_exact() {
    const LEN: usize = 32 << 20;
    // The kernel does not count yet what is in the batch of another CPU.
    let mut here = rustix::thread::CpuSet::new();
    here.set(rustix::thread::sched_getcpu());
    rustix::thread::sched_setaffinity(None, &here).unwrap();
    let mut memory = Mapping::anonymous(LEN).map().unwrap();
    memory.as_mut_slice().unwrap().fill(1);
    let idle = memory.lazy_free().unwrap();
    // Reading its own residency flushes this CPU's batch.
    Residency::of_this_process().unwrap();

    let pid = std::process::id();
    let report = stat_json(&[&pid.to_string()]);
    let process = &report["processes"][0];
    assert_eq!(process["pid"], pid);
    assert_eq!(process["lazily_free_bytes"], LEN);
    let figure = |name: &str| process[name].as_u64().unwrap();
    assert_eq!(
        figure("resident_bytes") - figure("resident_without_lazily_free_bytes"),
        LEN as u64
    );
    assert!(figure("mapped_bytes") > figure("resident_bytes"));
    for name in [
        "proportional_bytes",
        "swapped_bytes",
        "locked_bytes",
        "huge_page_bytes",
        "hugetlb_bytes",
        "reserved_bytes",
    ] {
        assert!(process[name].is_u64(), "{name}");
    }
    assert!(report.get("cgroup").is_none());
    drop(idle);
}

#[test]
fn text_has_a_row_for_each_process() {
    let processes = [Idle::start(), Idle::start()];
    let mut tenure = cargo_bin_cmd!("tenure");
    tenure.arg("stat").args(processes.iter().map(Idle::pid));
    let assert = tenure.assert().code(0).stderr("");
    let text = String::from_utf8_lossy(&assert.get_output().stdout).into_owned();
    let lines: Vec<_> = text.lines().map(str::trim).collect();
    // Two lines of header, a row for each process, three lines between, and a line about
    // the preloaded library for each.
    assert_eq!(lines.len(), 9, "{text}");
    for (line, process) in lines[7..].iter().zip(&processes) {
        let expected = format!(
            "process {}: libtenure_preload.so is not mapped",
            process.pid()
        );
        assert_eq!(*line, expected);
    }
    let header: Vec<_> = lines[1]
        .split("   ")
        .map(str::trim)
        .filter(|name| !name.is_empty())
        .collect();
    let expected = [
        "PID",
        "name",
        "RSS",
        "lazily free",
        "RSS without",
        "PSS",
        "swapped",
        "locked",
        "huge pages",
    ];
    assert_eq!(header, expected, "{text}");
    for (row, process) in [lines[4], lines[5]].iter().zip(&processes) {
        assert!(
            row.starts_with(&process.pid()) && row.contains("sleep"),
            "{text}"
        );
    }
}

/// Greater than any process ID can be.
const NO_PROCESS: &str = "2147483647";

#[test]
fn unknown_process_exits_with_1_and_one_line() {
    for arguments in [
        &[NO_PROCESS][..],
        &[NO_PROCESS, "--json"],
        &[NO_PROCESS, "--watch"],
    ] {
        let assert = cargo_bin_cmd!("tenure")
            .arg("stat")
            .args(arguments)
            .assert();
        let message = format!("tenure: there is no process {NO_PROCESS}\n");
        assert.code(1).stdout("").stderr(message);
    }
    // The other processes are shown.
    let known = Idle::start();
    let mut tenure = cargo_bin_cmd!("tenure");
    let assert = tenure
        .args(["stat", NO_PROCESS, &known.pid()])
        .assert()
        .code(1);
    let output = assert.get_output();
    assert!(String::from_utf8_lossy(&output.stdout).contains(&known.pid()));
    assert_eq!(String::from_utf8_lossy(&output.stderr).lines().count(), 1);
}

#[test]
fn wrong_command_line_exits_with_2() {
    let wrong: [&[&str]; 6] = [
        &[],
        &["--json"],
        &["0"],
        &["me"],
        &["1", "--cgroup", "/"],
        &["1", "--watch=never"],
    ];
    for arguments in wrong {
        let assert = cargo_bin_cmd!("tenure")
            .arg("stat")
            .args(arguments)
            .assert();
        assert.code(2).stdout("");
    }
}

#[test]
fn watch_exits_with_0_when_the_process_ends() {
    let process = Idle::start();
    let pid = process.pid();
    let mut tenure = watch(&["--json", &pid]);
    let mut output = BufReader::new(tenure.stdout.take().unwrap());
    for _ in 0..3 {
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        let report: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(report["processes"][0]["pid"].to_string(), pid);
    }
    drop(process);
    let mut rest = String::new();
    output.read_to_string(&mut rest).unwrap();
    for line in rest.lines() {
        serde_json::from_str::<Value>(line).unwrap();
    }
    let ended = tenure.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(0));
    let errors = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert_eq!(errors, format!("tenure: process {pid} has ended\n"));
}

#[test]
fn watch_into_a_closed_pipe_is_no_failure() {
    let process = Idle::start();
    for arguments in [&["--json"][..], &[]] {
        let mut tenure = watch(&[arguments, &[&process.pid()]].concat());
        let mut output = BufReader::new(tenure.stdout.take().unwrap());
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        // Only a terminal gets escape sequences.
        assert!(!line.is_empty() && !line.contains('\x1b'), "{line:?}");
        drop(output);
        let ended = tenure.wait_with_output().unwrap();
        assert_eq!(ended.status.code(), Some(0));
        assert_eq!(String::from_utf8_lossy(&ended.stderr), "");
    }
}

/// Returns the path of this process's memory cgroup.
fn own_group() -> Option<PathBuf> {
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap();
    let path = |fits: fn(&str) -> bool| {
        let line = groups.lines().find(|line| fits(line))?;
        line.splitn(3, ':').nth(2).map(PathBuf::from)
    };
    path(|line| line.contains(":memory:")).or_else(|| path(|line| line.starts_with("0::")))
}

#[test]
fn cgroup_is_shown_with_its_processes() {
    let Some(path) = own_group() else {
        return;
    };
    let path = path.to_str().unwrap();
    let mut tenure = cargo_bin_cmd!("tenure");
    let output = tenure
        .args(["stat", "--cgroup", path, "--json"])
        .output()
        .unwrap();
    if output.status.code() == Some(1) {
        // The root group of version 2, or one that this process cannot see.
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(errors.contains("memory"), "{errors}");
        return;
    }
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let group = &report["cgroup"];
    let figure = |name: &str| group[name].as_u64().unwrap();
    assert!(figure("usage_bytes") > 0);
    let (usage, inactive) = (figure("usage_bytes"), figure("inactive_file_bytes"));
    assert_eq!(figure("working_set_bytes"), usage.saturating_sub(inactive));
    // A process that may not be read makes it unknown.
    let is_unknown = figure("unreadable_processes") > 0;
    for name in ["lazily_free_bytes", "usage_without_lazily_free_bytes"] {
        assert_eq!(group[name].is_null(), is_unknown, "{name}");
    }
    assert!(group["limit_bytes"].is_u64() || group["limit_bytes"].is_null());
    let processes = report["processes"].as_array().unwrap();
    let own = processes
        .iter()
        .find(|process| process["pid"] == std::process::id());
    assert!(own.is_some_and(|own| own["resident_bytes"].as_u64() > Some(0)));
}

#[test]
fn unknown_cgroup_exits_with_1_and_one_line() {
    let assert = cargo_bin_cmd!("tenure")
        .args(["stat", "--cgroup", "/no/such/group"])
        .assert();
    let message = "tenure: there is no memory cgroup /no/such/group\n";
    assert.code(1).stdout("").stderr(message);
}

#[test]
fn counters_of_a_process_are_shown() {
    let memory = tenure::Mapping::anonymous(3 << 20).map().unwrap();
    memory.populate(.., tenure::Access::Write).unwrap();
    let own_pid = std::process::id().to_string();
    let mut stat = cargo_bin_cmd!("tenure");
    let assert = stat.args(["stat", &own_pid, "--json"]).assert().code(0);
    let report: Value = serde_json::from_slice(&assert.get_output().stdout).unwrap();
    let figures = report["processes"][0]["tenure"].as_array().unwrap();
    let populate = figures.iter().find(|figure| figure["name"] == "populate");
    let populate = populate.unwrap();
    assert_eq!(
        (&populate["calls"], &populate["bytes"]),
        (&1.into(), &(3 << 20).into())
    );
    let assert = cargo_bin_cmd!("tenure").args(["stat", &own_pid]).assert();
    let text = String::from_utf8_lossy(&assert.get_output().stdout).into_owned();
    assert!(
        text.contains("by tenure") && text.contains("populate"),
        "{text}"
    );
}

#[test]
fn options_of_a_preloaded_program_are_shown() {
    let mut tenure = Command::new(env!("CARGO_BIN_EXE_tenure"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("TENURE_") {
            tenure.env_remove(name);
        }
    }
    // The shell says that it runs, which is after the library was loaded.
    let mut child = tenure
        .args(["run", "--munmap=background", "--populate=1G", "--"])
        .args(["sh", "-c", "echo; read wait"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut begun = [0];
    child
        .stdout
        .as_mut()
        .unwrap()
        .read_exact(&mut begun)
        .unwrap();
    let pid = child.id().to_string();
    let report = stat_json(&[&pid]);
    let text = cargo_bin_cmd!("tenure")
        .args(["stat", &pid])
        .output()
        .unwrap();
    drop(child.stdin.take());
    child.wait().unwrap();
    let preload = &report["processes"][0]["preload"];
    let options = preload["options"].as_array().unwrap();
    assert_eq!(*options, ["munmap=background", "populate=1G"]);
    let library = preload["library"].as_str().unwrap();
    assert!(library.ends_with("/libtenure_preload.so"), "{library}");
    let line = format!("process {pid}: munmap=background, populate=1G; {library} is mapped\n");
    let text = String::from_utf8_lossy(&text.stdout).into_owned();
    assert!(text.contains(&line), "{text}");
}

#[test]
fn cache_of_a_process_is_shown() {
    let cache = tenure::VolatileCache::new();
    cache.insert("a", &[7; 5000]).unwrap();
    // Pressure may have purged it.
    drop(cache.get("a"));
    assert!(cache.get("b").is_none());
    let report = stat_json(&[&std::process::id().to_string()]);
    let figures = report["processes"][0]["tenure"].as_array().unwrap();
    let figure = |name: &str, field: &str| {
        let figure = figures
            .iter()
            .find(|figure| figure["name"] == name)
            .unwrap();
        figure[field].as_u64().unwrap()
    };
    let own = cache.stats();
    assert_eq!(own.hits + own.misses, 2);
    assert_eq!(figure("cache hits", "calls"), own.hits);
    assert_eq!(figure("cache misses", "calls"), own.misses);
    assert_eq!(figure("in caches now", "bytes"), own.bytes);
}
