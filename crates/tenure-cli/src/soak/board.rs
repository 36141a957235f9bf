//! What the process that is soaked and the one that watches it both see: counts,
//! the last operations of each thread, and what is wrong. It is there also when
//! the one has been killed, and a forked child writes to it without a lock.

use std::{
    fmt,
    fs::File,
    io,
    os::fd::{AsRawFd as _, FromRawFd as _, IntoRawFd as _},
    sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering::*},
};

use rustix::{
    fs::{MemfdFlags, memfd_create},
    mm::{MapFlags, ProtFlags},
};

use super::{MOST_THREADS, model::Wrong, step::VERBS};

/// How many of its last operations are known of each thread.
pub const RING: usize = 12;

/// How many ranges each thread tells the others of.
pub const RANGES: usize = 64;

/// What is counted beside the operations.
#[derive(Clone, Copy, Debug)]
#[repr(usize)]
pub enum Count {
    PagesChecked,
    Forks,
    PagesCheckedByChildren,
    Signals,
    PagesLost,
    Intact,
    PageOuts,
    PurgeAll,
    BallastWaves,
    Waits,
    PressureLevel,
    PendingBytes,
    MappingsBefore,
    MappingsAfter,
    DescriptorsBefore,
    DescriptorsAfter,
    Digest,
    Last,
}

/// Errors that an operation may rightly answer, by name.
pub const REFUSALS: [&str; 15] = [
    "locked",
    "wrong_kind",
    "lock_limit",
    "process_lock_limit",
    "no_memory",
    "no_backing",
    "no_access",
    "cancelled",
    "purged",
    "volatile",
    "unsupported",
    "arena_full",
    "no_room",
    "out_of_bounds",
    "other",
];

/// A text that is written once.
#[repr(C)]
pub struct Text<const N: usize> {
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

    /// Sets it, if nobody has yet.
    fn set_first(&self, text: &str) {
        if !self.is_taken.swap(true, AcqRel) {
            self.set(text);
        }
    }

