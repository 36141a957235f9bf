//! The checks of tear-down: whether a helper can be made, and may free memory.

use crate::doctor::{check::Check, facts::Facts};

const VERB: &str = "tear-down";

pub fn checks(facts: &Facts) -> Vec<Check> {
    match &facts.teardown {
        Err(error) => vec![
            Check::ok(
                VERB,
                "helper",
                error.to_string(),
                "teardown::enable returns this error: a parent's wait includes freeing the \
                 process's memory",
            )
            .missing(
                "it needs Linux 5.9 on x86-64 or aarch64, permission for pidfd_open, close_range \
                 and seccomp filters, and one more process (RLIMIT_NPROC, pids.max)",
            ),
        ],
        Ok(()) => vec![
            Check::ok(
                VERB,
                "helper",
                "can be made",
                "after teardown::enable a parent's wait returns before the memory is freed",
            ),
            may_free(facts),
        ],
    }
}

fn may_free(facts: &Facts) -> Check {
    let check = |found, effect| Check::ok(VERB, "unshare(CLONE_VM)", found, effect);
    match facts.unshare {
        Ok(()) => check(
            "allowed".to_owned(),
            "the helper can tell when the process has ended, and frees with several tasks",
        ),
        Err(errno) => check(
            format!("refused ({errno})"),
            "the helper cannot tell whether the process has ended, and leaves the freeing to the \
             kernel, in one task",
        )
        .limited("allow unshare in the seccomp filter of this container or service"),
    }
}
