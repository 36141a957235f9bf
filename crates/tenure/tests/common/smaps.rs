//! What the kernel says of mappings in smaps: flags, locks, figures.

use tenure::{LockMode, PageRange, page_size};

/// The lines of `/proc/self/smaps` for the mapping that holds the first page.
fn smaps(range: PageRange) -> Option<Vec<String>> {
    let text = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let holds =
        |line: &&str| smaps_bounds(line).is_some_and(|bounds| bounds.contains(&range.start()));
    let mut lines = text.lines().skip_while(|line| !holds(line));
    lines.next()?;
    Some(
        lines
            .take_while(|line| smaps_bounds(line).is_none())
            .map(str::to_owned)
            .collect(),
    )
}

/// The bounds in the first line of a mapping.
pub fn smaps_bounds(line: &str) -> Option<std::ops::Range<usize>> {
    let (start, end) = line.split_once(' ')?.0.split_once('-')?;
    let parse = |hex| usize::from_str_radix(hex, 16).ok();
    Some(parse(start)?..parse(end)?)
}

/// The two-letter flags of the mapping that holds the first page; none where
/// nothing is mapped.
pub fn vm_flags(range: PageRange) -> Vec<String> {
    let flags = smaps(range).and_then(|lines| line_of(&lines, "VmFlags"));
    flags
        .unwrap_or_default()
        .split_whitespace()
        .map(str::to_owned)
        .collect()
}

pub fn has_vm_flag(range: PageRange, flag: &str) -> bool {
    vm_flags(range).iter().any(|found| found == flag)
}

/// How a page is locked, as far as the kernel tells: before Linux 6.11 it tells only
/// whether it is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SeenLock(pub Option<LockMode>);

impl PartialEq<Option<LockMode>> for SeenLock {
    fn eq(&self, expected: &Option<LockMode>) -> bool {
        match kernel_tells_lock_modes() {
            true => self.0 == *expected,
            false => self.0.is_some() == expected.is_some(),
        }
    }
}

/// Whether the range is locked on fault, as far as the kernel tells.
pub fn is_locked_on_fault(range: PageRange) -> bool {
    lock_modes(range)
        .iter()
        .all(|&seen| seen == Some(LockMode::OnFault))
}

/// Whether smaps has the flag `lf`.
pub fn kernel_tells_lock_modes() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(|byte: char| !byte.is_ascii_digit());
    let mut next = || numbers.next().unwrap().parse::<u32>().unwrap();
    (next(), next()) >= (6, 11)
}

/// Why the mode of others' locks cannot be known, if so.
pub fn others_locks_are_untold() -> Option<&'static str> {
    let tells = tenure::Features::get().smaps_lock_mode.is_ok();
    (!tells).then_some("the kernel does not tell how others have locked (before Linux 6.11)")
}

/// How each page is locked, by the flags of the mapping that it lies in.
pub fn lock_modes(range: PageRange) -> Vec<SeenLock> {
    let mut modes = vec![SeenLock(None); range.pages()];
    let text = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mut pages = 0..0;
    for line in text.lines() {
        if let Some(bounds) = smaps_bounds(line) {
            let page = |at: usize| at.clamp(range.start(), range.end()) - range.start();
            pages = page(bounds.start) / page_size()..page(bounds.end) / page_size();
        } else if let Some(flags) = line.strip_prefix("VmFlags:") {
            let has = |flag| flags.split_whitespace().any(|other| other == flag);
            modes[pages.clone()].fill(SeenLock(match (has("lo"), has("lf")) {
                (false, _) => None,
                (true, false) => Some(LockMode::Now),
                (true, true) => Some(LockMode::OnFault),
            }));
        }
    }
    modes
}

/// Locks the range behind tenure's back.
pub fn raw_lock(range: PageRange) {
    unsafe { rustix::mm::mlock(range.as_ptr().cast(), range.len()) }.unwrap();
}

/// The same, on fault.
pub fn raw_lock_on_fault(range: PageRange) {
    let flags = rustix::mm::MlockFlags::ONFAULT;
    unsafe { rustix::mm::mlock_with(range.as_ptr().cast(), range.len(), flags) }.unwrap();
}

/// A line of smaps in bytes, such as `LazyFree`.
pub fn smaps_bytes(range: PageRange, line: &str) -> u64 {
    let lines = smaps(range).expect("a mapping");
    let kib = line_of(&lines, line).expect("a line of smaps");
    kib.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

fn line_of(lines: &[String], name: &str) -> Option<String> {
    let found = lines
        .iter()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    found.map(str::to_owned)
}
