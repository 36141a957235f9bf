//! smaps, given any text, and text as the kernel writes it.

use std::fmt::Write as _;

use procfs::FromBufRead;

use super::{Figures, Mapped, parse, process};
use crate::PageRange;
use crate::fuzzing::Input;
use crate::page_size;

pub(crate) fn text(text: &[u8]) {
    let mut sum = Figures::NONE;
    parse::read(text, None, |mapped| sum += mapped.figures).unwrap();
    let mut first = 0;
    // Up to an address: never more of them than without.
    parse::read(text, Some(1 << 32), |_| first += 1).unwrap();
    let mut all = 0;
    parse::read(text, None, |mapped| {
        all += 1;
        let _ = mapped.has("lo");
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
        let which = input.byte();
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
            lazily_free: (which & 1 == 1).then(|| line("LazyFree")),
            huge_pages: line("AnonHugePages") + line("ShmemPmdMapped") + line("FilePmdMapped"),
            hugetlb: line("Shared_Hugetlb") + line("Private_Hugetlb"),
            swapped: line("Swap"),
        };
        line("SwapPss");
        let is_locked = which & 2 == 2;
        writeln!(
            text,
            "VmFlags: rd wr {}ac sd ",
            if is_locked { "lo lf " } else { "" }
        )
        .unwrap();
        written.push((range, figures, is_locked));
    }
    // What begins at `end` is not read.
    let end = written
        .get(usize::from(data.first().copied().unwrap_or(0)))
        .map(|(range, ..)| range.start());
    let wanted = written
        .iter()
        .filter(|(range, ..)| end.is_none_or(|end| range.start() < end));
    let mut wanted = wanted.cloned();
    parse::read(text.as_bytes(), end, |mapped: &Mapped| {
        let found = (mapped.range.unwrap(), mapped.figures, mapped.has("lo"));
        assert_eq!(mapped.has("lf"), mapped.has("lo"));
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
