//! The disturbances: short memory, pages reclaimed at any moment, and signals.

use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::time::Duration;
use std::{ptr, thread};

use fastrand::Rng;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use tenure::{PageRange, page_size, pressure};

use super::board::{Board, RANGES};
use super::peek;
use super::step::Count;
use super::worker::GATE;

/// Fills memory and unmaps it, in waves.
pub fn make_waves(board: &Board, max_bytes: usize, seed: u64) {
    const PIECE_BYTES: usize = 1 << 20;
    let mut random = Rng::with_seed(seed);
    while !board.stop.load(Acquire) {
        thread::sleep(Duration::from_millis(random.u64(20..300)));
        let len = random
            .usize(max_bytes / 4..=max_bytes)
            .next_multiple_of(PIECE_BYTES);
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses the place, so that the mapping replaces nothing.
        let mapped = unsafe { mmap_anonymous(ptr::null_mut(), len, access, MapFlags::PRIVATE) };
        let Ok(at) = mapped else {
            continue;
        };
        for offset in (0..len).step_by(PIECE_BYTES) {
            let _open = GATE.read();
            for page in (offset..offset + PIECE_BYTES).step_by(page_size()) {
                // SAFETY: the byte lies in the mapping made above.
                unsafe { at.cast::<u8>().add(page).write_volatile(1) };
            }
            thread::sleep(Duration::from_micros(random.u64(..3000)));
        }
        thread::sleep(Duration::from_millis(random.u64(..200)));
        // SAFETY: the mapping was made above, and nothing else knows of it.
        let _ = unsafe { munmap(at, len) };
        board.add(Count::PressureWaves, 1);
    }
}

/// Reclaims pages of random slots (MADV_PAGEOUT), also in the middle of their owners'
/// operations, and with `purges` all volatile memory now and then.
pub fn reclaim_pages(board: &Board, threads: usize, purges: bool, seed: u64) {
    let mut random = Rng::with_seed(seed);
    while !board.stop.load(Acquire) {
        let thread = &board.threads[random.usize(..threads)];
        let (start, len) = &thread.ranges[random.usize(..RANGES)];
        // Other memory may have replaced the range meanwhile, and loses nothing.
        if let Ok(range) = PageRange::new(start.load(Relaxed), len.load(Relaxed))
            && !range.is_empty()
        {
            let first = random.usize(..range.pages());
            let count = random.usize(1..=range.pages() - first).min(200);
            let start = range.start() + first * page_size();
            if let Ok(part) = PageRange::new(start, count * page_size()) {
                peek::page_out(part);
                board.add(Count::PageOuts, 1);
            }
        }
        if random.usize(..500) == 0 {
            let level = pressure::level() as u64;
            board.pressure_level.store(level, Relaxed);
            if purges {
                let _open = GATE.read();
                // The call fails where memory was locked after it was marked.
                let _ = tenure::volatile::purge_all();
                board.add(Count::PurgeAllCalls, 1);
            }
        }
        thread::sleep(Duration::from_micros(random.u64(..2000)));
    }
}

/// Interrupts random threads with SIGUSR1.
pub fn interrupt(board: &Board, threads: usize, seed: u64) {
    let mut random = Rng::with_seed(seed);
    let own_pid = std::process::id().cast_signed();
    while !board.stop.load(Acquire) {
        let tid = board.threads[random.usize(..threads)].tid.load(Relaxed);
        if tid != 0 {
            // SAFETY: the call takes numbers. Another thread of this process that got
            // the number since has the same handler, or blocks the signal.
            unsafe { libc::syscall(libc::SYS_tgkill, own_pid, tid, libc::SIGUSR1) };
        }
        thread::sleep(Duration::from_micros(random.u64(50..1500)));
    }
}
