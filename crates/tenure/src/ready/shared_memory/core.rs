//! A table with what this process has beside it, which a forked child makes anew.

use std::collections::HashMap;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::copies::Copies;
use super::evictor::Evictor;
use super::layout::Kind;
use super::processes::Attachment;
use super::table::Table;
use super::turn::CALL_PATIENCE;
use crate::ground::error::{Error, Result};
use crate::ground::range::PageRange;
use crate::ground::sys::features::Features;
use crate::ground::sys::process::monotonic_coarse_nanos;
use crate::ground::sys::userfaultfd::Userfaultfd;
use crate::ground::sys::{Errno, fork, map};
use crate::observation::headroom::{self, Admission, LEDGER, Watermark};

/// An object that lacks memory has this part of all evicted, and at least so much.
const EVICTED_PART: u64 = 64;
const MIN_EVICTED_BYTES: u64 = 4 << 20;

/// An open shared file, and the attachment of this process to it.
pub(crate) struct Core {
    pub(crate) table: Arc<Table>,
    /// From `Box::into_raw`, or null. A child replaces its parent's, and leaks it.
    attached: AtomicPtr<Attached>,
}

/// The part of a [`Core`] that belongs to one process.
pub(crate) struct Attached {
    pub(super) generation: usize,
    table: Arc<Table>,
    pub(crate) attachment: Attachment,
    /// Of the values of a cache.
    pub(super) copies: Arc<Copies>,
    /// How often the threads of this process have pinned an object.
    pins: Mutex<HashMap<usize, usize>>,
    /// The places of an arena, in memory.
    places: Option<PageRange>,
    /// A purged page is SIGBUS as long as it is open.
    userfaultfd: Option<Userfaultfd>,
    /// Dropped before the process detaches.
    evictor: Option<Evictor>,
}

impl Core {
    /// Attaches this process.
    pub(super) fn new(table: Table) -> Result<Self> {
        let core = Self {
            table: Arc::new(table),
            attached: AtomicPtr::default(),
        };
        core.attached()?;
        Ok(core)
    }

    /// Returns the attachment of this process, which a child of `fork` makes at its first use.
    /// Each use of the file begins with this: it checks that the file was not truncated.
    pub(crate) fn attached(&self) -> Result<&Attached> {
        self.table.check()?;
        let generation = fork::generation().map_err(|errno| Error::System {
            call: "pthread_atfork",
            errno,
        })?;
        if fork::is_bare_child() {
            // It would take its parent's pins for its own.
            let reason = "this process was made without fork handlers";
            return Err(self.table.refused(reason, Errno::CHILD));
        }
        let known = self.attached.load(Ordering::Acquire);
        // SAFETY: null or from `into_raw`, and freed by `drop` only.
        if let Some(attached) = unsafe { known.as_ref() }
            && attached.generation == generation
        {
            return Ok(attached);
        }
        let new = Box::into_raw(Box::new(Attached::new(&self.table, generation)?));
        let (success, failure) = (Ordering::AcqRel, Ordering::Acquire);
        match self.attached.compare_exchange(known, new, success, failure) {
            // SAFETY: as above.
            Ok(_) => Ok(unsafe { &*new }),
            Err(other) => {
                // SAFETY: made above, and no other thread has seen it.
                drop(unsafe { Box::from_raw(new) });
                // SAFETY: another thread of this process has stored it.
                Ok(unsafe { &*other })
            }
        }
    }

    /// As [`attached`](Self::attached), for calls that change the file.
    pub(crate) fn attached_to_change(&self) -> Result<&Attached> {
        self.table.check_descriptor()?;
        self.attached()
    }

    /// Returns the attachment that this process has made in its generation `generation`; `None`
    /// in a child.
    pub(super) fn attached_in(&self, generation: usize) -> Option<&Attached> {
        if fork::generation() != Ok(generation) || fork::is_bare_child() {
            return None;
        }
        // SAFETY: as in `attached`.
        let attached = unsafe { self.attached.load(Ordering::Acquire).as_ref() };
        attached.filter(|attached| attached.generation == generation)
    }

