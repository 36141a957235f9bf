//! The checks of populate: how pages are faulted in, and the headroom.

use super::{MOUNT_PROC, how_to_have, refused};
use crate::doctor::{check::Check, facts::Facts};
use tenure_bench::text::bytes_text;

const VERB: &str = "populate";

pub fn checks(facts: &Facts) -> Vec<Check> {
    [
        Some(advice(facts)),
        Some(cpus(facts)),
        Some(headroom(facts)),
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
        Ok(()) => check("yes".to_owned(), "one system call faults in a whole chunk"),
        Err(errno) => check(
            refused(errno),
            "one system call faults in one page, which is several times slower",
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
        1 => "one thread populates, and one frees released memory".to_owned(),
        _ => format!(
            "up to {cpus} threads populate, and up to {} free",
            cpus.min(4)
        ),
    };
    if facts.numa_nodes > 1 {
        found += &format!("; {}", plural(facts.numa_nodes, "NUMA node"));
        effect += "; those that populate run on the node of the memory";
    }
    let check = Check::ok(VERB, "CPUs", found, effect);
    match (cpus, cpus < allowed) {
        (_, true) => check.limited("raise cpu.max (version 1: cpu.cfs_quota_us) of the cgroup"),
        (1, false) => check.limited("allow more CPUs (taskset, cpuset, AllowedCPUs=)"),
        _ => check,
    }
}

fn headroom(facts: &Facts) -> Check {
    const NAME: &str = "headroom";
    match &facts.headroom {
        Ok(headroom) => Check::ok(
            VERB,
            NAME,
            format!(
                "{}, by {}",
                bytes_text(headroom.bytes as f64),
                headroom.limit
            ),
            "populate refuses more than that before it begins, because the kernel kills a process \
             that exceeds the limit of its cgroup",
        ),
        Err(error) => Check::ok(
            VERB,
            NAME,
            error.to_string(),
            "populate cannot tell what would be too much, and refuses nothing",
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
            "memory with HugePages::Always gets huge pages only where free ones exist",
        )
        .limited("echo madvise > /sys/kernel/mm/transparent_hugepage/defrag"),
        ("always", _) => Check::ok(
            VERB,
            NAME,
            found,
            "large mappings get huge pages, except with HugePages::Never",
        ),
        ("madvise", _) => Check::ok(
            VERB,
            NAME,
            found,
            "mappings with HugePages::Always get huge pages",
        ),
        _ => Check::ok(
            VERB,
            NAME,
            found,
            "HugePages::Always has no effect, or is refused: populating anonymous memory takes \
             about twice as long",
        )
        .limited("echo madvise > /sys/kernel/mm/transparent_hugepage/enabled"),
    }
}

fn pool(free: u64) -> Check {
    let check = |found, effect| Check::ok(VERB, "hugetlb pool", found, effect);
    match free {
        0 => check(
            "no free page of 2 MiB".to_owned(),
            "mapping a memfd of MemfdPages::Huge2M fails with ENOMEM",
        )
        .with_remedy("sysctl vm.nr_hugepages=N, for programs that use such memory"),
        free => check(
            format!("{} free", bytes_text(free as f64 * 2_097_152.0)),
            "memfds of MemfdPages::Huge2M can take that much",
        ),
    }
}
