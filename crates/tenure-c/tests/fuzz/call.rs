//! One call, made of eight bytes, and the changes that it may make.

use std::ffi::{c_int, c_uint, c_void};
use std::fs;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::ptr;
use std::sync::LazyLock;

use tenure_c::*;

use super::documented;
use super::world::{Kind, PAGE, SMALL_PAGES, START, World};

#[derive(Clone, Copy, Debug)]
pub struct Call {
    function: u8,
    addr: usize,
    len: usize,
    /// Whether the address is outside of the world: of the program, or the kernel's.
    is_foreign: bool,
    flags: c_uint,
    more: [u8; 2],
}

/// Addresses where the program can have no mapping, whatever the length.
const UNMAPPED: [usize; 8] = [
    START - 4 * PAGE,
    1 << 47,
    (1 << 47) + PAGE,
    1 << 63,
    0xffff_8000_0000_0000,
    0xffff_ffff_ff60_0000,
    usize::MAX & !(PAGE - 1),
    usize::MAX - 2,
];

const LENGTHS: [usize; 8] = [
    0,
    1,
    PAGE,
    PAGE + 1,
    1 << 30,
    1 << 40,
    usize::MAX & !(PAGE - 1),
    usize::MAX,
];

/// The mappings that exist before the first call: the program's own, libraries, the stack,
/// and the kernel's.
static FOREIGN: LazyLock<Vec<Range<usize>>> = LazyLock::new(|| {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let bounds = maps.lines().filter_map(|line| {
        let (start, end) = line.split_once(' ')?.0.split_once('-')?;
        let parse = |hex| usize::from_str_radix(hex, 16).ok();
        Some(parse(start)?..parse(end)?)
    });
    let is_foreign = |range: &Range<usize>| range.end <= START || range.start >= 2 * START;
    bounds.filter(is_foreign).collect()
});

impl Call {
    pub fn new([function, place, a, b, c, flags, more, last]: [u8; 8]) -> Self {
        let (a, b, c) = (usize::from(a), usize::from(b), usize::from(c));
        let page = |index: usize| START + index * PAGE;
        let (addr, len) = match place % 8 {
            0..3 => (page(a % SMALL_PAGES), b % 16 * PAGE),
            3 => (page(a * 5), b * 5 * PAGE),
            4 => (page(a % SMALL_PAGES) + 1 + c, b % 16 * PAGE),
            5 => (page(a % SMALL_PAGES), b * 16 + c % 16),
            6 if b.is_multiple_of(2) => (UNMAPPED[a % UNMAPPED.len()], LENGTHS[c % LENGTHS.len()]),
            6 => (page(a % SMALL_PAGES), LENGTHS[c % LENGTHS.len()]),
            _ => {
                let range = &FOREIGN[a % FOREIGN.len()];
                let from = range.start + b * PAGE % range.len();
                (from, (range.end - from).min(c % 64 * PAGE))
            }
        };
        Self {
            function: function % 16,
            addr,
            len,
            is_foreign: place % 8 == 7,
            flags: c_uint::from(flags),
            more: [more, last],
        }
    }

    /// Returns the pages of the world that the range covers, in whole or in part.
    fn pages(&self, world: &World) -> Range<usize> {
        let end = self.addr.saturating_add(self.len).min(START + world.len());
        let first = self.addr.max(START);
        if first >= end {
            return 0..0;
        }
        (first - START) / PAGE..(end - START).div_ceil(PAGE)
    }

    fn pointer(&self) -> *mut c_void {
        ptr::with_exposed_provenance_mut(self.addr)
    }

    pub fn make(&self, world: &mut World) {
        // SAFETY: this thread's own `errno`.
        let errno = unsafe { libc::__errno_location() };
        // SAFETY: as above.
        unsafe { *errno = 77 };
        match self.function {
            0 => self.populate(),
            1 => self.populate_with(),
            2 => self.lock(),
            3 => self.unlock(),
            4 => self.lock_all(),
            5 => self.map(world),
            6 => self.stats(),
            7 | 8 => self.unmark(world),
            9 => self.purge(world),
            10 => {
                let page = usize::from(self.more[0]) % SMALL_PAGES;
                return world.write(page, self.more[1].max(1));
            }
            11 => return world.page_out(self.pages(world)),
            // Foreign memory must keep its contents.
            _ if self.is_foreign => {}
            12 => self.lazy_free(world),
            13 => self.mark(world),
            14 => self.discard(world),
            _ => self.unmap(world),
        }
        // SAFETY: as above.
        assert_eq!(unsafe { *errno }, 77, "errno has changed");
    }

