//! Makes docs/KERNELS.md from the recorded results.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    path::Path,
};

use anyhow::Result;

use super::record::{Boot, Program};
use super::verbs::at_a_glance;

const TITLE: &str = "\
<!-- Made by `cargo xtask kernels` from tests/kernels/results; `make generate` rewrites it. -->

# Kernels

The results of the library's tests on Debian's stock kernels:

```console
$ make test-kernels
```

QEMU emulates a machine of two CPUs in software, so no virtualisation is needed: x86-64, or
aarch64 with pages of 4 KiB (**arm64**), of 16 KiB (**arm64-16k**) or of 64 KiB
(**arm64-64k**). A column is one kernel in one configuration, with the test programs for which
it may matter: on aarch64 those where the page size or the processor may. It may be of several
boots: a program that a later one has not run keeps the result of the earlier build. Those of
the heap are called heap_…; c_library has the C programs of the C library's tests and its
examples, and preload C programs under `tenure run` with the heap and with most options. In
faults each system call fails with one errno: the answers to its others
depend on no kernel, and the machine that builds tries them. They run

- **root**: as root, without swap;
- **user**: as user 65534 without privileges; secretmem.enable=1;
- **swap**: as root, with 1 GiB of swap; secretmem.enable=1;
- **group**: as root, with swap, in a memory cgroup of 512 MiB (version 2);
- **small**: as root, with 2 GiB of swap, on a machine of 640 MiB;
- **psi-off**: as root, without swap, with psi=0: the kernel reports no stalls;
- **numa**: as root, on a machine of two NUMA nodes;
- **zswap**: as root, with 1 GiB of swap behind zswap, on a machine of 640 MiB;
- **zram**: as root, with 1 GiB of swap in zram, on a machine of 640 MiB;
- **unplug**: as root, with 1 GiB of memory that may be taken offline.

Kernels are those of Debian's own packages, but for that with pages of 64 KiB, of which there
is no package: the script builds it from the sources of Debian's 6.12, with
`tests/kernels/arm64-64k.config`, which has little more than the tests need. All are booted
with mitigations=off, which saves time under emulation, and x86-64 as a processor without strings
of bytes and with page tables of four levels, which does too. The disk is ext4; cgroups are of
version 2.
";

const NOT_RUN: &str = "
## Not covered

- Other processors than x86-64 and aarch64.
- Real hardware: devices, time and the distance of NUMA nodes are emulated.
- Kernels with vendors' patches, older than 5.10, or with memory control by cgroups of
  version 1 (the project's own machine has Linux 6.18 with those; `make test` runs there).
- The test program admission, which fills memory cgroups again and again: hours under emulation.
- The Python package, SQLite's allocator, and the command's subcommands but for `doctor`.
";

/// Returns the document of all that is recorded below `root`.
pub fn document(root: &Path) -> Result<String> {
    Ok(text(&super::recorded(root)?))
}

fn text(boots: &[Boot]) -> String {
    let mut text = TITLE.to_owned();
    text.push_str("\nThe kernels:\n\n");
    let kernels: BTreeSet<String> = boots
        .iter()
        .map(|boot| {
            let (short, version) = (boot.names().0, &boot.version);
            format!("- {short}: {}, {version}\n", boot.kernel)
        })
        .collect();
    text.extend(kernels);
    text.push_str(&at_a_glance(boots));
    text.push_str(
        "\n## Features\n\nThe results of `tenure doctor` in the environment of the tests.\n\n",
    );
    text.push_str(&checks(boots));
    text.push_str(
        "\n## Results\n\nThe number of passed tests; s: skipped, with the reason below; **f**: failed; \
         a: absent, fewer than the program has in another column, mostly because it is of an \
         older build.\n\n",
    );
    text.push_str(&programs(boots));
    text.push_str(&failures(boots));
    text.push_str(&skips(boots));
    text.push_str(&kernel_said(boots));
    text.push_str(
        "\n## Kernel counters\n\nCounted during the last boot, in pages and events. \
         `pglazyfreed` counts the lazily freed or offered pages that the kernel reclaimed.\n\n",
    );
    text.push_str(&counters(boots));
    text.push_str(NOT_RUN);
    text
}

/// Returns a table with a row for each of `rows` and a column for each boot.
fn table<'a>(
    boots: &[Boot],
    first: &str,
    rows: impl IntoIterator<Item = &'a str>,
    cell: impl Fn(&Boot, &str) -> String,
) -> String {
    let mut text = format!("| {first} |");
    for boot in boots {
        let (kernel, name) = boot.names();
        let _ = write!(text, " {kernel} {name} |");
    }
    text.push_str("\n| --- |");
    text.extend(boots.iter().map(|_| " --- |"));
    text.push('\n');
    for row in rows {
        let _ = write!(text, "| {row} |");
        for boot in boots {
            let _ = write!(text, " {} |", cell(boot, row).replace('|', "\\|"));
        }
        text.push('\n');
    }
    text
}

