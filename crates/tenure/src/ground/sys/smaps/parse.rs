//! The parser of smaps, line by line: a process at `vm.max_map_count` has
//! 65,530 mappings of more than 20 lines.

use std::io::{self, BufRead};

use super::SmapsEntry;
use crate::PageRange;

/// Calls `visit` for each entry, in order, up to the last one that starts
/// before `end`.
pub(super) fn read(
    mut smaps: impl BufRead,
    end: Option<usize>,
    mut visit: impl FnMut(&SmapsEntry),
) -> io::Result<()> {
    let mut entry: Option<SmapsEntry> = None;
    let mut text = Vec::new();
    loop {
        text.clear();
        if smaps.read_until(b'\n', &mut text)? == 0 {
            break;
        }
        // Everything that is parsed is ASCII; a file name may contain any
        // bytes.
        let line = String::from_utf8_lossy(&text);
        if let Some(bounds) = bounds(&line) {
            if let Some(done) = entry.take() {
                visit(&done);
            }
            if end.is_some_and(|end| bounds.start >= end) {
                return Ok(());
            }
            let range = PageRange::new(bounds.start, bounds.len()).ok();
            entry = Some(SmapsEntry {
                range,
                ..SmapsEntry::default()
            });
        } else if let Some(entry) = &mut entry {
            match line.strip_prefix("VmFlags:") {
                Some(flags) => entry.flags = flags.trim().to_owned(),
                None => entry.figures.add_line(&line),
            }
        }
    }
    entry.iter().for_each(visit);
    Ok(())
}

/// Parses the bounds in the first line of an entry; other lines start with a
/// name.
fn bounds(line: &str) -> Option<std::ops::Range<usize>> {
    let (start, end) = line.split_once(' ')?.0.split_once('-')?;
    let parse = |hex| usize::from_str_radix(hex, 16).ok();
    let bounds = parse(start)?..parse(end)?;
    (bounds.start <= bounds.end).then_some(bounds)
}

#[cfg(test)]
mod tests {
    use super::super::Figures;
    use super::*;

    const RECORDED: &[u8] = b"\
7f1000000000-7f1000040000 rw-p 00000000 00:00 0 
Size:                256 kB
KernelPageSize:        4 kB
Rss:                  12 kB
Pss:                   6 kB
Pss_Dirty:             2 kB
LazyFree:              4 kB
AnonHugePages:         0 kB
Swap:                  4 kB
SwapPss:               2 kB
Locked:                0 kB
VmFlags: rd wr mr mw me lo lf ac sd 
7f1000040000-7f1000080000 r--s 00000000 00:2b 12   /tmp/a-\xff: with 1-2 odd names
Size:                256 kB
VmFlags: rd mr me lo 
7f1000400000-7f1000800000 rw-s 00000000 00:00 0    /memfd:huge
Rss:                2048 kB
Pss:                2048 kB
LazyFree:              0 kB
ShmemPmdMapped:     2048 kB
Shared_Hugetlb:        0 kB
Private_Hugetlb:    2048 kB
VmFlags: rd wr mr mw me ac sd 
ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0  [vsyscall]
Rss:                   0 kB
VmFlags: ex 
";

    fn visited(end: Option<usize>) -> Vec<SmapsEntry> {
        let mut visited = Vec::new();
        read(RECORDED, end, |entry| {
            visited.push(SmapsEntry {
                flags: entry.flags.clone(),
                ..*entry
            });
        })
        .unwrap();
        visited
    }

    #[test]
    fn read_returns_figures_and_flags_of_each_entry() {
        let visited = visited(None);
        assert_eq!(visited.len(), 4);
        let lazy = Figures {
            resident: 12 << 10,
            proportional: 6 << 10,
            swapped: 4 << 10,
            lazily_free: Some(4 << 10),
            huge_pages: 0,
            hugetlb: 0,
        };
        assert_eq!(visited[0].figures, lazy);
        assert!(visited[0].has("lf") && !visited[0].has("l") && !visited[1].has("lf"));
        // Kernels before 4.12 have no such line.
        assert_eq!(visited[1].figures.lazily_free, None);
        let huge = visited[2].figures;
        assert_eq!((huge.huge_pages, huge.hugetlb), (2 << 20, 2 << 20));
        let range = PageRange::between(0x7f10_0004_0000, 0x7f10_0008_0000);
        assert_eq!(visited[1].range, Some(range));
    }

    #[test]
    fn read_stops_at_end_address() {
        assert_eq!(visited(Some(0x7f10_0004_0001)).len(), 2);
        assert_eq!(visited(Some(0x7f10_0004_0000)).len(), 1);
    }

    #[test]
    fn sum_with_unknown_figure_is_unknown() {
        let mut sum = Figures::NONE;
        for entry in &visited(None)[..1] {
            sum += entry.figures;
        }
        assert_eq!(sum.lazily_free, Some(4 << 10));
        sum += Figures::default();
        assert_eq!((sum.lazily_free, sum.resident), (None, 12 << 10));
    }
}
