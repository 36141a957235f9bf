//! volatile: contents are wanted, but the kernel may take them; using a taken
//! page is SIGBUS, and unmarking tells what was lost.

mod arena;
mod buffer;
mod engine;
mod fork;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
mod keeper;
mod look;
mod marks;
mod objects;
mod order;
mod patience;
mod purge;
mod refused;
mod registration;
mod relief;
mod runs;
mod sync;
mod take_back;
mod tally;
mod wakefulness;
mod word;

pub use arena::VolatileArena;
pub use buffer::VolatileBuffer;
pub use keeper::set_hand_over_delay;
pub use order::Priority;
pub use relief::purge_all;

use self::engine::{ENGINE, can_offer};
use self::order::Stamp;
use crate::ground::error::{Error, Result};
use crate::ground::range::PageRange;
use crate::ground::sys::{Errno, advise::finish_batch, vma};
use crate::observation::stats;
use crate::verbs::lazy_free;

/// What errors call the verb.
const VERB: &str = "mark volatile";

/// What became of a volatile range.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "contents that were lost read as zeros"]
pub enum Outcome {
    /// Every byte is as it was.
    Intact,
    /// These pages were lost and read as zeros, in order of address; all others
    /// are as they were.
    Purged(Vec<PageRange>),
}

/// What unmarking has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unmarked {
    /// Nothing of it was volatile.
    WasNot,
    /// It is nonvolatile, and the kernel never knew otherwise.
    Intact,
    /// Nothing has changed: parts are offered, or nothing is known of them, and
    /// the kernel has to be asked.
    Ask,
}

impl PageRange {
    /// Lets the kernel take pages of the range when it needs them:
    /// `userfaultfd(2)` in SIGBUS mode (Linux 5.11 for processes without
    /// privilege) and `madvise(MADV_FREE)`. An empty range succeeds.
    ///
    /// From now on, until [`mark_nonvolatile`](PageRange::mark_nonvolatile):
    /// * What is still there reads as before. A write keeps its page from being
    ///   taken with the contents from before; the page stays volatile.
    /// * Touching a page that was taken is SIGBUS with its address in `si_addr`;
    ///   a system call that is given such an address answers EFAULT.
    /// * Pages that were never touched are not lost; they read as zeros.
    ///
    /// Marking again is harmless and offers pages written since; what was looked at
    /// when it was marked before is not looked at again: locked meanwhile, it is
    /// marked and stays (`not_offered_bytes` in [`Stats`](crate::Stats)). Ranges may
    /// overlap. When it is offered to the kernel, what is swapped out is lost, and
    /// what is merged with other memory (KSM) no longer is.
    ///
    /// Where userfaultfd or MADV_POPULATE_WRITE (Linux 5.14) is missing or refused,
    /// the kernel is offered nothing: tenure itself purges the range under memory
    /// pressure, and touching a purged page is SIGSEGV.
    ///
    /// After `fork` the range is volatile in the child as well, each process
    /// with its own copy. A child made in another way (`clone`), and memory
    /// moved with `mremap` by somebody else, are not protected: pages taken
    /// there read as zeros.
    ///
    /// # Errors
    ///
    /// With nothing done:
    /// * [`Error::Hole`] when a part is not mapped,
    /// * [`Error::WrongKind`] for anything but private anonymous memory,
    /// * [`Error::NoAccess`] when a part cannot be read and written,
    /// * [`Error::Locked`] when a part is locked,
    /// * [`Error::Busy`] when a part is registered with another userfaultfd,
    /// * [`Error::Unsupported`] when userfaultfd works, and yet none can be opened
    ///   now (no descriptor is left),
    /// * [`Error::NoRoom`] when the kernel cannot split a mapping,
    /// * [`Error::SystemAt`] for anything else.
    ///
    /// # Safety
    ///
    /// * No reference to bytes of the range may exist until it is nonvolatile
    ///   again; use pointers, and count on SIGBUS.
    /// * The range must not be unmapped, moved or mapped over but through
    ///   tenure, which then ends its volatility.
    ///
    /// [`Error::Hole`]: crate::Error::Hole
    /// [`Error::WrongKind`]: crate::Error::WrongKind
    /// [`Error::NoAccess`]: crate::Error::NoAccess
    /// [`Error::Locked`]: crate::Error::Locked
    /// [`Error::Busy`]: crate::Error::Busy
    /// [`Error::Unsupported`]: crate::Error::Unsupported
    /// [`Error::NoRoom`]: crate::Error::NoRoom
    /// [`Error::SystemAt`]: crate::Error::SystemAt
    pub unsafe fn mark_volatile(self) -> Result<()> {
        if self.is_empty() {
            return Ok(());
        }
        // SAFETY: handed on to the caller.
        unsafe { self.mark_volatile_with(Priority::default()) }
    }

    /// The same, with a priority.
    ///
    /// # Errors
    ///
    /// As for [`mark_volatile`](PageRange::mark_volatile).
    ///
    /// # Safety
    ///
    /// As for [`mark_volatile`](PageRange::mark_volatile).
    pub unsafe fn mark_volatile_with(self, priority: Priority) -> Result<()> {
        // SAFETY: handed on to the caller.
        unsafe { mark(self, priority, keeper::delay().is_zero()) }
    }

