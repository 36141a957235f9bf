//! volatile: what the kernel can be offered, and how a loss is found.

use rustix::io::Errno;

use super::{how_to_have, refused};
use crate::doctor::{check::Check, facts::Facts};

const VERB: &str = "volatile";
const BARS: &str = "the kernel takes no volatile memory by itself: tenure purges it under memory \
                    pressure, and touching a page that was taken is SIGSEGV";
const STAYS: &str = "volatile memory is never taken: what is lost could not be told";

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
            "touching a page that was taken is SIGBUS, and unmarking tells what was lost",
        ),
        Ok(_) => Check::ok(VERB, NAME, "without SIGBUS mode", BARS).missing("it needs Linux 4.14"),
        Err(errno) => {
            Check::ok(VERB, NAME, refused(errno), BARS).missing(how_to_have_it(facts, errno))
        }
    }
}

fn how_to_have_it(facts: &Facts, errno: Errno) -> String {
    let remedy = how_to_have(facts, "userfaultfd", (5, 11), errno);
    // The device goes round the filter.
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
    Check::ok(VERB, "MADV_POPULATE_WRITE", refused(errno), BARS).missing(how_to_have(
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
            "what was lost is found in the page tables",
        ),
        Err(errno) => Check::ok(VERB, NAME, refused(errno), STAYS).missing(
            "/proc/self/pagemap must be there and this process's own: after a change of user it \
             is root's until prctl(PR_SET_DUMPABLE, 1)",
        ),
    }
}

fn scan(facts: &Facts) -> Check {
    let check = |found, effect| Check::ok(VERB, "PAGEMAP_SCAN", found, effect);
    match facts.features.pagemap_scan {
        Ok(()) => check(
            "yes".to_owned(),
            "what was lost is found in about 10 ns a page",
        ),
        Err(errno) => check(
            refused(errno),
            "/proc/self/pagemap is read entry by entry, and purge looks at each page",
        )
        .limited(how_to_have(facts, "pagemap_scan", (6, 7), errno)),
    }
}
