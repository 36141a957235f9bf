//! Every verb under the seccomp profiles of container runtimes, without capabilities and
//! with a container's limit of locked memory: docs/CONTAINERS.md says what happens.

#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "tests use memory and processes that they have made themselves"
)]

mod common;
#[path = "common/profile.rs"]
mod profile;

use common::*;
use libtest_mimic::Completion;
use tenure::{
    Access, Error, Features, LockMode, Outcome, Residency, SecretBuffer, VolatileBuffer,
    VolatileCache, drain, headroom, lock::LockFlags, pressure, stats, teardown,
};

tests!(
    verbs_work_under_dockers_profile,
    verbs_work_under_the_profile_of_podman_and_cri_o;
    children: use_every_verb,
);

const PROFILE: &str = "TENURE_TEST_PROFILE";
/// The limit that Docker and containerd set where their own service has no limit of its own.
const MEMLOCK_BYTES: u64 = 8 << 20;

fn verbs_work_under_dockers_profile() -> Completion {
    verbs_work_under("docker")
}

fn verbs_work_under_the_profile_of_podman_and_cri_o() -> Completion {
    verbs_work_under("containers-common")
}

fn verbs_work_under(name: &str) -> Completion {
    if profile::Filter::of(profile::profile(name)).is_none() {
        return skip("needs a C compiler, which tells the numbers of system calls");
    }
    let output = in_child_with(PROFILE, name, "use_every_verb");
    assert_ended_well("use_every_verb", &output);
    Completion::Completed
}

fn use_every_verb() {
    let name = std::env::var(PROFILE).unwrap();
    let filter = profile::Filter::of(profile::profile(&name)).unwrap();
    limit_memlock(MEMLOCK_BYTES);
    drop_privileges();
    filter.install();

    // Without the profile the kernel lets everybody move no pages.
    let moved = unsafe { libc::syscall(libc::SYS_move_pages, 0, 0, 0, 0, 0, 0) };
    let error = std::io::Error::last_os_error();
    assert_eq!((moved, error.raw_os_error()), (-1, Some(libc::EPERM)));
    let userfaultfd = Features::get().userfaultfd;
    assert_eq!(userfaultfd, Err(tenure::Errno::PERM));

    populate_and_lock();
    free_lazily_and_release();
    volatile();
    observe();
}

fn populate_and_lock() {
    let memory = anonymous(64);
    memory.populate(.., Access::Write).unwrap();
    assert_eq!(count_present(memory.range()), 64);
    fill(memory.range());
    memory.lock(.., LockMode::Now).unwrap();
    memory.unlock(.., LockFlags::NOW).unwrap();
    memory.lock(.., LockMode::OnFault).unwrap();
    memory.unlock(.., LockFlags::ON_FAULT).unwrap();
    let large = anonymous(2 * MEMLOCK_BYTES as usize / tenure::page_size());
    let error = large.lock(.., LockMode::OnFault).unwrap_err();
    assert!(matches!(error, Error::LockLimit { .. }), "{error}");
    let secret = SecretBuffer::with_max_len(1 << 12).unwrap();
    drop(secret);
}

fn free_lazily_and_release() {
    let memory = anonymous(64);
    fill(memory.range());
    drop(memory.lazy_free().unwrap());
    let mut memory = large();
    memory.discard(..).unwrap();
    fill(memory.range());
    drop(memory);
    drain(None).unwrap();
    assert!(stats().deferred_free.bytes > 0);
}

/// Where userfaultfd is refused tenure alone purges, and reports it as elsewhere.
fn volatile() {
    let mut buffer = VolatileBuffer::new(1 << 20).unwrap();
    buffer.as_mut_slice().unwrap().fill(7);
    buffer.mark_volatile();
    assert!(matches!(
        buffer.mark_nonvolatile().unwrap(),
        Outcome::Intact
    ));
    assert_eq!(buffer.as_slice().unwrap()[5], 7);
    buffer.mark_volatile();
    buffer.purge().unwrap();
    assert!(matches!(
        buffer.mark_nonvolatile().unwrap(),
        Outcome::Purged(_)
    ));
    assert_eq!(buffer.as_slice().unwrap()[5], 0);

    let cache = VolatileCache::new();
    cache.insert(1_u32, &[7; 1 << 16]).unwrap();
    let value = cache.get(&1).expect("memory is not short");
    assert_eq!(value[0], 7);
}

/// The helper of tear-down is a process, and pressure has a thread that watches.
fn observe() {
    teardown::enable().unwrap();
    assert!(teardown::is_enabled());
    let _ = pressure::level();
    assert!(headroom::admit(1 << 20).is_ok());
    assert!(Residency::of_this_process().is_ok());
}
