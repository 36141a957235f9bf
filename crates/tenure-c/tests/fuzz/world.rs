//! Memory of every kind at addresses of its own, and the contents that each page may have.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::{fs::File, ops::Range, ptr};

use libc::{MAP_ANONYMOUS, MAP_FIXED_NOREPLACE, MAP_PRIVATE, MAP_SHARED};
use libc::{PROT_NONE, PROT_READ, PROT_WRITE};

pub const PAGE: usize = 4096;
/// Far from the addresses that the kernel picks by itself, so that no other memory is
/// mapped in the holes or behind the end.
pub const START: usize = 1 << 45;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Hole,
    Anonymous,
    ReadOnly,
    NoAccess,
    PrivateFile,
    SharedFile,
    SharedAnonymous,
    SharedReadOnly,
}

use Kind::*;

/// The kinds of memory in order, with their lengths in pages. The last part is large enough
/// for a deferred free.
const LAYOUT: [(Kind, usize); 16] = [
    (Anonymous, 4),
    (NoAccess, 2),
    (Anonymous, 8),
    (ReadOnly, 2),
    (Hole, 2),
    (Anonymous, 6),
    (PrivateFile, 4),
    (Hole, 1),
    (SharedFile, 4),
    (SharedAnonymous, 2),
    (Anonymous, 1),
    (SharedReadOnly, 2),
    (Hole, 1),
    (Anonymous, 4),
    (Hole, 5),
    (Anonymous, 1100),
];

/// The length of the privately mapped file, in pages.
const FILE_PAGES: usize = 2;
/// Of the pages behind these, only each `SAMPLED`th is checked.
pub const SMALL_PAGES: usize = 48;
const SAMPLED: usize = 64;

#[derive(Clone, Copy, Debug)]
pub struct Page {
    pub kind: Kind,
    fill: u8,
    pub is_volatile: bool,
    // The states that are allowed.
    may_be_kept: bool,
    may_be_zeros: bool,
    may_be_unreadable: bool,
}

pub struct World {
    pub pages: Vec<Page>,
    /// Reads and writes memory without a signal.
    memory: File,
    pub file: OwnedFd,
    shared: OwnedFd,
}

fn memfd(pages: usize) -> OwnedFd {
    // SAFETY: the name is a C string.
    let fd = unsafe { libc::memfd_create(c"tenure-fuzz".as_ptr(), libc::MFD_CLOEXEC) };
    assert!(fd >= 0, "memfd_create");
    // SAFETY: just opened, and owned by no other value.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    File::from(fd.try_clone().unwrap())
        .set_len((pages * PAGE) as u64)
        .unwrap();
    fd
}

impl World {
    pub fn new() -> Self {
        let memory = File::options()
            .read(true)
            .write(true)
            .open("/proc/self/mem");
        let mut world = Self {
            pages: Vec::new(),
            memory: memory.unwrap(),
            file: memfd(FILE_PAGES),
            shared: memfd(8),
        };
        let file = File::from(world.file.try_clone().unwrap());
        file.write_all_at(&[0xf1; FILE_PAGES * PAGE], 0).unwrap();
        world.map();
        world
    }

    /// The length of the world in bytes, mapped or not.
    pub fn len(&self) -> usize {
        self.pages.len() * PAGE
    }

    /// Maps all parts. None may be mapped.
    pub fn map(&mut self) {
        self.pages.clear();
        for (kind, count) in LAYOUT {
            let first = self.pages.len();
            self.map_part(kind, first, count);
        }
    }

    fn map_part(&mut self, kind: Kind, first: usize, count: usize) {
        let (share, fd) = match kind {
            Hole | Anonymous | ReadOnly | NoAccess => (MAP_PRIVATE | MAP_ANONYMOUS, -1),
            PrivateFile => (MAP_PRIVATE, self.file.as_raw_fd()),
            SharedAnonymous => (MAP_SHARED | MAP_ANONYMOUS, -1),
            SharedFile | SharedReadOnly => (MAP_SHARED, self.shared.as_raw_fd()),
        };
        let offset = if kind == SharedReadOnly { 4 * PAGE } else { 0 };
        let at = ptr::with_exposed_provenance_mut::<u8>(START + first * PAGE);
        if kind != Hole {
            // SAFETY: replaces nothing.
            let mapped = unsafe {
                libc::mmap(
                    at.cast(),
                    count * PAGE,
                    PROT_READ | PROT_WRITE,
                    share | MAP_FIXED_NOREPLACE,
                    fd,
                    offset as i64,
                )
            };
            assert_eq!(
                mapped.addr(),
                at.addr(),
                "{}",
                std::io::Error::last_os_error()
            );
        }
        for index in first..first + count {
            let is_backed = match kind {
                Hole => false,
                PrivateFile => index - first < FILE_PAGES,
                _ => true,
            };
            let is_touched = is_checked(index) && is_backed && kind != PrivateFile;
            let fill = match kind {
                PrivateFile => 0xf1,
                _ if is_touched => 1 + (index % 200) as u8,
                _ => 0,
            };
            if is_touched {
                // SAFETY: just mapped, and writable.
                unsafe { at.add((index - first) * PAGE).write_bytes(fill, PAGE) };
            }
            self.pages.push(Page {
                kind,
                fill,
                is_volatile: false,
                may_be_kept: is_backed,
                may_be_zeros: false,
                may_be_unreadable: !is_backed || kind == NoAccess,
            });
        }
        let access = match kind {
            ReadOnly | SharedReadOnly => PROT_READ,
            NoAccess => PROT_NONE,
            _ => return,
        };
        // SAFETY: mapped above; there are no references into it.
        let answer = unsafe { libc::mprotect(at.cast(), count * PAGE, access) };
        assert_eq!(answer, 0);
    }

