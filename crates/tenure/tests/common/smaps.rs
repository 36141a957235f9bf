//! Mappings in `/proc/self/smaps`: flags, locks, figures.

use tenure::{LockMode, PageRange, page_size};

/// Returns the lines of `/proc/self/smaps` for the mapping that contains the first page.
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

/// Parses the bounds in the first line of a mapping.
pub fn smaps_bounds(line: &str) -> Option<std::ops::Range<usize>> {
    let (start, end) = line.split_once(' ')?.0.split_once('-')?;
    let parse = |hex| usize::from_str_radix(hex, 16).ok();
    Some(parse(start)?..parse(end)?)
}

/// Returns the two-letter flags of the mapping that contains the first page; none where
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

/// How a page is locked, as far as the kernel shows it: before Linux 6.11 smaps shows only
/// whether it is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SeenLock(pub Option<LockMode>);

impl PartialEq<Option<LockMode>> for SeenLock {
    fn eq(&self, expected: &Option<LockMode>) -> bool {
        match smaps_shows_lock_mode() {
            true => self.0 == *expected,
            false => self.0.is_some() == expected.is_some(),
        }
    }
}

/// Whether the range is locked on fault, as far as the kernel shows it.
pub fn is_locked_on_fault(range: PageRange) -> bool {
    lock_modes(range)
        .iter()
        .all(|&seen| seen == Some(LockMode::OnFault))
}

/// Whether smaps has the flag `lf` (Linux 6.11).
pub fn smaps_shows_lock_mode() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(|byte: char| !byte.is_ascii_digit());
    let mut next = || numbers.next().unwrap().parse::<u32>().unwrap();
    (next(), next()) >= (6, 11)
}

/// Returns the reason why the mode of locks made without tenure is unknown, if it is.
pub fn foreign_lock_modes_unknown() -> Option<&'static str> {
    let tells = tenure::Features::get().smaps_lock_mode.is_ok();
    (!tells).then_some("smaps does not show the mode of foreign locks (before Linux 6.11)")
}

/// Returns how each page is locked, from the flags of its mapping.
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

/// Locks the range with mlock(2), without tenure.
pub fn raw_lock(range: PageRange) {
    unsafe { rustix::mm::mlock(range.as_ptr().cast(), range.len()) }.unwrap();
}

/// Locks the range on fault with mlock2(2), without tenure.
pub fn raw_lock_on_fault(range: PageRange) {
    let flags = rustix::mm::MlockFlags::ONFAULT;
    unsafe { rustix::mm::mlock_with(range.as_ptr().cast(), range.len(), flags) }.unwrap();
}

/// Whether a mapping of the range is locked, from a system call that needs no `/proc`:
/// `msync` with MS_INVALIDATE has no effect but to answer EBUSY then.
pub fn is_locked_without_proc(range: PageRange) -> bool {
    let flags = rustix::mm::MsyncFlags::ASYNC | rustix::mm::MsyncFlags::INVALIDATE;
    let answer = unsafe { rustix::mm::msync(range.as_ptr().cast(), range.len(), flags) };
    answer == Err(rustix::io::Errno::BUSY)
}

/// Reads a line of smaps in bytes, such as `LazyFree`.
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
