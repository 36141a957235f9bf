//! The test programs: how cargo builds them, and the tests that each has.

use std::{
    collections::BTreeMap,
    env,
    ffi::OsString,
    io::BufReader,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::{
    privileges::User,
    process::Setting,
    report::{self, Outcome, Report},
    tsan::{self, Tsan},
};

/// Several times what a program takes to list its tests.
const LIST_LIMIT: Duration = Duration::from_secs(60);

/// Several times what rustdoc takes to build and run the examples.
const DOC_LIMIT: Duration = Duration::from_secs(3600);

/// A program that cargo has built from tests.
#[derive(Clone, Debug)]
pub struct Program {
    pub file: PathBuf,
    /// Where its package lies, and where it runs.
    pub folder: PathBuf,
    /// "tenure::volatile", or "tenure" for the library's unit tests.
    pub name: String,
}

/// A test as its program lists it.
#[derive(Clone, Debug, PartialEq)]
pub struct Test {
    pub name: String,
    /// The words in brackets before the name.
    pub kinds: Vec<String>,
}

/// The tests that one process runs.
#[derive(Clone, Debug)]
pub struct Job {
    pub program: Program,
    /// One, or all that are grouped.
    pub tests: Vec<Test>,
    /// The program's other tests, which a process of grouped ones leaves out.
    pub others: Vec<String>,
    pub is_exclusive: bool,
}

impl Test {
    pub fn full_name(&self, program: &Program) -> String {
        format!("{}::{}", program.name, self.name)
    }

    pub fn is_thorough(&self) -> bool {
        self.is("thorough")
    }

    fn is(&self, kind: &str) -> bool {
        // The standard harness has no kinds: there a module is called by them.
        let module = self.name.split("::").next();
        self.kinds.iter().any(|it| it == kind) || module == Some(kind)
    }

    /// Reads a line of `--list --format terse`: `[kind] name: test`.
    fn read(line: &str) -> Option<Self> {
        let line = line.strip_suffix(": test")?;
        let (kinds, name) = match line.strip_prefix('[') {
            Some(rest) => rest.split_once("] ")?,
            None => ("", line),
        };
        Some(Self {
            name: name.to_owned(),
            kinds: kinds.split_whitespace().map(str::to_owned).collect(),
        })
    }
}

impl Job {
    /// The key of the job's duration in earlier runs.
    pub fn key(&self) -> String {
        match self.tests.as_slice() {
            [test] => test.full_name(&self.program),
            _ => format!("{} (grouped)", self.program.name),
        }
    }
}

fn cargo_program() -> OsString {
    env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}

fn packages(cargo: &mut Command, packages: &[String]) {
    match packages {
        [] => cargo.arg("--workspace"),
        some => cargo.args(some.iter().flat_map(|name| ["--package", name])),
    };
}

/// Builds the test programs of the packages, or of all.
pub fn build(
    root: &Path,
    chosen: &[String],
    user: &User,
    tsan: Option<&Tsan>,
) -> Result<Vec<Program>> {
    let mut cargo = match tsan {
        Some(tsan) => tsan.cargo(),
        None => Command::new(cargo_program()),
    };
    cargo.current_dir(root).args([
        "test",
        "--no-run",
        "--message-format=json-render-diagnostics",
    ]);
    cargo.args(tsan.into_iter().flat_map(|_| tsan::BUILD_ARGUMENTS));
    packages(&mut cargo, chosen);
    cargo.envs(user.build_variables());
    let mut child = cargo
        .stdout(Stdio::piped())
        .spawn()
        .context("starting cargo")?;
    let output = child.stdout.take().context("no output from cargo")?;
    let messages =
        serde_json::Deserializer::from_reader(BufReader::new(output)).into_iter::<Value>();
    let mut programs = Vec::new();
    for message in messages {
        programs.extend(program(&message.context("reading what cargo has built")?));
    }
    ensure!(
        child.wait().context("waiting for cargo")?.success(),
        "cargo test --no-run failed"
    );
    programs.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(programs)
}

/// Reads a message of cargo's about a test program.
fn program(message: &Value) -> Option<Program> {
    if message["reason"] != "compiler-artifact" || message["profile"]["test"] != true {
        return None;
    }
    let folder = Path::new(message["manifest_path"].as_str()?).parent()?;
    let package = folder.file_name()?.to_str()?;
    let target = &message["target"];
    let kind = target["kind"][0].as_str()?;
    let name = match kind {
        "test" | "example" | "bin" => format!("{package}::{}", target["name"].as_str()?),
        _ => package.to_owned(),
    };
    Some(Program {
        file: message["executable"].as_str()?.into(),
        folder: folder.to_owned(),
        name,
    })
}

/// Asks a program for its tests.
fn tests(program: &Program, setting: &Setting<'_>) -> Result<Vec<Test>> {
    let ask = |arguments: &[&str]| {
        let mut command = setting.command(program);
        command.args(arguments);
        setting.run(command, LIST_LIMIT)
    };
    let listed = ask(&["--list", "--format", "terse"])?;
    let file = program.file.display();
    ensure!(
        listed.status.success() && listed.problem.is_none(),
        "{file} lists no tests: {}\n{}",
        listed.problem.unwrap_or_else(|| listed.status.to_string()),
        listed.output
    );
    let tests: Vec<Test> = listed.output.lines().filter_map(Test::read).collect();
    if tests.is_empty() {
        let run = ask(&["--exact", "no test is called so"])?;
        let has_none = |line: &str| line.starts_with("running 0 tests");
        ensure!(
            run.output.lines().any(has_none) && run.output.contains("; 0 filtered out"),
            "{file} lists no tests, and does not say that it has none:\n{}{}",
            listed.output,
            run.output
        );
    }
    Ok(tests)
}

/// Asks each program for its tests and makes jobs of those that are chosen.
pub fn jobs(
    programs: &[Program],
    setting: &Setting<'_>,
    mut is_chosen: impl FnMut(&Program, &Test) -> bool,
) -> Result<Vec<Job>> {
    let mut jobs = Vec::new();
    for program in programs {
        let tests = tests(program, setting)?;
        let others = |group: &[Test]| {
            let others = tests.iter().filter(|test| !group.contains(test));
            others.map(|test| test.name.clone()).collect()
        };
        // By what they need; grouped tests of one program share a process.
        let mut groups: BTreeMap<bool, Vec<Test>> = BTreeMap::new();
        for test in tests.iter().filter(|test| is_chosen(program, test)) {
            let is_exclusive = test.is("exclusive");
            if test.is("grouped") {
                groups.entry(is_exclusive).or_default().push(test.clone());
                continue;
            }
            jobs.push(Job {
                program: program.clone(),
                tests: vec![test.clone()],
                others: Vec::new(),
                is_exclusive,
            });
        }
        jobs.extend(groups.into_iter().map(|(is_exclusive, tests)| Job {
            program: program.clone(),
            others: others(&tests),
            tests,
            is_exclusive,
        }));
    }
    Ok(jobs)
}

/// Runs the examples in the documentation, which rustdoc builds and runs.
pub fn run_doc_tests(
    root: &Path,
    chosen: &[String],
    setting: &Setting<'_>,
    report: &mut Report,
) -> Result<()> {
    let mut command = setting.user.command(Path::new(&cargo_program()));
    command.current_dir(root);
    command.args(["test", "--doc", "--no-fail-fast"]);
    packages(&mut command, chosen);
    let ended = setting.run(command, DOC_LIMIT)?;
    let outcomes = report::outcomes(&ended.output);
    let count = outcomes.len();
    let has_told = outcomes.iter().any(|(_, outcome)| outcome.is_failed());
    for (name, outcome) in outcomes {
        let name = format!("doc::{name}");
        report.add(name, outcome, Duration::ZERO, &ended.output);
    }
    if ended.problem.is_some() || !ended.status.success() && !has_told {
        let how = ended.problem.unwrap_or_else(|| ended.status.to_string());
        let outcome = Outcome::Failed(format!("cargo test --doc: {how}"));
        report.add("doc".to_owned(), outcome, ended.took, &ended.output);
    }
    report.note(format!(
        "{count} examples of the documentation in {:.0?}",
        ended.took
    ));
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn listed_test_has_name_and_kinds() {
        let plain = Test::read("range::empty_range_is_ok: test").unwrap();
        assert_eq!(
            (plain.name.as_str(), plain.kinds.len()),
            ("range::empty_range_is_ok", 0)
        );
        let kinds = Test::read("[exclusive thorough] soak: test").unwrap();
        assert!(kinds.is("exclusive") && kinds.is_thorough() && kinds.name == "soak");
        assert_eq!(Test::read("3 tests, 0 benchmarks"), None);
    }

    #[test]
    fn artifact_of_a_test_is_a_program() {
        let message = |kind, test| {
            json!({
                "reason": "compiler-artifact", "manifest_path": "/w/crates/tenure/Cargo.toml",
                "target": {"name": "lock", "kind": [kind]}, "profile": {"test": test},
                "executable": "/w/target/debug/deps/lock-1"
            })
        };
        assert_eq!(
            program(&message("test", true)).unwrap().name,
            "tenure::lock"
        );
        assert_eq!(program(&message("lib", true)).unwrap().name, "tenure");
        assert!(program(&message("lib", false)).is_none());
    }
}
