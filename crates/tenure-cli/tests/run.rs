//! `tenure run` as a script sees it: the program's environment, and the refusals.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Output};

use assert_cmd::cargo::cargo_bin_cmd;
use libtest_mimic::{Arguments, Completion, Trial};

fn main() -> ExitCode {
    macro_rules! trials {
        ($($test:ident),* $(,)?) => {
            vec![$(Trial::ignorable_test(stringify!($test), || Ok($test()))),*]
        };
    }
    let trials = trials![
        program_gets_library_options_and_arguments,
        library_is_loaded_in_the_program_and_its_children,
        only_the_first_program_reports_options_left_out,
        options_of_a_file_give_way_to_the_command_line,
        wrong_file_of_options_exits_with_125,
        printed_environment_is_what_the_program_gets,
        libraries_preloaded_before_stay_behind_tenures,
        program_not_found_is_127_and_not_executable_is_126,
        wrong_command_line_exits_with_125,
        script_runs_under_its_interpreter,
        static_program_is_refused,
        program_for_another_processor_is_refused,
        program_that_gains_rights_is_refused,
        missing_library_is_125_with_the_folders_searched,
        lines_that_nobody_reads_leave_the_program_alone,
    ];
    let mut arguments = Arguments::from_args();
    // execve of a program that was just written fails (ETXTBSY) while a child of another
    // test, between its fork and its own execve, has the file open.
    arguments.test_threads.get_or_insert(1);
    libtest_mimic::run(&arguments, trials).exit_code()
}

fn run(arguments: &[&str]) -> Output {
    let mut tenure = cargo_bin_cmd!("tenure");
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("TENURE_") {
            tenure.env_remove(name);
        }
    }
    tenure.env_remove("LD_PRELOAD").arg("run").args(arguments);
    tenure.output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Asserts the exit status, and that the only output is one line with these words.
#[track_caller]
fn is_refused(output: &Output, status: i32, words: &str) {
    let told = text(&output.stderr);
    assert_eq!(output.status.code(), Some(status), "{told}");
    assert!(output.stdout.is_empty());
    assert!(
        told.starts_with("tenure: ") && told.contains(words),
        "{told}"
    );
    assert_eq!(told.lines().count(), 1, "{told}");
}

fn compile(folder: &Path, flags: &[&str]) -> Option<PathBuf> {
    let source = folder.join("x.c");
    fs::write(&source, "int main(void) { return 5; }\n").unwrap();
    let program = folder.join("x");
    let mut compiler = Command::new("cc");
    compiler.args(flags).arg("-o").arg(&program).arg(&source);
    compiler
        .output()
        .is_ok_and(|output| output.status.success())
        .then_some(program)
}

fn program_gets_library_options_and_arguments() -> Completion {
    let script = r#"echo "$LD_PRELOAD $TENURE_HEAP_THRESHOLD $TENURE_MUNMAP $0 $1"; exit 7"#;
    let output = run(&["--heap-threshold=64K", "sh", "-c", script, "name", "--heap"]);
    assert_eq!(output.status.code(), Some(7));
    let told = text(&output.stdout);
    let words: Vec<_> = told.split_whitespace().collect();
    let [library, "64K", "name", "--heap"] = words[..] else {
        panic!("{told}");
    };
    assert!(library.ends_with("/libtenure_preload.so"), "{library}");
    assert!(Path::new(library).is_absolute() && Path::new(library).is_file());
    assert_eq!(text(&output.stderr), "");
    Completion::Completed
}

fn library_is_loaded_in_the_program_and_its_children() -> Completion {
    let output = run(&[
        "--verbose",
        "--munmap=background",
        "--",
        "sh",
        "-c",
        "true; env true",
    ]);
    let told = text(&output.stderr);
    assert!(output.status.success(), "{told}");
    let names = ["sh", "env", "true"];
    let lines: Vec<_> = told.lines().collect();
    assert_eq!(lines.len(), names.len(), "{told}");
    for (line, name) in lines.into_iter().zip(names) {
        assert!(
            line.starts_with(&format!("tenure: {name} (process ")),
            "{line}"
        );
        assert!(line.contains("munmap=background"), "{line}");
    }
    Completion::Completed
}

