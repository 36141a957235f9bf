//! tear-down: whether a helper can be made, and may free.

use crate::doctor::{check::Check, facts::Facts};

const VERB: &str = "tear-down";

pub fn checks(facts: &Facts) -> Vec<Check> {
    match &facts.teardown {
        Err(error) => vec![
            Check::ok(
                VERB,
                "helper",
                error.to_string(),
                "teardown::enable answers this error: who waits for the process waits for its \
                 memory",
            )
            .missing(
                "Linux 5.9 on x86-64 or aarch64, with pidfd_open, close_range and seccomp \
                 filters allowed, and room for one more process",
            ),
        ],
        Ok(()) => vec![
            Check::ok(
                VERB,
                "helper",
                "can be made",
                "after teardown::enable a parent's wait does not wait for the memory",
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
            "the helper knows when it is alone, and frees with several tasks",
        ),
        Err(errno) => check(
            format!("refused ({errno})"),
            "the helper cannot know whether it is alone, and leaves the freeing to the kernel, \
             in one task",
        )
        .limited("allow unshare in the seccomp filter of this container or service"),
    }
}
