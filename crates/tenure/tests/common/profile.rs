//! Seccomp profiles of container runtimes, as filters for a process without capabilities.

use std::collections::HashMap;
use std::io::Write as _;
use std::process::{Command, Stdio};

use libc::{BPF_ABS, BPF_ALU, BPF_AND, BPF_JEQ, BPF_JMP, BPF_K, BPF_LD, BPF_RET, BPF_W};
use serde_json::Value;

use super::common::install_filter;

/// The profiles, as tests/containers/README.md describes them.
pub fn profile(name: &str) -> &'static str {
    match name {
        "docker" => include_str!("../../../../tests/containers/docker.json"),
        "containers-common" => include_str!("../../../../tests/containers/containers-common.json"),
        _ => panic!("no profile {name}"),
    }
}

/// Asks the C compiler for the numbers of all system calls; `None` without one.
fn numbers() -> Option<HashMap<String, u32>> {
    let mut compiler = Command::new("cc")
        .args(["-E", "-dM", "-x", "c", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    let mut source = compiler.stdin.take()?;
    source.write_all(b"#include <sys/syscall.h>\n").ok()?;
    drop(source);
    let output = compiler.wait_with_output().ok()?;
    let number = |line: &str| {
        let (name, number) = line.strip_prefix("#define __NR_")?.split_once(' ')?;
        Some((name.to_owned(), number.parse().ok()?))
    };
    let text = String::from_utf8_lossy(&output.stdout);
    let numbers: HashMap<_, _> = text.lines().filter_map(number).collect();
    numbers.contains_key("userfaultfd").then_some(numbers)
}

fn step(code: u32, jt: u8, jf: u8, k: u32) -> libc::sock_filter {
    let code = code as u16;
    libc::sock_filter { code, jt, jf, k }
}

fn load(offset: usize) -> libc::sock_filter {
    step(BPF_LD | BPF_W | BPF_ABS, 0, 0, offset as u32)
}

/// A filter with a profile's rules.
pub struct Filter(Vec<libc::sock_filter>);

impl Filter {
    /// Compiles a profile; `None` where nothing tells the numbers of system calls.
    pub fn of(text: &str) -> Option<Self> {
        let numbers = numbers()?;
        let profile: Value = serde_json::from_str(text).unwrap();
        let mut program = Vec::new();
        for rule in profile["syscalls"].as_array().unwrap() {
            if !concerns_us(rule) {
                continue;
            }
            let answer = answer(&rule["action"], &rule["errnoRet"]);
            for name in rule["names"].as_array().unwrap() {
                // Calls of other processors have no number.
                if let Some(&number) = numbers.get(name.as_str().unwrap()) {
                    program.extend(steps(number, &rule["args"], answer));
                }
            }
        }
        let default = answer(&profile["defaultAction"], &profile["defaultErrnoRet"]);
        program.push(step(BPF_RET | BPF_K, 0, 0, default));
        Some(Self(program))
    }

    /// Installs the filter for this process.
    pub fn install(mut self) {
        install_filter(&mut self.0);
    }
}

/// Whether a rule holds for a process without capabilities on this kernel, which is newer
/// than what any profile asks.
fn concerns_us(rule: &Value) -> bool {
    let architecture = if cfg!(target_arch = "x86_64") {
        "amd64"
    } else {
        "arm64"
    };
    let lists = |side: &str, what: &str| rule[side][what].as_array().cloned();
    let is_ours = |list: Vec<Value>| list.iter().any(|it| it == architecture);
    lists("includes", "caps").is_none()
        && lists("includes", "arches").is_none_or(is_ours)
        && !lists("excludes", "arches").is_some_and(is_ours)
}

fn answer(action: &Value, errno: &Value) -> u32 {
    match action.as_str().unwrap() {
        "SCMP_ACT_ALLOW" => libc::SECCOMP_RET_ALLOW,
        "SCMP_ACT_ERRNO" => {
            let errno = errno.as_u64().unwrap_or(libc::EPERM as u64);
            libc::SECCOMP_RET_ERRNO | errno as u32
        }
        other => panic!("{other}"),
    }
}

/// Compiles a rule for one call: all of its conditions hold, or the next rule is tried.
fn steps(number: u32, conditions: &Value, answer: u32) -> Vec<libc::sock_filter> {
    // The steps after those that jump past all of them, the last first.
    let mut steps = vec![step(BPF_RET | BPF_K, 0, 0, answer)];
    let none = Vec::new();
    for condition in conditions.as_array().unwrap_or(&none).iter().rev() {
        let value = |name: &str| condition[name].as_u64().unwrap_or(0);
        let (mask, wanted, is_equal) = match condition["op"].as_str().unwrap() {
            "SCMP_CMP_EQ" => (u64::MAX, value("value"), true),
            "SCMP_CMP_NE" => (u64::MAX, value("value"), false),
            "SCMP_CMP_MASKED_EQ" => (value("value"), value("valueTwo"), true),
            other => panic!("{other}"),
        };
        // All of these compare small numbers: the upper halves are zero.
        assert!(wanted <= u32::MAX.into());
        let index = value("index") as usize;
        let past = steps.len() as u8;
        let (jt, jf) = if is_equal { (0, past) } else { (past, 0) };
        steps.push(step(BPF_JMP | BPF_JEQ | BPF_K, jt, jf, wanted as u32));
        steps.push(step(BPF_ALU | BPF_AND | BPF_K, 0, 0, mask as u32));
        let args = std::mem::offset_of!(libc::seccomp_data, args);
        steps.push(load(args + 8 * index));
    }
    let past = steps.len() as u8;
    steps.push(step(BPF_JMP | BPF_JEQ | BPF_K, 0, past, number));
    steps.push(load(std::mem::offset_of!(libc::seccomp_data, nr)));
    steps.reverse();
    steps
}