/// The library needs addresses, of which the limit leaves each program too few.
fn only_the_first_program_reports_options_left_out() -> Completion {
    const LIMIT: &str = "ulimit -v 60000 && exec \"$@\"";
    const PROGRAMS: &str = "/usr/bin/env true; exec /usr/bin/env true";
    let reports = |command: &mut Command| {
        let output = command.env_remove("LD_PRELOAD").output().unwrap();
        let told = text(&output.stderr);
        assert!(output.status.success(), "{told}");
        let is_report = |line: &str| line.starts_with("tenure: everything is left out: ");
        assert!(told.lines().all(is_report), "{told}");
        told.lines().count()
    };
    let tenure = cargo_bin_cmd!("tenure").get_program().to_owned();
    let limited = |options: &[&str]| {
        let mut shell = Command::new("sh");
        shell.args(["-c", LIMIT, "sh"]).arg(&tenure).arg("run");
        reports(shell.args(options).args(["sh", "-c", PROGRAMS]))
    };
    assert_eq!(limited(&["--heap"]), 1);
    // sh, and twice env and true.
    assert_eq!(limited(&["--heap", "--verbose"]), 5);

    let mut limited_later = Command::new(&tenure);
    limited_later.args(["run", "--heap", "sh", "-c", LIMIT, "sh"]);
    assert_eq!(reports(limited_later.args(["sh", "-c", PROGRAMS])), 0);
    Completion::Completed
}

fn options_of_a_file_give_way_to_the_command_line() -> Completion {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("options");
    fs::write(&file, "heap-threshold = 64K\nmunmap = background\nstats\n").unwrap();
    let script = r#"echo "$TENURE_HEAP_THRESHOLD $TENURE_MUNMAP $TENURE_STATS $TENURE_HEAP""#;
    let file = file.to_str().unwrap();
    let line = ["--config", file, "--heap-threshold=1M", "--stats=off"];
    let output = run(&[&line[..], &["sh", "-c", script]].concat());
    assert_eq!(text(&output.stderr), "");
    assert_eq!(text(&output.stdout), "1M background off \n");
    Completion::Completed
}

fn wrong_file_of_options_exits_with_125() -> Completion {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("options");
    fs::write(&file, "# heap\nheap\nlock = now\n").unwrap();
    let shown = file.to_str().unwrap();
    let output = run(&["--config", shown, "true"]);
    let words = format!("{shown}:3: lock = now: the only value is onfault, or off\n");
    is_refused(&output, 125, &words);
    is_refused(
        &run(&["--config", "/no/such/file", "true"]),
        125,
        "/no/such/file: ",
    );
    Completion::Completed
}

/// A shell that reads the printed lines has the variables that `tenure run` sets.
fn printed_environment_is_what_the_program_gets() -> Completion {
    let options = ["--heap-muzzy-decay=0", "--munmap=background"];
    let printed = run(&[&options[..], &["--print-environment"]].concat());
    assert_eq!(text(&printed.stderr), "");
    let show = "env | grep -e ^TENURE_ -e ^LD_PRELOAD= | sort";
    let mut shell = Command::new("env");
    shell.args(["-i", "PATH=/usr/bin:/bin", "sh", "-c"]);
    // The library itself, once it is loaded, marks what is no longer the first program.
    let printed = text(&printed.stdout);
    shell.arg(format!("{printed}sh -c '{show}'"));
    let evaluated = text(&shell.output().unwrap().stdout);
    let set = run(&[&options[..], &["sh", "-c", show]].concat());
    assert_eq!(evaluated, text(&set.stdout));
    assert_eq!(evaluated.lines().count(), 4, "{evaluated}");

    for (form, start) in [
        ("systemd", "Environment=\"LD_PRELOAD=/"),
        ("pod", "- name: LD_PRELOAD\n  value: \"/"),
    ] {
        let form = format!("--print-environment={form}");
        let output = run(&[&options[..], &[&form]].concat());
        let told = text(&output.stdout);
        assert!(told.starts_with(start), "{told}");
        assert!(told.contains("TENURE_HEAP_MUZZY_DECAY"), "{told}");
    }
    Completion::Completed
}

