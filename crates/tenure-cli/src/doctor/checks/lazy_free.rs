//! lazy free: whether there is such a thing, and what else can be taken.

use super::{how_to_have, refused};
use crate::doctor::{check::Check, facts::Facts};
use crate::text::bytes_text;

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
            "the kernel takes the pages when it needs memory",
        ),
        Err(errno) => check(
            refused(errno),
            "lazy_free answers Unsupported; discard gives memory back at once",
        )
        .missing(how_to_have(facts, "madv_free", (4, 5), errno)),
    }
}

fn swap(bytes: u64) -> Check {
    let check = |found, effect| Check::ok(VERB, "swap", found, effect);
    match bytes {
        0 => check(
            "none".to_owned(),
            "of a program's own memory, what is lazily free or volatile is all that the kernel \
             can take",
        ),
        bytes => check(
            bytes_text(bytes as f64),
            "under pressure other memory is swapped out as well; what is in swap when it is \
             freed lazily or marked volatile is lost at once",
        ),
    }
}
