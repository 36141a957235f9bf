//! The table of kernels and verbs: what works, what a kernel lacks, and what that means.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
};

use super::record::{Boot, Check};

/// The verbs, by the names of doctor's checks, and what stands on them, with the programs that
/// test them: those with one of these names, or with one before an underscore.
const VERBS: [(&str, &[&str]); 11] = [
    ("populate", &["populate", "prepare"]),
    ("lock", &["lock", "locked_file"]),
    ("lazy free", &["lazy_free", "free_policy"]),
    ("volatile", &["volatile", "shared"]),
    ("release", &["release", "punch"]),
    ("tear-down", &["teardown"]),
    ("secrets", &["secret"]),
    ("pressure", &["pressure", "headroom"]),
    ("heap", &["heap"]),
    ("C library", &["c_library"]),
    ("tenure run", &["preload"]),
];

const INTRODUCTION: &str = "
## At a glance

`works`: of the tests of the verb, or of what stands on the verbs, all that ran there have
passed, in each configuration; the results below tell which ran, and which were skipped. In
parentheses are how many programs that is, of those that ran on any kernel, and how many of
their tests were skipped, if that is most. `skipped`: each was. **unfinished**: the last boot of a configuration ended early. Behind it is
what the kernel lacks: tenure does without it, and what that means is below the table. `–`: not
run there. The last row has the oldest and the newest sources that the programs of the column
were built from, unless their records are older than that row.

";

/// Returns the section, of all boots.
pub fn at_a_glance(boots: &[Boot]) -> String {
    let boots: Vec<&Boot> = boots.iter().collect();
    let kernels: Vec<&[&Boot]> = boots
        .chunk_by(|one, next| one.names().0 == next.names().0)
        .collect();
    let mut text = INTRODUCTION.to_owned();
    text.push_str("| verb |");
    text.extend(
        kernels
            .iter()
            .map(|boots| format!(" {} |", boots[0].names().0)),
    );
    text.push_str("\n| --- |");
    text.extend(kernels.iter().map(|_| " --- |"));
    for (verb, programs) in VERBS {
        let _ = write!(text, "\n| {verb} |");
        let all = programs_of(&boots, |name| is_of_verb(name, programs)).len();
        let cells = kernels.iter().map(|boots| cell(boots, verb, programs, all));
        text.extend(cells.map(|cell| format!(" {cell} |")));
    }
    text.push_str("\n| all others |");
    let all = programs_of(&boots, is_of_none).len();
    let cells = kernels.iter().map(|boots| outcome(boots, is_of_none, all));
    text.extend(cells.map(|cell| format!(" {cell} |")));
    text.push_str("\n| sources |");
    let cells = kernels.iter().map(|boots| sources(boots));
    text.extend(cells.map(|cell| format!(" {cell} |")));
    text.push_str("\n\n");
    text.push_str(&effects(&kernels));
    text
}

/// Returns what a kernel lacks: what it has in a configuration, another's settings took away.
fn lacks<'a>(boots: &[&'a Boot]) -> Vec<&'a Check> {
    let all = |boot: &&'a Boot| boot.checks.iter();
    let has = |name: &str| {
        let mut checks = boots.iter().flat_map(all);
        checks.any(|check| check.name == name && check.status == "ok")
    };
    let first = boots.first().into_iter().flat_map(all);
    first.filter(|check| !has(&check.name)).collect()
}

/// Returns whether a program tests a verb that is tested by programs with these names.
fn is_of_verb(name: &str, names: &[&str]) -> bool {
    names.iter().any(|own| {
        let rest = name.strip_prefix(own);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('_'))
    })
}

/// Returns whether a program tests no verb alone.
fn is_of_none(name: &str) -> bool {
    VERBS.iter().all(|(_, names)| !is_of_verb(name, names))
}

/// Returns the names of the programs that are selected, each once.
fn programs_of<'a>(boots: &[&'a Boot], is_selected: impl Fn(&str) -> bool) -> BTreeSet<&'a str> {
    let programs = boots.iter().flat_map(|boot| &boot.programs);
    let names = programs.map(|program| program.name.as_str());
    names.filter(|name| is_selected(name)).collect()
}

