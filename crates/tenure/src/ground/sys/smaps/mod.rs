//! `/proc/PID/smaps` and `smaps_rollup`, for which the kernel walks every page:
//! about 30 ms for each GiB of 4 KiB pages.

mod figures;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
mod parse;
mod process;

pub(crate) use figures::Figures;
pub(crate) use process::{ProcessFigures, of_process};

use std::fs::File;
use std::io::BufReader;

use rustix::io::Errno;

use crate::PageRange;

/// One entry of smaps: a kernel mapping (VMA) and its figures.
#[derive(Debug, Default)]
pub(crate) struct SmapsEntry {
    /// `None` for an entry whose addresses are not a valid range.
    pub(crate) range: Option<PageRange>,
    pub(crate) figures: Figures,
    /// `VmFlags`: names of two letters.
    flags: String,
}

impl SmapsEntry {
    pub(crate) fn has(&self, flag: &str) -> bool {
        self.flags.split_whitespace().any(|other| other == flag)
    }
}

/// Calls `visit` for each of this process's mappings that intersects the range,
/// in order.
pub(crate) fn each_within(
    range: PageRange,
    mut visit: impl FnMut(PageRange, &SmapsEntry),
) -> Result<(), Errno> {
    let answer = File::open("/proc/thread-self/smaps").and_then(|smaps| {
        parse::read(BufReader::new(smaps), Some(range.end()), |entry| {
            if let Some(part) = entry.range.and_then(|whole| whole.intersection(range)) {
                visit(part, entry);
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

/// Returns the locked parts of the range, in order. Only smaps tells whether
/// they are locked on fault, from Linux 6.11 on.
pub(crate) fn locked(range: PageRange) -> Result<Vec<Locked>, Errno> {
    let mut found = Vec::new();
    each_within(range, |range, entry| {
        let on_fault = entry.has("lf");
        found.extend(entry.has("lo").then_some(Locked { range, on_fault }));
    })?;
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::super::features::probe_lock_mode;
    use super::super::map::{self, Backing};
    use super::super::{lock, page_size};
    use super::*;

    #[test]
    fn locked_returns_locked_parts_and_modes() {
        let page = page_size();
        let range = map::map(Backing::Anonymous, 6 * page, false, true).unwrap();
        let part =
            |from, to| PageRange::between(range.start() + from * page, range.start() + to * page);
        lock::mlock(part(1, 2)).unwrap();
        lock::mlock_onfault(part(3, 5)).unwrap();
        let has_lock_mode = probe_lock_mode().is_ok();
        let locked = |range, on_fault| Locked {
            range,
            on_fault: on_fault && has_lock_mode,
        };
        let all = super::locked(range).unwrap();
        assert_eq!(all, [locked(part(1, 2), false), locked(part(3, 5), true)]);
        let some = super::locked(part(4, 6)).unwrap();
        assert_eq!(some, [locked(part(4, 5), true)]);
        // SAFETY: mapped above and used by nobody else.
        unsafe { map::unmap(range) }.unwrap();
    }
}
