//! Kernels and containers that lack a feature, as real ones do: each operation runs in a
//! process to which the kernel answers as if the feature were missing. Each works as
//! documented, or returns the documented error.

use std::collections::BTreeMap;

use libc::{EINVAL, ENOENT, ENOSYS, ENOTTY, EOPNOTSUPP, EPERM};
use libtest_mimic::{Completion, Failed};

use super::case::Case;
use super::control::Control;
use super::operations;
use super::state;
use super::supervisor::{Seen, supervise};

/// A missing feature.
pub struct Missing {
    pub name: &'static str,
    /// Returns the error of a call that needs the feature.
    answer: fn(&Seen) -> Option<i32>,
    /// The operations that fail, and with which error; all others work.
    refusals: &'static [(&'static str, &'static str)],
}

fn call(seen: &Seen, name: &str, errno: i32) -> Option<i32> {
    seen.call.name.starts_with(name).then_some(errno)
}

fn file(seen: &Seen, part: &str, errno: i32) -> Option<i32> {
    let is_opened = ["open", "access", "faccessat", "stat"]
        .iter()
        .any(|name| seen.call.name.starts_with(name));
    let is_it = seen
        .call
        .file
        .as_ref()
        .is_some_and(|path| path.contains(part));
    (is_opened && is_it).then_some(errno)
}

fn userfaultfd(seen: &Seen, errno: i32) -> Option<i32> {
    call(seen, "userfaultfd", errno).or_else(|| file(seen, "/dev/userfaultfd", ENOENT))
}

fn psi(seen: &Seen, errno: i32) -> Option<i32> {
    file(seen, "/proc/pressure", errno).or_else(|| file(seen, "memory.pressure", errno))
}

fn mlock2(seen: &Seen) -> Option<i32> {
    call(seen, "mlock2", ENOSYS)
}

fn everything(seen: &Seen) -> Option<i32> {
    userfaultfd(seen, EPERM)
        .or_else(|| call(seen, "madvise(MADV_POPULATE", EINVAL))
        .or_else(|| call(seen, "madvise(MADV_GUARD", EINVAL))
        .or_else(|| call(seen, "madvise(MADV_DONTNEED_LOCKED", EINVAL))
        .or_else(|| call(seen, "ioctl(PAGEMAP_SCAN", ENOTTY))
        .or_else(|| call(seen, "ioctl(PROCMAP_QUERY", ENOTTY))
        .or_else(|| call(seen, "mremap", EPERM))
        .or_else(|| psi(seen, ENOENT))
        .or_else(|| call(seen, "pidfd_open", ENOSYS))
        .or_else(|| call(seen, "prctl(PR_SET_VMA", EINVAL))
        .or_else(|| call(seen, "memfd_secret", ENOSYS))
        .or_else(|| call(seen, "process_vm_readv", EPERM))
}

/// A strategy that is requested by name is not replaced by another, and the pool populates.
const WITHOUT_POPULATE: &[(&str, &str)] = &[
    ("pool_configure", "Unsupported"),
    ("populate_allocated", "Unsupported"),
    ("populate_file_ahead", "Unsupported"),
    ("populate_read_then_write", "Unsupported"),
];