    /// Checks the result of a verb that loses contents, and so needs whole pages.
    fn check_whole_pages(&self, name: &str, answer: c_int, max: c_int) {
        if !self.len.is_multiple_of(PAGE) {
            assert_eq!(answer, -libc::EINVAL, "{name}");
        }
        self.check(name, answer, max);
    }

    fn check(&self, name: &str, answer: c_int, max: c_int) {
        documented::check(name, answer, max);
        let is_aligned =
            self.addr.is_multiple_of(PAGE) && self.addr.checked_add(self.len).is_some();
        assert!(
            is_aligned || answer == -libc::EINVAL,
            "{name}() returns {answer}"
        );
    }

    /// Checks that a verb, other than unmapping, refuses a range with a hole.
    fn check_holes(&self, name: &str, answer: c_int, world: &World) {
        let pages = self.pages(world);
        let has_hole = pages
            .clone()
            .any(|page| world.pages[page].kind == Kind::Hole);
        let is_outside = !self.is_foreign && self.len.div_ceil(PAGE) > pages.len();
        if self.len > 0 && (has_hole || is_outside) {
            assert!(answer < 0, "{name}() returns {answer} for a hole");
        }
    }

    fn populate(&self) {
        // SAFETY: changes no contents.
        let answer = unsafe { tenure_populate(self.pointer(), self.len, self.flags % 9) };
        self.check("tenure_populate", answer, 0);
    }

    fn populate_with(&self) {
        unsafe extern "C" fn progress(done: usize, total: usize, stops: *mut c_void) -> c_int {
            assert!(done <= total);
            c_int::from(!stops.is_null())
        }
        #[repr(C)]
        struct Options {
            known: tenure_populate_options,
            unknown: [u8; 64],
        }
        let [more, last] = self.more;
        let stops = ptr::without_provenance_mut(usize::from(last & 1));
        let sizes = [0, 8, 39, 40, 40, 41, 64, size_of::<Options>()];
        let numbers = [0, 1, 2, 3, PAGE - 1, PAGE, usize::MAX / 2, usize::MAX];
        let options = Options {
            known: tenure_populate_options {
                size: sizes[usize::from(last >> 5)],
                threads: numbers[usize::from(more & 7)],
                chunk_bytes: numbers[usize::from(more >> 3 & 7)],
                progress: (more >> 6 & 1 == 1).then_some(progress),
                data: stops,
            },
            unknown: [last >> 1 & 1; 64],
        };
        let options = match last & 4 {
            0 => &raw const options.known,
            _ => ptr::null(),
        };
        // SAFETY: changes no contents; the options have as many bytes as they say.
        let answer =
            unsafe { tenure_populate_with(self.pointer(), self.len, self.flags % 9, options) };
        // The options are checked before the range.
        documented::check("tenure_populate_with", answer, 0);
    }

    fn lock(&self) {
        // SAFETY: changes no contents.
        let answer = unsafe { tenure_mlock(self.pointer(), self.len, self.flags % 4) };
        self.check("tenure_mlock", answer, 0);
        if answer == 0 && self.is_foreign {
            // SAFETY: nothing relies on the lock.
            let answer = unsafe { tenure_munlock(self.pointer(), self.len, 3) };
            assert_eq!(answer, 0, "locked memory can be unlocked");
        }
    }

    fn unlock(&self) {
        // SAFETY: nothing relies on the locks.
        let answer = unsafe { tenure_munlock(self.pointer(), self.len, self.flags % 5) };
        self.check("tenure_munlock", answer, 0);
    }

