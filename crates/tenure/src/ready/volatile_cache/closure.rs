//! Closures of the caller's, which run while a shard is locked.

use std::cell::Cell;

use super::segment::Process;
use super::shard::Shard;
use super::state::{Cause, Garbage};

thread_local! {
    /// This thread runs a closure of the caller's while it has locked a shard.
    static IN_CLOSURE: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread has locked a shard for a closure.
pub(super) fn is_inside() -> bool {
    IN_CLOSURE.get()
}

fn in_closure<T>(call: impl FnOnce() -> T) -> T {
    struct Leave {
        was_inside: bool,
    }
    impl Drop for Leave {
        fn drop(&mut self) {
            IN_CLOSURE.set(self.was_inside);
        }
    }
    let _leave = Leave {
        was_inside: IN_CLOSURE.replace(true),
    };
    call()
}

impl<K: Eq> Shard<K> {
    /// Removes the values whose keys `keep` refuses. Returns how many. None is removed in a
    /// child that `keep` has forked, or if it panics.
    pub(super) fn retain(&self, process: Process, mut keep: impl FnMut(&K) -> bool) -> usize {
        let mut garbage = Garbage::new();
        let mut state = self.lock();
        state.begin_closures();
        let now = state.now();
        let mut refused = Vec::new();
        for number in state.entries.numbers() {
            let Some(entry) = state.entries.get(number) else {
                continue;
            };
            if state.is_expired(number, now) || !in_closure(|| keep(&entry.key)) {
                refused.push(number);
            }
            if !process.is_this() {
                return 0;
            }
        }
        self.flights.outdate(None, None);
        for number in refused {
            state.give_up(number, Cause::Removed, &mut garbage);
        }
        drop(state);
        garbage.keys.len()
    }

    /// Calls `call` with each key, but not in a child that it has forked.
    pub(super) fn for_each_key(&self, process: Process, mut call: impl FnMut(&K)) {
        let state = self.lock();
        state.begin_closures();
        let now = state.now();
        for number in state.entries.numbers() {
            let is_expired = state.is_expired(number, now);
            if let Some(entry) = state.entries.get(number).filter(|_| !is_expired) {
                in_closure(|| call(&entry.key));
            }
            if !process.is_this() {
                return;
            }
        }
    }
}