    /// Admits memory for an object of a priority: others go for it if need be, more than it
    /// takes, as finding them takes a pass over the table.
    pub(crate) fn admit(
        &self,
        attachment: &Attachment,
        bytes: u64,
        priority: u64,
    ) -> Result<Admission> {
        let needed = usize::try_from(bytes).unwrap_or(usize::MAX);
        let is_fresh = !LEDGER.is_due() || headroom::refresh().is_ok();
        if is_fresh && let Some(admission) = headroom::take(needed, Watermark::High) {
            return Ok(admission);
        }
        let all = self.table.header().bytes.load(Ordering::Relaxed);
        let wanted = bytes.max(all / EVICTED_PART).max(MIN_EVICTED_BYTES);
        let evicted = self.table.evict(attachment, wanted, priority);
        if evicted.is_some_and(|bytes| bytes > 0) {
            let _ = headroom::refresh();
        }
        match headroom::take(needed, Watermark::Low) {
            Some(admission) => Ok(admission),
            None => headroom::admit(needed),
        }
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        let attached = *self.attached.get_mut();
        // SAFETY: null or from `into_raw`, and nobody uses it any more.
        let is_own = unsafe { attached.as_ref() }
            .is_some_and(|attached| fork::generation() == Ok(attached.generation))
            && !fork::is_bare_child();
        if is_own {
            // SAFETY: as above. A child leaks its parent's.
            drop(unsafe { Box::from_raw(attached) });
        }
    }
}

impl Attached {
    fn new(table: &Arc<Table>, generation: usize) -> Result<Self> {
        let attachment = table.attach()?;
        let mut attached = Self {
            generation,
            table: Arc::clone(table),
            attachment,
            copies: Arc::default(),
            pins: Mutex::default(),
            places: None,
            userfaultfd: None,
            evictor: None,
        };
        if matches!(table.geometry.kind, Kind::Arena { .. }) {
            let places = table.map_places()?;
            attached.places = Some(places);
            // Without it a purged page reads as zeros.
            attached.userfaultfd = register(places);
        }
        attached.evictor =
            Evictor::start(Arc::clone(table), attachment, Arc::clone(&attached.copies));
        Ok(attached)
    }

    /// Returns the attachment for one call of the program.
    pub(super) fn caller(&self) -> Attachment {
        self.attachment.within(CALL_PATIENCE)
    }

    /// Whether touching a purged page is SIGBUS.
    pub(super) fn is_protected(&self) -> bool {
        self.userfaultfd.as_ref().is_some_and(Userfaultfd::is_open)
    }

    /// Returns where the places of the objects begin.
    pub(super) fn places(&self) -> Option<*mut u8> {
        self.places.map(PageRange::as_ptr)
    }

    pub(super) fn lock_pins(&self) -> MutexGuard<'_, HashMap<usize, usize>> {
        self.pins.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a pin of a thread of this process; `false` if the object cannot be pinned now.
    pub(super) fn pin(&self, index: usize) -> bool {
        let Some((entry, ..)) = self.table.entry(index) else {
            return false;
        };
        // The word changes with the mutex locked: two threads, of which one ends the last pin
        // and the other begins the first, do so one after the other.
        let mut pins = self.lock_pins();
        let is_pinned = entry.word.pin(self.attachment.slot).is_ok();
        if is_pinned {
            *pins.entry(index).or_insert(0) += 1;
        }
        is_pinned
    }

    pub(super) fn unpin(&self, index: usize) {
        let mut pins = self.lock_pins();
        let Some(count) = pins.get_mut(&index) else {
            return;
        };
        *count -= 1;
        if *count > 0 {
            return;
        }
        pins.remove(&index);
        if self.table.check().is_err() {
            return;
        }
        let entry = &self.table.entries()[index];
        entry
            .used
            .store(monotonic_coarse_nanos(), Ordering::Relaxed);
        let now = entry.word.unpin(1 << self.attachment.slot);
        drop(pins);
        if now.is_doomed() && self.table.check_descriptor().is_ok() {
            let caller = self.caller();
            let mut turn = self.table.turn_or_go(&caller);
            self.table.free_doomed(&mut turn, &caller, index);
        }
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        drop(self.evictor.take());
        if let Some(places) = self.places {
            // SAFETY: mapped by `new`, in this process, and no pin is left.
            let _ = unsafe { map::unmap(places) };
        }
        // The userfaultfd may have been closed by the program, and its number reused.
        if let Some(userfaultfd) = self.userfaultfd.take() {
            match userfaultfd.is_open() {
                true => drop(userfaultfd),
                false => userfaultfd.forget(),
            }
        }
        let pins = std::mem::take(&mut *self.lock_pins());
        if self.table.check().is_ok() {
            self.table.detach(&self.attachment, pins.into_keys());
        }
    }
}

/// Has access to missing pages of the range be SIGBUS.
fn register(range: PageRange) -> Option<Userfaultfd> {
    let is_available = Features::get().sigbus_on_missing();
    let userfaultfd = is_available.then(Userfaultfd::open)?.ok()?;
    userfaultfd.register(range).ok()?;
    Some(userfaultfd)
}

/// An address that names nothing.
pub(super) const NOWHERE: *mut u8 = ptr::null_mut();
