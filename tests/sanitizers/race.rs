//! Two threads add to one number without order between them: `cargo xtask test --tsan`
//! wants a report of it before it trusts that other programs have none.

use std::cell::UnsafeCell;
use std::thread;

struct Racy(UnsafeCell<u32>);

// SAFETY: none, on purpose: the data race that ThreadSanitizer has to report.
unsafe impl Sync for Racy {}

static NUMBER: Racy = Racy(UnsafeCell::new(0));

fn main() {
    let threads = [(); 2].map(|()| {
        thread::spawn(|| {
            // SAFETY: as above.
            unsafe { *NUMBER.0.get() += 1 };
        })
    });
    for thread in threads {
        thread.join().unwrap();
    }
}
