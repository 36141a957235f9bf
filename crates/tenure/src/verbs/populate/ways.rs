//! The ways by which one chunk comes in.

use super::options::Access;
use super::plan::{Source, VERB, Way};
use crate::ground::error::{Error, Result};
use crate::ground::range::PageRange;
use crate::ground::sys::advise::{Harmless, advise};
use crate::ground::sys::touch::Toucher;
use crate::ground::sys::{Errno, map};

/// Brings one chunk in, which lies in one mapping of the kernel's.
pub(super) fn bring_in(
    chunk: PageRange,
    way: Way,
    access: Access,
    source: Option<Source<'_>>,
    toucher: Option<&Toucher>,
) -> Result<()> {
    let wanted = match access {
        Access::Read => Harmless::PopulateRead,
        Access::Write => Harmless::PopulateWrite,
    };
    match (way, toucher) {
        (Way::Touch, Some(toucher)) => {
            return match access {
                Access::Read => toucher.read(chunk),
                Access::Write => toucher.write(chunk),
            }
            .map_err(|errno| explain("touching a page", chunk, errno));
        }
        (Way::ReadThenWrite, _) => populate(chunk, Harmless::PopulateRead)?,
        // Advice that cannot be followed is no obstacle.
        (Way::ReadAhead, _) => drop(advise(chunk, Harmless::WillNeed)),
        (Way::Allocate, _) => {
            if let Some(source) = source {
                allocate(chunk, source)?;
            }
        }
        (Way::Populate | Way::Fastest | Way::Touch, _) => {}
    }
    populate(chunk, wanted)
}

fn populate(chunk: PageRange, advice: Harmless) -> Result<()> {
    loop {
        match advise(chunk, advice) {
            // A signal came in between: what is done stays done.
            Err(Errno::INTR | Errno::AGAIN) => {}
            answer => {
                return answer.map_err(|errno| explain("madvise(MADV_POPULATE)", chunk, errno));
            }
        }
    }
}

/// Allocates what the file lacks, up to its end: its length stays as it is, and
/// what lies behind it is met, and reported, by populating.
fn allocate(chunk: PageRange, source: Source<'_>) -> Result<()> {
    let from = source.offset + (chunk.start() - source.start) as u64;
    let fail = |errno| explain("fallocate", chunk, errno);
    let end = map::file_len(source.file).map_err(fail)?;
    let len = end.saturating_sub(from).min(chunk.len() as u64);
    loop {
        match map::allocate(source.file, from, len) {
            Err(Errno::INTR) => {}
            answer => return answer.map_err(fail),
        }
    }
}

fn explain(call: &'static str, range: PageRange, errno: Errno) -> Error {
    match errno {
        Errno::FAULT => Error::NoBacking { verb: VERB, range },
        Errno::HWPOISON => Error::Poisoned { verb: VERB, range },
        // Kind, access and the advice itself have been looked at.
        Errno::INVAL => Error::Unsupported {
            verb: VERB,
            feature: "populating this memory",
            answer: errno,
            remedy: "secret memory and device memory cannot be populated",
        },
        errno => Error::SystemAt { call, range, errno },
    }
}
