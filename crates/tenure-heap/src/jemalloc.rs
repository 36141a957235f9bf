//! jemalloc's options and controls (`mallctl`).

use std::ffi::{CStr, c_char, c_void};
use std::io::Write as _;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering::Relaxed};

use tikv_jemalloc_sys as je;

use crate::table::UNIT_BYTES;
use crate::{pages, sys, table};

/// The number by which jemalloc's controls name all arenas.
pub(crate) const ALL: usize = 4096;

macro_rules! options {
    ($more:literal) => {
        match CStr::from_bytes_with_nul(
            concat!(
                "oversize_threshold:0,lg_extent_max_active_fit:48,",
                "dirty_decay_ms:-1,muzzy_decay_ms:-1,max_background_threads:1,tcache_max:65536",
                $more,
                "\0"
            )
            .as_bytes(),
        ) {
            Ok(text) => text,
            Err(_) => c"",
        }
    };
}

/// Options that jemalloc reads when it is first called: blocks of 8 MiB and more are not
/// purged as soon as they are freed, a free range serves requests however small it is
/// compared with it, so that the peak stays low, nothing is purged before the heap sets
/// its decay, jemalloc has one background thread at most, and its threads keep freed blocks of up
/// to 64 KiB, if its pages are as large as that takes.
///
/// Blocks of up to 1 KiB lie in slabs of 16 KiB, not of up to seven pages: the fewer blocks a slab
/// has, the sooner all of them are free, and the more slabs there are to be described.
///
/// Where an arena has more than 2 MiB of such descriptions, or the first one much more, they have
/// huge pages, if these have 2 MiB: jemalloc reads of a page before it writes to it, so that each page has two faults, and
/// all CPUs that run the program are interrupted for the second.
static OPTIONS: &CStr = match SLAB_PAGES {
    Some(2) => options!(",metadata_thp:auto,slab_sizes:1-1024:2"),
    Some(_) => options!(",metadata_thp:auto,slab_sizes:1-1024:4"),
    None => options!(""),
};

/// How many of jemalloc's pages have 16 KiB, if they are small.
const SLAB_PAGES: Option<usize> = match LG_PAGE {
    Some(text) => match text.as_bytes() {
        b"13" => Some(2),
        b"12" => Some(4),
        _ => None,
    },
    None if cfg!(target_arch = "x86_64") => Some(4),
    None => None,
};

/// jemalloc reads this symbol, which it defines itself if nobody else does.
#[allow(non_upper_case_globals, reason = "jemalloc's name")]
#[unsafe(no_mangle)]
pub static _rjem_malloc_conf: AtomicPtr<c_char> = AtomicPtr::new(OPTIONS.as_ptr().cast_mut());

/// The size of jemalloc's pages, as a power of two, where the build sets it: its build script
/// reads the same variables, that of the target first.
const LG_PAGE: Option<&str> = match TARGET_LG_PAGE {
    Some(text) => Some(text),
    None => option_env!("JEMALLOC_SYS_WITH_LG_PAGE"),
};

#[cfg(target_arch = "aarch64")]
const TARGET_LG_PAGE: Option<&str> =
    option_env!("AARCH64_UNKNOWN_LINUX_GNU_JEMALLOC_SYS_WITH_LG_PAGE");
#[cfg(not(target_arch = "aarch64"))]
const TARGET_LG_PAGE: Option<&str> =
    option_env!("X86_64_UNKNOWN_LINUX_GNU_JEMALLOC_SYS_WITH_LG_PAGE");

/// Returns whether jemalloc can start where the kernel has pages of this size: where it
/// cannot, each call of it would print a message and fail. Without a size set at build it has
/// the pages of the machine that built it.
pub(crate) fn has_pages_for(kernel_page_bytes: usize) -> bool {
    fits(LG_PAGE, kernel_page_bytes)
}

/// jemalloc's smallest pages.
const MIN_PAGE_BYTES: usize = 4 << 10;

