//! The reports of invented machines.

use std::time::Duration;

use rustix::io::Errno;
use tenure::{Error, Features, Headroom, HeadroomLimit, MemoryCgroup, pressure::StallSource};

use super::{
    Report,
    check::{Check, Status},
    checks,
    facts::{Facts, Limit},
    text,
};

const UNLIMITED: Limit = Limit {
    soft: None,
    hard: None,
};

/// Returns the facts of a machine that has everything, whatever this one has.
fn everything() -> Facts {
    let mut features = Features::get().clone();
    features.madv_populate = Ok(());
    features.madv_free = Ok(());
    features.madv_dontneed_locked = Ok(());
    features.madv_guard = Ok(());
    features.mremap_dontunmap = Ok(());
    features.userfaultfd = Ok(u64::MAX);
    features.memfd_secret = Ok(());
    features.pagemap_scan = Ok(());
    features.procmap_query = Ok(());
    features.smaps_lock_mode = Ok(());
    features.psi = Ok(());
    features.memory_cgroup = MemoryCgroup::V2;
    Facts {
        kernel: "6.18.0".to_owned(),
        virtual_machine: false,
        container: false,
        features,
        without: Vec::new(),
        proc: true,
        seccomp: false,
        may_lock_anything: false,
        stall_trigger: Ok(Duration::from_millis(500)),
        stall_source: StallSource::System,
        may_trace_anything: false,
        memlock_bytes: UNLIMITED,
        address_space_bytes: UNLIMITED,
        max_map_count: Some(65530),
        overcommit_memory: Some(0),
        cpus_allowed: 8,
        cpus: 8,
        numa_nodes: 1,
        huge_pages: Some("madvise".to_owned()),
        huge_page_defrag: Some("madvise".to_owned()),
        free_hugetlb_pages: Some(0),
        headroom: Ok(Headroom {
            bytes: 3 << 30,
            limit: HeadroomLimit::MemAvailable,
        }),
        swap_bytes: Some(0),
        pagemap: Ok(()),
        userfaultfd_device: Err(Errno::ACCESS),
        ptrace_scope: Some(0),
        counters_have_a_page: true,
        teardown: Ok(()),
        unshare: Ok(()),
    }
}

/// Returns the checks that are not ok.
fn not_ok(facts: &Facts) -> Vec<Check> {
    let checks = checks::all(facts).into_iter();
    checks.filter(|check| check.status != Status::Ok).collect()
}

/// Returns the verb, name and status of each check.
fn named(checks: &[Check]) -> Vec<(&str, &str, Status)> {
    let name = |check: &Check| (check.verb, check.name, check.status);
    checks.iter().map(name).collect()
}

/// Returns the only check of a name, which must not be ok.
fn only_not_ok(facts: &Facts, name: &str) -> Check {
    let mut found = not_ok(facts);
    found.retain(|check| check.name == name);
    assert_eq!(found.len(), 1, "{name}: {found:?}");
    found.remove(0)
}

fn remedy(check: &Check) -> &str {
    check.remedy.as_deref().expect("a remedy")
}

#[test]
fn machine_with_everything_is_ok() {
    let report = Report::new(&everything());
    assert_eq!(not_ok(&everything()), []);
    assert!(report.everything_is_there);
    assert!(text::text(&report).ends_with("\nEverything is there.\n"));
}

#[test]
fn checks_that_are_not_ok_have_remedies_and_unique_names() {
    let mut facts = everything();
    let mut features = facts.features.clone();
    features.madv_populate = Err(Errno::INVAL);
    features.madv_free = Err(Errno::INVAL);
    features.madv_dontneed_locked = Err(Errno::INVAL);
    features.mremap_dontunmap = Err(Errno::INVAL);
    features.userfaultfd = Err(Errno::NOSYS);
    features.memfd_secret = Err(Errno::NOSYS);
    features.pagemap_scan = Err(Errno::NOTTY);
    features.procmap_query = Err(Errno::NOTTY);
    features.smaps_lock_mode = Err(Errno::NOSYS);
    features.psi = Err(Errno::NOENT);
    features.memory_cgroup = MemoryCgroup::None;
    facts.features = features;
    facts.teardown = Err(Error::System {
        call: "clone",
        errno: Errno::AGAIN,
    });
    facts.counters_have_a_page = false;
    let found = not_ok(&facts);
    assert!(found.len() >= 13, "{found:?}");
    for check in &found {
        assert!(check.remedy.is_some(), "{check:?}");
        assert!(!check.effect.is_empty(), "{check:?}");
    }
    let all = checks::all(&facts);
    let mut names: Vec<_> = all.iter().map(|check| (check.verb, check.name)).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), all.len());
}

