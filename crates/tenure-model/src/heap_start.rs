//! A thread that starts the heap, and one that frees a block of another allocator.

use loom::sync::Arc;
use loom::thread;

use crate::addresses::Addresses;
use crate::check;
use crate::sync::AtomicUsize;

const BASE: usize = 1 << 40;
const BYTES: usize = 44 << 40;

/// An address outside the heap is at no time the heap's.
pub fn address_outside_is_not_owned_during_start() {
    check(|| {
        let none = || AtomicUsize::new(0);
        let heap = Arc::new(Addresses::none(none(), none()));
        let starting = {
            let heap = heap.clone();
            thread::spawn(move || heap.set(BASE, BYTES))
        };
        assert!(!heap.contains(BASE - 1));
        starting.join().unwrap();
        assert!(heap.contains(BASE) && !heap.contains(BASE + BYTES));
    });
}