fn fits(lg_page: Option<&str>, kernel_page_bytes: usize) -> bool {
    match lg_page.and_then(|text| text.parse::<u32>().ok()) {
        Some(lg_page) => kernel_page_bytes.ilog2() <= lg_page,
        None => kernel_page_bytes <= MIN_PAGE_BYTES || read::<usize>(c"arenas.page").is_some(),
    }
}

/// The bytes that were purged before any block was made.
static EARLY_PURGED_BYTES: AtomicUsize = AtomicUsize::new(0);

pub(crate) fn early_purged_bytes() -> usize {
    EARLY_PURGED_BYTES.load(Relaxed)
}

/// Reads a control.
pub(crate) fn read<T: Default>(name: &CStr) -> Option<T> {
    let mut figure = T::default();
    let mut bytes = size_of::<T>();
    // SAFETY: jemalloc writes a value only if its size is that of `T`.
    let failed = unsafe {
        je::mallctl(
            name.as_ptr(),
            (&raw mut figure).cast(),
            &raw mut bytes,
            null_mut(),
            0,
        )
    };
    (failed == 0).then_some(figure)
}

/// Sets a control. Returns whether jemalloc has accepted the value.
///
/// # Safety
///
/// A pointer in the value must stay valid.
unsafe fn write<T>(name: &CStr, mut value: T) -> bool {
    let value: *mut c_void = (&raw mut value).cast();
    // SAFETY: jemalloc reads a value only if its size is that of `T`.
    unsafe { je::mallctl(name.as_ptr(), null_mut(), null_mut(), value, size_of::<T>()) == 0 }
}

/// A control's name, formatted without a heap.
struct Name([u8; 64]);

impl Name {
    fn of(text: std::fmt::Arguments<'_>) -> Self {
        let mut bytes = [0; 64];
        let len = bytes.len() - 1;
        // The names here are shorter.
        let _ = (&mut bytes[..len]).write_fmt(text);
        Self(bytes)
    }

    fn get(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.0).unwrap_or_default()
    }
}

/// Has every arena take its pages from [`pages`], and keep free ranges of every size: the
/// first arena is made before jemalloc reads the option for that. Returns false if one does
/// not.
pub(crate) fn install_hooks() -> bool {
    // Without a use the linker could leave the symbol out.
    std::hint::black_box(_rjem_malloc_conf.load(Relaxed));
    (0..arenas()).all(|arena| {
        let name = Name::of(format_args!("arena.{arena}.extent_hooks"));
        let oversize = Name::of(format_args!("arena.{arena}.oversize_threshold"));
        // SAFETY: the hooks are a static, and the other value is a number.
        unsafe { write(name.get(), pages::hooks()) && write(oversize.get(), usize::MAX) }
    })
}

/// Has the heap own the pages that jemalloc took for itself before it had hooks, if it did: blocks
/// will come to lie there. Returns where the first blocks will lie; `None` if the pages cannot be
/// found.
///
/// They are the first step in which the first arena takes addresses. All that is free of it
/// is allocated for a moment, and not touched; what follows then has the hooks' addresses.
pub(crate) fn claim_early_pages() -> Option<sys::Part> {
    let flags = je::MALLOCX_ARENA(0) | je::MALLOCX_TCACHE_NONE;
    let mut blocks = [(0, 0); 64];
    let mut count = 0;
    let mut log = LARGEST_LOG;
    while log >= SMALLEST_LOG && count < blocks.len() {
        let bytes = 1 << log;
        // SAFETY: the size is not 0, and the first arena exists.
        let block: *mut c_void = unsafe { je::mallocx(bytes, flags) };
        if block.is_null() {
            break;
        }
        blocks[count] = (block.expose_provenance(), bytes);
        count += 1;
        if table::owns(block.addr()) {
            log -= 1;
        }
    }
    let is_complete = log < SMALLEST_LOG;
    let blocks = &blocks[..count];
    for (address, _) in blocks {
        let block = std::ptr::with_exposed_provenance_mut(*address);
        // SAFETY: allocated above, with these flags.
        unsafe { je::dallocx(block, flags) };
    }
    // They were not touched: nothing is dirty.
    run(0, "purge");
    refresh();
    EARLY_PURGED_BYTES.store(figure(ALL, "dirty_purged") * page_bytes(), Relaxed);
    let bounds = |is_ours: bool| {
        let some = || blocks.iter().filter(|(at, _)| table::owns(*at) == is_ours);
        let start = some().map(|(address, _)| *address).min()?;
        let end = some().map(|(address, bytes)| address + bytes).max()?;
        Some((start, end))
    };
    match bounds(false) {
        _ if !is_complete => None,
        Some((start, end)) if end - start <= UNIT_BYTES => {
            // jemalloc's own objects come first.
            let early = end - UNIT_BYTES;
            table::set_early(early);
            Some((early, UNIT_BYTES))
        }
        Some(_) => None,
        None => bounds(true).map(|(start, _)| (start / UNIT_BYTES * UNIT_BYTES, UNIT_BYTES)),
    }
}

