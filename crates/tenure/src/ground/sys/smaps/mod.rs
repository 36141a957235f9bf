//! `/proc/PID/smaps` and `smaps_rollup`: what the kernel finds when it looks at
//! every page, about 30 ms for each GiB of 4 KiB pages.

mod figures;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
mod parse;
mod process;

pub(crate) use figures::Figures;
pub(crate) use process::{OfProcess, of_process};

use std::fs::File;
use std::io::BufReader;

use rustix::io::Errno;

use crate::PageRange;

/// One of the kernel's mappings.
#[derive(Debug, Default)]
pub(crate) struct Mapped {
    /// `None` for what has no addresses of ours.
    pub(crate) range: Option<PageRange>,
    pub(crate) figures: Figures,
    /// `VmFlags`: names of two letters.
    flags: String,
}

impl Mapped {
    pub(crate) fn has(&self, flag: &str) -> bool {
        self.flags.split_whitespace().any(|other| other == flag)
    }
}

/// Shows each of this process's mappings that has a part in the range, in order.
pub(crate) fn each_within(
    range: PageRange,
    mut show: impl FnMut(PageRange, &Mapped),
) -> Result<(), Errno> {
    let answer = File::open("/proc/self/smaps").and_then(|smaps| {
        parse::read(BufReader::new(smaps), Some(range.end()), |mapped| {
            if let Some(part) = mapped.range.and_then(|whole| whole.intersection(range)) {
                show(part, mapped);
            }
        })
    });
    answer.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
}

/// A locked part of the address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Locked {
    pub(crate) range: PageRange,
    pub(crate) on_fault: bool,
}

/// Returns the locked parts of the range, in order: nothing else tells whether
/// they are locked on fault, and this only from Linux 6.11 on.
pub(crate) fn locked(range: PageRange) -> Result<Vec<Locked>, Errno> {
    let mut found = Vec::new();
    each_within(range, |range, mapped| {
        let on_fault = mapped.has("lf");
        found.extend(mapped.has("lo").then_some(Locked { range, on_fault }));
    })?;
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::super::features::tells_lock_mode;
    use super::super::map::{self, Backing};
    use super::super::{lock, page_size};
    use super::*;

    #[test]
    fn finds_what_is_locked_and_how() {
        let page = page_size();
        let range = map::map(Backing::Anonymous, 6 * page, false, true).unwrap();
        let part =
            |from, to| PageRange::between(range.start() + from * page, range.start() + to * page);
        lock::mlock(part(1, 2)).unwrap();
        lock::mlock_onfault(part(3, 5)).unwrap();
        let tells = tells_lock_mode().is_ok();
        let locked = |range, on_fault| Locked {
            range,
            on_fault: on_fault && tells,
        };
        let all = super::locked(range).unwrap();
        assert_eq!(all, [locked(part(1, 2), false), locked(part(3, 5), true)]);
        let some = super::locked(part(4, 6)).unwrap();
        assert_eq!(some, [locked(part(4, 5), true)]);
        // SAFETY: mapped above and used by nobody else.
        unsafe { map::unmap(range) }.unwrap();
    }
}
