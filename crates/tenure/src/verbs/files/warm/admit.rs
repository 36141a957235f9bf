//! Admission of page cache, for as long as the reading goes on.

use super::StoppedBy;
use crate::ground::error::{Error, Result};
use crate::ground::headroom_limit::HeadroomLimit;
use crate::observation::headroom::{self, Admission, Headroom, LEDGER, Watermark};

/// The admitted memory. Readings of the limits count the page cache as free, so the
/// bytes stay outstanding until all is read.
#[derive(Debug)]
pub(super) struct Admitted {
    admissions: Vec<Admission>,
    /// The headroom at the begin: what others use of the page cache is not free.
    readable_bytes: u64,
}

impl Admitted {
    pub(super) fn new() -> Result<Self> {
        refresh()?;
        // The ledger alone decides where the headroom cannot be read.
        let readable_bytes = Headroom::lower_bound().map_or(u64::MAX, |now| now.bytes as u64);
        Ok(Self {
            admissions: Vec::new(),
            readable_bytes,
        })
    }

    /// Admits pages that are resident already; `false` if it fills what may be used.
    pub(super) fn keep(&mut self, resident_bytes: u64) -> bool {
        self.take(resident_bytes)
    }

    /// Admits what is to be read.
    pub(super) fn read(&mut self, bytes: u64) -> bool {
        let is_taken = bytes <= self.readable_bytes && self.take(bytes);
        if is_taken {
            self.readable_bytes -= bytes;
        }
        is_taken
    }

    fn take(&mut self, bytes: u64) -> bool {
        let Ok(bytes) = usize::try_from(bytes) else {
            return false;
        };
        if bytes == 0 {
            return true;
        }
        // A reading that fails leaves the last one.
        let take = || headroom::take(bytes, Watermark::High);
        let admission = match LEDGER.is_due() {
            true => refresh().ok().and_then(|()| take()),
            false => take(),
        };
        let admission = admission.or_else(|| refresh().ok().and_then(|()| take()));
        let is_taken = admission.is_some();
        self.admissions.extend(admission);
        is_taken
    }
}

fn refresh() -> Result<()> {
    headroom::refresh().map_err(|errno| Error::System {
        call: "reading the memory limits",
        errno,
    })
}

/// Names the limit that leaves the least.
pub(super) fn stopped_by_headroom() -> StoppedBy {
    let limit = Headroom::lower_bound().map_or(HeadroomLimit::LastReading, |now| now.limit);
    StoppedBy::Headroom(limit)
}
