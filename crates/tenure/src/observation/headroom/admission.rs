//! Admitting memory before it is taken.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::bounds::{Bounds, Headroom};
use super::ledger::Watermark;
use super::reader::{LEDGER, refresh, refresh_if_before, take_exactly, take_reading};
use crate::ground::error::{Error, Result};
use crate::ground::headroom_limit::HeadroomLimit;
use crate::ground::sys::process::monotonic_nanos;
use crate::ground::sys::{fork, pending};

/// Memory that the process may take: nobody else's admission counts it as headroom.
///
/// [`mark_resident`](Self::mark_resident) tells what has become resident. Dropping the admission gives the
/// rest back, also on unwinding. In a child of `fork` the parent's admissions have no effect.
#[derive(Debug)]
#[must_use = "dropping it gives the admitted bytes back"]
pub struct Admission {
    absent_bytes: AtomicUsize,
    /// The process that has admitted it.
    generation: Option<usize>,
}

impl Admission {
    fn new(bytes: usize, generation: Option<usize>) -> Self {
        Self {
            absent_bytes: AtomicUsize::new(bytes),
            generation,
        }
    }

    /// Records that so many bytes have become resident. Bytes of which that is unknown,
    /// because taking them failed midway, count as resident as well: the next reading of the
    /// limits tells. More than was admitted counts as all of it.
    pub fn mark_resident(&self, bytes: usize) {
        let take = |absent: usize| Some(absent - bytes.min(absent));
        let (success, failure) = (Ordering::AcqRel, Ordering::Relaxed);
        let before = self
            .absent_bytes
            .fetch_update(success, failure, take)
            .unwrap_or(0);
        if self.is_of_this_process() {
            LEDGER.mark_resident(bytes.min(before));
        }
    }

    /// Returns the bytes that are admitted and not resident.
    pub fn bytes(&self) -> usize {
        self.absent_bytes.load(Ordering::Acquire)
    }

    fn is_of_this_process(&self) -> bool {
        self.generation == fork::generation().ok()
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        if self.is_of_this_process() {
            LEDGER.give_back(self.bytes());
        }
    }
}

/// Admits `bytes` of memory that the caller is about to take, or refuses them if the
/// headroom, less what is admitted already, is smaller. No bytes are always admitted.
///
/// The call compares and counts; it takes no memory. If memory that was released in the
/// background is still pending, or lazily freed memory decides, the call waits for the
/// first ([`drain`](crate::drain)) and counts the second before it refuses.
///
/// # Errors
///
/// * [`Error::NotAdmitted`] with the limit and the headroom,
/// * [`Error::System`] when the limits cannot be read and never were: no descriptor is left,
///   and the thread that would read them cannot be made. The error is that of the thread.
///
/// ```
/// let admission = tenure::headroom::admit(64 << 20)?;
/// assert_eq!(admission.bytes(), 64 << 20);
/// # Ok::<(), tenure::Error>(())
/// ```
pub fn admit(bytes: usize) -> Result<Admission> {
    admit_exactly(bytes, || bytes)?.map_err(|refusal| Error::NotAdmitted {
        need_bytes: refusal.need_bytes,
        headroom_bytes: refusal.headroom_bytes,
        limit: Box::new(refusal.limit),
    })
}

/// Why bytes were refused.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) need_bytes: usize,
    pub(crate) headroom_bytes: usize,
    pub(crate) limit: HeadroomLimit,
}

/// Admits `max_bytes`, or, if they exceed the headroom, the bytes that `need_bytes` finds
/// to be needed, which may take time. Then lazily freed memory is counted as well.
pub(crate) fn admit_exactly(
    max_bytes: usize,
    need_bytes: impl FnOnce() -> usize,
) -> Result<std::result::Result<Admission, Refusal>> {
    let failed = |errno| Error::System {
        call: "reading the memory limits",
        errno,
    };
    // In a child whose fork handlers still run, this empties the ledger.
    let generation = fork::generation().ok();
    if max_bytes == 0 {
        return Ok(Ok(Admission::new(0, generation)));
    }
    let mut needed_since_nanos = monotonic_nanos();
    if LEDGER.is_due() {
        refresh().map_err(failed)?;
    }
    if let Some(admission) = take(max_bytes, Watermark::Min) {
        return Ok(Ok(admission));
    }
    loop {
        refresh_if_before(needed_since_nanos).map_err(failed)?;
        if let Some(admission) = take(max_bytes, Watermark::Min) {
            return Ok(Ok(admission));
        }
        // Pending deferred frees become headroom once the workers are done.
        if fork::is_in_handler() || !pending::free() {
            break;
        }
        needed_since_nanos = monotonic_nanos();
    }
    let need_bytes = need_bytes();
    if let Some(admission) = take(need_bytes, Watermark::Min) {
        return Ok(Ok(admission));
    }
    if take_exactly(need_bytes).map_err(failed)? {
        return Ok(Ok(Admission::new(need_bytes, generation)));
    }
    let headroom_bytes = usize::try_from(LEDGER.surplus(Watermark::Min)).unwrap_or(0);
    // The ledger has refused; this tells by which limit.
    let limit = Bounds::now().map_or(HeadroomLimit::LastReading, |bounds| bounds.tightest().limit);
    Ok(Err(Refusal {
        need_bytes,
        headroom_bytes,
        limit,
    }))
}

/// Admits the bytes by the last reading.
pub(crate) fn take(bytes: usize, watermark: Watermark) -> Option<Admission> {
    // As in `admit_exactly`.
    let generation = fork::generation().ok();
    let is_taken = LEDGER.take(bytes, watermark);
    is_taken.then(|| Admission::new(bytes, generation))
}

/// Takes a reading for the ledger. Returns a lower bound of the headroom, as
/// [`Headroom::lower_bound`].
///
/// # Errors
///
/// As for [`Headroom::lower_bound`].
#[doc(hidden)]
pub fn read() -> Result<Headroom> {
    take_reading().map_err(|errno| Error::System {
        call: "reading the memory limits",
        errno,
    })
}
