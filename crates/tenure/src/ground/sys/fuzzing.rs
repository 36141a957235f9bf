//! Fuzzing of the `/proc` parsers: with any text, and with text as the kernel
//! writes it.

use std::fmt::Write as _;
use std::ops::ControlFlow;
use std::time::Duration;

use procfs::FromBufRead;

use super::process::{MachineMemory, Reclaims};
use super::psi::Stalls;
use super::{maps, numa, page_size};
use crate::PageRange;
use crate::fuzzing::Input;

/// Returns all addresses that a process may have.
fn everywhere() -> PageRange {
    PageRange::between(0, isize::MAX as usize / page_size() * page_size())
}

pub(crate) fn maps(text: &[u8]) {
    let mut lines = 0;
    maps::read(text, everywhere(), |line| {
        assert!(line.range.intersection(everywhere()).is_some());
        lines += 1;
        ControlFlow::Continue(())
    })
    .unwrap();
    assert!(lines <= text.split(|&byte| byte == b'\n').count());
}

pub(crate) fn maps_written(data: &[u8]) {
    let mut input = Input(data);
    let (mut text, mut written) = (String::new(), Vec::new());
    let mut at = 0;
    while !input.is_empty() && written.len() < 100 {
        let (start, access) = (at + input.number(16) as usize, input.byte());
        at = start + 1 + input.number(16) as usize;
        let range = PageRange::between(start * page_size(), at * page_size());
        let inode = input.number(64);
        let has = |bit: u8| access >> bit & 1 == 1;
        let letter = |bit, yes, no| if has(bit) { yes } else { no };
        let (read, write, shared) = (
            letter(0, 'r', '-'),
            letter(1, 'w', '-'),
            letter(2, 's', 'p'),
        );
        let name = ["", "[heap]", "/a name  of 1-2 blanks", "/memfd:x (deleted)"]
            [usize::from(access >> 6)];
        let (start, end) = (range.start(), range.end());
        writeln!(
            text,
            "{start:08x}-{end:08x} {read}{write}-{shared} 00000000 00:01 {inode:<26} {name}"
        )
        .unwrap();
        written.push((range, has(0), has(1), has(2), inode, name.as_bytes()));
    }
    let mut next = written.iter();
    maps::read(text.as_bytes(), everywhere(), |line| {
        let found = (
            line.range,
            line.readable,
            line.writable,
            line.shared,
            line.inode,
            line.name,
        );
        assert_eq!(Some(&found), next.next());
        ControlFlow::Continue(())
    })
    .unwrap();
    assert_eq!(next.next(), None);
}

pub(crate) fn pressure(text: &[u8]) {
    if let Some(stalls) = Stalls::parse(&String::from_utf8_lossy(text)) {
        assert!(stalls.some.total >= Duration::ZERO);
    }
}

pub(crate) fn pressure_written(data: &[u8]) {
    let mut input = Input(data);
    let mut text = String::new();
    let mut line = |name| {
        let (hundredths, micros) = (input.number(16) % 10_001, input.number(64));
        let (whole, rest) = (hundredths / 100, hundredths % 100);
        writeln!(
            text,
            "{name} avg10={whole}.{rest:02} avg60=1.00 avg300=2.00 total={micros}"
        )
        .unwrap();
        (hundredths, Duration::from_micros(micros))
    };
    let written = [line("some"), line("full")];
    let stalls = Stalls::parse(&text).unwrap();
    for (found, (hundredths, total)) in [stalls.some, stalls.full].into_iter().zip(written) {
        assert_eq!(found.total, total);
        assert_eq!((found.recent_share * 10_000.0).round() as u64, hundredths);
    }
}

pub(crate) fn meminfo(text: &[u8]) {
    // procfs converts kB to bytes, and also MB and GB, which no kernel writes:
    // the conversion overflows on values that no machine has. It also slices
    // text that is not ASCII between two bytes of a character.
    let is_too_large = |word: &[u8]| word.len() > 15;
    let is_larger_unit = |two: &[u8]| matches!(two, [b'm' | b'M' | b'g' | b'G', b'B' | b'i']);
    if text.split(|byte| !byte.is_ascii_digit()).any(is_too_large)
        || text.windows(2).any(is_larger_unit)
        || !text.is_ascii()
    {
        return;
    }
    if let Ok(info) = procfs::Meminfo::from_buf_read(text) {
        let memory = MachineMemory::of(&info);
        assert_eq!(memory.is_some(), info.mem_available.is_some());
    }
}

pub(crate) fn vmstat(text: &[u8]) {
    Reclaims::parse(&String::from_utf8_lossy(text));
}

/// Every list ends, or its reader stops.
pub(crate) fn list(text: &[u8]) {
    const MAX_NUMBERS: usize = 1024;
    let text = String::from_utf8_lossy(text);
    let numbers = numa::parse_list(&text).take_while(|&number| number < MAX_NUMBERS);
    assert!(numbers.count() <= MAX_NUMBERS * (text.len() + 1));
}