    fn lock_all(&self) {
        // Seldom, because it faults in all memory; and without future mappings if the lock
        // limit would then make the fuzzer's own mmap() fail.
        if !self.more[0].is_multiple_of(16) {
            let answer = tenure_munlockall(self.flags % 5);
            return documented::check("tenure_munlockall", answer, 0);
        }
        // SAFETY: only returns a number.
        let is_root = unsafe { libc::geteuid() } == 0;
        let flags = if is_root {
            self.flags
        } else {
            self.flags & !TENURE_LOCK_FUTURE
        };
        let answer = tenure_mlockall(flags % 17);
        documented::check("tenure_mlockall", answer, 0);
        assert_eq!(tenure_munlockall(3), 0);
    }

    fn map(&self, world: &World) {
        let [more, last] = self.more;
        let lens = [
            0,
            1,
            PAGE,
            3 * PAGE + 5,
            16 * PAGE,
            1 << 60,
            usize::MAX - 1,
            usize::MAX,
        ];
        let fds = [-1, world.file.as_raw_fd(), 9999, -7];
        let offsets = [0, 0, 4096, 1, -4096, i64::MAX];
        let mut out = ptr::without_provenance_mut(17);
        let place = if more == 255 {
            ptr::null_mut()
        } else {
            &raw mut out
        };
        let len = lens[usize::from(more) % 8];
        // SAFETY: the kernel picks the place; MAP_FIXED is refused.
        let answer = unsafe {
            tenure_mmap(
                place,
                len,
                c_int::from(last) % 16,
                // MAP_PRIVATE, MAP_SHARED and further flags of mmap().
                (self.addr % 255) as c_int | c_int::from(last) << 12 & 0x7_8000,
                fds[usize::from(more >> 3) % 4],
                offsets[usize::from(more >> 5) % 6],
                self.flags % 34,
            )
        };
        documented::check("tenure_mmap", answer, 0);
        if answer != 0 {
            assert_eq!(out.addr(), 17, "written on an error");
            return;
        }
        assert!(
            out.addr().is_multiple_of(PAGE) && !(START..START + world.len()).contains(&out.addr())
        );
        let len = len.next_multiple_of(PAGE);
        // SAFETY: mapped above and nobody else's.
        assert_eq!(unsafe { tenure_munmap(out, len) }, 0);
    }

    fn stats(&self) {
        let mut buffer = [0x5a_u8; 1024];
        let size = usize::from(self.more[0]) * 4;
        let out: *mut tenure_stats = match self.more[1] {
            0 => ptr::null_mut(),
            _ => buffer.as_mut_ptr().cast(),
        };
        // SAFETY: the buffer has space for `size` bytes.
        let answer = unsafe { tenure_stats(out, size) };
        documented::check("tenure_stats", answer, 0);
        assert_eq!(answer == 0, !out.is_null());
        let written = if answer == 0 { size } else { 0 };
        assert!(buffer[written..].iter().all(|&byte| byte == 0x5a));
    }

    fn unmark(&self, world: &mut World) {
        const CAPACITY: usize = 8;
        let unwritten = tenure_range {
            addr: ptr::null_mut(),
            len: 17,
        };
        let mut purged = [unwritten; CAPACITY];
        let mut count = 777;
        let [more, last] = self.more;
        let max_purged = usize::from(more) % CAPACITY;
        let has_array = last & 3 != 0;
        let array = if has_array {
            purged.as_mut_ptr()
        } else {
            ptr::null_mut()
        };
        let counts = if last & 12 != 0 {
            &raw mut count
        } else {
            ptr::null_mut()
        };
        // SAFETY: the array has space for `max_purged` ranges, or is NULL.
        let answer =
            unsafe { tenure_mnovolatile(self.pointer(), self.len, array, max_purged, counts) };
        self.check_whole_pages("tenure_mnovolatile", answer, 1);
        let reported = match () {
            () if !has_array || answer < 1 => 0,
            () if counts.is_null() => purged.iter().take_while(|run| **run != unwritten).count(),
            () => count.min(max_purged),
        };
        assert!(reported <= max_purged);
        assert!(purged[reported..].iter().all(|run| *run == unwritten));
        if answer < 0 || counts.is_null() {
            assert_eq!(count, 777, "written");
        } else {
            assert_eq!(count > 0, answer == 1);
        }
        if answer >= 0 {
            self.unmark_runs(
                world,
                &purged[..reported],
                answer == 1
                    && reported < max_purged.max(1)
                    && !counts.is_null()
                    && count == reported,
            );
            self.unmark_rest(world, answer);
        }
    }

