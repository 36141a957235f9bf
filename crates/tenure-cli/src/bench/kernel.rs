//! What the kernel says about this process: the answers are checked with it.

use std::{fs, os::unix::fs::FileExt, thread, time::Duration};

use anyhow::{Context as _, Result, bail};
use tenure::page_size;

/// Counts the pages of `len` bytes from `start` that are mapped to memory, with
/// /proc/self/pagemap. mincore does not tell for files: it answers for the page
/// cache, not for the mapping.
pub fn present_pages(start: usize, len: usize) -> Result<usize> {
    const PRESENT: u64 = 1 << 63;
    pages_with(PRESENT, start, len)
}

/// Counts the pages of `len` bytes from `start` that are in memory for this
/// mapping alone, which the page of zeros, shared by all, is not.
pub fn own_pages(start: usize, len: usize) -> Result<usize> {
    const EXCLUSIVE: u64 = 1 << 56;
    pages_with(EXCLUSIVE, start, len)
}

fn pages_with(flag: u64, start: usize, len: usize) -> Result<usize> {
    const ENTRY: usize = size_of::<u64>();
    let pagemap = fs::File::open("/proc/self/pagemap").context("opening /proc/self/pagemap")?;
    let mut entries = vec![0; len / page_size() * ENTRY];
    let offset = (start / page_size() * ENTRY) as u64;
    pagemap
        .read_exact_at(&mut entries, offset)
        .context("reading /proc/self/pagemap")?;
    let (entries, _) = entries.as_chunks::<ENTRY>();
    let has_flag = |entry: &&[u8; ENTRY]| u64::from_ne_bytes(**entry) & flag != 0;
    Ok(entries.iter().filter(has_flag).count())
}

/// Asks mincore which of the pages of `len` bytes from `start` are in memory: for
/// a mapped file those that are in the page cache. Fails with ENOMEM when a page
/// of the range is not mapped.
fn pages_in_memory(start: usize, len: usize) -> std::io::Result<Vec<u8>> {
    let mut pages = vec![0; len.div_ceil(page_size())];
    // SAFETY: mincore accepts any address, and `pages` has a byte for each page.
    let answer = unsafe { libc::mincore(start as *mut libc::c_void, len, pages.as_mut_ptr()) };
    if answer == 0 {
        Ok(pages)
    } else {
        Err(std::io::Error::last_os_error())
    }
}

/// Counts the pages of a file's mapping that are in the page cache.
pub fn cached_pages(start: usize, len: usize) -> Result<usize> {
    let pages = pages_in_memory(start, len).context("mincore")?;
    Ok(pages.iter().filter(|&&page| page & 1 != 0).count())
}

/// Says whether anything is mapped at the page that begins at `start`.
pub fn is_mapped(start: usize) -> Result<bool> {
    match pages_in_memory(start, page_size()) {
        Ok(_) => Ok(true),
        Err(error) if error.raw_os_error() == Some(libc::ENOMEM) => Ok(false),
        Err(error) => Err(error).context("mincore"),
    }
}

/// Returns the minor faults that the calling thread has taken so far.
pub fn minor_faults() -> u64 {
    minor_faults_of(libc::RUSAGE_THREAD)
}

/// Returns the minor faults of all threads of this process.
pub fn minor_faults_of_all() -> u64 {
    minor_faults_of(libc::RUSAGE_SELF)
}

fn minor_faults_of(who: libc::c_int) -> u64 {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: `usage` is a whole rusage, and zeroes are a valid one should the
    // call fail, which it only does for a bad pointer or constant.
    let usage = unsafe {
        libc::getrusage(who, usage.as_mut_ptr());
        usage.assume_init()
    };
    usage.ru_minflt as u64
}

/// Returns the most that this process ever had in memory.
pub fn peak_bytes() -> Result<u64> {
    field_bytes("/proc/self/status", "VmHWM:")
}

/// Returns how many bytes of this process are locked and in memory. (VmLck in
/// /proc/self/status counts whole ranges, also what is not in memory yet.)
pub fn locked_bytes() -> Result<u64> {
    field_bytes("/proc/self/smaps_rollup", "Locked:")
}

/// Returns how many bytes RLIMIT_MEMLOCK has been charged for.
pub fn memlock_charged_bytes() -> Result<u64> {
    field_bytes("/proc/self/status", "VmLck:")
}

