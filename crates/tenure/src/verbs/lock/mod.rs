//! Lock: pages stay resident once they are in memory.
//!
//! A lock keeps the kernel from reclaiming or swapping out pages. With
//! [`LockMode::Now`] the call faults all pages in before it returns (`mlock(2)`); with
//! [`LockMode::OnFault`] each page is locked when it is first used
//! (`mlock2(MLOCK_ONFAULT)`, Linux 4.4), so that a large, sparsely used range takes only
//! the memory that is used.
//!
//! [`Mapping::lock`] and [`PageRange::lock`] lock a range, `lock_with` does with options,
//! [`MappingBuilder::map_locked`] makes a locked mapping, and [`lock_all`] locks the
//! whole process (`mlockall(2)`). [`Mapping::unlock`], [`PageRange::unlock`] and
//! [`unlock_all`] clear the locks of the modes in [`LockFlags`], whoever made them, except
//! those of a [`SecretBuffer`](crate::SecretBuffer) or a
//! [`LockedFile`](crate::LockedFile), which last as long as the value.
//!
//! # Ranges and units
//!
//! The bounds given to a [`Mapping`] are bytes and are rounded outward to whole pages. An
//! empty range succeeds. Locks do not stack: a page has the mode of its last lock, and
//! one unlock clears it. Locks end when the range is unmapped; children and programs
//! started with `exec` have none.
//!
//! # What it costs
//!
//! Locking on fault marks the mappings and visits no page, so that it takes as long for
//! every size: to map a file of 512 MiB and lock it takes 52 to 76 µs, to map it alone 12
//! to 13 µs (a virtual machine with 2 CPUs, Linux 6.18; `docs/RESULTS.md`). (Pages that are
//! in the page tables already take about 170 ms for each GiB.) With [`LockMode::Now`] the
//! call also takes the time to fault the pages in: 505 ms by `mlock` for this file, of which
//! nothing was in memory. More than 1 MiB is populated in [chunks](crate::populate) by
//! several threads, so that other threads' `mmap` and `fork` do not wait for the whole
//! range; [`Mapping::lock_with`] reports the progress and can be cancelled.
//!
//! Each mapping that the range consists of costs some microseconds in every call. More
//! than 256 of them are locked and unlocked in chunks: on a range of 60,000, which takes
//! 0.2 to 0.4 s, another thread's `lock` or `munmap` waited for up to 10 ms.
//!
//! The whole range counts against `RLIMIT_MEMLOCK` from the call on, in both modes.
//! Past the limit the call fails before it changes anything, with an error that names the
//! limit and how to raise it.
//!
//! # How modes are known
//!
//! The kernel tells cheaply whether a mapping is locked, but in which mode only in
//! `/proc/self/smaps`, which walks every page of the process. So tenure records the modes
//! of its own locks, and reads smaps only for locks that other code made and for mappings
//! made under [`lock_all`]. Before Linux 6.11 smaps does not report the mode either;
//! [`PageRange::unlock`] describes what is assumed then. A lock that other code lays over
//! one of tenure's counts as tenure's, in its mode.
//!
//! If locking fails after the range has been marked (a page cannot be faulted in), the
//! call restores the previous locks before it returns the error.
//!
//! # When not to lock
//!
//! - To avoid page faults only: [`populate`](crate::populate) does that, without using
//!   `RLIMIT_MEMLOCK` and without keeping memory from others.
//! - Contents that can be made again: mark them [volatile](crate::volatile), so that the
//!   kernel has something to reclaim. Locked memory cannot be lazily freed, discarded or
//!   marked volatile.
//! - Secrets: [`SecretBuffer`](crate::SecretBuffer) adds guard pages, wiping, and
//!   exclusion from dumps and children. A locked page is still written to disk by
//!   hibernation.
//! - A large file within a memory budget: [`LockedFile`](crate::LockedFile).

mod all;
mod call;
mod chunked;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
mod kept;
mod limit;
mod registry;

pub use all::{LockScope, lock_all, unlock_all};
pub(crate) use kept::lock_until_unmapped;
pub(in crate::verbs) use registry::forget;
pub(crate) use registry::register_fork_handlers;

