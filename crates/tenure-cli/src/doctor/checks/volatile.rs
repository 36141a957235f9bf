//! The checks of volatile memory: what the kernel can be offered, and how purged pages are
//! found.

use rustix::io::Errno;

use super::{how_to_have, refused};
use crate::doctor::{check::Check, facts::Facts};

const VERB: &str = "volatile";
const NOT_OFFERED: &str = "tenure offers the kernel no volatile memory: tenure purges it under memory \
                           pressure, and an access to a purged page raises SIGSEGV";
const STAYS: &str = "volatile memory is never purged, because tenure could not report it";

pub fn checks(facts: &Facts) -> Vec<Check> {
    [
        Some(userfaultfd(facts)),
        facts
            .features
            .madv_populate
            .err()
            .map(|errno| populate(facts, errno)),
        Some(pagemap(facts)),
        facts.pagemap.is_ok().then(|| scan(facts)),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn userfaultfd(facts: &Facts) -> Check {
    const NAME: &str = "userfaultfd";
    match facts.features.userfaultfd {
        Ok(_) if facts.features.sigbus_on_missing() => Check::ok(
            VERB,
            NAME,
            "yes, with SIGBUS mode",
            "an access to a purged page raises SIGBUS, and unmarking reports the purged pages",
        ),
        Ok(_) => {
            Check::ok(VERB, NAME, "without SIGBUS mode", NOT_OFFERED).missing("it needs Linux 4.14")
        }
        Err(errno) => {
            Check::ok(VERB, NAME, refused(errno), NOT_OFFERED).missing(how_to_have_it(facts, errno))
        }
    }
}

fn how_to_have_it(facts: &Facts, errno: Errno) -> String {
    let remedy = how_to_have(facts, "userfaultfd", (5, 11), errno);
    // The filter does not cover the device.
    let by_device = facts.seccomp && facts.is_since((6, 1)) && remedy.contains("seccomp");
    match (by_device, facts.userfaultfd_device) {
        (true, Err(Errno::NOENT)) => {
            format!("{remedy}, or give the container the device (--device /dev/userfaultfd)")
        }
        (true, Err(_)) => format!("{remedy}, or let this user open /dev/userfaultfd"),
        _ => remedy,
    }
}

fn populate(facts: &Facts, errno: Errno) -> Check {
    Check::ok(VERB, "MADV_POPULATE_WRITE", refused(errno), NOT_OFFERED).missing(how_to_have(
        facts,
        "madv_populate",
        (5, 14),
        errno,
    ))
}

fn pagemap(facts: &Facts) -> Check {
    const NAME: &str = "pagemap";
    match facts.pagemap {
        Ok(()) => Check::ok(
            VERB,
            NAME,
            "can be read",
            "tenure finds purged pages in the page tables",
        ),
        Err(errno) => Check::ok(VERB, NAME, refused(errno), STAYS).missing(
            "/proc/self/pagemap must exist and belong to this process: after a change of user it \
             belongs to root until prctl(PR_SET_DUMPABLE, 1)",
        ),
    }
}

fn scan(facts: &Facts) -> Check {
    let check = |found, effect| Check::ok(VERB, "PAGEMAP_SCAN", found, effect);
    match facts.features.pagemap_scan {
        Ok(()) => check(
            "yes".to_owned(),
            "tenure finds purged pages in about 10 ns a page",
        ),
        Err(errno) => check(
            refused(errno),
            "tenure reads /proc/self/pagemap entry by entry, and purge visits each page",
        )
        .limited(how_to_have(facts, "pagemap_scan", (6, 7), errno)),
    }
}
