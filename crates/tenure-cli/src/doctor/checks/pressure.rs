//! The checks of memory pressure: how soon tenure learns of it.

use std::time::Duration;

use super::{how_to_have, refused};
use crate::doctor::{check::Check, facts::Facts};

const VERB: &str = "pressure";

pub fn checks(facts: &Facts) -> Vec<Check> {
    vec![stall(facts), cgroup(facts)]
}

fn stall(facts: &Facts) -> Check {
    let check = |found, effect| Check::ok(VERB, "PSI", found, effect);
    const CLOSELY: Duration = Duration::from_secs(2);
    let source = &facts.stall_source;
    match (facts.features.psi, facts.stall_trigger) {
        (Ok(()), Ok(window)) if window < CLOSELY => check(
            format!("yes, {source}"),
            "the kernel reports stalls within half a second",
        ),
        (Ok(()), Ok(_)) => check(
            format!("yes, {source}"),
            "the kernel reports stalls within 2 s; meanwhile tenure polls the headroom",
        )
        .limited("give the program CAP_SYS_RESOURCE for reports within half a second"),
        (Ok(()), Err(errno)) => check(
            format!("yes, {source}, without triggers: {errno}"),
            "the kernel reports no stalls by itself: tenure polls at least every 2 s",
        )
        .limited("since Linux 6.5 every user can set triggers; the file must be writable"),
        (Err(errno), _) => check(
            refused(errno),
            "the kernel does not count stalls: tenure polls only the headroom, and how often \
             cgroups hit their limits",
        )
        .limited(match facts.is_since((4, 20)) && facts.proc {
            true => "psi=1 on the kernel's command line".to_owned(),
            false => how_to_have(facts, "psi", (4, 20), errno),
        }),
    }
}

fn cgroup(facts: &Facts) -> Check {
    use tenure::MemoryCgroup;
    let check = |found, effect| Check::ok(VERB, "memory cgroup", found, effect);
    const SEEN: &str = "its limits and those of its parents count, as far as they are visible here";
    match facts.features.memory_cgroup {
        MemoryCgroup::V1 => check("version 1", SEEN),
        MemoryCgroup::V2 => check("version 2", SEEN),
        _ => check(
            "none, or none visible",
            "only the machine's memory counts: at an invisible limit the kernel kills without warning",
        )
        .limited("mount the cgroup file system on /sys/fs/cgroup, if there is one"),
    }
}