use std::ops::RangeBounds;

use self::call::Cover;
use self::registry::{LockedPart, Registry, is_locked, registry, to_change};
use crate::ground::error::{Error, MemoryKind, Result};
use crate::ground::mapping::{Mapping, MappingBuilder};
use crate::ground::range::PageRange;
use crate::ground::sys::vma::Vma;
use crate::ground::sys::{Errno, lock};
use crate::observation::stats;
use crate::verbs::populate::{Access, PopulateAdmission, PopulateOptions, admit_for_lock};

/// When the pages of a locked range are faulted in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LockMode {
    /// All pages before the call returns: `mlock(2)`.
    Now,
    /// Each page when it is first used: `mlock2(MLOCK_ONFAULT)` (Linux 4.4).
    OnFault,
}

/// The lock modes that an unlocking call clears.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LockFlags {
    now: bool,
    on_fault: bool,
}

impl LockFlags {
    /// Locks made with [`LockMode::Now`].
    pub const NOW: Self = Self {
        now: true,
        on_fault: false,
    };
    /// Locks made with [`LockMode::OnFault`].
    pub const ON_FAULT: Self = Self {
        now: false,
        on_fault: true,
    };
    /// Every lock.
    pub const ALL: Self = Self {
        now: true,
        on_fault: true,
    };

    fn contains(self, mode: LockMode) -> bool {
        match mode {
            LockMode::Now => self.now,
            LockMode::OnFault => self.on_fault,
        }
    }
}

impl Mapping {
    /// Locks the given bytes in memory: `mlock(2)`, or `mlock2(MLOCK_ONFAULT)`
    /// (Linux 4.4). The bounds are rounded outward to pages.
    ///
    /// # Errors
    ///
    /// As for [`PageRange::lock`]; [`Error::OutOfBounds`] for bounds that are
    /// not inside the mapping.
    ///
    /// ```
    /// use tenure::{LockMode, Mapping, lock::LockFlags};
    ///
    /// let memory = Mapping::anonymous(64 << 10).map()?;
    /// memory.lock(.., LockMode::OnFault)?;
    /// memory.unlock(.., LockFlags::ON_FAULT)?;
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn lock(&self, bounds: impl RangeBounds<usize>, mode: LockMode) -> Result<()> {
        let range = self.pages_covering(bounds)?;
        // SAFETY: the range is this mapping's own.
        unsafe { range.lock(mode) }
    }

    /// Locks the given bytes with [`LockMode::Now`], with the options of populating.
    ///
    /// # Errors
    ///
    /// As for [`PageRange::lock_with`]; [`Error::OutOfBounds`] for bounds that are
    /// not inside the mapping.
    ///
    /// ```no_run
    /// use tenure::{Access, Mapping, populate::PopulateOptions};
    ///
    /// let memory = Mapping::anonymous(4 << 30).map()?;
    /// let options = PopulateOptions::new(Access::Write)
    ///     .progress(|now| println!("{} of {} bytes", now.done_bytes, now.total_bytes));
    /// memory.lock_with(.., &options)?;
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn lock_with(
        &self,
        bounds: impl RangeBounds<usize>,
        options: &PopulateOptions,
    ) -> Result<()> {
        let range = self.pages_covering(bounds)?;
        // SAFETY: the range is this mapping's own.
        unsafe { range.lock_with(options) }
    }

    /// Clears the locks of the given modes on the given bytes: `munlock(2)` on the
    /// parts that have such a lock. The bounds are rounded outward to pages.
    ///
    /// # Errors
    ///
    /// As for [`PageRange::unlock`]; [`Error::OutOfBounds`] for bounds that are
    /// not inside the mapping.
    pub fn unlock(&self, bounds: impl RangeBounds<usize>, flags: LockFlags) -> Result<()> {
        let range = self.pages_covering(bounds)?;
        // SAFETY: the range is this mapping's own.
        unsafe { range.unlock(flags) }
    }
}