/// The sizes of the blocks by which [`claim_early_pages`] finds free pages: half of what
/// jemalloc took, to a page.
const LARGEST_LOG: u32 = UNIT_BYTES.ilog2() - 1;
const SMALLEST_LOG: u32 = 12;

fn arenas() -> usize {
    read::<u32>(c"opt.narenas").unwrap_or(1) as usize
}

/// Sets how long freed pages stay dirty, and then muzzy, in milliseconds; -1 for ever.
pub(crate) fn set_decay(dirty_ms: isize, muzzy_ms: isize) {
    for arena in 0..arenas() {
        for (kind, ms) in [("dirty", dirty_ms), ("muzzy", muzzy_ms)] {
            let name = Name::of(format_args!("arena.{arena}.{kind}_decay_ms"));
            // SAFETY: the value is a number.
            unsafe { write(name.get(), ms) };
        }
    }
}

/// Starts jemalloc's background thread, or has it end and waits for that. While it runs, no
/// thread of the program purges pages: neither when it frees blocks, nor when it exits as the
/// last one of its arena.
pub(crate) fn set_background_thread(is_on: bool) {
    // The thread may purge before the call returns.
    HAS_BACKGROUND_THREAD.store(true, Relaxed);
    let is_done = set_background_thread_flag(is_on);
    if !is_done {
        // The flag stays set when the thread cannot be created: nobody would purge. Without
        // it, whoever frees blocks does, and the decay thread.
        set_background_thread_flag(false);
    }
    HAS_BACKGROUND_THREAD.store(is_on && is_done, Relaxed);
}

/// Returns whether that has succeeded. jemalloc does not print the reason, of which the user
/// of a program knows nothing.
fn set_background_thread_flag(is_on: bool) -> bool {
    unsafe extern "C" fn discard(_: *mut c_void, _: *const c_char) {}

    // SAFETY: a static of jemalloc's, which the decay thread alone sets, and which others
    // read when they print a message.
    unsafe { (&raw mut je::malloc_message).write_volatile(Some(discard)) };
    // SAFETY: the value is a flag.
    let is_done = unsafe { write(c"background_thread", is_on) };
    // SAFETY: as above.
    unsafe { (&raw mut je::malloc_message).write_volatile(None) };
    is_done
}

static HAS_BACKGROUND_THREAD: AtomicBool = AtomicBool::new(false);

/// Returns whether jemalloc's background thread purges the pages whose time is over.
pub(crate) fn has_background_thread() -> bool {
    HAS_BACKGROUND_THREAD.load(Relaxed)
}

/// Records in the child of a fork that it has no background thread.
pub(crate) fn reset() {
    HAS_BACKGROUND_THREAD.store(false, Relaxed);
}

fn run(arena: usize, action: &str) {
    let name = Name::of(format_args!("arena.{arena}.{action}"));
    // SAFETY: a control without a value.
    unsafe { je::mallctl(name.get().as_ptr(), null_mut(), null_mut(), null_mut(), 0) };
}