/// Returns how the programs have ended whose names are selected, of `all` that any kernel ran.
fn outcome(boots: &[&Boot], is_selected: impl Fn(&str) -> bool, all: usize) -> String {
    let ran = programs_of(boots, &is_selected).len();
    let programs = boots.iter().flat_map(|boot| &boot.programs);
    let programs: Vec<_> = programs.filter(|it| is_selected(&it.name)).collect();
    let unrecorded = boots.iter().flat_map(|boot| boot.unrecorded());
    let unrecorded = unrecorded.filter(|name| is_selected(name)).count();
    let failed = programs
        .iter()
        .map(|it| it.failed.len() + usize::from(it.trouble.is_some()));
    match failed.sum::<usize>() + unrecorded {
        0 if programs.is_empty() => "–".to_owned(),
        0 if boots.iter().any(|boot| !boot.complete) => "**unfinished**".to_owned(),
        0 if programs.iter().all(|it| it.passed == 0) => "skipped".to_owned(),
        0 => {
            let skipped: usize = programs.iter().map(|it| it.skipped.len()).sum();
            let tests = skipped + programs.iter().map(|it| it.passed as usize).sum::<usize>();
            let mut limits = Vec::new();
            if ran < all {
                limits.push(format!("{ran} of {all} programs"));
            }
            if skipped * 2 > tests {
                limits.push(format!("{skipped} of {tests} tests skipped"));
            }
            match limits.is_empty() {
                true => "works".to_owned(),
                false => format!("works ({})", limits.join("; ")),
            }
        }
        failed => format!("**{failed} failed**"),
    }
}

/// Returns the oldest and the newest sources of a kernel's programs.
fn sources(boots: &[&Boot]) -> String {
    let programs = boots.iter().flat_map(|boot| &boot.programs);
    let states: BTreeSet<&str> = programs.map(|it| it.state.as_str()).collect();
    let name = |state: &&str| match *state {
        "" => "unknown".to_owned(),
        state => state.to_owned(),
    };
    let ends = (states.first().map(name), states.last().map(name));
    match ends {
        (Some(oldest), Some(newest)) if oldest != newest => format!("{oldest} to {newest}"),
        (oldest, _) => oldest.unwrap_or_else(|| "–".to_owned()),
    }
}

fn cell(boots: &[&Boot], verb: &str, names: &[&str], all: usize) -> String {
    let mut cell = outcome(boots, |name| is_of_verb(name, names), all);
    if cell == "–" {
        return cell;
    }
    for (word, status) in [("without", "limited"), ("missing:", "missing")] {
        let found = lacks(boots).into_iter();
        let found = found.filter(|check| check.verb == verb && check.status == status);
        let found: Vec<_> = found.map(|check| check.name.as_str()).collect();
        if !found.is_empty() {
            let _ = write!(cell, "; {word} {}", found.join(", "));
        }
    }
    cell
}

