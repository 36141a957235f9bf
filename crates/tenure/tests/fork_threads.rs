//! A forked child can start tenure's threads, at whatever moment it was forked.

#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "the test forks while others start threads"
)]

mod common;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::*;
use tenure::{
    Access, LockMode, Mapping, SecretBuffer, VolatileBuffer, drain, lazy_free::FreePolicy,
    lock::LockFlags, page_size, populate::PopulateOptions,
};

tests!(
    child_forked_during_thread_starts_starts_its_own_threads,
    child_forked_during_first_calls_can_use_every_verb;
    children: fork_while_threads_start, fork_during_first_calls
);

const MIB: usize = 1 << 20;
const FORKS: usize = 200;
/// A child that hangs is ended after this time.
const MAX_SECONDS: u32 = 30;

/// Runs in a process of its own, in which no other test starts threads.
fn child_forked_during_thread_starts_starts_its_own_threads() {
    in_child_ok("fork_while_threads_start");
}

fn fork_while_threads_start() {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    std::thread::spawn(|| ()).join().unwrap();
                }
            });
        }
        for at in 0..FORKS {
            let status = fork(|| {
                unsafe { libc::alarm(MAX_SECONDS) };
                use_threads();
                0
            });
            if status != 0 {
                stop.store(true, Ordering::Relaxed);
            }
            assert_eq!(status, 0, "child {at}");
        }
        stop.store(true, Ordering::Relaxed);
    });
}

/// Uses the threads of populate and of release, and the offer thread.
fn use_threads() {
    let memory = Mapping::anonymous(8 * MIB).map().unwrap();
    let options = PopulateOptions::new(Access::Write).threads(2);
    memory.populate_with(.., &options).unwrap();
    assert_eq!(count_present(memory.range()), 8 * MIB / page_size());
    drop(memory);
    let mut buffer = VolatileBuffer::new(MIB).unwrap();
    buffer.mark_volatile();
    drain(Some(Duration::from_secs(20))).unwrap();
    let outcome = buffer.mark_nonvolatile().unwrap();
    assert!(
        buffer.as_slice().unwrap().iter().all(|&byte| byte == 0),
        "{outcome:?}"
    );
}

/// Runs in fresh processes: nothing is prepared, and each verb is called for the first
/// time.
fn child_forked_during_first_calls_can_use_every_verb() {
    for _ in 0..60 {
        in_child_ok("fork_during_first_calls");
    }
}

fn fork_during_first_calls() {
    let begin = std::sync::Barrier::new(3);
    let delay = fastrand::u64(0..400);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                begin.wait();
                call_each_verb();
            });
        }
        begin.wait();
        let forked = std::time::Instant::now() + Duration::from_micros(delay);
        while std::time::Instant::now() < forked {
            std::hint::spin_loop();
        }
        let status = fork(|| {
            unsafe { libc::alarm(MAX_SECONDS) };
            call_each_verb();
            0
        });
        assert_eq!(status, 0, "forked after {delay} µs");
    });
}

fn call_each_verb() {
    let _ = tenure::pressure::subscribe(|_| ()).map(drop);
    let memory = anonymous(64);
    memory.populate(.., Access::Write).unwrap();
    unsafe { memory.range().free(FreePolicy::Adaptive) }.unwrap();
    memory.range().reuse();
    fill(memory.range());
    if memory.lock(.., LockMode::OnFault).is_ok() {
        memory.unlock(.., LockFlags::ALL).unwrap();
    }
    let mut buffer = VolatileBuffer::new(MIB).unwrap();
    buffer.mark_volatile();
    drop(buffer.mark_nonvolatile().unwrap());
    drop(SecretBuffer::with_max_len(100));
    let _ = memory.range().residency();
    memory.munmap_sync().unwrap();
    drain(Some(Duration::from_secs(20))).unwrap();
}
