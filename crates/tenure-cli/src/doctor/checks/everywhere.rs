//! The checks that concern every verb.

use super::{MOUNT_PROC, how_to_have, refused};
use crate::doctor::{check::Check, facts::Facts};
use tenure_bench::text::{bytes_text, count_text};

const VERB: &str = "all verbs";

/// The kernel's default of vm.max_map_count.
const DEFAULT_MAP_COUNT: u64 = 65530;

pub fn checks(facts: &Facts) -> Vec<Check> {
    [
        Some(proc(facts)),
        facts.proc.then(|| query(facts)),
        facts.max_map_count.map(map_count),
        Some(address_space(facts)),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn proc(facts: &Facts) -> Check {
    let check = |found, effect| Check::ok(VERB, "/proc", found, effect);
    match facts.proc {
        true => check("mounted", "verbs check the mappings before they act"),
        false => check(
            "not mounted, or not readable",
            "most verbs return an error, because they cannot see what is mapped; munmap of short \
             ranges works",
        )
        .missing(MOUNT_PROC),
    }
}

fn query(facts: &Facts) -> Check {
    let check = |found, effect| Check::ok(VERB, "PROCMAP_QUERY", found, effect);
    match facts.features.procmap_query {
        Ok(()) => check("yes".to_owned(), "checking a range takes a few µs"),
        Err(errno) => check(
            refused(errno),
            "tenure reads /proc/self/maps instead, which is slower the more mappings there are",
        )
        .limited(how_to_have(facts, "procmap_query", (6, 11), errno)),
    }
}

fn map_count(count: u64) -> Check {
    let check = Check::ok(
        VERB,
        "vm.max_map_count",
        count_text(count as f64),
        "each part of a mapping that is volatile, locked or released separately takes up to two \
         more mappings; at the limit verbs return MappingLimit, and the caller frees what it \
         releases",
    );
    let remedy = "sysctl vm.max_map_count=1048576 for programs with many small parts";
    match count {
        DEFAULT_MAP_COUNT.. => check.with_remedy(remedy),
        _ => check.limited(remedy),
    }
}

fn address_space(facts: &Facts) -> Check {
    let check = |found, effect| Check::ok(VERB, "RLIMIT_AS", found, effect);
    match facts.address_space_bytes.soft {
        None => check(
            "no limit".to_owned(),
            "a release can reserve addresses without limit",
        ),
        Some(bytes) => check(
            bytes_text(bytes as f64),
            "a release moves memory to reserved addresses, which count against the limit; at the \
             limit the caller frees the memory itself",
        )
        .limited("ulimit -v unlimited, LimitAS=infinity"),
    }
}