#[test]
fn docker_container_lacks_userfaultfd_and_limits_three() {
    let mut facts = everything();
    facts.container = true;
    facts.seccomp = true;
    facts.features.userfaultfd = Err(Errno::PERM);
    facts.features.memory_cgroup = MemoryCgroup::V2;
    facts.userfaultfd_device = Err(Errno::NOENT);
    facts.stall_trigger = Ok(Duration::from_secs(2));
    facts.unshare = Err(Errno::PERM);
    facts.memlock_bytes = Limit {
        soft: Some(8 << 20),
        hard: Some(8 << 20),
    };
    facts.headroom = Ok(Headroom {
        bytes: 100 << 20,
        limit: HeadroomLimit::Cgroup {
            path: "/sys/fs/cgroup".into(),
            limit_bytes: 256 << 20,
            used_bytes: 156 << 20,
        },
    });
    let found = not_ok(&facts);
    assert_eq!(
        named(&found),
        [
            ("lock", "RLIMIT_MEMLOCK", Status::Limited),
            ("volatile", "userfaultfd", Status::Missing),
            ("tear-down", "unshare(CLONE_VM)", Status::Limited),
            ("pressure", "PSI", Status::Limited),
        ]
    );
    let userfaultfd = only_not_ok(&facts, "userfaultfd");
    assert!(
        userfaultfd
            .effect
            .contains("tenure purges it under memory pressure")
    );
    assert!(remedy(&userfaultfd).contains("seccomp"), "{userfaultfd:?}");
    assert!(remedy(&userfaultfd).contains("--device /dev/userfaultfd"));
    let memlock = only_not_ok(&facts, "RLIMIT_MEMLOCK");
    assert!(memlock.effect.contains("up to 8 MiB"), "{memlock:?}");
    assert!(!remedy(&memlock).contains("ulimit -l 8192"), "{memlock:?}");
    let report = Report::new(&facts);
    assert!(!report.everything_is_there);
    let text = text::text(&report);
    assert!(text.contains("(x86_64), container\n") || !cfg!(target_arch = "x86_64"));
    assert!(text.contains("limit 256 MiB"), "{text}");
    assert!(text.ends_with("1 missing and 3 limited.\n"), "{text}");
}

#[test]
fn old_kernel_is_told_the_versions_it_needs() {
    let mut facts = everything();
    facts.kernel = "5.4.0-150-generic".to_owned();
    facts.features.madv_populate = Err(Errno::INVAL);
    facts.features.madv_dontneed_locked = Err(Errno::INVAL);
    facts.features.mremap_dontunmap = Err(Errno::INVAL);
    facts.features.userfaultfd = Err(Errno::INVAL);
    facts.features.memfd_secret = Err(Errno::NOSYS);
    facts.features.pagemap_scan = Err(Errno::NOTTY);
    facts.features.procmap_query = Err(Errno::NOTTY);
    facts.features.smaps_lock_mode = Err(Errno::NOSYS);
    facts.seccomp = true;
    let expected = [
        ("PROCMAP_QUERY", Status::Limited, "6.11"),
        ("MADV_POPULATE", Status::Limited, "5.14"),
        ("lock modes in smaps", Status::Limited, "6.11"),
        ("MADV_DONTNEED_LOCKED", Status::Limited, "5.18"),
        ("userfaultfd", Status::Missing, "5.11"),
        ("MADV_POPULATE_WRITE", Status::Missing, "5.14"),
        ("PAGEMAP_SCAN", Status::Limited, "6.7"),
        ("MREMAP_DONTUNMAP", Status::Limited, "5.7"),
        ("memfd_secret", Status::Missing, "5.14"),
    ];
    let found = not_ok(&facts);
    let statuses: Vec<_> = found.iter().map(|c| (c.name, c.status)).collect();
    assert_eq!(statuses, expected.map(|(name, status, _)| (name, status)));
    for (check, (_, _, version)) in found.iter().zip(expected) {
        assert_eq!(remedy(check), format!("it needs Linux {version}"));
    }
}

#[test]
fn feature_in_tenure_without_has_that_as_its_remedy() {
    let mut facts = everything();
    facts.without = vec!["userfaultfd".to_owned(), "pagemap_scan".to_owned()];
    facts.features.userfaultfd = Err(Errno::NOSYS);
    facts.seccomp = true;
    let check = only_not_ok(&facts, "userfaultfd");
    assert!(remedy(&check).contains("from TENURE_WITHOUT"), "{check:?}");
    assert!(!remedy(&check).contains("device"), "{check:?}");
}

#[test]
fn kernel_built_without_userfaultfd_has_that_as_its_remedy() {
    let mut facts = everything();
    facts.features.userfaultfd = Err(Errno::NOSYS);
    let check = only_not_ok(&facts, "userfaultfd");
    assert!(
        remedy(&check).contains("built or started without"),
        "{check:?}"
    );
    facts.features.userfaultfd = Ok(0);
    let check = only_not_ok(&facts, "userfaultfd");
    assert_eq!(check.found, "without SIGBUS mode");
}

#[test]
fn memfd_secret_before_6_5_needs_a_kernel_parameter() {
    let mut facts = everything();
    facts.features.memfd_secret = Err(Errno::NOSYS);
    facts.kernel = "6.1.0".to_owned();
    let check = only_not_ok(&facts, "memfd_secret");
    assert!(remedy(&check).contains("secretmem.enable=1"), "{check:?}");
}

