//! `/proc/self/smaps`, for the one thing that nothing else tells: whether a
//! locked mapping is locked on fault.

use std::fs::File;
use std::io::{BufRead, BufReader};

use rustix::io::Errno;

use crate::PageRange;

/// A locked part of the address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Locked {
    pub(crate) range: PageRange,
    pub(crate) on_fault: bool,
}

/// Returns the locked parts of the range, in order. The kernel looks at every
/// page of the process for it: about 20 ms for each GiB of 4 KiB pages.
pub(crate) fn locked(range: PageRange) -> Result<Vec<Locked>, Errno> {
    let answer =
        File::open("/proc/self/smaps").and_then(|smaps| read(BufReader::new(smaps), range));
    answer.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
}

fn read(smaps: impl BufRead, range: PageRange) -> std::io::Result<Vec<Locked>> {
    let mut found = Vec::new();
    let mut mapping = None;
    for line in smaps.lines() {
        let line = line?;
        if let Some(flags) = line.strip_prefix("VmFlags:") {
            let has = |flag| flags.split_whitespace().any(|other| other == flag);
            let within = mapping.and_then(|mapping: PageRange| mapping.intersection(range));
            if let Some(range) = within.filter(|_| has("lo")) {
                let on_fault = has("lf");
                found.push(Locked { range, on_fault });
            }
        } else if let Some(bounds) = bounds(&line) {
            if bounds.start() >= range.end() {
                break;
            }
            mapping = Some(bounds);
        }
    }
    Ok(found)
}

/// The bounds in the first line of a mapping; other lines begin with a name.
fn bounds(line: &str) -> Option<PageRange> {
    let (start, end) = line.split_once(' ')?.0.split_once('-')?;
    let parse = |hex| usize::from_str_radix(hex, 16).ok();
    let (start, end) = (parse(start)?, parse(end)?);
    PageRange::new(start, end.checked_sub(start)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECORDED: &str = "\
7f1000000000-7f1000004000 rw-p 00000000 00:00 0 
Size:                 16 kB
Locked:                0 kB
VmFlags: rd wr mr mw me lo lf ac sd 
7f1000004000-7f1000008000 r--s 00000000 00:2b 12   /tmp/a-file: with 1-2 odd names
Size:                 16 kB
VmFlags: rd mr me lo 
7f1000008000-7f100000c000 rw-p 00000000 00:00 0 
VmFlags: rd wr mr mw me ac sd 
ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0  [vsyscall]
VmFlags: ex 
";

    #[test]
    fn finds_what_is_locked_and_how() {
        const BASE: usize = 0x7f10_0000_0000;
        let range = |from, to| PageRange::between(BASE + from, BASE + to);
        let all = read(RECORDED.as_bytes(), range(0, 0x10_0000)).unwrap();
        let locked = |range, on_fault| Locked { range, on_fault };
        let expected = [
            locked(range(0, 0x4000), true),
            locked(range(0x4000, 0x8000), false),
        ];
        assert_eq!(all, expected);
        let part = read(RECORDED.as_bytes(), range(0x3000, 0x4000)).unwrap();
        assert_eq!(part, [locked(range(0x3000, 0x4000), true)]);
    }
}