/// Returns how many bytes of this process are in memory.
pub fn resident_bytes() -> Result<u64> {
    field_bytes("/proc/self/smaps_rollup", "Rss:")
}

/// Returns how many bytes of another process are in memory.
pub fn resident_bytes_of(pid: u32) -> Result<u64> {
    field_bytes(&format!("/proc/{pid}/status"), "VmRSS:")
}

fn field_bytes(path: &str, field: &str) -> Result<u64> {
    let text = fs::read_to_string(path).with_context(|| format!("reading {path}"))?;
    parse_field(&text, field).with_context(|| format!("no {field} in {path}"))
}

fn parse_field(text: &str, field: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(field))?;
    let kibibytes: u64 = line.trim().strip_suffix(" kB")?.trim().parse().ok()?;
    Some(kibibytes * 1024)
}

/// What /sys/kernel/mm/transparent_hugepage/enabled says.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum HugePageMode {
    /// Every mapping that does not refuse them gets huge pages.
    Always,
    /// Only mappings that ask for them get them.
    Madvise,
    /// Nobody gets them, or the kernel does not have them.
    Never,
}

impl HugePageMode {
    /// Returns the kernel's word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Always => "always",
            Self::Madvise => "madvise",
            Self::Never => "never",
        }
    }

    fn parse(text: &str) -> Self {
        if text.contains("[always]") {
            Self::Always
        } else if text.contains("[madvise]") {
            Self::Madvise
        } else {
            Self::Never
        }
    }
}

/// Returns the mode of transparent huge pages for anonymous memory.
pub fn huge_page_mode() -> HugePageMode {
    let text = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled");
    HugePageMode::parse(&text.unwrap_or_default())
}

/// Fails unless every page of `bytes` is mapped to memory.
pub fn check_all_present(bytes: &[u8]) -> Result<()> {
    const TRIES: u32 = 5;
    let pages = bytes.len() / page_size();
    let mut present = 0;
    for _ in 0..TRIES {
        present = present_pages(bytes.as_ptr() as usize, bytes.len())?;
        if present == pages {
            return Ok(());
        }
        // While the kernel moves a page to make room for larger ones it is not
        // mapped; a moment later it is.
        thread::sleep(Duration::from_millis(20));
    }
    bail!("{present} of {pages} pages are in memory");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::{alone::alone, raw::RawMapping};

    #[test]
    fn fields_are_found_by_their_whole_name() {
        let text = "Rss:      12 kB\nLocked:          3 kB\nLockedElse: 9 kB\n";
        assert_eq!(parse_field(text, "Locked:"), Some(3 * 1024));
        assert_eq!(parse_field(text, "Pss:"), None);
        assert_eq!(parse_field("Rss: many kB\n", "Rss:"), None);
    }

    #[test]
    fn the_mode_in_brackets_counts() {
        assert_eq!(
            HugePageMode::parse("always [madvise] never\n"),
            HugePageMode::Madvise
        );
        assert_eq!(
            HugePageMode::parse("[always] madvise never\n"),
            HugePageMode::Always
        );
        assert_eq!(HugePageMode::parse(""), HugePageMode::Never);
    }

    #[test]
    fn touched_pages_are_present_and_counted_as_faults() {
        alone(
            "bench::kernel::tests::touched_pages_are_present_and_counted_as_faults",
            || {
                let page = page_size();
                let mut mapping = RawMapping::base_pages(8 * page).unwrap();
                let (start, len) = (mapping.start(), mapping.len());
                assert_eq!(present_pages(start, len).unwrap(), 0);
                let before = minor_faults();
                // SAFETY: `base_pages` maps writable memory.
                let bytes = unsafe { mapping.bytes_mut() };
                bytes[0] = 1;
                bytes[3 * page] = 1;
                assert!(minor_faults() >= before + 2);
                assert_eq!(present_pages(start, len).unwrap(), 2);
                assert_eq!(own_pages(start, len).unwrap(), 2);
                assert_eq!(mapping.bytes()[5 * page], 0);
                assert_eq!(present_pages(start, len).unwrap(), 3, "the page of zeros");
                assert_eq!(own_pages(start, len).unwrap(), 2);
                assert!(check_all_present(mapping.bytes()).is_err());
            },
        );
    }
}
