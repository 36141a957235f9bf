//! A thread whose memory the kernel may place in any hole.

use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const MAGIC: u64 = 0x6e65_6967_6862_6f75;

/// Calls `failing` for half a second beside a thread that maps, uses and unmaps `bytes`: a
/// size for which the hole made by a failing call is the next that fits. If the call unmaps
/// the neighbour's memory, the process dies of a signal.
pub fn beside_neighbour(bytes: usize, mut failing: impl FnMut()) {
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                map_use_and_unmap(bytes);
            }
        });
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_millis(500) {
            failing();
        }
        done.store(true, Ordering::Relaxed);
    });
}

fn map_use_and_unmap(bytes: usize) {
    let (prot, flags) = (
        libc::PROT_READ | libc::PROT_WRITE,
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
    );
    let memory = unsafe { libc::mmap(ptr::null_mut(), bytes, prot, flags, -1, 0) };
    if memory == libc::MAP_FAILED {
        // The process is at the mapping limit for a moment.
        return;
    }
    let word = memory.cast::<u64>();
    for round in 0..200 {
        unsafe { word.write_volatile(MAGIC + round) };
        assert_eq!(unsafe { word.read_volatile() }, MAGIC + round);
    }
    assert_eq!(unsafe { libc::munmap(memory, bytes) }, 0);
}