impl MappingBuilder<'_> {
    /// Makes a mapping that is locked from the start: `mmap(2)` and `mlock2(2)`. With
    /// [`LockMode::OnFault`] no page is faulted in before it is used. (The kernel's
    /// MAP_LOCKED exists for the other mode only, and `mmap` succeeds even if it
    /// could not fault the pages in.)
    ///
    /// # Errors
    ///
    /// As for [`map`](MappingBuilder::map) and [`Mapping::lock`], with nothing left
    /// mapped.
    ///
    /// ```
    /// use tenure::{LockMode, Mapping};
    ///
    /// let memory = Mapping::anonymous(64 << 10).map_locked(LockMode::OnFault)?;
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn map_locked(self, mode: LockMode) -> Result<Mapping> {
        let mapping = self.map()?;
        mapping.lock(.., mode)?;
        Ok(mapping)
    }
}

impl PageRange {
    /// Locks the range in memory: `mlock(2)`, or `mlock2(MLOCK_ONFAULT)` (Linux
    /// 4.4). A part that is locked already takes the new mode. An empty range
    /// succeeds.
    ///
    /// The whole range counts against `RLIMIT_MEMLOCK` from now on, in both
    /// modes; what was locked before is not counted twice. Children do not
    /// inherit locks.
    ///
    /// With [`LockMode::Now`], more than 1 MiB is locked on fault, populated in chunks by
    /// several threads, and then locked with `mlock(2)`, so that neither `mmap` nor `fork`
    /// in another thread waits for longer than a chunk (about 2 ms). In both modes, a range
    /// of more than 256 mappings is locked in chunks as well. If another thread locks,
    /// unlocks or unmaps a part meanwhile, that part is as the other thread requests.
    ///
    /// The kind of memory matters:
    /// * File pages: one fault maps, and so locks, up to 16 neighbours that are in
    ///   the page cache. Other pages that were read ahead are not locked and may be
    ///   evicted.
    /// * hugetlb memory is faulted in whole in both modes. The kernel never reclaims
    ///   it, so it has no lock and does not count.
    /// * memfd_secret memory is always locked, and counts. DAX and the kernel's
    ///   own mappings are never locked.
    ///
    /// # Errors
    ///
    /// With every lock as it was before:
    /// * [`Error::Hole`] when a part is not mapped,
    /// * [`Error::LockLimit`] when `RLIMIT_MEMLOCK` does not allow it,
    /// * [`Error::NoMemory`] for [`LockMode::Now`] when it would take more memory than
    ///   [`Headroom`](crate::Headroom) or the pool of huge pages has,
    /// * [`Error::NoBacking`] when a page cannot be faulted in,
    /// * [`Error::HwPoison`] for a page on broken memory,
    /// * [`Error::NoAccess`] for [`LockMode::Now`] on memory without access,
    ///   which cannot be faulted in,
    /// * [`Error::WrongKind`] for droppable memory (MAP_DROPPABLE, Linux 6.11), which the
    ///   kernel does not lock,
    /// * [`Error::SystemAt`] for anything else (ENOMEM: the kernel cannot split a
    ///   mapping, `vm.max_map_count`).
    ///
    /// # Safety
    ///
    /// The caller must own the locks of the range: because locks do not stack, an
    /// unlock by another owner of the same pages clears this lock.
    pub unsafe fn lock(self, mode: LockMode) -> Result<()> {
        if self.is_empty() {
            return Ok(());
        }
        if mode == LockMode::Now && self.len() >= chunked::MIN_CHUNKED_BYTES {
            // SAFETY: handed on to the caller.
            return unsafe { self.lock_with(&PopulateOptions::new(Access::Write)) };
        }
        let cover = Cover::read(self)?;
        let admission = match mode {
            LockMode::Now => Some(admit_for_lock(self, cover.vmas())?),
            LockMode::OnFault => None,
        };
        let locked =
            lock_in_one_step(&cover, mode).unwrap_or_else(|| chunked::lock_plainly(cover, mode));
        // If the lock has failed, an unknown part is resident.
        admission.inspect(PopulateAdmission::mark_all_resident);
        locked?;
        stats::LOCK.done(self.len());
        Ok(())
    }