/// Returns a line for each feature that a kernel lacks.
fn effects(boots: &[&[&Boot]]) -> String {
    let mut found: BTreeMap<&str, (BTreeSet<&str>, &Check)> = BTreeMap::new();
    let mut kernels: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for boots in boots {
        for check in lacks(boots) {
            let (verbs, known) = found.entry(&check.name).or_insert((BTreeSet::new(), check));
            verbs.insert(&check.verb);
            // Older records have no effects.
            if known.effect.is_empty() {
                *known = check;
            }
            let kernels = kernels.entry(&check.name).or_default();
            kernels.push(boots[0].names().0);
        }
    }
    let mut text = String::new();
    for (name, (verbs, check)) in found {
        let verbs: Vec<_> = verbs.into_iter().collect();
        let needs = check.remedy.as_deref().unwrap_or_default();
        let needs = needs.strip_prefix("it needs ").unwrap_or(needs);
        let _ = write!(text, "- **{name}** ({}", verbs.join(", "));
        if !needs.is_empty() {
            let _ = write!(text, "; since {needs}");
        }
        let _ = writeln!(
            text,
            "; not on {}): {}",
            kernels[name].join(", "),
            check.effect
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::record::{Program, Skip};
    use super::*;

    fn boot(configuration: &str, status: &str, failed: &[&str]) -> Boot {
        let program = |name: &str| Program {
            name: name.to_owned(),
            passed: 3,
            ..Program::default()
        };
        let mut lock_all = program("lock_all");
        lock_all.failed = failed.iter().map(|&name| name.to_owned()).collect();
        Boot {
            configuration: configuration.to_owned(),
            complete: true,
            checks: vec![Check {
                verb: "lock".to_owned(),
                name: "smaps".to_owned(),
                status: status.to_owned(),
                effect: "it is slower".to_owned(),
                remedy: Some("it needs Linux 6.11".to_owned()),
                ..Check::default()
            }],
            programs: vec![lock_all, program("secretive")],
            ..Boot::default()
        }
    }

    #[test]
    fn verb_works_only_if_tests_have_run_and_passed() {
        let cells = |boot: &Boot| {
            let text = at_a_glance(std::slice::from_ref(boot));
            let cell = |row: &str| {
                let line = text.lines().find(|line| line.starts_with(row)).unwrap();
                line[row.len()..].trim_matches([' ', '|']).to_owned()
            };
            (cell("| lock"), cell("| all others"), cell("| sources"))
        };
        let expected = |lock: &str, others: &str, sources: &str| {
            (lock.to_owned(), others.to_owned(), sources.to_owned())
        };
        let mut some = boot("6.1/root", "ok", &[]);
        assert_eq!(cells(&some), expected("works", "works", "unknown"));
        // Its state tells that a program is of an earlier boot.
        some.programs[0].state = "2026-11-28 14:31 37ded60".to_owned();
        let sources = "unknown to 2026-11-28 14:31 37ded60";
        assert_eq!(cells(&some), expected("works", "works", sources));
        // Commits of one day are told apart by their time.
        let states = ["2026-11-28 15:20 1eac0f7", "2026-11-28 13:28 b3ae698"];
        for (program, state) in some.programs.iter_mut().zip(states) {
            program.state = state.to_owned();
        }
        let sources = "2026-11-28 13:28 b3ae698 to 2026-11-28 15:20 1eac0f7";
        assert_eq!(cells(&some), expected("works", "works", sources));
        some.programs[0].passed = 0;
        assert_eq!(cells(&some), expected("skipped", "works", sources));
        some.complete = false;
        let unfinished = "**unfinished**";
        assert_eq!(cells(&some), expected(unfinished, unfinished, sources));
        // A result that is no longer there.
        some.command_line = "tenure_only=lock,pool".to_owned();
        let failed = "**1 failed**";
        assert_eq!(cells(&some), expected(failed, failed, sources));
    }

    #[test]
    fn verb_with_few_programs_or_tests_says_so() {
        let mut most = boot("6.1/root", "ok", &[]);
        most.programs.push(Program {
            name: "lock".to_owned(),
            passed: 1,
            ..Program::default()
        });
        let mut few = boot("6.12/root", "ok", &[]);
        let skip = |test: &str| Skip {
            test: test.to_owned(),
            reason: "needs more".to_owned(),
        };
        few.programs[0].skipped = ["a", "b", "c", "d"].map(skip).into();
        let text = at_a_glance(&[most, few]);
        let line = "| lock | works | works (1 of 2 programs; 4 of 7 tests skipped) |";
        assert!(text.lines().any(|other| other == line), "{text}");
    }

    #[test]
    fn table_has_a_column_per_kernel_and_a_cell_per_verb() {
        let boots = [
            boot("5.10/root", "missing", &[]),
            boot("6.1/root", "limited", &[]),
            // A failure counts in each configuration, and so does what is there.
            boot("6.12/root", "limited", &[]),
            boot("6.12/user", "ok", &["stays"]),
        ];
        let text = at_a_glance(&boots);
        for line in [
            "| verb | 5.10 | 6.1 | 6.12 |",
            "| lock | works; missing: smaps | works; without smaps | **1 failed** |",
            "| secrets | – | – | – |",
            "- **smaps** (lock; since Linux 6.11; not on 5.10, 6.1): it is slower",
        ] {
            assert!(text.lines().any(|other| other == line), "{line}\n{text}");
        }
    }
}
