//! The checks, made from facts alone: no code here reads the machine.

mod everywhere;
mod lazy_free;
mod lock;
mod populate;
mod pressure;
mod release;
mod secret;
mod stats;
mod teardown;
mod volatile;

use rustix::io::Errno;

use super::{check::Check, facts::Facts};

/// Returns all checks, those of one verb together.
pub fn all(facts: &Facts) -> Vec<Check> {
    [
        everywhere::checks(facts),
        populate::checks(facts),
        lock::checks(facts),
        lazy_free::checks(facts),
        volatile::checks(facts),
        release::checks(facts),
        teardown::checks(facts),
        secret::checks(facts),
        pressure::checks(facts),
        stats::checks(facts),
    ]
    .concat()
}

const MOUNT_PROC: &str = "mount proc on /proc";

/// Returns the remedy for a feature that the kernel refused with `errno`. TENURE_WITHOUT
/// knows it as `feature`, and Linux has had it since a version.
fn how_to_have(facts: &Facts, feature: &str, since: (u32, u32), errno: Errno) -> String {
    if facts.without.iter().any(|name| name == feature) {
        return format!("remove {feature} from TENURE_WITHOUT");
    }
    if !facts.proc && errno == Errno::NOENT {
        return MOUNT_PROC.to_owned();
    }
    let (major, minor) = since;
    if !facts.is_since(since) {
        return format!("it needs Linux {major}.{minor}");
    }
    let refused = matches!(errno, Errno::PERM | Errno::ACCESS | Errno::NOSYS);
    if refused && facts.seccomp {
        return "the seccomp filter of this container or service refuses it: allow the call in its profile"
            .to_owned();
    }
    format!("Linux has it since {major}.{minor}; this kernel was built or started without it")
}

fn refused(errno: Errno) -> String {
    format!("no ({errno})")
}
