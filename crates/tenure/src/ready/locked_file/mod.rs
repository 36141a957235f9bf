//! A mapped file of which what has been used stays in memory, up to a budget.

mod budget;
mod chunks;
mod queue;

use std::fs::File;

use self::budget::Keeper;
use self::chunks::Chunks;
use crate::ground::error::{Error, MemoryKind, Result};
use crate::ground::mapping::Mapping;
use crate::ground::range::PageRange;
use crate::ground::sys::advise::{LockState, lock_state};
use crate::ground::sys::{Errno, map, page_size, pagemap, pmd_bytes};
use crate::verbs::LockMode;

/// A file mapped read-only and locked on fault: what has been used stays in
/// memory, what has not is not read (`mmap(2)` and `mlock2(MLOCK_ONFAULT)`,
/// Linux 4.4).
///
/// For large models, indexes and graphs: `mlock` would read the whole file in,
/// and without a lock memory pressure takes the pages that are used along with
/// those that are not. [`with_budget`](LockedFile::with_budget) bounds what
/// stays locked, and lets the least recently used go.
///
/// ```
/// # use std::fs::File;
/// use tenure::LockedFile;
///
/// let file = File::open("Cargo.toml")?;
/// // SAFETY: nobody changes or shortens the file while this program runs.
/// let model = unsafe { LockedFile::with_budget(&file, 1 << 30) }?;
/// assert!(model.as_slice().starts_with(b"[package]"));
/// println!("{} of {} bytes are locked", model.locked_bytes()?, model.len());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # What is locked
///
/// Whole pages, and more than were touched: at a fault the kernel also maps
/// neighbours that are in the page cache already, 64 KiB as a rule, and a whole
/// large folio, up to 2 MiB (seen on Linux 6.18). Read-ahead fills the page
/// cache further, but does not lock. A large folio that is locked in part is
/// held whole.
///
/// `RLIMIT_MEMLOCK` is charged for the whole length of the file from the
/// beginning, whatever the budget.
///
/// # How the least recently used are found
///
/// By faults. The kernel's own accessed bits would be the natural source, but
/// an unprivileged program can only read them summed up for a mapping, and only
/// clear them for the whole process; what tells them page by page (`page_idle`,
/// DAMON) needs root. So a chunk of the file (2 MiB, less for budgets under
/// 32 MiB) is *let go*: `MADV_DONTNEED_LOCKED` (Linux 5.18) takes it out of the
/// page tables. It stays in the page cache, evictable like that of any file, and
/// the mapping stays locked on fault, in one piece. If the chunk is in use, the
/// next touch maps and locks it again, without reading, and it is known to be in
/// use: it goes to the end of the queue, and if it came back soon, it is tested
/// ever more rarely, down to every ninth time. What does not come back was not in use. Nothing happens
/// as long as the budget is not exceeded.
///
/// Such a test of 2 MiB, on a virtual machine of 2 CPUs with Linux 6.18
/// (`cargo run --release --example locked_file_costs`): with base pages 0.16 ms
/// for letting go and, if all of it is used again, 0.2 ms for 32 minor faults;
/// with a large folio 3 µs and 15 µs for one fault. A hot set that fills nine
/// tenths of the budget has 0.9 chunks tested for each cold one that comes in.
/// Budgets under 32 MiB are kept in pieces of at least 16 pages, in which a large
/// folio that goes or comes back takes its neighbours along.
///
/// Kernels before 5.18 unlock each chunk for a moment (`munlock`,
/// `MADV_DONTNEED`, `mlock2`); should `RLIMIT_MEMLOCK` have been lowered
/// meanwhile, the chunk stays unlocked until it is raised.
///
/// # When the budget holds
///
/// A thread (`tenure-budget`, all signals blocked) looks every 10 ms while pages
/// come in and every 100 ms while none do, but so rarely that looking takes no
/// more than 3 % of a CPU: 20 ns for each locked page of a chunk that is not
/// wholly locked, so that with 2 GiB in such chunks it looks three times a
/// second. What comes in between two looks exceeds the budget until the next: at
/// most so many bytes *stay* locked. With 400 MiB a second read beside a hot set,
/// and a budget of 128 MiB, up to 146 MiB were locked. Letting go is not bounded:
/// it takes about as long as the faults that brought the pages in.
///
/// Where more than the budget is in use all the time, the budget holds all the
/// same, and what was let go and is used again costs its minor faults each time.
///
/// # Forks
///
/// A child has the file mapped and can read it, but has no locks and no thread:
/// [`locked_bytes`](LockedFile::locked_bytes) is 0 there, and
/// [`trim`](LockedFile::trim) does nothing.
///
/// # What it does not do
///
/// It is not for private copies (there is no writing), nor for files that are
/// not in the page cache: on hugetlbfs and on DAX file systems the kernel locks
/// nothing, and the constructors refuse. It does not read ahead;
/// [`PageRange::populate`] on [`range`](LockedFile::range) does.
pub struct LockedFile {
    /// Before the mapping: what is dropped first must be who uses it.
    keeper: Option<Keeper>,
    mapping: Mapping,
    /// A page of the file so far behind its end that it cannot be in the page
    /// cache.
    beyond_end: Mapping,
}