    /// Returns it; empty where there is none.
    pub fn get(&self) -> String {
        let len = self.len.load(Acquire);
        let bytes: Vec<u8> = self.bytes[..len]
            .iter()
            .map(|byte| byte.load(Relaxed))
            .collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

/// One thread.
#[repr(C)]
pub struct Place {
    /// How many operations it has begun.
    pub begun: AtomicU64,
    /// The kernel's number of the thread; 0 when there is none.
    pub thread: AtomicU32,
    ring: [Text<200>; RING],
    /// Start and length of what it holds.
    pub ranges: [(AtomicUsize, AtomicUsize); RANGES],
}

/// All of it.
#[repr(C)]
pub struct Board {
    /// The threads are to end.
    pub stop: AtomicBool,
    /// All is made and counted: the run has begun.
    pub has_begun: AtomicBool,
    counts: [AtomicU64; Count::Last as usize],
    pub verbs: [AtomicU64; VERBS.len()],
    pub refusals: [AtomicU64; REFUSALS.len()],
    failure: Text<4000>,
    pub places: [Place; MOST_THREADS as usize],
}

impl Board {
    /// Makes one, and the file that another process finds it by.
    pub fn make() -> io::Result<(&'static Self, File)> {
        // Without CLOEXEC: it is for the process that is started.
        let file = File::from(memfd_create("tenure-soak", MemfdFlags::empty())?);
        file.set_len(size_of::<Self>() as u64)?;
        Ok((Self::map(&file)?, file))
    }

    /// Finds the one that was handed on under this number.
    pub fn open(descriptor: i32) -> io::Result<&'static Self> {
        // SAFETY: it was opened for this process, and nobody else knows of it.
        let file = unsafe { File::from_raw_fd(descriptor) };
        let board = Self::map(&file);
        // It stays open: a number that is free would be counted as another file.
        let _ = file.into_raw_fd();
        board
    }

    fn map(file: &File) -> io::Result<&'static Self> {
        if file.metadata()?.len() < size_of::<Self>() as u64 {
            return Err(io::Error::other("not a board"));
        }
        let (all, shared) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a mapping of its own, as long as the board, and never unmapped.
        let at = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                size_of::<Self>(),
                all,
                shared,
                file,
                0,
            )
        }?;
        // SAFETY: as above; it is made of atomics only, for which zeros are fine.
        Ok(unsafe { &*at.cast::<Self>() })
    }

    pub fn add(&self, count: Count, number: u64) {
        self.counts[count as usize].fetch_add(number, Relaxed);
    }

    pub fn set(&self, count: Count, number: u64) {
        self.counts[count as usize].store(number, Relaxed);
    }

    pub fn get(&self, count: Count) -> u64 {
        self.counts[count as usize].load(Relaxed)
    }

    /// Forgets what has been counted so far, but for what is there.
    pub fn clear_counts(&self) {
        let kept = [
            Count::MappingsBefore as usize,
            Count::DescriptorsBefore as usize,
        ];
        let counts = self
            .counts
            .iter()
            .enumerate()
            .filter(|(index, _)| !kept.contains(index));
        let counts = counts.map(|(_, count)| count);
        for count in counts.chain(&self.verbs).chain(&self.refusals) {
            count.store(0, Relaxed);
        }
    }

    /// How many operations have been begun.
    pub fn operations(&self) -> u64 {
        self.verbs.iter().map(|count| count.load(Relaxed)).sum()
    }

    pub fn refused(&self, name: &str) {
        let place = REFUSALS.iter().position(|&known| known == name);
        self.refusals[place.unwrap_or(REFUSALS.len() - 1)].fetch_add(1, Relaxed);
    }

    /// A thread begins an operation.
    pub fn begin(&self, thread: usize, operation: &impl fmt::Debug) {
        let place = &self.places[thread];
        let number = place.begun.load(Relaxed);
        place.ring[number as usize % RING].set(&format!("{operation:?}"));
        place.begun.store(number + 1, Release);
    }

    /// The last operations of a thread, the last one last.
    pub fn last(&self, thread: usize) -> Vec<String> {
        let place = &self.places[thread];
        let begun = place.begun.load(Acquire);
        let first = begun.saturating_sub(RING as u64);
        let text = |number: u64| place.ring[number as usize % RING].get();
        (first..begun).map(text).collect()
    }

    /// Something is wrong: all is to end, and the first to say so is heard.
    pub fn fail(&self, who: &str, wrong: &Wrong) {
        let page = wrong.page.map(|at| format!("\n  page:     {at:#x}"));
        self.failure.set_first(&format!(
            "{who}: {}{}\n  expected: {}\n  found:    {}",
            wrong.what,
            page.unwrap_or_default(),
            wrong.expected,
            wrong.found,
        ));
        self.stop.store(true, Release);
    }

    /// What is wrong, if anything is.
    pub fn failure(&self) -> Option<String> {
        Some(self.failure.get()).filter(|text| !text.is_empty())
    }
}

/// The number that the file goes by in a process that is started.
pub fn descriptor(file: &File) -> i32 {
    file.as_raw_fd()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_other_one_sees_what_is_written_and_the_first_failure_stays() {
        let (board, file) = Board::make().unwrap();
        let other = Board::open(file.into_raw_fd()).unwrap();
        for number in 0..30 {
            other.begin(1, &number);
        }
        let last = board.last(1);
        assert_eq!((last.len(), last[RING - 1].as_str()), (RING, "29"));
        assert!(board.last(0).is_empty());
        assert_eq!(board.failure(), None);
        other.fail("thread 1", &Wrong::new("it is wrong", "right", "wrong"));
        other.fail("thread 2", &Wrong::new("too late", "", ""));
        let failure = board.failure().unwrap();
        assert!(failure.starts_with("thread 1: it is wrong\n"), "{failure}");
        assert!(board.stop.load(Acquire));
    }
}
