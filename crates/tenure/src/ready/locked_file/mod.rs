//! `LockedFile`: a mapped file whose used pages stay in memory, up to a budget.

mod chunks;
mod clock;
mod evictor;

use std::fs::File;

use self::chunks::Chunks;
use self::evictor::Evictor;
use crate::ground::error::{Error, MemoryKind, Result};
use crate::ground::mapping::Mapping;
use crate::ground::range::PageRange;
use crate::ground::sys::advise::{LockState, lock_state};
use crate::ground::sys::{Errno, map, page_size, pagemap, pmd_bytes};
use crate::verbs::lock::lock_until_unmapped;

/// A file that is mapped read-only and locked on fault: its used pages stay in memory,
/// and its unused pages are not read (`mmap(2)` and `mlock2(MLOCK_ONFAULT)`, Linux 4.4).
///
/// It suits large models, indexes and graphs: `mlock` would read the whole file, and
/// without a lock the kernel reclaims used pages along with unused ones.
/// [`with_budget`](LockedFile::with_budget) bounds how much stays locked, and evicts the
/// least recently used parts.
///
/// ```
/// # use std::fs::File;
/// use tenure::LockedFile;
///
/// let file = File::open("Cargo.toml")?;
/// // SAFETY: no process changes or shortens the file while this program runs.
/// let model = unsafe { LockedFile::with_budget(&file, 1 << 30) }?;
/// assert!(model.as_slice().starts_with(b"[package]"));
/// println!("{} of {} bytes are locked", model.locked_bytes()?, model.len());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Which pages are locked
///
/// Whole pages are locked, and more than were touched: a fault also maps neighbours that
/// are in the page cache already, usually 64 KiB, and a whole large folio of up to 2 MiB
/// (seen on Linux 6.18). Read-ahead fills the page cache further, but does not lock. The
/// kernel keeps a large folio whole if a part of it is locked.
///
/// `RLIMIT_MEMLOCK` is charged for the whole length of the file from the start, whatever
/// the budget.
///
/// The file stays locked until the value is dropped:
/// [`unlock_all`](crate::lock::unlock_all) and [`PageRange::unlock`] leave its range as it
/// is, and [`lock_all`](crate::lock::lock_all) with [`LockMode::Now`](crate::LockMode::Now) faults none of it in.
/// A file that is mapped while `lock_all` holds for future mappings with that mode is read
/// whole, once. So is one whose [`range`](LockedFile::range) is locked with it; the budget
/// then evicts what exceeds it.
///
/// # How the least recently used chunks are found
///
/// The evictor observes faults. The kernel's accessed bits would be the natural source,
/// but an unprivileged process can only read their sum for a mapping, and only clear them
/// for the whole process; interfaces that tell them by page (`page_idle`, DAMON) need
/// root. So the evictor *evicts* a chunk of the file (2 MiB, less for budgets under
/// 32 MiB): `MADV_DONTNEED_LOCKED` (Linux 5.18) removes it from the page tables. Its
/// pages stay in the page cache, reclaimable like those of any file, and the mapping
/// stays locked on fault, in one piece.
///
/// If the chunk is in use, the next access faults it in and locks it again, without
/// reading: a minor fault. The evictor then moves it to the end of its queue. If the
/// refault came early (before as many bytes as the budget were evicted), it also skips
/// the chunk ever more often (1, 2, 4, 8 times) before it evicts it again. A chunk that
/// does not refault was not in use. Nothing is evicted while the budget is not exceeded.
///
/// An eviction of 2 MiB costs, on a virtual machine of 2 CPUs with Linux 6.18
/// (`cargo run --release --example locked_file_costs`): with base pages 0.16 ms for the
/// eviction and, if all of the chunk is used again, 0.2 ms for 32 minor faults; with a
/// large folio 3 µs, and 15 µs for one fault. A hot set that fills nine tenths of the
/// budget has 0.9 chunks evicted for each cold one that is faulted in. Budgets under
/// 32 MiB have chunks of at least 64 KiB, in which evicting or faulting a large folio
/// affects the neighbouring chunks.
///
/// Before Linux 5.18 the evictor unlocks each chunk for a moment (`munlock`,
/// `MADV_DONTNEED`, `mlock2`). If `RLIMIT_MEMLOCK` was lowered in the meantime, the chunk
/// stays unlocked until the limit is raised.
///
/// # When the budget holds
///
/// The evictor is a thread (`tenure-evictor`, with all signals blocked). It scans the
/// page tables every 10 ms while pages are faulted in and every 100 ms otherwise, but
/// pauses longer where scanning would take more than 3 % of a CPU. A scan takes 20 ns for
/// each locked page of a chunk that is not wholly locked; with 2 GiB in such chunks there
/// are three scans a second. Pages that are faulted in between two scans exceed the
/// budget until the next: the budget is the most that *stays* locked. With 400 MiB a
/// second read beside a hot set, and a budget of 128 MiB, up to 146 MiB were locked.
/// Evicting is not bounded: it takes about as long as the faults that caused it.
///
/// If more than the budget is in use all the time, the budget holds all the same, and
/// each use of an evicted chunk costs its minor faults.
///
/// # Forks
///
/// A child has the file mapped and can read it, but has no locks and no evictor:
/// [`locked_bytes`](LockedFile::locked_bytes) is 0 there, and
/// [`trim`](LockedFile::trim) does nothing.
///
/// # What it does not do
///
/// It makes no private copies (there is no writing), and does not support files outside
/// the page cache: on hugetlbfs and on DAX file systems the kernel locks nothing, and the
/// constructors return an error. It does not read ahead;
/// [`PageRange::populate`] on [`range`](LockedFile::range) does.
pub struct LockedFile {
    /// Declared before the mapping, because it uses the mapping until it is dropped.
    evictor: Option<Evictor>,
    mapping: Mapping,
    /// A mapped page of the file so far behind its end that it cannot be in the page
    /// cache.
    beyond_end: Mapping,
}

