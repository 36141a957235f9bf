//! Pressure: how soon tenure hears that memory runs short.

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
            "the kernel reports stalls within 2 s; the room that is left is looked at meanwhile",
        )
        .limited("give the program CAP_SYS_RESOURCE to hear within half a second"),
        (Ok(()), Err(errno)) => check(
            format!("yes, {source}, without triggers: {errno}"),
            "nothing is reported: tenure looks every 2 s at least",
        )
        .limited("Linux 6.5 has triggers for everybody; the file must be writable"),
        (Err(errno), _) => check(
            refused(errno),
            "the kernel does not tell of stalls; only the room that is left, and how often \
             limits are met, is looked at",
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
    const SEEN: &str = "its limits, and those around it, count as far as they can be seen here";
    match facts.features.memory_cgroup {
        MemoryCgroup::V1 => check("version 1", SEEN),
        MemoryCgroup::V2 => check("version 2", SEEN),
        _ => check(
            "none, or none that can be seen",
            "only the machine's memory counts: a limit that cannot be seen kills without warning",
        )
        .limited("mount the cgroup file system on /sys/fs/cgroup, if there is one"),
    }
}