fn libraries_preloaded_before_stay_behind_tenures() -> Completion {
    let mut tenure = cargo_bin_cmd!("tenure");
    tenure.args(["run", "sh", "-c", "echo $LD_PRELOAD"]);
    // Every program has the C library.
    let output = tenure.env("LD_PRELOAD", "libc.so.6").output().unwrap();
    let told = text(&output.stdout);
    assert!(
        told.ends_with("/libtenure_preload.so:libc.so.6\n"),
        "{told}"
    );
    Completion::Completed
}

fn program_not_found_is_127_and_not_executable_is_126() -> Completion {
    is_refused(&run(&["no-such-program"]), 127, "no-such-program");
    let closed = tempfile::tempdir().unwrap();
    let set = |mode| fs::set_permissions(closed.path(), Permissions::from_mode(mode)).unwrap();
    set(0o000);
    let mut tenure = cargo_bin_cmd!("tenure");
    tenure
        .env("PATH", closed.path())
        .args(["run", "no-such-program"]);
    is_refused(&tenure.output().unwrap(), 127, "no-such-program");
    set(0o700);
    is_refused(&run(&["/no/such/program"]), 127, "/no/such/program");
    is_refused(&run(&["/"]), 126, "may not be executed");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "text").unwrap();
    is_refused(&run(&[file.to_str().unwrap()]), 126, "may not be executed");
    Completion::Completed
}

fn wrong_command_line_exits_with_125() -> Completion {
    for wrong in [
        &[][..],
        &["--heap"],
        &["--no-such-option", "true"],
        &["--exit=now", "true"],
    ] {
        let output = run(wrong);
        assert_eq!(output.status.code(), Some(125), "{wrong:?}");
        assert!(!output.stderr.is_empty() && output.stdout.is_empty());
    }
    for (option, reason) in [
        (
            "--populate=99999999T",
            "more bytes than there are addresses",
        ),
        ("--populate=1.5", "a fraction needs a unit"),
        ("--populate=many", "give a size in bytes, K, M, G or T"),
        ("--exit=now", "the only value is background"),
    ] {
        let output = run(&[option, "true"]);
        let told = text(&output.stderr);
        assert_eq!(output.status.code(), Some(125), "{told}");
        assert!(told.contains(reason), "{told}");
    }
    for size in ["1.5G", "1GB"] {
        let output = run(&[&format!("--populate={size}"), "true"]);
        assert!(output.status.success(), "{}", text(&output.stderr));
    }
    let output = run(&["--help"]);
    assert_eq!(output.status.code(), Some(0));
    let help = text(&output.stdout);
    for known in [
        "Exit status:",
        "125",
        "TENURE_HEAP_THRESHOLD=SIZE",
        "--discard",
    ] {
        assert!(help.contains(known), "no {known} in {help}");
    }
    Completion::Completed
}

