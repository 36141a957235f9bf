//! Compiles, with warnings as errors, and runs the C programs of tests/c, the examples, and
//! those of the man pages; the tests also with AddressSanitizer and under valgrind.

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use common::cgroup::Group;
use common::*;
use libtest_mimic::{Completion, Trial};

/// The tests that do not run under valgrind, and why.
const NOT_UNDER_VALGRIND: [(&str, &str); 7] = [
    ("forks", NO_MLOCK2),
    ("lock_limit", NO_MLOCK2),
    ("mlock_onfault", NO_MLOCK2),
    ("mlock_with", NO_MLOCK2),
    ("mmap", NO_MLOCK2),
    ("munlock", NO_MLOCK2),
    ("no_memory", OWN_MALLOC),
];
const OWN_MALLOC: &str = "the program has its own malloc";
const NO_MLOCK2: &str = "valgrind does not know mlock2";

/// The tests that do not run with AddressSanitizer, and why.
const NOT_WITH_ASAN: [(&str, &str); 2] = [
    (
        "forks",
        "AddressSanitizer's allocator may be locked in a child of a process with threads",
    ),
    ("no_memory", OWN_MALLOC),
];

fn main() -> ExitCode {
    run(|installed| {
        let mut trials = Vec::new();
        for source in files(&project("tests/c"), "c") {
            trials.push(trial("c", &source, move |source| {
                without_tools(installed, source)
            }));
            trials.push(trial("asan", &source, move |source| {
                with_asan(installed, source)
            }));
            trials.push(trial("valgrind", &source, move |source| {
                under_valgrind(installed, source)
            }));
        }
        for folder in ["examples", "examples/pages"] {
            let folder = crate_folder().join(folder);
            for ending in ["c", "cpp"] {
                for source in files(&folder, ending) {
                    trials.push(trial("example", &source, move |source| {
                        without_tools(installed, source)
                    }));
                }
            }
        }
        let source = crate_folder().join("examples/prompt_cache.c");
        for (way, mebibytes) in [("cgroup", 40), ("large-cgroup", 256)] {
            trials.push(trial(way, &source, move |source| {
                in_a_cgroup_for_three(installed, source, mebibytes)
            }));
        }
        trials
    })
}

/// Runs the example with states of so many MiB in a cgroup that holds three of them, beside the
/// one that is computed.
fn in_a_cgroup_for_three(installed: &Installed, source: &Path, mebibytes: usize) -> Verdict {
    let group = match Group::with_limit((5 * mebibytes) << 20) {
        Ok(group) => group,
        Err(reason) => return Ok(Completion::ignored_with(reason)),
    };
    let name = format!("{}-{mebibytes}", stem(source));
    let program = installed.compile(source, &name, &[]);
    let library = installed.prefix().join("lib");
    let mut shell = Command::new("sh");
    let script = "echo $$ > \"$1/cgroup.procs\" && shift && exec \"$@\"";
    shell.args(["-c", script, "sh"]).arg(group.folder());
    shell.arg(&program);
    shell.args([&mebibytes.to_string(), "6", "4"]);
    shell.env("LD_LIBRARY_PATH", library);
    let output = ok(&mut shell);
    let text = String::from_utf8(output.stdout)?;
    let figure = |name: &str| -> u32 {
        let after = text.split_once(name).expect(&text).1;
        let digits = after.trim_start().split(|c: char| !c.is_ascii_digit());
        digits
            .into_iter()
            .next()
            .and_then(|it| it.parse().ok())
            .expect(&text)
    };
    // Six states do not fit. Which ones stay is a matter of the hashes' luck, too.
    let (computed, found) = (figure("computed"), figure("found"));
    assert_eq!(computed + found, 48, "{text}");
    assert!(
        figure("evicted") + figure("purged") + figure("refused") > 0,
        "{text}"
    );
    assert!(found > 0 && figure("kept") >= 2, "{text}");
    Ok(Completion::Completed)
}

fn trial(way: &str, source: &Path, run: impl Fn(&Path) -> Verdict + Send + 'static) -> Trial {
    let source: PathBuf = source.to_owned();
    let kind = match way {
        "asan" | "valgrind" | "large-cgroup" => "grouped thorough",
        _ => "grouped",
    };
    Trial::ignorable_test(format!("{way}::{}", stem(&source)), move || run(&source)).with_kind(kind)
}

fn without_tools(installed: &Installed, source: &Path) -> Verdict {
    let program = installed.compile(source, &stem(source), &[]);
    verdict(&mut installed.command(&program))
}

/// Instruments only the program; AddressSanitizer does not see the library's accesses.
fn with_asan(installed: &Installed, source: &Path) -> Verdict {
    if let Some(reason) = reason_to_skip(&NOT_WITH_ASAN, source) {
        return Ok(reason);
    }
    let probe = installed.program("probe.c");
    fs::write(&probe, "int main(void) { return 0; }\n")?;
    let mut compiler = Command::new("cc");
    compiler.args(["-fsanitize=address", "-o"]);
    compiler.arg(installed.program("probe")).arg(&probe);
    if !compiler.output()?.status.success() {
        return Ok(Completion::ignored_with(
            "the compiler has no AddressSanitizer",
        ));
    }
    let flags = [
        "-g",
        "-fsanitize=address,undefined",
        "-fno-sanitize-recover=all",
    ];
    let program = installed.compile(source, &format!("{}-asan", stem(source)), &flags);
    let mut command = installed.command(&program);
    // The programs handle signals themselves, and do not unmap everything.
    command.env(
        "ASAN_OPTIONS",
        "allow_user_segv_handler=1:handle_sigbus=0:detect_leaks=0",
    );
    verdict(&mut command)
}

fn under_valgrind(installed: &Installed, source: &Path) -> Verdict {
    if let Some(reason) = reason_to_skip(&NOT_UNDER_VALGRIND, source) {
        return Ok(reason);
    }
    let Some(valgrind) = find("valgrind") else {
        return Ok(Completion::ignored_with("valgrind is unavailable"));
    };
    let program = installed.compile(source, &format!("{}-valgrind", stem(source)), &["-g"]);
    let mut command = installed.command(&valgrind);
    command.args(["--quiet", "--error-exitcode=99"]);
    let suppressions = project("tests/c/valgrind.supp");
    command.arg(format!("--suppressions={}", suppressions.display()));
    command.arg(program);
    verdict(&mut command)
}

fn reason_to_skip(list: &[(&str, &str)], source: &Path) -> Option<Completion> {
    let found = list.iter().find(|(name, _)| *name == stem(source));
    found.map(|(_, reason)| Completion::ignored_with(*reason))
}
