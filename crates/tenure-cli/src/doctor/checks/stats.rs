//! Figures: who can read them.

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
                "the counters and the memory of other processes, also of the same user, are \
                 for root to read, or for their parents",
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
            "whoever may trace a process can read what tenure does in it",
        ),
        false => check(
            "without a page of their own",
            "only the process itself can read what tenure does in it",
        )
        .limited("allow memfd_create (seccomp), a page (RLIMIT_AS) and RLIMIT_FSIZE of 64 KiB"),
    }
}