impl LockedFile {
    /// Maps the whole file, shared and read-only, and locks it on fault: `mmap(2)` and
    /// `mlock2(MLOCK_ONFAULT)`. Pages that are used stay in memory until the value is
    /// dropped. It needs neither `/proc` nor a further descriptor.
    ///
    /// # Errors
    ///
    /// With nothing mapped:
    /// * [`Error::LockLimit`] when `RLIMIT_MEMLOCK` does not allow the whole
    ///   length of the file,
    /// * [`Error::EmptyMapping`] for an empty file,
    /// * [`Error::WrongKind`] for a file on hugetlbfs, or of another kind of
    ///   memory that the kernel does not lock,
    /// * [`Error::System`] with the error of `mmap`: ENODEV (a directory), EACCES (a
    ///   file that is not open for reading),
    /// * [`Error::SystemAt`] with another error of `mlock2`: ENOMEM when the limit does not
    ///   allow the file and its figures cannot be read (no `/proc`).
    ///
    /// # Safety
    ///
    /// As for [`Mapping::file`]: while the value lives, no process may
    /// * shorten the file: an access to a page behind its end is SIGBUS;
    /// * change its bytes while a reference to them exists.
    pub unsafe fn map(file: &File) -> Result<Self> {
        // SAFETY: this function has the `# Safety` section of `Mapping::file`.
        let mapping = unsafe { Mapping::file(file) }.map()?;
        let range = mapping.range();
        if map::is_hugetlb_file(file) {
            // `mlock2` would fault all of it in, and lock nothing.
            return Err(not_lockable(range, MemoryKind::HugeTlb));
        }
        lock_until_unmapped(range)?;
        if lock_state(range) == Ok(LockState::Unlocked) {
            // The kernel skips DAX without an error.
            return Err(not_lockable(range, MemoryKind::Shared));
        }
        let beyond = range.len().next_multiple_of(pmd_bytes()) + pmd_bytes();
        // SAFETY: as above; this mapping is never accessed.
        let beyond_end = unsafe { Mapping::file(file) }
            .offset(beyond as u64)
            .len(page_size())
            .map()?;
        Ok(Self {
            evictor: None,
            mapping,
            beyond_end,
        })
    }

    /// Maps and locks the file like [`map`](LockedFile::map), and keeps at most
    /// `budget_bytes` of it locked, by evicting the least recently used chunks
    /// (`MADV_DONTNEED_LOCKED`).
    ///
    /// # Errors
    ///
    /// Those of [`map`](LockedFile::map); [`Error::System`] when the kernel does
    /// not tell which pages are locked (no `/proc`) or cannot start a thread.
    ///
    /// # Safety
    ///
    /// As for [`map`](LockedFile::map).
    pub unsafe fn with_budget(file: &File, budget_bytes: usize) -> Result<Self> {
        // SAFETY: this function has the `# Safety` section of `map`.
        let mut locked = unsafe { Self::map(file) }?;
        locked.set_budget(budget_bytes)?;
        Ok(locked)
    }

    /// Changes the budget, and evicts chunks until it holds; or gives one to a file without.
    /// The size of the chunks is that for the first budget.
    ///
    /// # Errors
    ///
    /// [`Error::System`] when the kernel does not tell which pages are locked (no `/proc`)
    /// or cannot start a thread. A budget that was there before has changed nevertheless:
    /// the evictor retries.
    pub fn set_budget(&mut self, budget_bytes: usize) -> Result<()> {
        if let Some(evictor) = &self.evictor {
            evictor.set_budget(budget_bytes);
            return evictor.trim().map(drop);
        }
        let chunks = Chunks::of(self.range(), Some(budget_bytes));
        // SAFETY: the mapping is shared, and is dropped after the evictor.
        self.evictor = Some(unsafe { Evictor::start(chunks, budget_bytes) }?);
        Ok(())
    }