fn script_runs_under_its_interpreter() -> Completion {
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("script");
    let write = |text: &str| {
        fs::write(&script, text).unwrap();
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    };
    write("#! /bin/sh\necho $LD_PRELOAD; exit 6\n");
    let output = run(&[script.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(6));
    assert!(text(&output.stdout).contains("libtenure_preload.so"));
    // execvp runs a script without an interpreter line with sh.
    write("exit 6\n");
    assert_eq!(run(&[script.to_str().unwrap()]).status.code(), Some(6));
    write("#!/no/such/interpreter\n");
    is_refused(&run(&[script.to_str().unwrap()]), 127, "script");
    Completion::Completed
}

fn static_program_is_refused() -> Completion {
    let folder = tempfile::tempdir().unwrap();
    let Some(program) = compile(folder.path(), &["-static"]) else {
        return Completion::ignored_with("the compiler cannot link statically");
    };
    let program = program.to_str().unwrap();
    is_refused(&run(&[program]), 126, "is statically linked");
    let script = folder.path().join("script");
    fs::write(&script, format!("#!{program}\n")).unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    is_refused(&run(&[script.to_str().unwrap()]), 126, "its interpreter");
    Completion::Completed
}

fn program_for_another_processor_is_refused() -> Completion {
    let folder = tempfile::tempdir().unwrap();
    let Some(program) = compile(folder.path(), &[]) else {
        return Completion::ignored_with("there is no compiler here");
    };
    assert_eq!(run(&[program.to_str().unwrap()]).status.code(), Some(5));
    let mut bytes = fs::read(&program).unwrap();
    let (machine_at, sparc) = (18, 2);
    bytes[machine_at..machine_at + 2].copy_from_slice(&[sparc, 0]);
    fs::write(&program, bytes).unwrap();
    is_refused(&run(&[program.to_str().unwrap()]), 126, "another processor");
    Completion::Completed
}

/// Root makes the program, and the user `nobody` runs it.
fn program_that_gains_rights_is_refused() -> Completion {
    const NOBODY: u32 = 65534;
    // All users can search this folder.
    let folder = tempfile::tempdir_in("/tmp").unwrap();
    let open = fs::Permissions::from_mode(0o755);
    fs::set_permissions(folder.path(), open).unwrap();
    let Some(program) = compile(folder.path(), &[]) else {
        return Completion::ignored_with("there is no compiler here");
    };
    match chown(&program, Some(0), Some(0)) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            return Completion::ignored_with("only root can make such programs");
        }
        Err(error) => panic!("{error}"),
    }
    let tenure = folder.path().join("tenure");
    fs::copy(env!("CARGO_BIN_EXE_tenure"), &tenure).unwrap();
    fs::write(folder.path().join("libtenure_preload.so"), "").unwrap();
    for (mode, words) in [(0o4755, "set-user-ID"), (0o2755, "set-group-ID")] {
        fs::set_permissions(&program, fs::Permissions::from_mode(mode)).unwrap();
        let mut command = Command::new(&tenure);
        command.arg("run").arg(&program).uid(NOBODY).gid(NOBODY);
        is_refused(&command.output().unwrap(), 126, words);
        // Root gains nothing, and may run it.
        assert_eq!(run(&[program.to_str().unwrap()]).status.code(), Some(5));
    }
    Completion::Completed
}

fn missing_library_is_125_with_the_folders_searched() -> Completion {
    let folder = tempfile::tempdir().unwrap();
    let tenure = folder.path().join("tenure");
    fs::copy(env!("CARGO_BIN_EXE_tenure"), &tenure).unwrap();
    let output = Command::new(&tenure)
        .args(["run", "true"])
        .output()
        .unwrap();
    is_refused(&output, 125, "there is no libtenure_preload.so");
    // The loader would split the path at these characters.
    let spaced = folder.path().join("a b");
    fs::create_dir(&spaced).unwrap();
    fs::write(spaced.join("libtenure_preload.so"), "").unwrap();
    fs::rename(&tenure, spaced.join("tenure")).unwrap();
    let output = Command::new(spaced.join("tenure"))
        .args(["run", "true"])
        .output()
        .unwrap();
    is_refused(&output, 125, "a space, a colon or a dollar sign");
    Completion::Completed
}

/// Standard error is a pipe without a reader, or one that is full.
fn lines_that_nobody_reads_leave_the_program_alone() -> Completion {
    let tenure = cargo_bin_cmd!("tenure").get_program().to_owned();
    let run_with = |stderr: io::PipeWriter| {
        let mut command = Command::new(&tenure);
        command.args(["run", "--heap", "--stats", "--verbose", "--", "sh", "-c"]);
        command.arg("echo result; exit 7").env_remove("LD_PRELOAD");
        command.stderr(stderr).output().unwrap()
    };
    let (reader, unread) = io::pipe().unwrap();
    drop(reader);
    let output = run_with(unread);
    assert_eq!(
        (output.status.code(), &*output.stdout),
        (Some(7), &b"result\n"[..])
    );

    let (_reader, full) = io::pipe().unwrap();
    let flags = rustix::fs::fcntl_getfl(&full).unwrap();
    rustix::fs::fcntl_setfl(&full, flags | rustix::fs::OFlags::NONBLOCK).unwrap();
    while io::Write::write(&mut &full, &[b'x'; 4096]).is_ok() {}
    rustix::fs::fcntl_setfl(&full, flags).unwrap();
    let output = run_with(full);
    assert_eq!(
        (output.status.code(), &*output.stdout),
        (Some(7), &b"result\n"[..])
    );
    Completion::Completed
}