/// Purges the pages whose time is over, unless the background thread does.
pub(crate) fn decay() {
    run(ALL, "decay");
}

/// Returns all free pages to the kernel.
pub(crate) fn purge_all() {
    run(ALL, "purge");
}

/// Returns the free pages of the arenas that have most of those that the figures count, until
/// at most `max_bytes` of them are left.
pub(crate) fn purge_down_to(max_bytes: usize, figures: &[&str]) {
    let bytes = |arena: &usize| {
        let pages = figures.iter().map(|name| figure(*arena, name));
        pages.sum::<usize>() * page_bytes()
    };
    let mut left_bytes = bytes(&ALL);
    for _ in 0..arenas() {
        if left_bytes <= max_bytes {
            return;
        }
        let Some(most) = (0..arenas()).max_by_key(bytes) else {
            return;
        };
        left_bytes = left_bytes.saturating_sub(bytes(&most));
        run(most, "purge");
        refresh();
    }
}

/// Gives the calling thread's cached blocks back to its arena.
pub(crate) fn flush_thread() {
    // SAFETY: a control without a value.
    unsafe {
        je::mallctl(
            c"thread.tcache.flush".as_ptr(),
            null_mut(),
            null_mut(),
            null_mut(),
            0,
        )
    };
}

/// Returns the size of the range of pages that begins at the address or has a block there; 0 if
/// there is none.
pub(crate) fn bytes_of_range(ptr: *const u8) -> usize {
    #[derive(Default)]
    #[repr(C)]
    struct Range {
        free_blocks: usize,
        blocks: usize,
        bytes: usize,
    }
    let (mut range, mut ptr) = (Range::default(), ptr);
    let mut bytes = size_of::<Range>();
    // SAFETY: jemalloc reads one pointer, which it does not dereference, and writes three
    // numbers.
    unsafe {
        je::mallctl(
            c"experimental.utilization.batch_query".as_ptr(),
            (&raw mut range).cast(),
            &raw mut bytes,
            (&raw mut ptr).cast(),
            size_of::<*const u8>(),
        )
    };
    range.bytes
}

/// The answer of [`pages::committed_bytes`] at the last [`refresh`].
static COMMITTED_BYTES: AtomicUsize = AtomicUsize::new(0);

pub(crate) fn committed_bytes() -> usize {
    COMMITTED_BYTES.load(Relaxed)
}

/// Updates the figures that [`figure`] and [`read`] return. It takes some microseconds for each
/// arena.
pub(crate) fn refresh() {
    // Requests of others meanwhile count twice.
    COMMITTED_BYTES.store(pages::committed_bytes(), Relaxed);
    // SAFETY: the value is a number.
    unsafe { write(c"epoch", 1_u64) };
}

/// Returns a figure of an arena, as of the last [`refresh`].
pub(crate) fn figure(arena: usize, name: &str) -> usize {
    let name = Name::of(format_args!("stats.arenas.{arena}.{name}"));
    read::<usize>(name.get()).unwrap_or(0)
}

/// A figure that exists once for each of jemalloc's size classes, which are numbered.
pub(crate) struct Indexed {
    /// The place of the figure in jemalloc's tree of names, and the step that is the number.
    place: [usize; 8],
    steps: usize,
    index: usize,
}

impl Indexed {
    /// A figure of all arenas: `stats.arenas.ALL.KIND.NUMBER.NAME`.
    pub(crate) fn of_all_arenas(kind: &str, name: &CStr) -> Self {
        let name = name.to_str().unwrap_or_default();
        let name = Name::of(format_args!("stats.arenas.{ALL}.{kind}.0.{name}"));
        Self::at(&name, 4)
    }

    /// The sizes of the classes of blocks with ranges of their own.
    #[cfg(test)]
    pub(crate) fn of_classes() -> Self {
        Self::at(&Name::of(format_args!("arenas.lextent.0.size")), 2)
    }