    /// Lends the bytes of the file. Reading them faults missing pages in, and locks
    /// them.
    pub fn as_slice(&self) -> &[u8] {
        self.mapping.as_slice()
    }

    /// Returns the length in bytes that the file had when it was mapped.
    #[expect(clippy::len_without_is_empty, reason = "a mapping is never empty")]
    pub fn len(&self) -> usize {
        self.mapping.len()
    }

    /// Returns the mapped pages: at least [`len`](LockedFile::len) bytes.
    pub fn range(&self) -> PageRange {
        self.mapping.range()
    }

    /// Returns the budget in bytes; `None` without one.
    pub fn budget_bytes(&self) -> Option<usize> {
        self.evictor.as_ref().map(Evictor::budget_bytes)
    }

    /// Returns how much of the file is locked in memory now, in bytes of whole pages.
    /// In a range that is locked on fault these are exactly the pages in the page
    /// tables of this process (`PAGEMAP_SCAN`, Linux 6.7; `/proc/self/pagemap` before).
    /// (`Locked:` in smaps is smaller if other processes have the file mapped as well.)
    /// The call takes about 20 ns for each locked page, less for large folios.
    ///
    /// In a child after `fork` nothing is locked, and the result is 0.
    ///
    /// # Errors
    ///
    /// [`Error::System`] when the kernel does not tell (no `/proc`).
    pub fn locked_bytes(&self) -> Result<usize> {
        let range = self.range();
        if !is_locked(range) {
            return Ok(0);
        }
        let chunks = Chunks::of(range, self.budget_bytes());
        let present = chunks.present_bytes(|_| false)?.into_iter().enumerate();
        // Before Linux 5.18 an eviction unlocks a chunk for a moment.
        let locked = present.filter(|&(index, bytes)| bytes > 0 && is_locked(chunks.get(index)));
        Ok(locked.map(|(_, bytes)| bytes).sum())
    }

    /// Returns how much of the file is in the page cache now, locked or not, in bytes
    /// of whole pages: `mincore(2)`. It counts pages that any process has read.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] for a process that neither owns the file nor may write
    /// it: since Linux 5.2 the kernel reports every page as resident to such a process.
    /// Also for a file that has grown by more than 2 MiB since it was mapped.
    /// [`Error::SystemAt`] for anything else.
    pub fn resident_bytes(&self) -> Result<usize> {
        if uncached_bytes(self.beyond_end.range())? == 0 {
            return Err(Error::Unsupported {
                verb: "tell how much of the file is resident",
                feature: "an honest mincore(2)",
                answer: Errno::PERM,
                remedy: "the kernel tells it only to a process that owns the file or may write it (Linux 5.2); locked_bytes() needs neither",
            });
        }
        /// Keeps the result of `mincore`, a byte for each page, small.
        const STEP_BYTES: usize = 1 << 30;
        let uncached: usize = self
            .range()
            .chunks(STEP_BYTES)
            .map(uncached_bytes)
            .sum::<Result<_>>()?;
        Ok(self.range().len() - uncached)
    }

    /// Evicts chunks until the budget holds, now instead of at the evictor's next scan
    /// (`MADV_DONTNEED_LOCKED`). Returns how many bytes were evicted; those that are in
    /// use are faulted in again by the next access. Without a budget, and in a child
    /// after `fork`, it does nothing.
    ///
    /// # Errors
    ///
    /// [`Error::System`] when the kernel does not tell which pages are locked.
    pub fn trim(&self) -> Result<usize> {
        self.evictor.as_ref().map_or(Ok(0), Evictor::trim)
    }
}

impl std::fmt::Debug for LockedFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LockedFile")
            .field("range", &self.range())
            .field("budget_bytes", &self.budget_bytes())
            .finish_non_exhaustive()
    }
}

fn is_locked(range: PageRange) -> bool {
    lock_state(range) == Ok(LockState::Locked)
}

fn uncached_bytes(range: PageRange) -> Result<usize> {
    pagemap::uncached_bytes(range).map_err(|errno| Error::SystemAt {
        call: "mincore",
        range,
        errno,
    })
}

fn not_lockable(range: PageRange, found: MemoryKind) -> Error {
    Error::WrongKind {
        verb: "lock on fault",
        range,
        part: range,
        found,
        wanted: "files in the page cache",
    }
}
