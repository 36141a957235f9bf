//! The checks of the counters: which processes can read them.

use crate::doctor::{check::Check, facts::Facts};

const VERB: &str = "figures";

pub fn checks(facts: &Facts) -> Vec<Check> {
    if !facts.proc {
        return Vec::new();
    }
    let mut checks = vec![page(facts)];
    if let (Some(scope @ 1..), false) = (facts.ptrace_scope, facts.may_trace_anything) {
        checks.push(
            Check::ok(
                VERB,
                "ptrace_scope",
                scope.to_string(),
                "only root and a process's parents can read its counters and memory, also among \
                 processes of one user",
            )
            .limited("sysctl kernel.yama.ptrace_scope=0, or CAP_SYS_PTRACE"),
        );
    }
    checks
}

fn page(facts: &Facts) -> Check {
    let check = |found, effect| Check::ok(VERB, "counters", found, effect);
    match facts.counters_have_a_page {
        true => check(
            "in a page of their own",
            "a process that may trace this one can read what tenure does in it",
        ),
        false => check(
            "without a page of their own",
            "no other process can read what tenure does in this one",
        )
        .limited("allow memfd_create (seccomp), a page (RLIMIT_AS) and RLIMIT_FSIZE of 64 KiB"),
    }
}