/// Returns all names once, in the order of the first boot that has them.
fn names<'a>(all: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut seen = BTreeSet::new();
    all.filter(|name| seen.insert(*name)).collect()
}

fn checks(boots: &[Boot]) -> String {
    let rows = names(
        boots
            .iter()
            .flat_map(|boot| boot.checks.iter().map(|check| check.name.as_str())),
    );
    let found = |boot: &Boot, row: &str| {
        let check = boot.checks.iter().find(|check| check.name == row);
        check.map_or_else(
            || ("–".to_owned(), String::new()),
            |check| (check.status.clone(), check.found.clone()),
        )
    };
    let mut text = table(
        boots,
        "doctor's check",
        rows.iter().copied(),
        |boot, row| match found(boot, row) {
            (status, _) if status == "ok" => status,
            (status, _) => format!("**{status}**"),
        },
    );
    let mut reasons: BTreeMap<(String, String), Vec<&str>> = BTreeMap::new();
    for boot in boots {
        for row in &rows {
            let (status, found) = found(boot, row);
            if status == "limited" || status == "missing" {
                let key = (format!("{row}, {status}"), found);
                reasons.entry(key).or_default().push(&boot.configuration);
            }
        }
    }
    if !reasons.is_empty() {
        text.push('\n');
    }
    for ((check, found), places) in reasons {
        let _ = writeln!(text, "- {check} ({}): {found}", places.join(", "));
    }
    text
}

fn programs(boots: &[Boot]) -> String {
    let rows = names(
        boots
            .iter()
            .flat_map(|boot| boot.programs.iter().map(|program| program.name.as_str())),
    );
    let mut most: BTreeMap<&str, u64> = BTreeMap::new();
    for program in boots.iter().flat_map(|boot| &boot.programs) {
        let most = most.entry(&program.name).or_default();
        *most = tests(program).max(*most);
    }
    let mut text = table(boots, "program", rows, |boot, row| {
        let program = boot.programs.iter().find(|program| program.name == row);
        let is_unrecorded = boot.unrecorded().contains(&row);
        let missing = || {
            if is_unrecorded {
                "**unfinished**"
            } else {
                "–"
            }
            .to_owned()
        };
        program.map_or_else(missing, |program| {
            let absent = most[row] - tests(program);
            if absent == 0 || program.trouble.is_some() {
                return counts(program);
            }
            format!("{}, {absent} a", counts(program))
        })
    });
    let sums = table(boots, "", ["all", "minutes"], |boot, row| match row {
        "all" => counts(&sum(boot)),
        _ => {
            let seconds: u64 = boot.programs.iter().map(|program| program.seconds).sum();
            format!("{}", seconds.div_ceil(60))
        }
    });
    text.extend(sums.split_inclusive('\n').skip(2));
    text
}

/// Returns the number of a program's tests.
fn tests(program: &Program) -> u64 {
    program.passed + (program.failed.len() + program.skipped.len()) as u64
}

fn sum(boot: &Boot) -> Program {
    let mut sum = Program::default();
    for program in &boot.programs {
        sum.passed += program.passed;
        sum.failed.extend(program.failed.iter().cloned());
        sum.skipped.extend(program.skipped.iter().cloned());
        sum.trouble = sum.trouble.or_else(|| program.trouble.clone());
    }
    sum
}

/// Returns a cell: "12", "10, 2 s", or "9, 2 s, **1 f**".
fn counts(program: &Program) -> String {
    let mut cell = program.passed.to_string();
    if !program.skipped.is_empty() {
        let _ = write!(cell, ", {} s", program.skipped.len());
    }
    if !program.failed.is_empty() {
        let _ = write!(cell, ", **{} f**", program.failed.len());
    }
    if program.trouble.is_some() {
        cell.push_str(", **unfinished**");
    }
    cell
}

fn failures(boots: &[Boot]) -> String {
    let mut text = String::new();
    for boot in boots {
        for failure in boot.failures() {
            let _ = writeln!(text, "- {}: {failure}", boot.configuration);
        }
    }
    match text.is_empty() {
        true => "\nNo test has failed.\n".to_owned(),
        false => format!("\nFailures:\n\n{text}"),
    }
}