    fn at(name: &Name, index: usize) -> Self {
        let (mut place, mut steps) = ([0; 8], 8);
        // SAFETY: jemalloc writes as many steps as there is space for at most.
        let failed = unsafe {
            je::mallctlnametomib(name.get().as_ptr(), place.as_mut_ptr(), &raw mut steps)
        };
        if failed != 0 {
            steps = 0;
        }
        Self {
            place,
            steps,
            index,
        }
    }

    /// Returns the figure of a class, as of the last [`refresh`]; 0 if there is none.
    pub(crate) fn get(&mut self, class: usize) -> usize {
        let mut figure = 0_usize;
        let mut bytes = size_of::<usize>();
        self.place[self.index] = class;
        // SAFETY: the steps are those that jemalloc has written, and it writes a value only
        // if its size is that of `figure`.
        let failed = unsafe {
            je::mallctlbymib(
                self.place.as_ptr(),
                self.steps,
                (&raw mut figure).cast(),
                &raw mut bytes,
                null_mut(),
                0,
            )
        };
        if failed == 0 { figure } else { 0 }
    }
}

/// The size of jemalloc's pages, a multiple of the kernel's.
pub(crate) fn page_bytes() -> usize {
    read::<usize>(c"arenas.page").unwrap_or(4096)
}

/// Returns the memory of the free pages that are dirty, and that are muzzy, as of the last
/// [`refresh`].
pub(crate) fn free_bytes() -> (usize, usize) {
    let bytes = |name| figure(ALL, name) * page_bytes();
    (bytes("pdirty"), bytes("pmuzzy"))
}

/// Returns the memory of the pages that hold blocks, as of the last [`refresh`].
pub(crate) fn active_bytes() -> usize {
    read::<usize>(c"stats.active").unwrap_or(0)
}

/// Returns how many blocks were requested, as far as the threads have told their arenas by the
/// last [`refresh`].
pub(crate) fn requests() -> usize {
    ["small.nrequests", "large.nrequests"]
        .map(|name| figure(ALL, name))
        .iter()
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read_by_jemalloc() {
        assert_eq!(read::<usize>(c"opt.oversize_threshold"), Some(0));
        assert_eq!(read::<usize>(c"max_background_threads"), Some(1));
        assert!(install_hooks());
        let oversize: Option<usize> = read(c"arena.0.oversize_threshold");
        assert_eq!(oversize, Some(usize::MAX));
        assert_eq!(read::<isize>(c"opt.dirty_decay_ms"), Some(-1));
        assert_eq!(read::<isize>(c"opt.muzzy_decay_ms"), Some(-1));
        assert_eq!(read::<usize>(c"opt.tcache_max"), Some(64 << 10));
        if SLAB_PAGES.is_some() {
            let of = |class, what| {
                let name = Name::of(format_args!("arenas.bin.{class}.{what}"));
                read::<usize>(name.get())
            };
            let class = (0..64).find(|class| of(*class, "size") == Some(1024));
            assert_eq!(of(class.unwrap(), "slab_size"), Some(16 << 10));
            let mode = read::<usize>(c"opt.metadata_thp").unwrap();
            let mode = std::ptr::with_exposed_provenance(mode);
            // SAFETY: jemalloc's option is a text.
            assert_eq!(unsafe { CStr::from_ptr(mode) }, c"auto");
        }
    }

    #[test]
    fn pages_fit_if_the_kernel_has_no_larger_ones() {
        assert!(fits(Some("16"), 4 << 10) && fits(Some("16"), 64 << 10));
        assert!(fits(Some("12"), 4 << 10) && !fits(Some("12"), 16 << 10));
        assert!(!fits(Some("14"), 64 << 10));
        // jemalloc itself knows.
        assert!(fits(None, crate::sys::page_bytes()));
        assert!(has_pages_for(crate::sys::page_bytes()));
    }

    #[test]
    fn arena_numbers_end_before_all() {
        assert!(arenas() >= 1 && arenas() < ALL);
        assert_eq!(page_bytes() % crate::sys::page_bytes(), 0);
    }
}