    /// Locks the range with [`LockMode::Now`], with the options of populating: threads,
    /// chunk size, progress, cancellation, and [`force`](PopulateOptions::force). An
    /// empty range succeeds.
    ///
    /// Access and strategy have no effect: pages are faulted in as `mlock(2)` does,
    /// private writable ones for writing and the others for reading. Before Linux 5.14
    /// tenure populates private anonymous memory only; `mlock` faults the other pages in,
    /// chunk by chunk, after the last progress report.
    ///
    /// # Errors
    ///
    /// As for [`lock`](Self::lock), and [`Error::Cancelled`] when the token was
    /// cancelled. Every lock is then as it was before, and the pages that were faulted
    /// in stay in memory, unlocked.
    ///
    /// # Safety
    ///
    /// As for [`lock`](Self::lock).
    pub unsafe fn lock_with(self, options: &PopulateOptions) -> Result<()> {
        if self.is_empty() {
            return Ok(());
        }
        chunked::lock_now(self, options)?;
        stats::LOCK.done(self.len());
        Ok(())
    }

    /// Clears the locks of the given modes: `munlock(2)` on the parts that have
    /// such a lock, whoever made it. Parts locked in another mode stay locked, and
    /// unlocked parts stay as they are. An empty range succeeds.
    ///
    /// Memory of a [`SecretBuffer`](crate::SecretBuffer) or a
    /// [`LockedFile`](crate::LockedFile) stays locked as it is: these types rely on their
    /// locks, which end when the value is dropped.
    ///
    /// A range of more than 256 mappings is unlocked in chunks, for which other threads wait
    /// one at a time. A part that another thread locks or unmaps meanwhile is as that thread
    /// requests.
    ///
    /// For memory that other code has locked, and for mappings made while
    /// [`lock_all`] holds for future mappings, the mode comes from
    /// `/proc/self/smaps`, for which the kernel walks every page of the process: some
    /// 20 ms for each GiB. Before Linux 6.11 smaps reports only whether memory is
    /// locked, not in which mode. Locks of other code then count as
    /// [`LockMode::Now`] (and a call of [`lock`](Self::lock) that fails restores them
    /// so), or, while [`lock_all`] holds for future mappings, as its mode.
    ///
    /// # Errors
    ///
    /// [`Error::Hole`] when a part is not mapped, with nothing done;
    /// [`Error::SystemAt`] when the kernel could not split a mapping (ENOMEM),
    /// with the parts before it unlocked.
    ///
    /// # Safety
    ///
    /// No code may rely on the locks that are cleared.
    pub unsafe fn unlock(self, flags: LockFlags) -> Result<()> {
        if self.is_empty() {
            return Ok(());
        }
        let cover = Cover::read(self)?;
        let unlocked_bytes =
            unlock_in_one_step(&cover, flags).unwrap_or_else(|| chunked::unlock(cover, flags))?;
        stats::UNLOCK.done(unlocked_bytes);
        Ok(())
    }
}

fn apply(range: PageRange, mode: LockMode) -> std::result::Result<(), Errno> {
    match mode {
        LockMode::Now => lock::mlock(range),
        LockMode::OnFault => lock::mlock_onfault(range),
    }
}

/// Locks a range with few mappings. Returns `None`, with nothing done, for any other, and
/// where a mode has to be read without the registry's mutex.
fn lock_in_one_step(cover: &Cover, mode: LockMode) -> Option<Result<()>> {
    if !cover.is_one_step() {
        return None;
    }
    let (range, vmas) = (cover.range, cover.vmas());
    let mut registry = to_change(registry());
    let before = cover.locked_parts(&registry)?;
    let locked = apply(range, mode);
    if locked.is_ok()
        && let Some(part) = find_droppable(vmas)
    {
        restore(vmas, &before);
        return Some(Err(droppable(range, part)));
    }
    let Err(errno) = locked else {
        registry.remove(range);
        registry.record_locked(vmas, mode);
        return Some(Ok(()));
    };
    let mut lockable = vmas.iter().filter(|vma| lock::can_be_locked(vma));
    let is_marked = lockable.all(|vma| is_locked(vma.range));
    restore(vmas, &before);
    drop(registry);
    Some(Err(explain(range, errno, vmas, &before, is_marked)))
}

