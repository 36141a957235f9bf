//! `tenure stat --openmetrics` as Prometheus, python's parser and node_exporter see it.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    path::Path,
    process::{Child, Command, ExitCode, Output, Stdio},
    time::Duration,
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
        promtool_accepts_the_file_for_the_textfile_collector,
        python_parser_reads_the_document,
        file_for_the_textfile_collector_is_replaced,
        unknown_process_leaves_the_others_and_exits_with_1,
        file_shows_that_a_watched_process_has_ended,
        file_shows_that_a_named_target_is_not_there,
        process_that_is_left_by_its_main_thread_has_figures,
    ];
    if std::env::var_os(WITHOUT_MAIN_THREAD).is_some() {
        outlive_main_thread();
    }
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

/// The variable that makes this program one whose main thread has ended.
const WITHOUT_MAIN_THREAD: &str = "TENURE_TEST_WITHOUT_MAIN_THREAD";

/// Ends the main thread, says so, and waits for the end of the input.
fn outlive_main_thread() -> ! {
    std::thread::spawn(|| {
        tenure::prepare();
        let stat = format!("/proc/{}/stat", std::process::id());
        while !fs::read_to_string(&stat).unwrap().contains(") Z ") {
            std::thread::sleep(Duration::from_millis(1));
        }
        println!("ready");
        let _ = std::io::stdin().read_line(&mut String::new());
        std::process::exit(0);
    });
    // SAFETY: the call ends this thread, whose stack nobody uses.
    unsafe { libc::syscall(libc::SYS_exit, 0) };
    unreachable!("the thread has ended");
}

/// A process, ended when it is dropped.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn stat(arguments: &[&str]) -> Output {
    let mut tenure = cargo_bin_cmd!("tenure");
    tenure.args(["stat", "--openmetrics"]).args(arguments);
    tenure.output().unwrap()
}

/// Returns the output with all families of a process, whose name needs escapes.
fn document(arguments: &[&str]) -> String {
    let memory = Mapping::anonymous(1 << 20).map().unwrap();
    memory.populate(.., Access::Write).unwrap();
    let cache = VolatileCache::new();
    cache.insert(1, &[1; 100]).unwrap();
    let mut other = Command::new("sleep").arg("1000").spawn().unwrap();
    fs::write("/proc/self/comm", "a \"b\"\\{}, #").unwrap();
    let pids = [std::process::id().to_string(), other.id().to_string()];
    let output = stat(&[arguments, &pids.each_ref().map(String::as_str)].concat());
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

/// `promtool check metrics` reads the older format, as node_exporter does. This command has
/// the parser with which Prometheus reads OpenMetrics, and wants a time with each sample.
fn prometheus_reads_the_document() -> Completion {
    if !is_there("promtool") {
        return no_promtool();
    }
    let document = document(&[]);
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

fn promtool_accepts_the_file_for_the_textfile_collector() -> Completion {
    if !is_there("promtool") {
        return no_promtool();
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tenure.prom");
    document(&["--output", file.to_str().unwrap()]);
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
    fs::write(&file, document(&[])).unwrap();
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

fn file_shows_that_a_watched_process_has_ended() -> Completion {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tenure.prom");
    let mut watched = Ended(Command::new("sleep").arg("1000").spawn().unwrap());
    let pid = watched.0.id();
    let mut command = Command::new(env!("CARGO_BIN_EXE_tenure"));
    command.args(["stat", "--openmetrics", "--watch=0.01", "--output"]);
    command.arg(&file).arg(pid.to_string());
    let mut tenure = Ended(command.stderr(Stdio::piped()).spawn().unwrap());
    let up = |is_up| format!("tenure_target_up{{kind=\"process\",target=\"{pid}\"}} {is_up}\n");
    // The runner's limit ends a test in which this never is.
    while !fs::read_to_string(&file).is_ok_and(|text| text.contains(&up(1))) {
        std::thread::sleep(Duration::from_millis(5));
    }
    watched.0.kill().unwrap();
    watched.0.wait().unwrap();
    assert_eq!(tenure.0.wait().unwrap().code(), Some(0));
    let text = fs::read_to_string(&file).unwrap();
    assert!(text.contains(&up(0)) && text.ends_with("# EOF\n"), "{text}");
    assert!(!text.contains("tenure_process_"), "{text}");
    Completion::Completed
}

fn file_shows_that_a_named_target_is_not_there() -> Completion {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tenure.prom");
    for (arguments, labels) in [
        (
            &["2147483647"][..],
            "kind=\"process\",target=\"2147483647\"",
        ),
        (
            &["--watch", "2147483647"],
            "kind=\"process\",target=\"2147483647\"",
        ),
        (
            &["--cgroup=/no/such"],
            "kind=\"cgroup\",target=\"/no/such\"",
        ),
    ] {
        fs::write(&file, "tenure_process_resident_bytes{pid=\"7\"} 1\n").unwrap();
        let output = stat(&[&["--output", file.to_str().unwrap()], arguments].concat());
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let text = fs::read_to_string(&file).unwrap();
        let sample = format!("\ntenure_target_up{{{labels}}} 0\n");
        assert!(text.contains(&sample), "{arguments:?} {text}");
        assert!(!text.contains("tenure_process_"), "{arguments:?} {text}");
    }
    Completion::Completed
}

fn process_that_is_left_by_its_main_thread_has_figures() -> Completion {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.env(WITHOUT_MAIN_THREAD, "1");
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut left = Ended(command.spawn().unwrap());
    let mut line = String::new();
    let stdout = left.0.stdout.take().unwrap();
    BufReader::new(stdout).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    let pid = left.0.id();
    // It also counts as one of this user's.
    for arguments in [&[pid.to_string()][..], &[]] {
        let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
        let output = stat(&arguments);
        assert!(output.status.success(), "{output:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        let resident = format!("tenure_process_resident_bytes{{pid=\"{pid}\"");
        let mut lines = text.lines();
        let line = lines.find(|line| line.starts_with(&resident));
        assert!(
            line.is_some_and(|line| !line.ends_with(" 0")),
            "{line:?}\n{text}"
        );
        // Counters and the preloaded library are read, too.
        for name in ["volatile_bytes", "preloaded"] {
            let sample = format!("tenure_process_{name}{{pid=\"{pid}\"");
            assert!(text.contains(&sample), "{name}\n{text}");
        }
    }
    Completion::Completed
}