    /// Asserts that each page has contents that it may have.
    pub fn check(&self, call: &dyn std::fmt::Debug) {
        for index in (0..self.pages.len()).filter(|&index| is_checked(index)) {
            let page = self.pages[index];
            let is_right = match self.read(index) {
                None => page.may_be_unreadable,
                Some(found) => {
                    found == page.fill && page.may_be_kept || found == 0 && page.may_be_zeros
                }
            };
            assert!(
                is_right,
                "{call:?} left page {index} {:?}, {page:?}",
                self.read(index)
            );
        }
    }

    /// Returns the byte that fills a page; `None` if the page cannot be read.
    fn read(&self, index: usize) -> Option<u8> {
        let mut bytes = [0; PAGE];
        self.memory
            .read_exact_at(&mut bytes, (START + index * PAGE) as u64)
            .ok()?;
        let first = bytes[0];
        assert_eq!(
            bytes, [first; PAGE],
            "page {index} is not filled with one byte"
        );
        Some(first)
    }

    /// Fills a page, if the program could.
    pub fn write(&mut self, index: usize, fill: u8) {
        let page = &mut self.pages[index];
        if page.kind != Anonymous {
            return;
        }
        let written = self
            .memory
            .write_all_at(&[fill; PAGE], (START + index * PAGE) as u64);
        if written.is_err() {
            assert!(page.may_be_unreadable, "page {index} cannot be written");
            return;
        }
        page.fill = fill;
        page.may_be_kept = true;
        page.may_be_zeros = false;
        page.may_be_unreadable = page.is_volatile;
    }

    /// Lets the kernel reclaim and purge the pages that it may.
    pub fn page_out(&self, range: Range<usize>) {
        let at = ptr::with_exposed_provenance_mut(START + range.start * PAGE);
        // SAFETY: MADV_PAGEOUT loses only contents that are lazily free.
        unsafe { libc::madvise(at, range.len() * PAGE, libc::MADV_PAGEOUT) };
    }
}

fn is_checked(index: usize) -> bool {
    index < SMALL_PAGES || index.is_multiple_of(SAMPLED)
}

/// The effects of a call that succeeded on a page of its range.
impl Page {
    pub fn is_private_memory(self) -> bool {
        matches!(self.kind, Anonymous | ReadOnly | NoAccess)
    }

    pub fn unmapped(&mut self) {
        self.kind = Hole;
        self.is_volatile = false;
        (self.may_be_kept, self.may_be_zeros, self.may_be_unreadable) = (false, false, true);
    }

    pub fn discarded(&mut self) {
        if self.is_private_memory() {
            self.is_volatile = false;
            (self.may_be_kept, self.may_be_zeros) = (false, true);
            self.may_be_unreadable = self.kind == NoAccess;
        }
    }

    pub fn lazily_freed(&mut self) {
        self.may_be_zeros = true;
        self.is_volatile = false;
        self.may_be_unreadable = self.kind == NoAccess;
    }

    pub fn marked(&mut self) {
        self.is_volatile = true;
        self.may_be_unreadable = true;
    }

    pub fn purged(&mut self) {
        if self.is_volatile {
            self.may_be_kept = false;
        }
    }

    /// `is_purged` is `None` where the call has not reported it.
    pub fn unmarked(&mut self, is_purged: Option<bool>) {
        if is_purged == Some(true) {
            assert!(self.is_volatile, "{self:?} cannot have been purged");
            self.may_be_kept = false;
        }
        if self.is_volatile {
            self.may_be_zeros |= is_purged != Some(false);
            self.may_be_unreadable = false;
            self.is_volatile = false;
        }
    }
}
