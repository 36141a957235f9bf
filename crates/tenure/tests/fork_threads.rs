//! A child has tenure's threads, at whatever moment it was forked.

#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "the test forks while others start threads"
)]

mod common;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::*;
use tenure::{Access, Mapping, PopulateOptions, VolatileBuffer, drain, page_size};

tests!(
    a_child_forked_while_threads_start_has_its_own;
    children: fork_while_threads_start
);

const MIB: usize = 1 << 20;
const FORKS: usize = 200;
/// A child that waits for ever is ended after this.
const AT_MOST_SECONDS: u32 = 30;

/// In a process of its own: no other test starts threads in it.
fn a_child_forked_while_threads_start_has_its_own() {
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
                unsafe { libc::alarm(AT_MOST_SECONDS) };
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

/// Those of populate, of release, and the keeper.
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
