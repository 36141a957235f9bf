//! What disturbs the workers: memory that is short, pages that are taken at any
//! moment, and signals.

use std::{
    sync::atomic::Ordering::{Acquire, Relaxed},
    thread,
    time::Duration,
};

use fastrand::Rng;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use tenure::{PageRange, page_size, pressure};

use super::{
    board::{Board, Count, RANGES},
    peek,
    worker::GATE,
};

/// Fills memory and gives it back, in waves.
pub fn make_waves(board: &Board, most_bytes: usize, seed: u64) {
    const PIECE_BYTES: usize = 1 << 20;
    let mut random = Rng::with_seed(seed);
    while !board.stop.load(Acquire) {
        thread::sleep(Duration::from_millis(random.u64(20..300)));
        let len = random
            .usize(most_bytes / 4..=most_bytes)
            .next_multiple_of(PIECE_BYTES);
        let (all, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: new memory, that nobody else uses.
        let Ok(at) = (unsafe { mmap_anonymous(std::ptr::null_mut(), len, all, flags) }) else {
            continue;
        };
        for offset in (0..len).step_by(PIECE_BYTES) {
            let _open = GATE.read();
            for page in (offset..offset + PIECE_BYTES).step_by(page_size()) {
                // SAFETY: inside of what was mapped above.
                unsafe { at.cast::<u8>().add(page).write_volatile(1) };
            }
            thread::sleep(Duration::from_micros(random.u64(..3000)));
        }
        thread::sleep(Duration::from_millis(random.u64(..200)));
        // SAFETY: mapped above, and used by nobody any more.
        let _ = unsafe { munmap(at, len) };
        board.add(Count::BallastWaves, 1);
    }
}

/// Has the kernel take what it may of somebody's memory, also in the middle of
/// everything; and all that is volatile now and then, where nothing else is short.
pub fn take_pages(board: &Board, threads: usize, purge_now_and_then: bool, seed: u64) {
    let mut random = Rng::with_seed(seed);
    while !board.stop.load(Acquire) {
        let place = &board.places[random.usize(..threads)];
        let (start, len) = &place.ranges[random.usize(..RANGES)];
        // What was there may be gone, and others be there: they lose nothing.
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
            board.set(Count::PressureLevel, pressure::level() as u64);
            if purge_now_and_then {
                let _open = GATE.read();
                // What was locked after it was marked cannot be purged.
                let _ = tenure::purge_all();
                board.add(Count::PurgeAll, 1);
            }
        }
        thread::sleep(Duration::from_micros(random.u64(..2000)));
    }
}

/// Interrupts the threads again and again.
pub fn interrupt(board: &Board, threads: usize, seed: u64) {
    let mut random = Rng::with_seed(seed);
    let own_pid = std::process::id().cast_signed();
    while !board.stop.load(Acquire) {
        let thread = board.places[random.usize(..threads)].thread.load(Relaxed);
        if thread != 0 {
            // SAFETY: a number. A thread of this process that has got it since has
            // the same handler, or the signal blocked.
            unsafe { libc::syscall(libc::SYS_tgkill, own_pid, thread, libc::SIGUSR1) };
        }
        thread::sleep(Duration::from_micros(random.u64(50..1500)));
    }
}
