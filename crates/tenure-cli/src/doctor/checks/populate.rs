//! populate: how pages come in, and how many may.

use super::{MOUNT_PROC, how_to_have, refused};
use crate::doctor::{check::Check, facts::Facts};
use crate::text::bytes_text;

const VERB: &str = "populate";

pub fn checks(facts: &Facts) -> Vec<Check> {
    [
        Some(advice(facts)),
        Some(cpus(facts)),
        Some(room(facts)),
        Some(huge_pages(facts)),
        facts.free_hugetlb_pages.map(pool),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn advice(facts: &Facts) -> Check {
    let check = |found, effect| Check::ok(VERB, "MADV_POPULATE", found, effect);
    match facts.features.madv_populate {
        Ok(()) => check("yes".to_owned(), "the kernel faults whole chunks in"),
        Err(errno) => check(
            refused(errno),
            "each page is touched by a system call of its own, several times slower",
        )
        .limited(how_to_have(facts, "madv_populate", (5, 14), errno)),
    }
}

fn cpus(facts: &Facts) -> Check {
    let (cpus, allowed) = (facts.cpus, facts.cpus_allowed);
    let plural = |count: usize, thing: &str| match count {
        1 => format!("1 {thing}"),
        count => format!("{count} {thing}s"),
    };
    let mut found = plural(cpus, "CPU");
    if cpus < allowed {
        found += &format!(" of {allowed}, by the cgroup's quota");
    }
    let mut effect = match cpus {
        1 => "one thread populates, one frees what was released".to_owned(),
        _ => format!("up to {cpus} threads populate, up to {} free", cpus.min(4)),
    };
    if facts.numa_nodes > 1 {
        found += &format!("; {}", plural(facts.numa_nodes, "NUMA node"));
        effect += "; those that populate run on the node that the memory is to be on";
    }
    let check = Check::ok(VERB, "CPUs", found, effect);
    match (cpus, cpus < allowed) {
        (_, true) => check.limited("raise cpu.max (version 1: cpu.cfs_quota_us) of the cgroup"),
        (1, false) => check.limited("allow more CPUs (taskset, cpuset, AllowedCPUs=)"),
        _ => check,
    }
}

fn room(facts: &Facts) -> Check {
    const NAME: &str = "room";
    match &facts.room {
        Ok(room) => Check::ok(
            VERB,
            NAME,
            format!("{}, says {}", bytes_text(room.bytes as f64), room.bound),
            "populating more than that is refused before it begins: past the limit of a cgroup \
             the kernel kills",
        ),
        Err(error) => Check::ok(
            VERB,
            NAME,
            error.to_string(),
            "populate does not know what would be too much, and refuses nothing",
        )
        .limited(MOUNT_PROC),
    }
}

fn huge_pages(facts: &Facts) -> Check {
    const NAME: &str = "huge pages";
    let mode = facts.huge_pages.as_deref().unwrap_or("not built in");
    let defrag = facts.huge_page_defrag.as_deref();
    let found = match defrag {
        Some(defrag) if mode != "never" => format!("{mode}, defrag {defrag}"),
        _ => mode.to_owned(),
    };
    match (mode, defrag) {
        ("always" | "madvise", Some("never")) => Check::ok(
            VERB,
            NAME,
            found,
            "memory with HugePages::Always gets huge pages only where they are free already",
        )
        .limited("echo madvise > /sys/kernel/mm/transparent_hugepage/defrag"),
        ("always", _) => Check::ok(
            VERB,
            NAME,
            found,
            "large memory gets huge pages, but where HugePages::Never was asked for",
        ),
        ("madvise", _) => Check::ok(
            VERB,
            NAME,
            found,
            "memory gets huge pages where HugePages::Always was asked for",
        ),
        _ => Check::ok(
            VERB,
            NAME,
            found,
            "HugePages::Always changes nothing, or is refused: populating anonymous memory \
             takes about twice as long",
        )
        .limited("echo madvise > /sys/kernel/mm/transparent_hugepage/enabled"),
    }
}

fn pool(free: u64) -> Check {
    let check = |found, effect| Check::ok(VERB, "hugetlb pool", found, effect);
    match free {
        0 => check(
            "no free page of 2 MiB".to_owned(),
            "mapping a memfd of MemfdPages::Huge2M answers ENOMEM",
        )
        .with_remedy("sysctl vm.nr_hugepages=N, for programs that ask for such memory"),
        free => check(
            format!("{} free", bytes_text(free as f64 * 2_097_152.0)),
            "so much memory of MemfdPages::Huge2M can be had",
        ),
    }
}
