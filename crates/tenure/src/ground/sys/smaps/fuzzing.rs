//! Fuzzing of the smaps parser: with any text, and with text as the kernel
//! writes it.

use std::fmt::Write as _;

use procfs::FromBufRead;

use super::{Figures, SmapsEntry, parse, process};
use crate::PageRange;
use crate::fuzzing::Input;
use crate::page_size;

pub(crate) fn text(text: &[u8]) {
    let mut sum = Figures::NONE;
    parse::read(text, None, |entry| sum += entry.figures).unwrap();
    let mut first = 0;
    // Up to an address, the parser visits no more entries than without one.
    parse::read(text, Some(1 << 32), |_| first += 1).unwrap();
    let mut all = 0;
    parse::read(text, None, |entry| {
        all += 1;
        let _ = entry.has("lo");
    })
    .unwrap();
    assert!(first <= all);
}

pub(crate) fn written(data: &[u8]) {
    let mut input = Input(data);
    let (mut text, mut written) = (String::new(), Vec::new());
    let mut at = 0;
    while !input.is_empty() && written.len() < 100 {
        let start = at + input.number(16) as usize;
        at = start + 1 + input.number(16) as usize;
        let range = PageRange::between(start * page_size(), at * page_size());
        let choice = input.byte();
        let (start, end) = (range.start(), range.end());
        writeln!(
            text,
            "{start:08x}-{end:08x} rw-p 00000000 00:00 0 /a: 1-2 kB"
        )
        .unwrap();
        let mut line = |name: &str| {
            let kib = input.number(40) as usize;
            writeln!(text, "{name}: {kib:14} kB").unwrap();
            kib * 1024
        };
        let figures = Figures {
            resident: line("Rss"),
            proportional: line("Pss"),
            lazily_free: (choice & 1 == 1).then(|| line("LazyFree")),
            huge_pages: line("AnonHugePages") + line("ShmemPmdMapped") + line("FilePmdMapped"),
            hugetlb: line("Shared_Hugetlb") + line("Private_Hugetlb"),
            swapped: line("Swap"),
        };
        line("SwapPss");
        let is_locked = choice & 2 == 2;
        writeln!(
            text,
            "VmFlags: rd wr {}ac sd ",
            if is_locked { "lo lf " } else { "" }
        )
        .unwrap();
        written.push((range, figures, is_locked));
    }
    // The parser stops at the entry that starts at `end`.
    let end = written
        .get(usize::from(data.first().copied().unwrap_or(0)))
        .map(|(range, ..)| range.start());
    let wanted = written
        .iter()
        .filter(|(range, ..)| end.is_none_or(|end| range.start() < end));
    let mut wanted = wanted.cloned();
    parse::read(text.as_bytes(), end, |entry: &SmapsEntry| {
        let found = (entry.range.unwrap(), entry.figures, entry.has("lo"));
        assert_eq!(entry.has("lf"), entry.has("lo"));
        assert_eq!(Some(found), wanted.next());
    })
    .unwrap();
    assert_eq!(wanted.next(), None);
}

pub(crate) fn status(text: &[u8]) {
    if let Ok(status) = procfs::process::Status::from_buf_read(text) {
        assert_eq!(
            process::sizes_in(&status).is_some(),
            status.vmsize.is_some()
        );
    }
}