    /// Records that the pages of the runs are purged and, if these are all runs, that no
    /// others are.
    fn unmark_runs(&self, world: &mut World, runs: &[tenure_range], are_all: bool) {
        let pages = self.pages(world);
        let mut at = self.addr;
        for run in runs {
            assert!(run.addr.addr() >= at && run.len > 0 && run.len.is_multiple_of(PAGE));
            let first = (run.addr.addr() - START) / PAGE;
            at = run.addr.addr() + run.len;
            assert!(at <= self.addr + self.len);
            for page in first..first + run.len / PAGE {
                world.pages[page].unmarked(Some(true));
            }
        }
        if are_all {
            for page in pages {
                world.pages[page].unmarked(Some(false));
            }
        }
    }

    fn unmark_rest(&self, world: &mut World, answer: c_int) {
        let is_purged = if answer == 0 { Some(false) } else { None };
        for page in self.pages(world) {
            world.pages[page].unmarked(is_purged);
        }
    }

    fn purge(&self, world: &mut World) {
        // SAFETY: all volatile memory is the world's.
        let answer = unsafe { tenure_purge(self.pointer(), self.len) };
        self.check_whole_pages("tenure_purge", answer, 0);
        self.check_holes("tenure_purge", answer, world);
        if answer == 0 {
            for page in self.pages(world) {
                world.pages[page].purged();
            }
        }
    }

    fn lazy_free(&self, world: &mut World) {
        // SAFETY: the world's, or not mapped.
        let answer = unsafe { tenure_lazy_free(self.pointer(), self.len) };
        self.check_whole_pages("tenure_lazy_free", answer, 0);
        self.check_holes("tenure_lazy_free", answer, world);
        if answer == 0 {
            for page in self.pages(world) {
                assert!(world.pages[page].is_private_memory());
                world.pages[page].lazily_freed();
            }
        }
    }

    fn mark(&self, world: &mut World) {
        let priority = c_uint::from(self.more[0]) % 5;
        let (name, answer) = match self.more[1] % 4 {
            // SAFETY: the world's, or not mapped.
            0 => ("tenure_mvolatile", unsafe {
                tenure_mvolatile(self.pointer(), self.len)
            }),
            _ => ("tenure_mvolatile_with", {
                // SAFETY: as above.
                unsafe { tenure_mvolatile_with(self.pointer(), self.len, priority, self.flags % 3) }
            }),
        };
        self.check_whole_pages(name, answer, 0);
        self.check_holes(name, answer, world);
        if answer == 0 {
            for page in self.pages(world) {
                assert_eq!(world.pages[page].kind, Kind::Anonymous);
                world.pages[page].marked();
            }
        }
    }

    fn discard(&self, world: &mut World) {
        // SAFETY: the world's, or not mapped.
        let answer = unsafe { tenure_discard(self.pointer(), self.len) };
        self.check_whole_pages("tenure_discard", answer, 0);
        self.check_holes("tenure_discard", answer, world);
        if answer == 0 {
            for page in self.pages(world) {
                world.pages[page].discarded();
            }
        }
    }

    fn unmap(&self, world: &mut World) {
        // SAFETY: the world's, or not mapped: there is nothing behind the world.
        let answer = unsafe { tenure_munmap(self.pointer(), self.len) };
        self.check_whole_pages("tenure_munmap", answer, 0);
        if answer == 0 {
            for page in self.pages(world) {
                world.pages[page].unmapped();
            }
        }
    }
}

/// Unmaps the world through tenure, which then forgets its marks and locks.
pub fn unmap_all(world: &mut World) {
    let start = ptr::with_exposed_provenance_mut(START);
    // SAFETY: the world's own.
    assert_eq!(unsafe { tenure_munmap(start, world.len()) }, 0);
}
