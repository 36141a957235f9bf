//! The kernel's figures of this process, which answers are checked with.

use std::{fs, os::unix::fs::FileExt, thread, time::Duration};

use anyhow::{Context as _, Result, bail};
use tenure::page_size;

/// Returns how long the thread of this process that is called `name` has run, from
/// /proc/self/task; `None` where there is none, or the kernel does not count it.
pub fn cpu_time_of_thread(name: &str) -> Result<Option<Duration>> {
    for task in fs::read_dir("/proc/self/task").context("reading /proc/self/task")? {
        let folder = task?.path();
        // A thread that has ended meanwhile has no files.
        let read = |file| fs::read_to_string(folder.join(file)).unwrap_or_default();
        if read("comm").trim_end() == name {
            let schedstat = read("schedstat");
            let nanoseconds = schedstat
                .split(' ')
                .next()
                .and_then(|time| time.parse().ok());
            return Ok(nanoseconds.map(Duration::from_nanos));
        }
    }
    Ok(None)
}

/// Counts the pages of `len` bytes from `start` that are mapped to memory, with
/// /proc/self/pagemap. mincore does not tell for files: it answers for the page
/// cache, not for the mapping.
pub fn present_pages(start: usize, len: usize) -> Result<usize> {
    const PRESENT: u64 = 1 << 63;
    pages_with(PRESENT, start, len)
}

/// Counts the pages of `len` bytes from `start` that are in memory for this
/// mapping alone, which the zero page, shared by all, is not.
pub fn own_pages(start: usize, len: usize) -> Result<usize> {
    const EXCLUSIVE: u64 = 1 << 56;
    pages_with(EXCLUSIVE, start, len)
}

fn pages_with(flag: u64, start: usize, len: usize) -> Result<usize> {
    const ENTRY: usize = size_of::<u64>();
    let pagemap = fs::File::open("/proc/self/pagemap").context("opening /proc/self/pagemap")?;
    let mut entries = vec![0; len / page_size() * ENTRY];
    let offset = (start / page_size() * ENTRY) as u64;
    let read = pagemap.read_exact_at(&mut entries, offset);
    read.context("reading /proc/self/pagemap")?;
    let (entries, _) = entries.as_chunks::<ENTRY>();
    let has_flag = |entry: &&[u8; ENTRY]| u64::from_ne_bytes(**entry) & flag != 0;
    Ok(entries.iter().filter(has_flag).count())
}

/// Asks mincore which of the pages of `len` bytes from `start` are in memory: for
/// a mapped file those in the page cache. `None` when a page is not mapped.
fn pages_in_memory(start: usize, len: usize) -> Result<Option<Vec<u8>>> {
    let mut pages = vec![0; len.div_ceil(page_size())];
    // SAFETY: mincore accepts any address, and `pages` has a byte for each page.
    if unsafe { libc::mincore(start as *mut libc::c_void, len, pages.as_mut_ptr()) } == 0 {
        return Ok(Some(pages));
    }
    match std::io::Error::last_os_error() {
        error if error.raw_os_error() == Some(libc::ENOMEM) => Ok(None),
        error => Err(error).context("mincore"),
    }
}

/// Counts the pages of a file's mapping that are in the page cache.
pub fn cached_pages(start: usize, len: usize) -> Result<usize> {
    let pages = pages_in_memory(start, len)?.context("mincore: not mapped")?;
    Ok(pages.iter().filter(|&&page| page & 1 != 0).count())
}

/// Says whether anything is mapped at the page that begins at `start`.
pub fn is_mapped(start: usize) -> Result<bool> {
    Ok(pages_in_memory(start, page_size())?.is_some())
}

/// Returns the CPU time of all threads of this process.
pub fn process_cpu_time() -> std::time::Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    std::time::Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

pub fn minor_faults() -> u64 {
    minor_faults_of(libc::RUSAGE_THREAD)
}

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

/// Returns a field of /proc/self/status: "VmHWM:", the most that was ever in memory, or
/// "VmLck:", which RLIMIT_MEMLOCK is charged for, also where it is not in memory yet.
pub fn status_bytes(field: &str) -> Result<u64> {
    field_bytes("/proc/self/status", field)
}

/// Returns a field of /proc/self/smaps_rollup: "Rss:", the memory of this process, or
/// "Locked:", as much of it as is locked.
pub fn rollup_bytes(field: &str) -> Result<u64> {
    field_bytes("/proc/self/smaps_rollup", field)
}

/// Returns how many bytes of another process are in memory.
pub fn resident_bytes_of(pid: u32) -> Result<u64> {
    field_bytes(&format!("/proc/{pid}/status"), "VmRSS:")
}

/// Returns the most bytes of another process that were ever in memory.
pub fn peak_bytes_of(pid: u32) -> Result<u64> {
    field_bytes(&format!("/proc/{pid}/status"), "VmHWM:")
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

/// Returns the mode of transparent huge pages for anonymous memory: with "always" every
/// mapping gets them that does not refuse them, with "madvise" each that wants them.
pub fn huge_page_mode() -> &'static str {
    let text = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled");
    mode_in(&text.unwrap_or_default())
}

fn mode_in(text: &str) -> &'static str {
    let is_set = |mode: &&&str| text.contains(&format!("[{mode}]"));
    ["always", "madvise"]
        .iter()
        .find(is_set)
        .unwrap_or(&"never")
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
        // While the kernel moves a page to make place for larger ones it is not
        // mapped; a moment later it is.
        thread::sleep(Duration::from_millis(20));
    }
    bail!("{present} of {pages} pages are in memory");
}

#[cfg(test)]
#[path = "../../tests/unit/machine/kernel.rs"]
mod tests;
