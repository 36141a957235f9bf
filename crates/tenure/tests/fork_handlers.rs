//! Fork handlers of other code may use every verb: in all phases of a fork, and whether
//! they were registered before tenure's handlers or after them.

#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "the test forks while others use tenure"
)]

mod common;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use common::*;
use tenure::{
    Access, LockMode, Mapping, Outcome, SecretBuffer, VolatileBuffer, VolatileCache, drain,
    lazy_free::FreePolicy, lock::LockFlags, page_size, populate::PopulateOptions,
};

tests!(
    fork_handlers_around_tenures_can_use_every_verb,
    fork_handlers_that_fork_leave_tenure_consistent;
    children: fork_with_handlers, fork_in_handlers
);

const MIB: usize = 1 << 20;
const FORKS: usize = 200;
const LIMIT: Duration = Duration::from_secs(120);
/// A child that hangs is ended after this time.
const MAX_SECONDS: u32 = 30;

/// Runs before tenure's own entry in `.init_array`, which has no number.
#[used]
#[unsafe(link_section = ".init_array.00100")]
static BEFORE_TENURE: extern "C" fn() = register_handlers;

extern "C" fn register_handlers() {
    extern "C" fn handler() {
        if IS_ACTIVE.load(Relaxed) {
            HANDLED.fetch_add(1, Relaxed);
            HANDLER.get().unwrap()();
        }
    }
    let handler = Some(handler as unsafe extern "C" fn());
    assert_eq!(
        unsafe { libc::pthread_atfork(handler, handler, handler) },
        0
    );
}

/// Whether the handlers do anything.
static IS_ACTIVE: AtomicBool = AtomicBool::new(false);
static HANDLED: AtomicUsize = AtomicUsize::new(0);
static HANDLER: OnceLock<fn()> = OnceLock::new();

fn fork_handlers_around_tenures_can_use_every_verb() {
    in_child_within(LIMIT, "fork_with_handlers");
}

fn fork_handlers_that_fork_leave_tenure_consistent() {
    in_child_within(LIMIT, "fork_in_handlers");
}

/// Volatile memory of the forking thread, most of it offered.
static BUFFERS: Mutex<Vec<VolatileBuffer>> = Mutex::new(Vec::new());
static RANGE: OnceLock<Mapping> = OnceLock::new();
static CACHE: OnceLock<VolatileCache<usize>> = OnceLock::new();

/// Returns a volatile buffer with a pattern, which the kernel may purge from now on.
fn offered() -> VolatileBuffer {
    let mut buffer = VolatileBuffer::new(16 * page_size()).unwrap();
    fill(buffer.range());
    buffer.mark_volatile();
    buffer
}

/// Makes the buffer nonvolatile, and checks that it has lost nothing without a report.
fn check(mut buffer: VolatileBuffer) {
    if buffer.mark_nonvolatile().unwrap() == Outcome::Intact {
        assert!(is_filled(buffer.range()), "zeros pass for contents");
    }
}

fn check_range() {
    let range = RANGE.get().unwrap().range();
    if unsafe { range.mark_nonvolatile() }.unwrap() == Outcome::Intact {
        assert!(is_filled(range), "zeros pass for contents");
    }
    fill(range);
    unsafe { range.mark_volatile() }.unwrap();
}

fn use_inherited() {
    let mut buffers = BUFFERS.lock().unwrap();
    drop(buffers.pop().unwrap());
    check(buffers.pop().unwrap());
    buffers.insert(0, offered());
    buffers.insert(0, offered());
    drop(buffers);
    check_range();
}

/// Uses the verbs with memory of its own.
fn use_verbs() {
    let memory = Mapping::anonymous(64 * MIB).map().unwrap();
    unsafe { memory.as_ptr().add(32 * MIB).write(1) };
    drop(memory);
    check(offered());
    let cache = CACHE.get().unwrap();
    for key in 0..4 {
        match cache.get(&key) {
            Some(value) => assert!(value.iter().all(|&byte| byte == key as u8 + 1)),
            None => cache.insert(key, &[key as u8 + 1; 9000]).unwrap(),
        }
    }
    cache.remove(&fastrand::usize(..4));
    let memory = anonymous(8);
    if memory.lock(.., LockMode::OnFault).is_ok() {
        memory.unlock(.., LockFlags::ALL).unwrap();
    }
    let options = PopulateOptions::new(Access::Write).threads(2);
    memory.populate_with(.., &options).unwrap();
    assert_eq!(count_present(memory.range()), 8);
    unsafe { memory.range().free(FreePolicy::Adaptive) }.unwrap();
    let _ = memory.range().residency();
    drop(SecretBuffer::with_max_len(100));
    let _ = tenure::pressure::subscribe(|_| ()).map(drop);
}

fn handle() {
    use_inherited();
    use_verbs();
    // A worker may have to be waited for in the middle of the fork.
    drain(Some(Duration::from_secs(20))).unwrap();
}

fn begin(handler: fn()) {
    HANDLER.set(handler).unwrap();
    // After tenure's, too.
    register_handlers();
    // Marking offers at once.
    tenure::volatile::set_offer_delay(Duration::ZERO);
    CACHE.get_or_init(VolatileCache::new);
    let range = RANGE.get_or_init(|| anonymous(16)).range();
    fill(range);
    unsafe { range.mark_volatile() }.unwrap();
    *BUFFERS.lock().unwrap() = (0..12).map(|_| offered()).collect();
}

fn check_all() {
    check_range();
    let buffers = std::mem::take(&mut *BUFFERS.lock().unwrap());
    assert_eq!(buffers.len(), 12);
    buffers.into_iter().for_each(check);
    *BUFFERS.lock().unwrap() = (0..12).map(|_| offered()).collect();
}

fn fork_with_handlers() {
    begin(handle);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.load(Relaxed) {
                    use_verbs();
                }
            });
        }
        for at in 0..FORKS / slowness() as usize {
            page_out(BUFFERS.lock().unwrap()[at % 12].range());
            HANDLED.store(0, Relaxed);
            IS_ACTIVE.store(true, Relaxed);
            let status = fork(|| {
                IS_ACTIVE.store(false, Relaxed);
                unsafe { libc::alarm(MAX_SECONDS) };
                check_all();
                use_verbs();
                drain(Some(Duration::from_secs(20))).unwrap();
                i32::from(HANDLED.load(Relaxed) != 4)
            });
            IS_ACTIVE.store(false, Relaxed);
            if status != 0 || HANDLED.load(Relaxed) != 4 {
                stop.store(true, Relaxed);
            }
            assert_eq!((status, HANDLED.load(Relaxed)), (0, 4), "child {at}");
            check_all();
        }
        stop.store(true, Relaxed);
    });
}

fn fork_in_handlers() {
    begin(|| {
        IS_ACTIVE.store(false, Relaxed);
        use_inherited();
        assert_eq!(
            fork(|| i32::from(std::panic::catch_unwind(check_all).is_err())),
            0
        );
        use_inherited();
        IS_ACTIVE.store(true, Relaxed);
    });
    for at in 0..FORKS / 10 {
        IS_ACTIVE.store(true, Relaxed);
        let status = fork(|| {
            IS_ACTIVE.store(false, Relaxed);
            unsafe { libc::alarm(MAX_SECONDS) };
            check_all();
            use_verbs();
            0
        });
        IS_ACTIVE.store(false, Relaxed);
        assert_eq!(status, 0, "child {at}");
        check_all();
    }
}