fn skips(boots: &[Boot]) -> String {
    // The boots of each test, by the reason for which it was skipped.
    let mut reasons: BTreeMap<&str, BTreeMap<String, Vec<&str>>> = BTreeMap::new();
    for boot in boots {
        for program in &boot.programs {
            for skip in &program.skipped {
                let test = format!("`{}::{}`", program.name, skip.test);
                let tests = reasons.entry(&skip.reason).or_default();
                tests.entry(test).or_default().push(&boot.configuration);
            }
        }
    }
    let mut text = "\n## Skipped tests, by reason\n\n".to_owned();
    for (reason, tests) in reasons {
        let _ = writeln!(text, "- {reason}");
        for (test, places) in tests {
            let places = match places.len() == boots.len() {
                true => "everywhere".to_owned(),
                false => places.join(", "),
            };
            let _ = writeln!(text, "  - {test}: {places}");
        }
    }
    text
}

/// Returns the kernels' warnings, of which no test knows.
fn kernel_said(boots: &[Boot]) -> String {
    let mut text = String::new();
    for boot in boots {
        for line in &boot.kernel_said {
            let _ = writeln!(
                text,
                "- {}: {}",
                boot.configuration,
                line.replace('|', "\\|")
            );
        }
    }
    match text.is_empty() {
        true => text,
        false => format!(
            "\n## Kernel warnings\n\nBehind the name of the program that ran, if it is recorded.\n\n{text}"
        ),
    }
}

fn counters(boots: &[Boot]) -> String {
    let rows: BTreeSet<&str> = boots
        .iter()
        .flat_map(|boot| boot.counters.keys().map(String::as_str))
        .collect();
    table(boots, "counter", rows, |boot, row| {
        boot.counters
            .get(row)
            .map_or_else(|| "–".to_owned(), u64::to_string)
    })
}

#[cfg(test)]
mod tests {
    use super::super::record::{Check, Skip};
    use super::*;

    fn boot(configuration: &str) -> Boot {
        Boot {
            configuration: configuration.to_owned(),
            complete: true,
            checks: vec![Check {
                verb: "volatile".to_owned(),
                name: "PAGEMAP_SCAN".to_owned(),
                status: "limited".to_owned(),
                found: "no".to_owned(),
                ..Check::default()
            }],
            programs: vec![Program {
                name: "lock".to_owned(),
                seconds: 61,
                passed: 5,
                skipped: vec![Skip {
                    test: "charges".to_owned(),
                    reason: "needs root".to_owned(),
                }],
                ..Program::default()
            }],
            ..Boot::default()
        }
    }

    #[test]
    fn document_has_a_column_per_boot_and_every_skip_reason() {
        let text = text(&[boot("6.1/root"), boot("6.12/root")]);
        for line in [
            "| program | 6.1 root | 6.12 root |",
            "| lock | 5, 1 s | 5, 1 s |",
            "| all | 5, 1 s | 5, 1 s |",
            "| minutes | 2 | 2 |",
            "| PAGEMAP_SCAN | **limited** | **limited** |",
            "- PAGEMAP_SCAN, limited (6.1/root, 6.12/root): no",
            "- needs root",
            "  - `lock::charges`: everywhere",
            "No test has failed.",
        ] {
            assert!(text.lines().any(|other| other == line), "{line}\n{text}");
        }
    }

    #[test]
    fn document_lists_failures() {
        let mut bad = boot("6.1/root");
        bad.programs[0].passed = 4;
        bad.programs[0].failed.push("stays".to_owned());
        bad.programs[0].trouble = Some("killed after 300 s in stays".to_owned());
        let text = text(&[bad, boot("6.12/root")]);
        for line in [
            "| lock | 4, 1 s, **1 f**, **unfinished** | 5, 1 s |",
            "- 6.1/root: lock: stays failed",
            "- 6.1/root: lock: killed after 300 s in stays",
            "  - `lock::charges`: everywhere",
        ] {
            assert!(text.lines().any(|other| other == line), "{line}\n{text}");
        }
        assert!(!text.contains("No test has failed."));
    }

    #[test]
    fn document_lists_what_is_missing_and_kernel_warnings() {
        let mut old = boot("6.1/root");
        old.programs[0].passed = 3;
        old.command_line = "tenure_only=lock,pool".to_owned();
        old.kernel_said = vec!["Out of memory: Killed process 261 (pool)".to_owned()];
        let mut new = boot("6.12/root");
        new.programs.push(Program {
            name: "pool".to_owned(),
            passed: 1,
            ..Program::default()
        });
        let text = text(&[old, new]);
        for line in [
            "| lock | 3, 1 s, 2 a | 5, 1 s |",
            "| pool | **unfinished** | 1 |",
            "- 6.1/root: pool: selected, but no result is recorded",
            "- 6.1/root: Out of memory: Killed process 261 (pool)",
        ] {
            assert!(text.lines().any(|other| other == line), "{line}\n{text}");
        }
    }
}
