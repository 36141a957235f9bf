//! Memory of every kind at addresses of its own, and what each page may hold.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::{fs::File, ops::Range, ptr};

use libc::{MAP_ANONYMOUS, MAP_FIXED_NOREPLACE, MAP_PRIVATE, MAP_SHARED};
use libc::{PROT_NONE, PROT_READ, PROT_WRITE};

pub const PAGE: usize = 4096;
/// Far from where the kernel puts what it is given no address for, so that nobody
/// else's memory comes into the holes, or behind the end.
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

/// What lies where, in pages. The last is large enough to be carried off.
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

/// How many pages the file of the private mapping has.
const FILE_PAGES: usize = 2;
/// The last part is looked at here and there only.
pub const SMALL_PAGES: usize = 48;
const LOOKED_AT: usize = 64;

#[derive(Clone, Copy, Debug)]
pub struct Page {
    pub kind: Kind,
    fill: u8,
    pub is_volatile: bool,
    /// What may be found.
    may_be_kept: bool,
    may_be_zeros: bool,
    may_be_gone: bool,
}

pub struct World {
    pub pages: Vec<Page>,
    /// Reads and writes memory without a signal.
    memory: File,
    pub file: OwnedFd,
    shared: OwnedFd,
}

fn memfd(pages: usize) -> OwnedFd {
    // SAFETY: the name is a C string; the answer is checked.
    let fd = unsafe { libc::memfd_create(c"tenure-fuzz".as_ptr(), libc::MFD_CLOEXEC) };
    assert!(fd >= 0, "memfd_create");
    // SAFETY: just opened, and nobody else's.
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

    /// All addresses, mapped or not.
    pub fn len(&self) -> usize {
        self.pages.len() * PAGE
    }

    /// Maps everything anew. Nothing is mapped there.
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
            let is_there = match kind {
                Hole => false,
                PrivateFile => index - first < FILE_PAGES,
                _ => true,
            };
            let is_touched = is_looked_at(index) && is_there && kind != PrivateFile;
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
                may_be_kept: is_there,
                may_be_zeros: false,
                may_be_gone: !is_there || kind == NoAccess,
            });
        }
        let access = match kind {
            ReadOnly | SharedReadOnly => PROT_READ,
            NoAccess => PROT_NONE,
            _ => return,
        };
        // SAFETY: mapped above; nobody has references into it.
        let answer = unsafe { libc::mprotect(at.cast(), count * PAGE, access) };
        assert_eq!(answer, 0);
    }

    /// Compares all of it with what may be there.
    pub fn check(&self, call: &dyn std::fmt::Debug) {
        for index in (0..self.pages.len()).filter(|&index| is_looked_at(index)) {
            let page = self.pages[index];
            let is_right = match self.read(index) {
                None => page.may_be_gone,
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

    /// What a page is filled with; `None` if it cannot be read.
    fn read(&self, index: usize) -> Option<u8> {
        let mut bytes = [0; PAGE];
        self.memory
            .read_exact_at(&mut bytes, (START + index * PAGE) as u64)
            .ok()?;
        let first = bytes[0];
        assert_eq!(
            bytes, [first; PAGE],
            "page {index} has more than one content"
        );
        Some(first)
    }

    /// Writes to a page, if the program could.
    pub fn write(&mut self, index: usize, fill: u8) {
        let page = &mut self.pages[index];
        if page.kind != Anonymous {
            return;
        }
        let written = self
            .memory
            .write_all_at(&[fill; PAGE], (START + index * PAGE) as u64);
        if written.is_err() {
            assert!(page.may_be_gone, "page {index} cannot be written");
            return;
        }
        page.fill = fill;
        page.may_be_kept = true;
        page.may_be_zeros = false;
        page.may_be_gone = page.is_volatile;
    }

    /// Has the kernel take what it may.
    pub fn page_out(&self, range: Range<usize>) {
        let at = ptr::with_exposed_provenance_mut(START + range.start * PAGE);
        // SAFETY: loses nothing that was not given up; what is refused is left.
        unsafe { libc::madvise(at, range.len() * PAGE, libc::MADV_PAGEOUT) };
    }
}

fn is_looked_at(index: usize) -> bool {
    index < SMALL_PAGES || index.is_multiple_of(LOOKED_AT)
}

/// What a call that succeeded does to a page of its range.
impl Page {
    pub fn is_private_memory(self) -> bool {
        matches!(self.kind, Anonymous | ReadOnly | NoAccess)
    }

    pub fn unmapped(&mut self) {
        self.kind = Hole;
        self.is_volatile = false;
        (self.may_be_kept, self.may_be_zeros, self.may_be_gone) = (false, false, true);
    }

    pub fn discarded(&mut self) {
        if self.is_private_memory() {
            self.is_volatile = false;
            (self.may_be_kept, self.may_be_zeros) = (false, true);
            self.may_be_gone = self.kind == NoAccess;
        }
    }

    pub fn lazily_freed(&mut self) {
        self.may_be_zeros = true;
        self.is_volatile = false;
        self.may_be_gone = self.kind == NoAccess;
    }

    pub fn marked(&mut self) {
        self.is_volatile = true;
        self.may_be_gone = true;
    }

    pub fn purged(&mut self) {
        if self.is_volatile {
            self.may_be_kept = false;
        }
    }

    /// `is_lost` is `None` where the call has not said.
    pub fn unmarked(&mut self, is_lost: Option<bool>) {
        if is_lost == Some(true) {
            assert!(self.is_volatile, "{self:?} cannot have been lost");
            self.may_be_kept = false;
        }
        if self.is_volatile {
            self.may_be_zeros |= is_lost != Some(false);
            self.may_be_gone = false;
            self.is_volatile = false;
        }
    }
}