/// Unlocks a range as [`lock_in_one_step`] locks one, and returns how many bytes it has
/// unlocked.
fn unlock_in_one_step(cover: &Cover, flags: LockFlags) -> Option<Result<usize>> {
    if !cover.is_one_step() {
        return None;
    }
    let mut registry = to_change(registry());
    let parts = match flags {
        LockFlags::ALL => vec![cover.range],
        _ => {
            let parts = cover.locked_parts(&registry)?.into_iter();
            let cleared = parts.filter(|part| flags.contains(part.1));
            cleared.map(|(part, _)| part).collect()
        }
    };
    let unkept = parts
        .into_iter()
        .flat_map(|part| registry.unkept_parts(part));
    let parts: Vec<_> = unkept.collect();
    let unlocked = parts
        .iter()
        .try_for_each(|&part| unlock_part(&mut registry, part));
    Some(unlocked.map(|()| parts.iter().map(|part| part.len()).sum()))
}

fn unlock_part(registry: &mut Registry, part: PageRange) -> Result<()> {
    lock::munlock(part).map_err(|errno| Error::SystemAt {
        call: "munlock",
        range: part,
        errno,
    })?;
    registry.remove(part);
    Ok(())
}

/// Returns the first mapping of private anonymous memory that a lock has passed over: since
/// Linux 6.11 that is droppable memory, which is purged all the same.
fn find_droppable(vmas: &[Vma]) -> Option<PageRange> {
    let mut anonymous = vmas
        .iter()
        .filter(|vma| vma.kind == MemoryKind::PrivateAnonymous);
    anonymous
        .find(|vma| !is_locked(vma.range))
        .map(|vma| vma.range)
}

fn droppable(range: PageRange, part: PageRange) -> Error {
    Error::WrongKind {
        verb: "lock",
        range,
        part,
        found: MemoryKind::Droppable,
        wanted: "memory that the kernel does not drop",
    }
}

/// Restores the previous locks: the kernel may have marked the range before it failed
/// to fault a page in.
fn restore(vmas: &[Vma], before: &[LockedPart]) {
    for vma in vmas.iter().filter(|vma| is_locked(vma.range)) {
        let held = |part: &LockedPart| part.0.intersection(vma.range).is_some();
        if !before.iter().any(held) {
            // If this fails (vm.max_map_count), the failed call had not locked the part
            // either: the kernel marks from the front and stops at the first VMA that
            // it cannot split.
            let _ = lock::munlock(vma.range);
        }
    }
    for &(part, mode) in before {
        // The part is charged already, so the limit cannot refuse it.
        let _ = apply(part, mode);
    }
}

/// Tells a refusal by the limit from a page that could not be faulted in: the kernel
/// checks the limit before it marks anything, and faults pages in after.
fn explain(
    range: PageRange,
    errno: Errno,
    vmas: &[Vma],
    before: &[LockedPart],
    is_marked: bool,
) -> Error {
    let other = Error::SystemAt {
        call: "mlock",
        range,
        errno,
    };
    if !matches!(errno, Errno::NOMEM | Errno::AGAIN | Errno::PERM) {
        return other;
    }
    if let Some(limit_error) = limit::range_error(range, before) {
        return limit_error;
    }
    // Anonymous memory is backed by memory: at `vm.max_map_count` the kernel refuses a mapping.
    let is_anonymous = |vma: &Vma| vma.kind == MemoryKind::PrivateAnonymous;
    let inaccessible = vmas.iter().find(|vma| !vma.readable && !vma.writable);
    match inaccessible {
        _ if !is_marked => other,
        Some(vma) => Error::NoAccess {
            verb: "lock",
            range,
            part: vma.range,
            missing: "read",
        },
        None if vmas.iter().all(is_anonymous) => other,
        None => Error::NoBacking {
            verb: "lock",
            range,
        },
    }
}
