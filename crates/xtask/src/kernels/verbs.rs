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

`works`: all tests of the verb, or of what stands on the verbs, have passed, in each
configuration that ran them. Behind it is what the kernel lacks: tenure does without it, and
what that means is below the table. `–`: not run there.

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
        let cells = kernels.iter().map(|boots| cell(boots, verb, programs));
        text.extend(cells.map(|cell| format!(" {cell} |")));
    }
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

fn cell(boots: &[&Boot], verb: &str, names: &[&str]) -> String {
    let is_of_verb = |name: &str| {
        names.iter().any(|own| {
            let rest = name.strip_prefix(own);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('_'))
        })
    };
    let programs = boots.iter().flat_map(|boot| &boot.programs);
    let programs: Vec<_> = programs.filter(|it| is_of_verb(&it.name)).collect();
    let failed: usize = programs
        .iter()
        .map(|it| it.failed.len() + usize::from(it.trouble.is_some()))
        .sum();
    let mut cell = match (programs.is_empty(), failed) {
        (true, _) => return "–".to_owned(),
        (false, 0) => "works".to_owned(),
        (false, _) => format!("**{failed} failed**"),
    };
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
    use super::super::record::Program;
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
