//! The system calls that fault one chunk in, by each method.

use super::options::Access;
use super::plan::{Method, Source, VERB};
use crate::ground::error::{Error, Result};
use crate::ground::range::PageRange;
use crate::ground::sys::advise::{Advice, advise};
use crate::ground::sys::prefault::Prefaulter;
use crate::ground::sys::{Errno, map};

/// Faults one chunk in, which lies within one VMA.
pub(super) fn prefault(
    chunk: PageRange,
    method: Method,
    access: Access,
    source: Option<Source<'_>>,
    prefaulter: Option<&Prefaulter>,
) -> Result<()> {
    let advice = match access {
        Access::Read => Advice::PopulateRead,
        Access::Write => Advice::PopulateWrite,
    };
    match (method, prefaulter) {
        (Method::Touch, Some(prefaulter)) => {
            return match access {
                Access::Read => prefaulter.read(chunk),
                Access::Write => prefaulter.write(chunk),
            }
            .map_err(|errno| explain("touching a page", chunk, errno));
        }
        (Method::ReadThenWrite, _) => populate(chunk, Advice::PopulateRead)?,
        (Method::BeforeLock, _) => {
            return match populate(chunk, advice) {
                Err(Error::Unsupported { .. }) => Ok(()),
                result => result,
            };
        }
        // Read-ahead is an optimization: populating works if it fails.
        (Method::ReadAhead, _) => drop(advise(chunk, Advice::WillNeed)),
        (Method::Allocate, _) => {
            if let Some(source) = source {
                allocate(chunk, source)?;
            }
        }
        (Method::Populate | Method::Pool | Method::Fastest | Method::Touch, _) => {}
    }
    populate(chunk, advice)
}

fn populate(chunk: PageRange, advice: Advice) -> Result<()> {
    loop {
        match advise(chunk, advice) {
            // A signal interrupted the call; the pages done so far stay.
            Err(Errno::INTR | Errno::AGAIN) => {}
            result => {
                return result.map_err(|errno| explain("madvise(MADV_POPULATE)", chunk, errno));
            }
        }
    }
}

/// Allocates the missing blocks of the file up to its end with `fallocate(2)`.
/// The length of the file does not change; populating meets, and reports, pages
/// behind its end.
fn allocate(chunk: PageRange, source: Source<'_>) -> Result<()> {
    let from = source.offset + (chunk.start() - source.start) as u64;
    let fail = |errno| explain("fallocate", chunk, errno);
    let end = map::file_len(source.file).map_err(fail)?;
    let len = end.saturating_sub(from).min(chunk.len() as u64);
    loop {
        match map::allocate(source.file, from, len) {
            Err(Errno::INTR) => {}
            result => return result.map_err(fail),
        }
    }
}

fn explain(call: &'static str, range: PageRange, errno: Errno) -> Error {
    match errno {
        Errno::FAULT => Error::NoBacking { verb: VERB, range },
        Errno::HWPOISON => Error::HwPoison { verb: VERB, range },
        // The plan has checked the kind, the access and that the kernel has the advice.
        Errno::INVAL => Error::Unsupported {
            verb: VERB,
            feature: "populating this memory",
            answer: errno,
            remedy: "secret memory and device memory cannot be populated",
        },
        errno => Error::SystemAt { call, range, errno },
    }
}
