//! The checks of lazy free: MADV_FREE, and swap.

use super::{how_to_have, refused};
use crate::doctor::{check::Check, facts::Facts};
use tenure_bench::text::bytes_text;

const VERB: &str = "lazy free";

pub fn checks(facts: &Facts) -> Vec<Check> {
    [Some(advice(facts)), facts.swap_bytes.map(swap)]
        .into_iter()
        .flatten()
        .collect()
}

fn advice(facts: &Facts) -> Check {
    let check = |found, effect| Check::ok(VERB, "MADV_FREE", found, effect);
    match facts.features.madv_free {
        Ok(()) => check(
            "yes".to_owned(),
            "the kernel reclaims lazily freed pages when it needs memory",
        ),
        Err(errno) => check(
            refused(errno),
            "lazy_free returns Unsupported; use discard, which frees memory at once",
        )
        .missing(how_to_have(facts, "madv_free", (4, 5), errno)),
    }
}

fn swap(bytes: u64) -> Check {
    let check = |found, effect| Check::ok(VERB, "swap", found, effect);
    match bytes {
        0 => check(
            "none".to_owned(),
            "of a program's anonymous memory the kernel can reclaim only lazily free and \
             volatile pages",
        ),
        bytes => check(
            bytes_text(bytes as f64),
            "under pressure the kernel also swaps out other memory; pages that are in swap when \
             they are freed lazily or offered are gone at once",
        ),
    }
}
