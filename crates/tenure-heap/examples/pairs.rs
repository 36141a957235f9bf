//! The time of an allocation and its free: pairs on dirty blocks, with 1, 4 and 8
//! threads, beside the system's allocator.
//!
//! ```sh
//! cargo run --release -p tenure-heap --example pairs
//! ```

use std::alloc::{GlobalAlloc, Layout, System};
use std::thread;

use tenure_heap::Heap;

const PAIRS: usize = 1_000_000;
const SIZES: [usize; 4] = [256 << 10, 512 << 10, 1 << 20, 2 << 20];

fn main() {
    println!("nanoseconds for a pair; a byte of each block is written");
    println!(
        "{:>8} {:>9} {:>8} {:>8}",
        "threads", "bytes", "tenure", "system"
    );
    for threads in [1, 4, 8] {
        for size in SIZES {
            let tenure = time(&Heap(System), threads, size, PAIRS);
            // The system unmaps large blocks, which takes a hundred times as long.
            let system = time(&System, threads, size, PAIRS / 50);
            println!("{threads:>8} {size:>9} {tenure:>8.1} {system:>8.1}");
        }
    }
}

/// Returns the nanoseconds of processor time for a pair.
fn time(allocator: &(impl GlobalAlloc + Sync), threads: usize, size: usize, pairs: usize) -> f64 {
    let layout = Layout::from_size_align(size, 16).expect("a valid layout");
    let work = || {
        let before = thread_nanos();
        for _ in 0..pairs {
            // SAFETY: the block has `size` bytes and is freed once.
            unsafe {
                let block = allocator.alloc(layout);
                block.write_volatile(1);
                allocator.dealloc(block, layout);
            }
        }
        thread_nanos() - before
    };
    let nanos: f64 = thread::scope(|scope| {
        let started: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let nanos = started.into_iter().map(|thread| thread.join());
        nanos.map(|nanos| nanos.expect("no panic")).sum()
    });
    nanos / (threads * pairs) as f64
}

/// Returns how long this thread has run.
fn thread_nanos() -> f64 {
    let clock = rustix::time::ClockId::ThreadCPUTime;
    let time = rustix::time::clock_gettime(clock);
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}