    /// The same, and offers the range to the kernel before it returns, whatever
    /// the [hand-over delay](crate::set_hand_over_delay) is. What cannot be
    /// offered stays, counted in [`stats`](crate::stats()).
    ///
    /// # Errors
    ///
    /// As for [`mark_volatile`](PageRange::mark_volatile).
    ///
    /// # Safety
    ///
    /// As for [`mark_volatile`](PageRange::mark_volatile).
    pub unsafe fn mark_volatile_now(self, priority: Priority) -> Result<()> {
        // SAFETY: handed on to the caller.
        unsafe { mark(self, priority, true) }
    }

    /// Makes the range ordinary memory again and tells exactly which pages were
    /// lost; they read as zeros. Parts that are not volatile are passed over,
    /// and an empty range is [`Outcome::Intact`].
    ///
    /// A part whose protection ended without tenure's doing (its userfaultfd
    /// was closed, or something else was mapped there) is reported as lost
    /// whole; what it holds is left as it is.
    ///
    /// # Errors
    ///
    /// [`Error::Hole`] when a part is not mapped, with nothing done.
    /// [`Error::SystemAt`] when the kernel cannot take a page back (ENOMEM). The
    /// range stays volatile, and what was found to be lost is told by the next
    /// call that succeeds.
    ///
    /// # Safety
    ///
    /// The range must be the caller's: another owner may count on SIGBUS.
    ///
    /// [`Error::Hole`]: crate::Error::Hole
    /// [`Error::SystemAt`]: crate::Error::SystemAt
    pub unsafe fn mark_nonvolatile(self) -> Result<Outcome> {
        if self.is_empty() {
            return Ok(Outcome::Intact);
        }
        let mut engine = ENGINE.lock();
        let before_bytes = engine.marks.volatile_bytes();
        let outcome = match engine.marks.unmark(self) {
            Unmarked::WasNot | Unmarked::Intact => Outcome::Intact,
            Unmarked::Ask => {
                vma::cover(self)?;
                let outcome = engine.withdraw(self)?;
                engine.marks.set_known(self);
                outcome
            }
        };
        let done_bytes = before_bytes - engine.marks.volatile_bytes();
        stats::VOLATILE_BYTES.sub(done_bytes);
        stats::MARK_NONVOLATILE.done(done_bytes);
        Ok(outcome)
    }

    /// Has the contents of the volatile parts of the range taken now, as the
    /// kernel would under memory pressure: `madvise(MADV_DONTNEED)` on the pages
    /// that are there. Other parts are left alone.
    ///
    /// # Errors
    ///
    /// [`Error::Hole`] when a part is not mapped, with nothing done.
    /// For memory that was locked after it was marked, [`Error::Locked`] as long
    /// as the kernel has not been offered it, and [`Error::SystemAt`] afterwards,
    /// as for all else that the kernel refuses.
    ///
    /// # Safety
    ///
    /// The range must be the caller's.
    ///
    /// [`Error::Hole`]: crate::Error::Hole
    /// [`Error::Locked`]: crate::Error::Locked
    /// [`Error::SystemAt`]: crate::Error::SystemAt
    pub unsafe fn purge(self) -> Result<()> {
        if self.is_empty() {
            return Ok(());
        }
        vma::cover(self)?;
        let mut engine = ENGINE.lock();
        for part in engine.marks.volatile_parts(self) {
            // SAFETY: it is volatile, and the caller's.
            let purged = unsafe { engine.purge(part, stats::PURGED_ON_REQUEST_BYTES) };
            // Also when it could only be done in part.
            engine.marks.settle(part, true);
            purged?;
        }
        Ok(())
    }
}

/// # Safety
///
/// As for [`PageRange::mark_volatile`].
unsafe fn mark(range: PageRange, priority: Priority, at_once: bool) -> Result<()> {
    if range.is_empty() {
        return Ok(());
    }
    let stamp = Stamp::now();
    let offers_now = at_once && can_offer();
    if offers_now {
        // What is offered must not be given back as if it were free.
        lazy_free::forget_freed(range);
    }
    let mut engine = ENGINE.lock();
    let before_bytes = engine.marks.volatile_bytes();
    if !engine.marks.mark(range, priority, stamp) {
        engine.look_at(range)?;
        engine.marks.mark_new(range, priority, stamp);
    }
    stats::VOLATILE_BYTES.add(engine.marks.volatile_bytes() - before_bytes);
    stats::MARK_VOLATILE.done(range.len());
    if offers_now {
        // What cannot be offered stays.
        // SAFETY: the caller lets the contents go.
        let offered = unsafe { engine.offer(range) }.is_ok();
        engine.marks.settle(range, offered);
        finish_batch();
    }
    drop(engine);
    keeper::has_marked();
    Ok(())
}

/// Makes the engine, if that has not been done.
pub(crate) fn prepare() {
    drop(ENGINE.lock());
}

/// Ends the volatility of a range whose contents or mappings go away.
pub(super) fn forget(range: PageRange) {
    ENGINE.lock().forget(range);
}

fn at(call: &'static str, range: PageRange) -> impl Fn(Errno) -> Error {
    move |errno| Error::SystemAt { call, range, errno }
}
