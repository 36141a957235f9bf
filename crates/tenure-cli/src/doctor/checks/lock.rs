//! The checks of lock: RLIMIT_MEMLOCK, and how pages are unlocked and freed.

use super::{how_to_have, refused};
use crate::doctor::{check::Check, facts::Facts};
use tenure_bench::text::bytes_text;

const VERB: &str = "lock";

pub fn checks(facts: &Facts) -> Vec<Check> {
    vec![limit(facts), modes(facts), dontneed(facts)]
}

fn limit(facts: &Facts) -> Check {
    let check = |found: &str, effect: &str| Check::ok(VERB, "RLIMIT_MEMLOCK", found, effect);
    const ALL: &str = "the program may lock all memory";
    const MORE: &str = "raise it with LimitMEMLOCK=, limits.conf or docker run --ulimit memlock=-1, or give \
                        the program CAP_IPC_LOCK";
    let limit = facts.memlock_bytes;
    if facts.may_lock_anything {
        return check("does not apply (CAP_IPC_LOCK)", ALL);
    }
    let Some(soft) = limit.soft else {
        return check("no limit", ALL);
    };
    if soft == 0 {
        return check(
            "0 bytes",
            "lock, SecretBuffer and LockedFile return LockLimit",
        )
        .missing(MORE);
    }
    let soft_text = bytes_text(soft as f64);
    let remedy = match limit.hard {
        None => format!("ulimit -l unlimited; permanently: {MORE}"),
        Some(hard) if hard > soft => {
            format!("ulimit -l {}; permanently, or more: {MORE}", hard / 1024)
        }
        Some(_) => MORE.to_owned(),
    };
    check(
        &soft_text,
        &format!(
            "lock, SecretBuffer and LockedFile can together lock up to {soft_text}, counted by \
             range, not by what is in memory; at the limit they return LockLimit"
        ),
    )
    .limited(remedy)
}

fn modes(facts: &Facts) -> Check {
    let check = |found, effect| Check::ok(VERB, "lock modes in smaps", found, effect);
    match facts.features.smaps_lock_mode {
        Ok(()) => check(
            "yes".to_owned(),
            "unlock also clears the locks of other code by their mode",
        ),
        Err(errno) => check(
            refused(errno),
            "unlock treats locks that other code made as LockMode::Now",
        )
        .limited(how_to_have(facts, "smaps_lock_mode", (6, 11), errno)),
    }
}

fn dontneed(facts: &Facts) -> Check {
    let check = |found, effect| Check::ok(VERB, "MADV_DONTNEED_LOCKED", found, effect);
    match facts.features.madv_dontneed_locked {
        Ok(()) => check(
            "yes".to_owned(),
            "a LockedFile with a budget frees pages and stays locked; programs under tenure run \
             --lock can discard memory",
        ),
        Err(errno) => check(
            refused(errno),
            "a LockedFile with a budget unlocks each part for a moment to free it; programs under \
             tenure run --lock cannot discard memory, on which node and chromium end",
        )
        .limited(how_to_have(facts, "madv_dontneed_locked", (5, 18), errno)),
    }
}
