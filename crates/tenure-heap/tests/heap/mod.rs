//! Blocks with recognisable contents, and the process's memory.

// Each test file uses its own part of this.
#![allow(dead_code)]

use std::sync::LazyLock;
use std::time::{Duration, Instant};

pub const KIB: usize = 1 << 10;
pub const MIB: usize = 1 << 20;

/// A block with contents of its own, freed when it is dropped.
#[derive(Debug)]
pub struct Block {
    pub at: *mut u8,
    pub size: usize,
    pub seed: u64,
}

// The `Block` is the only user of its memory.
unsafe impl Send for Block {}

impl Block {
    /// Allocates a block with undefined contents.
    pub fn new(size: usize) -> Self {
        Self::of(tenure_heap::allocate(size, 16), size)
    }

    /// Allocates a block of zeros.
    pub fn zeroed(size: usize) -> Self {
        Self::of(tenure_heap::allocate_zeroed(size, 16), size)
    }

    pub fn aligned(size: usize, align: usize) -> Self {
        let block = Self::of(tenure_heap::allocate(size, align), size);
        assert!(
            block.at.addr().is_multiple_of(align),
            "{:p} for {align}",
            block.at
        );
        block
    }

    fn of(at: *mut u8, size: usize) -> Self {
        assert!(!at.is_null(), "no block of {size} bytes");
        assert!(tenure_heap::owns(at) && tenure_heap::owns(at.wrapping_add(size.max(1) - 1)));
        assert!(unsafe { tenure_heap::usable_size(at) } >= size);
        Self { at, size, seed: 0 }
    }

    /// Allocates a block and writes every byte.
    pub fn filled(size: usize, seed: u64) -> Self {
        let mut block = Self::new(size);
        block.fill(seed);
        block
    }

    /// Writes every byte.
    pub fn fill(&mut self, seed: u64) {
        self.seed = seed;
        for (number, piece) in self.bytes_mut().chunks_mut(PIECE).enumerate() {
            piece.copy_from_slice(&expected(seed, number)[..piece.len()]);
        }
    }

    /// Returns whether each of the first `bytes` bytes is what was written.
    pub fn is_filled_up_to(&self, bytes: usize) -> bool {
        let mut pieces = self.bytes()[..bytes].chunks(PIECE).enumerate();
        pieces.all(|(number, piece)| piece == &expected(self.seed, number)[..piece.len()])
    }

    pub fn is_filled(&self) -> bool {
        self.is_filled_up_to(self.size)
    }

    pub fn is_zero(&self) -> bool {
        self.bytes()
            .chunks(PIECE)
            .all(|piece| piece == &[0; PIECE][..piece.len()])
    }

    /// Returns the block's memory, which nothing frees any more.
    pub fn leak(self) -> *mut u8 {
        std::mem::ManuallyDrop::new(self).at
    }

    pub fn bytes(&self) -> &[u8] {
        unsafe { std::slice::from_raw_parts(self.at, self.size) }
    }

    pub fn bytes_mut(&mut self) -> &mut [u8] {
        unsafe { std::slice::from_raw_parts_mut(self.at, self.size) }
    }

    /// Resizes the block in the heap, or copies it to a new block if the heap refuses.
    /// Returns whether the heap did it.
    pub fn resize(&mut self, size: usize) -> bool {
        let at = unsafe { tenure_heap::reallocate(self.at, size) };
        if at.is_null() {
            let other = Self::new(size);
            let bytes = self.size.min(size);
            unsafe { other.at.copy_from_nonoverlapping(self.at, bytes) };
            let seed = self.seed;
            *self = other;
            self.seed = seed;
            return false;
        }
        (self.at, self.size) = (at, size);
        assert!(unsafe { tenure_heap::usable_size(at) } >= size);
        true
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        unsafe { tenure_heap::deallocate(self.at) };
    }
}

const PIECE: usize = 4 << 10;

/// Returns the contents of a piece of a block: a part of one long row of bytes, from
/// another offset for each piece. No byte is zero.
fn expected(seed: u64, number: usize) -> &'static [u8; PIECE] {
    const SHIFTS: usize = 16381;
    static ROW: LazyLock<Vec<u8>> = LazyLock::new(|| {
        let mut rng = fastrand::Rng::with_seed(1);
        (0..SHIFTS + PIECE).map(|_| rng.u8(1..)).collect()
    });
    let shift = (seed as usize).wrapping_mul(7919).wrapping_add(number * 31) % SHIFTS;
    ROW[shift..].first_chunk().unwrap()
}

/// The process's anonymous memory, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Held {
    pub anonymous: usize,
    pub lazily_free: usize,
    pub huge: usize,
}

impl Held {
    pub fn now() -> Self {
        let text = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap();
        let figure = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name));
            let kib = line.unwrap_or("0 kB").trim().trim_end_matches(" kB");
            kib.parse::<usize>().unwrap() * KIB
        };
        Self {
            anonymous: figure("Anonymous:"),
            lazily_free: figure("LazyFree:"),
            huge: figure("AnonHugePages:"),
        }
    }

    /// Returns the bytes that the kernel cannot reclaim.
    pub fn kept(self) -> usize {
        self.anonymous - self.lazily_free
    }
}

/// Whether the kernel gives huge pages to all memory, advised or not.
pub fn huge_pages_are_always() -> bool {
    std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled")
        .is_ok_and(|text| text.contains("[always]"))
}

/// Has the kernel give this process no huge pages from here on: where it gives them to all
/// memory, each place in which jemalloc keeps a few of its own bytes is charged with one.
pub fn use_small_pages() {
    let on: libc::c_ulong = 1;
    assert_eq!(
        unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, on, 0, 0, 0) },
        0
    );
}

/// Waits, for at most 20 s, until `is_so`; returns whether it came true.
pub fn comes_true(mut is_so: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !is_so() {
        if Instant::now() > deadline {
            return false;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    true
}

/// Returns the number of the process's mappings.
pub fn mappings() -> usize {
    std::fs::read_to_string("/proc/self/maps")
        .unwrap()
        .lines()
        .count()
}

pub fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").unwrap().count()
}

/// Runs `work` on one of the CPUs that this thread may use, by its rank.
pub fn on_cpu(rank: usize, work: impl FnOnce()) {
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
    let before = sched_getaffinity(None).unwrap();
    let cpus = (0..CpuSet::MAX_CPU).filter(|&cpu| before.is_set(cpu));
    let cpus: Vec<_> = cpus.collect();
    let mut one = CpuSet::new();
    one.set(cpus[rank % cpus.len()]);
    sched_setaffinity(None, &one).unwrap();
    work();
    sched_setaffinity(None, &before).unwrap();
}