#[test]
fn lock_limit_remedy_depends_on_the_hard_limit() {
    let mut facts = everything();
    let mut limit = |soft, hard| {
        facts.memlock_bytes = Limit {
            soft: Some(soft),
            hard,
        };
        only_not_ok(&facts, "RLIMIT_MEMLOCK")
    };
    let check = limit(0, Some(0));
    assert_eq!(check.status, Status::Missing);
    let check = limit(65536, Some(1 << 20));
    assert_eq!((check.status, &*check.found), (Status::Limited, "64 KiB"));
    assert!(remedy(&check).starts_with("ulimit -l 1024;"), "{check:?}");
    assert!(remedy(&limit(65536, None)).starts_with("ulimit -l unlimited"));
    facts.may_lock_anything = true;
    assert_eq!(not_ok(&facts), []);
}

#[test]
fn strict_sysctls_and_limits_are_limited() {
    let mut facts = everything();
    facts.overcommit_memory = Some(2);
    facts.max_map_count = Some(1000);
    facts.address_space_bytes.soft = Some(1 << 30);
    facts.huge_pages = Some("never".to_owned());
    facts.ptrace_scope = Some(1);
    facts.cpus = 1;
    assert_eq!(
        named(&not_ok(&facts)),
        [
            ("all verbs", "vm.max_map_count", Status::Limited),
            ("all verbs", "RLIMIT_AS", Status::Limited),
            ("populate", "CPUs", Status::Limited),
            ("populate", "huge pages", Status::Limited),
            ("release", "vm.overcommit_memory", Status::Limited),
            ("figures", "ptrace_scope", Status::Limited),
        ]
    );
    let cpus = only_not_ok(&facts, "CPUs");
    assert_eq!(cpus.found, "1 CPU of 8, by the cgroup's quota");
    facts.cpus_allowed = 1;
    assert!(remedy(&only_not_ok(&facts, "CPUs")).contains("cpuset"));
    facts.huge_pages = Some("always".to_owned());
    facts.huge_page_defrag = Some("never".to_owned());
    assert_eq!(
        only_not_ok(&facts, "huge pages").found,
        "always, defrag never"
    );
    facts.may_trace_anything = true;
    assert!(not_ok(&facts).iter().all(|check| check.verb != "figures"));
}

#[test]
fn missing_proc_leaves_its_own_checks_only() {
    let mut facts = everything();
    facts.proc = false;
    facts.kernel = String::new();
    facts.features.procmap_query = Err(Errno::NOENT);
    facts.features.pagemap_scan = Err(Errno::NOENT);
    facts.features.psi = Err(Errno::NOENT);
    facts.features.memory_cgroup = MemoryCgroup::None;
    facts.pagemap = Err(Errno::NOENT);
    facts.headroom = Err(Error::System {
        call: "reading MemAvailable in /proc/meminfo",
        errno: Errno::NOENT,
    });
    facts.counters_have_a_page = false;
    facts.max_map_count = None;
    facts.swap_bytes = None;
    facts.overcommit_memory = None;
    let missing = not_ok(&facts);
    let missing = missing
        .iter()
        .filter(|check| check.status == Status::Missing);
    let names: Vec<_> = missing.map(|check| check.name).collect();
    assert_eq!(names, ["/proc", "pagemap"]);
    let stall = only_not_ok(&facts, "PSI");
    assert_eq!(remedy(&stall), "mount proc on /proc");
    // Checks that only repeat the absence of /proc are left out.
    let all = checks::all(&facts);
    for name in ["PROCMAP_QUERY", "PAGEMAP_SCAN", "counters"] {
        assert!(all.iter().all(|check| check.name != name), "{name}");
    }
}

#[test]
fn missing_psi_is_limited_with_the_kernel_parameter() {
    let mut facts = everything();
    facts.features.psi = Err(Errno::NOENT);
    let check = only_not_ok(&facts, "PSI");
    assert_eq!(check.status, Status::Limited);
    assert!(remedy(&check).contains("psi=1"), "{check:?}");
}

#[test]
fn missing_psi_triggers_are_limited() {
    let mut facts = everything();
    facts.stall_trigger = Err(Errno::PERM);
    let check = only_not_ok(&facts, "PSI");
    assert_eq!(check.status, Status::Limited);
    assert!(remedy(&check).contains("Linux 6.5"), "{check:?}");
}

#[test]
fn text_fits_80_columns_with_checks_below_their_verb() {
    let mut facts = everything();
    facts.features.userfaultfd = Err(Errno::PERM);
    let text = text::text(&Report::new(&facts));
    for line in text.lines() {
        assert!(line.chars().count() <= 80, "{line}");
    }
    let volatile = text.split_once("\nvolatile\n").unwrap().1;
    let line = volatile.lines().next().unwrap();
    let words: Vec<_> = line.split_whitespace().take(2).collect();
    assert_eq!(words, ["missing", "userfaultfd"]);
}
