//! Numbers of threads, for counters in shards that threads do not share.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Returns the shard of the calling thread, out of `count`. Threads take turns, so as many
/// threads as there are shards share none.
pub(crate) fn shard_of_thread(count: usize) -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local!(static NUMBER: Cell<usize> = const { Cell::new(usize::MAX) });
    // A thread that is ending has no thread-local variables any more.
    let number = NUMBER.try_with(|number| {
        if number.get() == usize::MAX {
            number.set(NEXT.fetch_add(1, Ordering::Relaxed));
        }
        number.get()
    });
    number.unwrap_or(0) % count
}
