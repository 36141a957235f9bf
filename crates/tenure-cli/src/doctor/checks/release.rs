//! The checks of release: how soon the caller goes on.

use super::{how_to_have, refused};
use crate::doctor::{check::Check, facts::Facts};

const VERB: &str = "release";

pub fn checks(facts: &Facts) -> Vec<Check> {
    [
        Some(dontunmap(facts)),
        facts.overcommit_memory.map(overcommit),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn dontunmap(facts: &Facts) -> Check {
    let check = |found, effect| Check::ok(VERB, "MREMAP_DONTUNMAP", found, effect);
    match facts.features.mremap_dontunmap {
        Ok(()) => check(
            "yes".to_owned(),
            "discard of 4 MiB and more returns at once, and workers free the pages",
        ),
        Err(errno) => check(
            refused(errno),
            "discard frees all pages before it returns; munmap still returns at once",
        )
        .limited(how_to_have(facts, "mremap_dontunmap", (5, 7), errno)),
    }
}

fn overcommit(mode: u8) -> Check {
    let check = |found, effect| Check::ok(VERB, "vm.overcommit_memory", found, effect);
    match mode {
        2 => check(
            "2, strict".to_owned(),
            "a large range that is discarded counts twice against CommitLimit until its pages are \
             free; where that does not fit, discard frees them before it returns",
        )
        .limited("sysctl vm.overcommit_memory=0, or a higher vm.overcommit_ratio"),
        mode => check(
            mode.to_string(),
            "pending memory does not count against CommitLimit",
        ),
    }
}
