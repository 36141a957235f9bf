//! One call, made of eight bytes, and what it may do.

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
    what: u8,
    addr: usize,
    len: usize,
    /// Whether the address is of others' memory: of the program, or the kernel's.
    is_special: bool,
    flags: c_uint,
    more: [u8; 2],
}

/// Addresses where nothing of the program's can be, whatever the length.
const WILD: [usize; 8] = [
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

/// The mappings that there are before the first call: the program's own, libraries,
/// the stack, and the kernel's.
static SPECIAL: LazyLock<Vec<Range<usize>>> = LazyLock::new(|| {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let bounds = maps.lines().filter_map(|line| {
        let (start, end) = line.split_once(' ')?.0.split_once('-')?;
        let parse = |hex| usize::from_str_radix(hex, 16).ok();
        Some(parse(start)?..parse(end)?)
    });
    let is_others = |range: &Range<usize>| range.end <= START || range.start >= 2 * START;
    bounds.filter(is_others).collect()
});

impl Call {
    pub fn new([what, place, a, b, c, flags, more, last]: [u8; 8]) -> Self {
        let (a, b, c) = (usize::from(a), usize::from(b), usize::from(c));
        let page = |index: usize| START + index * PAGE;
        let (addr, len) = match place % 8 {
            0..3 => (page(a % SMALL_PAGES), b % 16 * PAGE),
            3 => (page(a * 5), b * 5 * PAGE),
            4 => (page(a % SMALL_PAGES) + 1 + c, b % 16 * PAGE),
            5 => (page(a % SMALL_PAGES), b * 16 + c % 16),
            6 if b.is_multiple_of(2) => (WILD[a % WILD.len()], LENGTHS[c % LENGTHS.len()]),
            6 => (page(a % SMALL_PAGES), LENGTHS[c % LENGTHS.len()]),
            _ => {
                let range = &SPECIAL[a % SPECIAL.len()];
                let from = range.start + b * PAGE % range.len();
                (from, (range.end - from).min(c % 64 * PAGE))
            }
        };
        Self {
            what: what % 16,
            addr,
            len,
            is_special: place % 8 == 7,
            flags: c_uint::from(flags),
            more: [more, last],
        }
    }

    /// Those pages of the world that are named, in whole or in part.
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
        match self.what {
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
            // Others' memory is not given up.
            _ if self.is_special => {}
            12 => self.lazy_free(world),
            13 => self.mark(world),
            14 => self.discard(world),
            _ => self.unmap(world),
        }
        // SAFETY: as above.
        assert_eq!(unsafe { *errno }, 77, "errno has changed");
    }

    /// Whether pages must be named whole, by the verbs that lose contents.
    fn check_exact(&self, name: &str, answer: c_int, most: c_int) {
        if !self.len.is_multiple_of(PAGE) {
            assert_eq!(answer, -libc::EINVAL, "{name}");
        }
        self.check(name, answer, most);
    }

    fn check(&self, name: &str, answer: c_int, most: c_int) {
        documented::check(name, answer, most);
        let is_whole = self.addr.is_multiple_of(PAGE) && self.addr.checked_add(self.len).is_some();
        assert!(
            is_whole || answer == -libc::EINVAL,
            "{name}() answers {answer}"
        );
    }

    /// All but unmapping refuse what is not mapped.
    fn check_holes(&self, name: &str, answer: c_int, world: &World) {
        let pages = self.pages(world);
        let has_hole = pages
            .clone()
            .any(|page| world.pages[page].kind == Kind::Hole);
        let is_outside = !self.is_special && self.len.div_ceil(PAGE) > pages.len();
        if self.len > 0 && (has_hole || is_outside) {
            assert!(answer < 0, "{name}() answers {answer} for a hole");
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
        // Options are looked at first.
        documented::check("tenure_populate_with", answer, 0);
    }

    fn lock(&self) {
        // SAFETY: changes no contents.
        let answer = unsafe { tenure_mlock(self.pointer(), self.len, self.flags % 4) };
        self.check("tenure_mlock", answer, 0);
        if answer == 0 && self.is_special {
            // SAFETY: nothing relies on the lock.
            let answer = unsafe { tenure_munlock(self.pointer(), self.len, 3) };
            assert_eq!(answer, 0, "what was locked can be unlocked");
        }
    }

    fn unlock(&self) {
        // SAFETY: nothing relies on the locks.
        let answer = unsafe { tenure_munlock(self.pointer(), self.len, self.flags % 5) };
        self.check("tenure_munlock", answer, 0);
    }

    fn lock_all(&self) {
        // Now and then, for it brings in all that there is; and not for future
        // mappings where a limit would then keep memory from the fuzzer.
        if !self.more[0].is_multiple_of(16) {
            let answer = tenure_munlockall(self.flags % 5);
            return documented::check("tenure_munlockall", answer, 0);
        }
        // SAFETY: asks for a number.
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
            assert_eq!(out.addr(), 17, "touched on an error");
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
        let mut room = [0x5a_u8; 1024];
        let size = usize::from(self.more[0]) * 4;
        let out: *mut tenure_stats = match self.more[1] {
            0 => ptr::null_mut(),
            _ => room.as_mut_ptr().cast(),
        };
        // SAFETY: there is room for `size` bytes.
        let answer = unsafe { tenure_stats(out, size) };
        documented::check("tenure_stats", answer, 0);
        assert_eq!(answer == 0, !out.is_null());
        let untouched = if answer == 0 { size } else { 0 };
        assert!(room[untouched..].iter().all(|&byte| byte == 0x5a));
    }

    fn unmark(&self, world: &mut World) {
        const ROOM: usize = 8;
        let mine = tenure_range {
            addr: ptr::null_mut(),
            len: 17,
        };
        let mut purged = [mine; ROOM];
        let mut count = 777;
        let [more, last] = self.more;
        let most = usize::from(more) % ROOM;
        let has_room = last & 3 != 0;
        let room = if has_room {
            purged.as_mut_ptr()
        } else {
            ptr::null_mut()
        };
        let counts = if last & 12 != 0 {
            &raw mut count
        } else {
            ptr::null_mut()
        };
        // SAFETY: there is room for `most` ranges, or none at all.
        let answer = unsafe { tenure_mnovolatile(self.pointer(), self.len, room, most, counts) };
        self.check_exact("tenure_mnovolatile", answer, 1);
        let told = match () {
            () if !has_room || answer < 1 => 0,
            () if counts.is_null() => purged.iter().take_while(|run| **run != mine).count(),
            () => count.min(most),
        };
        assert!(told <= most && purged[told..].iter().all(|run| *run == mine));
        if answer < 0 || counts.is_null() {
            assert_eq!(count, 777, "touched");
        } else {
            assert_eq!(count > 0, answer == 1);
        }
        if answer >= 0 {
            self.unmarked(
                world,
                &purged[..told],
                answer == 1 && told < most.max(1) && !counts.is_null() && count == told,
            );
            self.settle_rest(world, answer);
        }
    }

    /// The pages in the runs are lost; if these are all runs, no others are.
    fn unmarked(&self, world: &mut World, runs: &[tenure_range], are_all: bool) {
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

    fn settle_rest(&self, world: &mut World, answer: c_int) {
        let is_lost = if answer == 0 { Some(false) } else { None };
        for page in self.pages(world) {
            world.pages[page].unmarked(is_lost);
        }
    }

    fn purge(&self, world: &mut World) {
        // SAFETY: what is volatile is the world's.
        let answer = unsafe { tenure_purge(self.pointer(), self.len) };
        self.check_exact("tenure_purge", answer, 0);
        self.check_holes("tenure_purge", answer, world);
        if answer == 0 {
            for page in self.pages(world) {
                world.pages[page].purged();
            }
        }
    }

    fn lazy_free(&self, world: &mut World) {
        // SAFETY: the world's, or nothing's.
        let answer = unsafe { tenure_lazy_free(self.pointer(), self.len) };
        self.check_exact("tenure_lazy_free", answer, 0);
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
            // SAFETY: the world's, or nothing's.
            0 => ("tenure_mvolatile", unsafe {
                tenure_mvolatile(self.pointer(), self.len)
            }),
            _ => ("tenure_mvolatile_with", {
                // SAFETY: as above.
                unsafe { tenure_mvolatile_with(self.pointer(), self.len, priority, self.flags % 3) }
            }),
        };
        self.check_exact(name, answer, 0);
        self.check_holes(name, answer, world);
        if answer == 0 {
            for page in self.pages(world) {
                assert_eq!(world.pages[page].kind, Kind::Anonymous);
                world.pages[page].marked();
            }
        }
    }

    fn discard(&self, world: &mut World) {
        // SAFETY: the world's, or nothing's.
        let answer = unsafe { tenure_discard(self.pointer(), self.len) };
        self.check_exact("tenure_discard", answer, 0);
        self.check_holes("tenure_discard", answer, world);
        if answer == 0 {
            for page in self.pages(world) {
                world.pages[page].discarded();
            }
        }
    }

    fn unmap(&self, world: &mut World) {
        // SAFETY: the world's, or nothing's: there is nothing behind it.
        let answer = unsafe { tenure_munmap(self.pointer(), self.len) };
        self.check_exact("tenure_munmap", answer, 0);
        if answer == 0 {
            for page in self.pages(world) {
                world.pages[page].unmapped();
            }
        }
    }
}

/// Through tenure, which ends what it knows of the world.
pub fn unmap_all(world: &mut World) {
    let start = ptr::with_exposed_provenance_mut(START);
    // SAFETY: the world's own.
    assert_eq!(unsafe { tenure_munmap(start, world.len()) }, 0);
}
