//! A gate that forks of Python wait at.
//!
//! A child in which another thread's lock is held would wait for it for ever. So
//! `os.fork` waits until no thread is inside a call that takes a lock of this crate without
//! the GIL (the package registers the functions with `os.register_at_fork`). A thread that
//! takes one with the GIL needs no gate, and must not wait at it: the thread that forks
//! has the GIL. A fork that runs no handlers of Python executes another program at once.

use std::{
    cell::RefCell,
    sync::{PoisonError, RwLock, RwLockWriteGuard},
};

use pyo3::prelude::*;

static GATE: RwLock<()> = RwLock::new(());

/// The closed gate of a thread that forks, and how often it has closed it: a program that imports
/// the package again registers the functions again.
#[derive(Default)]
struct Closed {
    guard: Option<RwLockWriteGuard<'static, ()>>,
    count: usize,
}

thread_local! {
    static CLOSED: RefCell<Closed> = RefCell::default();
}

/// Runs `work` without the GIL, and keeps forks away meanwhile. The work may take locks of
/// this crate, and must not take the GIL.
pub fn detached<T: Send>(py: Python<'_>, work: impl FnOnce() -> T + Send) -> T {
    py.detach(|| {
        let _inside = GATE.read().unwrap_or_else(PoisonError::into_inner);
        work()
    })
}

/// Closes the gate: waits for the threads inside.
#[pyfunction]
pub fn before_fork(py: Python<'_>) {
    py.detach(|| {
        CLOSED.with_borrow_mut(|closed| {
            let close = || GATE.write().unwrap_or_else(PoisonError::into_inner);
            closed.guard.get_or_insert_with(close);
            closed.count += 1;
        });
    });
}

/// Opens the gate again, in the parent and in the child.
#[pyfunction]
pub fn after_fork() {
    CLOSED.with_borrow_mut(|closed| {
        closed.count = closed.count.saturating_sub(1);
        if closed.count == 0 {
            closed.guard = None;
        }
    });
}
