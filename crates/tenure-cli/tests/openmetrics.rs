//! `tenure stat --openmetrics` as Prometheus, python's parser and node_exporter see it.

use std::{
    fs,
    path::Path,
    process::{Command, ExitCode, Output},
};

use assert_cmd::cargo::cargo_bin_cmd;
use libtest_mimic::{Arguments, Completion, Trial};
use tenure::{Access, Mapping, VolatileCache};

fn main() -> ExitCode {
    macro_rules! trials {
        ($($test:ident),* $(,)?) => {
            vec![$(Trial::ignorable_test(stringify!($test), || Ok($test()))),*]
        };
    }
    let trials = trials![
        prometheus_reads_the_document,
        promtool_finds_nothing_to_complain_about,
        python_parser_reads_the_document,
        file_for_the_textfile_collector_is_replaced,
        unknown_process_leaves_the_others_and_exits_with_1,
    ];
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

fn stat(arguments: &[&str]) -> Output {
    let mut tenure = cargo_bin_cmd!("tenure");
    tenure.args(["stat", "--openmetrics"]).args(arguments);
    tenure.output().unwrap()
}

/// Returns a document with all families of a process, whose name needs escapes.
fn document() -> String {
    let memory = Mapping::anonymous(1 << 20).map().unwrap();
    memory.populate(.., Access::Write).unwrap();
    let cache = VolatileCache::new();
    cache.insert(1, &[1; 100]).unwrap();
    let mut other = Command::new("sleep").arg("1000").spawn().unwrap();
    fs::write("/proc/self/comm", "a \"b\"\\{}, #").unwrap();
    let pids = [std::process::id().to_string(), other.id().to_string()];
    let output = stat(&pids.each_ref().map(String::as_str));
    other.kill().unwrap();
    other.wait().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn is_there(program: &str) -> bool {
    let output = Command::new(program).arg("--version").output();
    output.is_ok_and(|output| output.status.success())
}

fn no_promtool() -> Completion {
    Completion::ignored_with("no promtool in PATH (Debian's package prometheus)")
}

/// `promtool check metrics` reads the older format. This command has the parser with which
/// Prometheus reads OpenMetrics, and wants a time with each sample.
fn prometheus_reads_the_document() -> Completion {
    if !is_there("promtool") {
        return no_promtool();
    }
    let document = document();
    let timed = document.lines().map(|line| match line.starts_with('#') {
        true => format!("{line}\n"),
        false => format!("{line} 1700000000\n"),
    });
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("document");
    let blocks = folder.path().join("blocks");
    fs::write(&file, timed.collect::<String>()).unwrap();
    let output = Command::new("promtool")
        .args(["tsdb", "create-blocks-from", "openmetrics"])
        .args([&file, &blocks])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    // Without this folder promtool takes it for no database.
    fs::create_dir(blocks.join("wal")).unwrap();
    let dump = Command::new("promtool")
        .args(["tsdb", "dump"])
        .arg(&blocks)
        .output()
        .unwrap();
    let dump = String::from_utf8(dump.stdout).unwrap();
    let samples = document
        .lines()
        .filter(|line| !line.starts_with('#'))
        .count();
    assert_eq!(dump.lines().count(), samples, "{dump}");
    assert!(dump.contains(r#"name="a \"b\"\\{}, #""#), "{dump}");
    Completion::Completed
}

/// In the older format a counter's family has the name of its samples.
fn in_older_format(document: &str) -> String {
    let mut counters = Vec::new();
    for line in document.lines() {
        let kind = line
            .strip_prefix("# TYPE ")
            .and_then(|line| line.split_once(' '));
        match kind {
            Some((name, "counter")) => counters.push((name, "_total")),
            Some((name, "info")) => counters.push((name, "_info")),
            _ => {}
        }
    }
    let line = |line: &str| {
        let words: Vec<_> = line.splitn(4, ' ').collect();
        let [hash @ "#", word @ ("HELP" | "TYPE"), name, rest] = words[..] else {
            return format!("{line}\n");
        };
        let suffix = counters.iter().find(|(known, _)| *known == name);
        let suffix = suffix.map_or("", |(_, suffix)| suffix);
        let rest = if rest == "info" { "gauge" } else { rest };
        format!("{hash} {word} {name}{suffix} {rest}\n")
    };
    document.lines().map(line).collect()
}

fn promtool_finds_nothing_to_complain_about() -> Completion {
    if !is_there("promtool") {
        return no_promtool();
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("document");
    fs::write(&file, in_older_format(&document())).unwrap();
    let output = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(fs::File::open(&file).unwrap())
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    Completion::Completed
}

const PARSE: &str = r#"
import sys
from prometheus_client.openmetrics.parser import text_string_to_metric_families
families = {}
for family in text_string_to_metric_families(open(sys.argv[1]).read()):
    families[family.name] = family
    assert family.documentation, family.name
purged = families["tenure_process_purged_bytes"]
assert (purged.type, purged.unit) == ("counter", "bytes")
assert {s.labels["cause"] for s in purged.samples} == {"kernel", "pressure", "request", "unprotected"}
resident = families["tenure_process_resident_bytes"]
assert (resident.type, len(resident.samples)) == ("gauge", 2)
assert {s.labels["name"] for s in resident.samples} == {'a "b"\\{}, #', "sleep"}
print(len(families))
"#;

fn python_parser_reads_the_document() -> Completion {
    let import = ["-c", "import prometheus_client.openmetrics.parser"];
    let has_parser = Command::new("python3").args(import).output();
    if !has_parser.is_ok_and(|output| output.status.success()) {
        return Completion::ignored_with("python3 has no prometheus_client");
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("document");
    fs::write(&file, document()).unwrap();
    let output = Command::new("python3")
        .args(["-c", PARSE])
        .arg(&file)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let families: usize = String::from_utf8_lossy(&output.stdout)
        .trim()
        .parse()
        .unwrap();
    assert!(families > 20, "{families}");
    Completion::Completed
}

fn file_for_the_textfile_collector_is_replaced() -> Completion {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tenure.prom");
    fs::write(&file, "old").unwrap();
    let path = file.to_str().unwrap();
    let own = std::process::id().to_string();
    let output = stat(&["--output", path, &own]);
    assert!(
        output.status.success() && output.stdout.is_empty(),
        "{output:?}"
    );
    let written = fs::read_to_string(&file).unwrap();
    assert!(written.contains("tenure_process_resident_bytes{") && written.ends_with("# EOF\n"));
    // Nothing else is left there, and a file that cannot be written is named.
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    let missing = Path::new(path).join("none");
    let output = stat(&["--output", missing.to_str().unwrap(), &own]);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        errors.starts_with(&format!("tenure: writing {}: ", missing.display())),
        "{errors}"
    );
    Completion::Completed
}

fn unknown_process_leaves_the_others_and_exits_with_1() -> Completion {
    let own = std::process::id().to_string();
    let output = stat(&["2147483647", &own]);
    assert_eq!(output.status.code(), Some(1));
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(errors, "tenure: there is no process 2147483647\n");
    let text = String::from_utf8(output.stdout).unwrap();
    let sample = format!("tenure_process_resident_bytes{{pid=\"{own}\"");
    assert!(
        text.contains(&sample) && text.ends_with("# EOF\n"),
        "{text}"
    );
    Completion::Completed
}