pub const ALL: &[Missing] = &[
    Missing {
        name: "without_userfaultfd_as_docker_refuses_it",
        answer: |seen| userfaultfd(seen, EPERM),
        refusals: &[],
    },
    Missing {
        name: "without_userfaultfd",
        answer: |seen| userfaultfd(seen, ENOSYS),
        refusals: &[],
    },
    Missing {
        name: "without_madv_populate",
        answer: |seen| call(seen, "madvise(MADV_POPULATE", EINVAL),
        refusals: WITHOUT_POPULATE,
    },
    Missing {
        name: "without_pagemap_scan",
        answer: |seen| call(seen, "ioctl(PAGEMAP_SCAN", ENOTTY),
        refusals: &[],
    },
    Missing {
        name: "without_procmap_query",
        answer: |seen| call(seen, "ioctl(PROCMAP_QUERY", ENOTTY),
        refusals: &[],
    },
    Missing {
        name: "without_mremap",
        answer: |seen| call(seen, "mremap", EPERM),
        refusals: &[("pool_configure", "Unsupported")],
    },
    Missing {
        name: "without_mremap_dontunmap",
        answer: |seen| call(seen, "mremap(MREMAP_DONTUNMAP", EINVAL),
        refusals: &[("pool_configure", "Unsupported")],
    },
    Missing {
        name: "without_psi",
        answer: |seen| psi(seen, ENOENT),
        refusals: &[],
    },
    Missing {
        name: "with_psi_switched_off",
        answer: |seen| psi(seen, EOPNOTSUPP),
        refusals: &[],
    },
    Missing {
        name: "without_mlock2",
        answer: mlock2,
        refusals: &[
            ("lock_in_chunks", "System"),
            ("lock_on_fault", "System"),
            ("lock_over_other_mode", "System"),
            ("locked_file", "System"),
            ("locked_file_with_budget", "System"),
            ("map_locked_on_fault", "System"),
            ("mmap_request", "System"),
            ("secret_buffer", "System"),
            ("unlock_all_beside_kept", "System"),
            ("unlock_one_mode", "System"),
        ],
    },
    Missing {
        // Linux 5.9: no thread has a descriptor table of its own.
        name: "without_close_range",
        answer: |seen| call(seen, "close_range", ENOSYS),
        refusals: &[
            ("admit_first_without_descriptors", "System"),
            ("admit_refused_without_descriptors", "System"),
            ("headroom_without_descriptors", "System"),
            ("teardown", "Unsupported"),
        ],
    },
    Missing {
        name: "without_pidfd_open",
        answer: |seen| call(seen, "pidfd_open", ENOSYS),
        refusals: &[("teardown", "Unsupported")],
    },
    Missing {
        name: "without_names_for_memory",
        answer: |seen| call(seen, "prctl(PR_SET_VMA", EINVAL),
        refusals: &[],
    },
    Missing {
        name: "without_guard_regions",
        answer: |seen| call(seen, "madvise(MADV_GUARD", EINVAL),
        refusals: &[],
    },
    Missing {
        name: "without_process_vm_readv",
        answer: |seen| call(seen, "process_vm_readv", EPERM),
        refusals: &[],
    },
    Missing {
        name: "without_any_of_these",
        answer: everything,
        refusals: &[
            ("pool_configure", "Unsupported"),
            ("populate_allocated", "Unsupported"),
            ("populate_file_ahead", "Unsupported"),
            ("populate_read_then_write", "Unsupported"),
            ("teardown", "Unsupported"),
        ],
    },
];

/// Runs every operation without the feature. Returns how many there were.
pub fn all_operations(missing: &'static Missing) -> Result<(usize, Completion), Failed> {
    let control = Control::new();
    let mut failures = Vec::new();
    let mut refusals = BTreeMap::new();
    for operation in operations::ALL.iter() {
        let body = || {
            control
                .is_armed
                .store(true, std::sync::atomic::Ordering::SeqCst);
            (operation.run)(&Case::of_missing(control));
            state::wait_until_idle();
        };
        let ended = match supervise(control, body, |seen| (missing.answer)(seen)) {
            Ok(ended) => ended,
            Err(reason) => return Ok((0, Completion::ignored_with(reason))),
        };
        if let Some(problem) = ended.problem {
            failures.push(format!("{}: {problem}", operation.name));
        }
        if !ended.report.is_empty() {
            refusals.insert(operation.name, ended.report);
        }
    }
    let wanted = missing
        .refusals
        .iter()
        .map(|&(name, how)| (name, how.to_owned()));
    let wanted: BTreeMap<_, _> = wanted.collect();
    if refusals != wanted {
        failures.push(format!("the operations that fail are {refusals:#?}"));
    }
    match failures.is_empty() {
        true => Ok((operations::ALL.len(), Completion::Completed)),
        false => Err(failures.join("\n").into()),
    }
}
