//! A thread whose memory may come to lie wherever there is a hole.

use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const STAMP: u64 = 0x6e65_6967_6862_6f75;

/// Calls `refused` for half a second, beside a thread that maps so many bytes, uses
/// them and unmaps them: just so many that the hole made by a refusal is the next in
/// which they fit. Should they be taken away, the process dies of a signal.
pub fn beside_a_neighbour(bytes: usize, mut refused: impl FnMut()) {
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                map_use_and_unmap(bytes);
            }
        });
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_millis(500) {
            refused();
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
        // At the limit of mappings, for a moment.
        return;
    }
    let word = memory.cast::<u64>();
    for round in 0..200 {
        unsafe { word.write_volatile(STAMP + round) };
        assert_eq!(unsafe { word.read_volatile() }, STAMP + round);
    }
    assert_eq!(unsafe { libc::munmap(memory, bytes) }, 0);
}