impl LockedFile {
    /// Maps the whole file, shared and read-only, and locks it on fault. What
    /// comes in stays until the value is dropped.
    ///
    /// # Errors
    ///
    /// With nothing mapped:
    /// * [`Error::LockLimit`] when `RLIMIT_MEMLOCK` does not allow the whole
    ///   length of the file,
    /// * [`Error::EmptyMapping`] for an empty file,
    /// * [`Error::WrongKind`] for a file on hugetlbfs, or of another kind of
    ///   memory that the kernel does not lock,
    /// * [`Error::System`] with what the kernel answered to `mmap`: ENODEV (a
    ///   directory), EACCES (a file that is not open for reading),
    /// * what else [`Mapping::lock`] says.
    ///
    /// # Safety
    ///
    /// As for [`Mapping::file`]. While the value lives nobody may
    /// * shorten the file: touching a page behind its end is SIGBUS;
    /// * change its bytes in a moment in which a reference to them exists.
    pub unsafe fn map(file: &File) -> Result<Self> {
        // SAFETY: handed on to the caller.
        let mapping = unsafe { Mapping::file(file) }.map()?;
        let range = mapping.range();
        if map::is_hugetlb_file(file) {
            // The lock would bring all of it in, and not be one.
            return Err(not_lockable(range, MemoryKind::HugeTlb));
        }
        mapping.lock(.., LockMode::OnFault)?;
        if lock_state(range) == Ok(LockState::Unlocked) {
            // The kernel passes over DAX without a word.
            return Err(not_lockable(range, MemoryKind::Shared));
        }
        let beyond = range.len().next_multiple_of(pmd_bytes()) + pmd_bytes();
        // SAFETY: as above; and this one is never read at all.
        let beyond_end = unsafe { Mapping::file(file) }
            .offset(beyond as u64)
            .len(page_size())
            .map()?;
        Ok(Self {
            keeper: None,
            mapping,
            beyond_end,
        })
    }

    /// Maps and locks the file as [`map`](LockedFile::map) does, and keeps at
    /// most `budget_bytes` of it locked: the least recently used are let go.
    ///
    /// # Errors
    ///
    /// Those of [`map`](LockedFile::map); [`Error::System`] when the kernel does
    /// not tell which pages are locked (no `/proc`) or has no room for a thread.
    ///
    /// # Safety
    ///
    /// As for [`map`](LockedFile::map).
    pub unsafe fn with_budget(file: &File, budget_bytes: usize) -> Result<Self> {
        // SAFETY: handed on to the caller.
        let mut locked = unsafe { Self::map(file) }?;
        let chunks = Chunks::of(locked.range(), Some(budget_bytes));
        // SAFETY: the mapping is shared, and is dropped after the keeper.
        let keeper = unsafe { Keeper::start(chunks, budget_bytes) }?;
        locked.keeper = Some(keeper);
        Ok(locked)
    }

    /// Lends the bytes of the file. Reading them brings in what is not in
    /// memory yet, and locks it.
    pub fn as_slice(&self) -> &[u8] {
        self.mapping.as_slice()
    }

    /// The length of the file in bytes, when it was mapped.
    #[expect(clippy::len_without_is_empty, reason = "a mapping is never empty")]
    pub fn len(&self) -> usize {
        self.mapping.len()
    }

    /// The pages that are mapped: at least [`len`](LockedFile::len) bytes.
    pub fn range(&self) -> PageRange {
        self.mapping.range()
    }

    /// At most how many bytes stay locked; `None` without a budget.
    pub fn budget_bytes(&self) -> Option<usize> {
        self.keeper.as_ref().map(Keeper::budget_bytes)
    }

    /// Tells how much of the file is locked in memory now, in bytes of whole
    /// pages: what is in the page tables of this process (`PAGEMAP_SCAN`, Linux
    /// 6.7, `/proc/self/pagemap` before), for in a range that is locked on fault
    /// the kernel holds exactly that. (`Locked:` in smaps is a share of it where
    /// other processes have the file mapped as well.) Takes about
    /// 20 ns for each page that is locked, less for large folios.
    ///
    /// In a child after `fork` nothing is locked, and it is 0.
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
        // A chunk may be unlocked for a moment, see `lock::let_go`.
        let locked = present.filter(|&(index, bytes)| bytes > 0 && is_locked(chunks.get(index)));
        Ok(locked.map(|(_, bytes)| bytes).sum())
    }

    /// Tells how much of the file is in the page cache now, locked or not, in
    /// bytes of whole pages: `mincore(2)`. Who has read it in does not matter.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] for a process that neither owns the file nor may
    /// write it: since Linux 5.2 the kernel does not tell it (but says of every
    /// page that it is there); the same for a file that has grown by more than
    /// 2 MiB since it was mapped. [`Error::SystemAt`] for anything else.
    pub fn resident_bytes(&self) -> Result<usize> {
        if uncached_bytes(self.beyond_end.range())? == 0 {
            return Err(Error::Unsupported {
                verb: "tell how much of the file is resident",
                feature: "an honest mincore(2)",
                answer: Errno::PERM,
                remedy: "the kernel tells it only to who owns the file or may write it (Linux 5.2); locked_bytes() needs neither",
            });
        }
        /// So that the kernel's answer, a byte for each page, stays small.
        const PIECE_BYTES: usize = 1 << 30;
        let uncached: usize = self
            .range()
            .chunks(PIECE_BYTES)
            .map(uncached_bytes)
            .sum::<Result<_>>()?;
        Ok(self.range().len() - uncached)
    }

    /// Brings what is locked under the budget now instead of at the thread's
    /// next look. Returns how many bytes were let go: those that are in use come
    /// back with the next touch. Without a budget, and in a child after `fork`,
    /// there is nothing to do.
    ///
    /// # Errors
    ///
    /// [`Error::System`] when the kernel does not tell which pages are locked.
    pub fn trim(&self) -> Result<usize> {
        self.keeper.as_ref().map_or(Ok(0), Keeper::trim)
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
