//! The memory that the soaked process shares with its supervisor: counters, the last
//! operations of each thread, and the first failure. It is made of atomics, because the
//! supervisor reads it after the soaked process was killed, and forked children write to
//! it without a lock.

use std::fs::File;
use std::os::fd::{FromRawFd as _, IntoRawFd as _};
use std::sync::atomic::Ordering::*;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize};
use std::{fmt, io, ptr};

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::mm::{MapFlags, ProtFlags};

use super::MAX_THREADS;
use super::model::Checked;
use super::step::{COUNTS, Count, VERBS};
use super::verbs::ERRORS;

/// How many of its last operations the board keeps of each thread.
pub const RECENT_OPERATIONS: usize = 12;

/// How many ranges each thread publishes.
pub const RANGES: usize = 64;

#[repr(C)]
struct Text<const N: usize> {
    is_taken: AtomicBool,
    len: AtomicUsize,
    bytes: [AtomicU8; N],
}

impl<const N: usize> Text<N> {
    fn set(&self, text: &str) {
        self.len.store(0, Release);
        let len = text.len().min(N);
        for (to, &byte) in self.bytes.iter().zip(&text.as_bytes()[..len]) {
            to.store(byte, Relaxed);
        }
        self.len.store(len, Release);
    }

    fn set_once(&self, text: &str) {
        if !self.is_taken.swap(true, AcqRel) {
            self.set(text);
        }
    }

    fn get(&self) -> String {
        let bytes = self.bytes[..self.len.load(Acquire)].iter();
        let bytes: Vec<u8> = bytes.map(|byte| byte.load(Relaxed)).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

/// The state of one thread.
#[repr(C)]
pub struct ThreadState {
    /// How many operations it has begun.
    pub begun: AtomicU64,
    /// Its thread ID; 0 while there is no such thread.
    pub tid: AtomicU32,
    recent: [Text<200>; RECENT_OPERATIONS],
    /// Start and length of the ranges that it holds.
    pub ranges: [(AtomicUsize, AtomicUsize); RANGES],
}

#[repr(C)]
pub struct Board {
    /// Tells the threads to end.
    pub stop: AtomicBool,
    /// The warm-up is over.
    pub has_begun: AtomicBool,
    /// The sum of the digests of the threads' first operations.
    pub digest: AtomicU64,
    pub pressure_level: AtomicU64,
    pub counts: [AtomicU64; COUNTS.len()],
    pub verbs: [AtomicU64; VERBS.len()],
    pub expected_errors: [AtomicU64; ERRORS.len()],
    failure: Text<4000>,
    pub threads: [ThreadState; MAX_THREADS],
}

impl Board {
    /// Creates a board and the file through which the soaked process finds it.
    pub fn create() -> io::Result<(&'static Self, File)> {
        // Without MFD_CLOEXEC, because the soaked process inherits it.
        let file = File::from(memfd_create("tenure-soak", MemfdFlags::empty())?);
        file.set_len(size_of::<Self>() as u64)?;
        Ok((Self::map(&file)?, file))
    }

    /// Maps the board behind an inherited descriptor.
    pub fn open(descriptor: i32) -> io::Result<&'static Self> {
        // SAFETY: the supervisor opened the descriptor for this process, and no other
        // code of this process uses it.
        let file = unsafe { File::from_raw_fd(descriptor) };
        let board = Self::map(&file);
        // The descriptor stays open, because the comparison of descriptors before and
        // after the run would miss one that takes its number.
        let _ = file.into_raw_fd();
        board
    }

    fn map(file: &File) -> io::Result<&'static Self> {
        let len = size_of::<Self>();
        if file.metadata()?.len() < len as u64 {
            return Err(io::Error::other("not a board"));
        }
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses the place, so that the mapping replaces nothing.
        let at =
            unsafe { rustix::mm::mmap(ptr::null_mut(), len, access, MapFlags::SHARED, file, 0) }?;
        // SAFETY: the file is as long as the board and the mapping is never unmapped; all
        // fields are atomics, for which zeros are valid.
        Ok(unsafe { &*at.cast::<Self>() })
    }

    pub fn add(&self, count: Count, number: u64) {
        self.counts[count.index()].fetch_add(number, Relaxed);
    }

    pub fn set(&self, count: Count, number: u64) {
        self.counts[count.index()].store(number, Relaxed);
    }

    pub fn get(&self, count: Count) -> u64 {
        self.counts[count.index()].load(Relaxed)
    }

    /// Sets all counters and the digest to 0.
    pub fn clear_counts(&self) {
        let counts = self.counts.iter().chain([&self.digest]);
        for count in counts.chain(&self.verbs).chain(&self.expected_errors) {
            count.store(0, Relaxed);
        }
    }

    /// Records that a thread begins an operation.
    pub fn begin(&self, thread: usize, operation: &impl fmt::Debug) {
        let thread = &self.threads[thread];
        let number = thread.begun.load(Relaxed);
        thread.recent[number as usize % RECENT_OPERATIONS].set(&format!("{operation:?}"));
        thread.begun.store(number + 1, Release);
    }

    /// Returns the last operations of a thread, in order.
    pub fn recent(&self, thread: usize) -> Vec<String> {
        let thread = &self.threads[thread];
        let begun = thread.begun.load(Acquire);
        let first = begun.saturating_sub(RECENT_OPERATIONS as u64);
        let text = |number: u64| thread.recent[number as usize % RECENT_OPERATIONS].get();
        (first..begun).map(text).collect()
    }

    /// Records a failed check, if it is the first one, and tells the threads to end.
    pub fn check(&self, who: &str, result: Checked) {
        if let Err(text) = result {
            self.failure.set_once(&format!("{who}: {text}"));
            self.stop.store(true, Release);
        }
    }

    pub fn failure(&self) -> Option<String> {
        Some(self.failure.get()).filter(|text| !text.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn board_opened_twice_shows_operations_and_keeps_the_first_failure() {
        let (board, file) = Board::create().unwrap();
        let other = Board::open(file.into_raw_fd()).unwrap();
        for number in 0..30 {
            other.begin(1, &number);
        }
        let recent = board.recent(1);
        assert_eq!(recent.len(), RECENT_OPERATIONS);
        assert_eq!(recent[RECENT_OPERATIONS - 1], "29");
        assert!(board.recent(0).is_empty());
        assert_eq!(board.failure(), None);
        other.check("thread 1", Err("first".to_owned()));
        other.check("thread 2", Err("second".to_owned()));
        assert_eq!(board.failure().unwrap(), "thread 1: first");
        assert!(board.stop.load(Acquire));
    }
}
