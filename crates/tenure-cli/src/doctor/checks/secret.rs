//! The check of secrets: memory outside the kernel's own mappings.

use super::{how_to_have, refused};
use crate::doctor::{check::Check, facts::Facts};

const VERB: &str = "secrets";

pub fn checks(facts: &Facts) -> Vec<Check> {
    let check = |found, effect| Check::ok(VERB, "memfd_secret", found, effect);
    vec![match facts.features.memfd_secret {
        Ok(()) => check(
            "yes".to_owned(),
            "SecretBuffer::hidden_with_max_len hides memory also from root's debuggers",
        ),
        Err(errno) => check(
            refused(errno),
            "SecretBuffer::hidden_with_max_len returns Unsupported; with_max_len works",
        )
        .missing(remedy(facts, errno)),
    }]
}

fn remedy(facts: &Facts, errno: rustix::io::Errno) -> String {
    let needs_parameter = facts.is_since((5, 14)) && !facts.is_since((6, 5));
    let remedy = how_to_have(facts, "memfd_secret", (5, 14), errno);
    match needs_parameter && remedy.contains("built or started") {
        true => {
            "before Linux 6.5 it needs secretmem.enable=1 on the kernel's command line".to_owned()
        }
        false => remedy,
    }
}
