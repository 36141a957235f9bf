//! What is mapped in a range: PROCMAP_QUERY (Linux 6.11), `/proc/self/maps`
//! before.

use std::ffi::OsString;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use linux_raw_sys::general::{PATH_MAX, procmap_query, procmap_query_flags};
use procfs::process::{MMPermissions, MMapPath, MemoryMap, Process};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::ioctl::{Updater, ioctl, opcode};

use super::features::Features;
use super::page_size;
use crate::PageRange;
use crate::ground::error::{Error, MemoryKind, Result};

/// The part of one mapping of the kernel's that lies in the range asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Vma {
    pub(crate) range: PageRange,
    pub(crate) kind: MemoryKind,
    pub(crate) readable: bool,
    pub(crate) writable: bool,
    /// The size of its pages; for hugetlb memory more than [`page_size`].
    pub(crate) page_bytes: usize,
}

/// The mappings that cover the range, in order.
///
/// # Errors
///
/// [`Error::Hole`] when a part of the range is not mapped; [`Error::System`]
/// when the kernel does not say what is mapped (no `/proc`).
pub(crate) fn cover(range: PageRange) -> Result<Vec<Vma>> {
    let vmas = within(range)?;
    let mut next = range.start();
    for vma in &vmas {
        if vma.range.start() > next {
            return Err(hole(range, next, vma.range.start()));
        }
        next = vma.range.end();
    }
    if next < range.end() {
        return Err(hole(range, next, range.end()));
    }
    Ok(vmas)
}

fn hole(range: PageRange, start: usize, end: usize) -> Error {
    Error::Hole {
        range,
        hole: PageRange::between(start, end),
    }
}

/// The parts of the range that are mapped, in order.
pub(crate) fn within(range: PageRange) -> Result<Vec<Vma>> {
    if range.is_empty() {
        return Ok(Vec::new());
    }
    if Features::get().procmap_query.is_err() {
        return parse_maps(range);
    }
    query_each(range).map_err(|errno| Error::System {
        call: "PROCMAP_QUERY on /proc/self/maps",
        errno,
    })
}

/// Whether this kernel answers PROCMAP_QUERY.
pub(super) fn probe_query() -> Result<(), Errno> {
    let here = (&raw const PROBED).expose_provenance();
    query(open_maps()?.as_fd(), here, None).map(drop)
}

static PROBED: u8 = 0;

fn open_maps() -> Result<OwnedFd, Errno> {
    // Opened for each question: a kept descriptor would, in a child after
    // fork, go on describing the parent.
    rustix::fs::open(
        "/proc/self/maps",
        OFlags::RDONLY | OFlags::CLOEXEC,
        Mode::empty(),
    )
}

fn query_each(range: PageRange) -> Result<Vec<Vma>, Errno> {
    let maps = open_maps()?;
    let mut vmas = Vec::new();
    let mut at = range.start();
    while at < range.end() {
        let found = match query(maps.as_fd(), at, None) {
            Ok(found) => found,
            Err(Errno::NOENT) => break,
            Err(errno) => return Err(errno),
        };
        let whole = PageRange::between(found.vma_start as usize, found.vma_end as usize);
        let Some(part) = whole.intersection(range) else {
            break;
        };
        let has = |flag: procmap_query_flags| found.vma_flags & flag as u64 != 0;
        let shared = has(procmap_query_flags::PROCMAP_QUERY_VMA_SHARED);
        let page_bytes = found.vma_page_size as usize;
        let kind = if page_bytes > page_size() {
            MemoryKind::HugeTlb
        } else if shared {
            MemoryKind::Shared
        } else if found.inode != 0 {
            MemoryKind::PrivateFile
        } else {
            match private_name(maps.as_fd(), whole.start())? {
                Name::Ours => MemoryKind::PrivateAnonymous,
                Name::Kernels => MemoryKind::Special,
            }
        };
        vmas.push(Vma {
            range: part,
            kind,
            readable: has(procmap_query_flags::PROCMAP_QUERY_VMA_READABLE),
            writable: has(procmap_query_flags::PROCMAP_QUERY_VMA_WRITABLE),
            page_bytes,
        });
        at = whole.end();
    }
    Ok(vmas)
}

/// Whether what is mapped at the address is a file that lives in memory alone:
/// shared anonymous memory, a memfd, System V memory, or a file on tmpfs.
pub(crate) fn is_memory_file(at: usize) -> bool {
    const TMPFS_MAGIC: u64 = 0x0102_1994;
    let Some(path) = path_at(at) else {
        return false;
    };
    let name = path.as_os_str().as_bytes();
    let nameless = [&b"/memfd:"[..], b"/dev/zero", b"/SYSV"];
    if nameless.iter().any(|prefix| name.starts_with(prefix)) {
        return true;
    }
    rustix::fs::statfs(&path).is_ok_and(|stat| u64::try_from(stat.f_type) == Ok(TMPFS_MAGIC))
}

/// The path of the file that is mapped at the address.
fn path_at(at: usize) -> Option<PathBuf> {
    if Features::get().procmap_query.is_err() {
        let maps = Process::myself().and_then(|me| me.maps()).ok()?;
        let here = maps
            .iter()
            .find(|map| (map.address.0..map.address.1).contains(&(at as u64)))?;
        return match &here.pathname {
            MMapPath::Path(path) => Some(path.clone()),
            MMapPath::Vsys(_) => Some(PathBuf::from("/SYSV")),
            _ => None,
        };
    }
    let mut name = vec![0; PATH_MAX as usize];
    let found = query(open_maps().ok()?, at, Some(&mut name)).ok()?;
    name.truncate((found.vma_name_size as usize).saturating_sub(1));
    Some(PathBuf::from(OsString::from_vec(name)))
}

enum Name {
    Ours,
    Kernels,
}

/// Tells the program's private memory from mappings like `[vdso]` by the name.
fn private_name(maps: impl AsFd, at: usize) -> Result<Name, Errno> {
    let mut name = [0_u8; 128];
    let found = query(maps, at, Some(&mut name))?;
    // The size counts the NUL byte; none at all means that there is no name.
    let name = &name[..(found.vma_name_size as usize).saturating_sub(1)];
    let ours = name.is_empty()
        || name == b"[heap]"
        || name.starts_with(b"[stack")
        || name.starts_with(b"[anon:");
    Ok(if ours { Name::Ours } else { Name::Kernels })
}

/// Asks for the mapping that covers `at`, or else the next one above.
fn query(maps: impl AsFd, at: usize, name: Option<&mut [u8]>) -> Result<procmap_query, Errno> {
    // linux-raw-sys has no PROCFS_IOCTL_MAGIC ('f') nor the codes made from it.
    const PROCMAP_QUERY: rustix::ioctl::Opcode = opcode::read_write::<procmap_query>(b'f', 17);
    // SAFETY: all fields are integers, for which zero is a value.
    let mut question: procmap_query = unsafe { std::mem::zeroed() };
    question.size = size_of::<procmap_query>() as u64;
    question.query_flags = procmap_query_flags::PROCMAP_QUERY_COVERING_OR_NEXT_VMA as u64;
    question.query_addr = at as u64;
    if let Some(name) = name {
        question.vma_name_size = name.len() as u32;
        question.vma_name_addr = name.as_mut_ptr().expose_provenance() as u64;
    }
    // SAFETY: the code belongs to this structure; the kernel writes to it and
    // at most `vma_name_size` bytes of the name, which outlives the call.
    unsafe {
        ioctl(
            maps,
            Updater::<PROCMAP_QUERY, procmap_query>::new(&mut question),
        )
    }?;
    Ok(question)
}

/// The way of kernels before 6.11. Cannot see the page size: hugetlb memory is
/// told by the name that the kernel gives to its anonymous form, and a hugetlb
/// file counts as shared or as a private file.
fn parse_maps(range: PageRange) -> Result<Vec<Vma>> {
    let maps = Process::myself()
        .and_then(|me| me.maps())
        .map_err(|_| Error::System {
            call: "reading /proc/self/maps",
            errno: Errno::NOENT,
        })?;
    Ok(maps.iter().filter_map(|map| clip(map, range)).collect())
}

fn clip(map: &MemoryMap, range: PageRange) -> Option<Vma> {
    let whole = PageRange::between(map.address.0 as usize, map.address.1 as usize);
    let kind = match &map.pathname {
        MMapPath::Path(path)
            if path
                .as_os_str()
                .as_encoded_bytes()
                .starts_with(b"/anon_hugepage") =>
        {
            MemoryKind::HugeTlb
        }
        _ if map.perms.contains(MMPermissions::SHARED) => MemoryKind::Shared,
        _ if map.inode != 0 => MemoryKind::PrivateFile,
        MMapPath::Anonymous | MMapPath::Heap | MMapPath::Stack | MMapPath::TStack(_) => {
            MemoryKind::PrivateAnonymous
        }
        MMapPath::Other(name) if name.starts_with("anon:") => MemoryKind::PrivateAnonymous,
        _ => MemoryKind::Special,
    };
    Some(Vma {
        range: whole.intersection(range)?,
        kind,
        readable: map.perms.contains(MMPermissions::READ),
        writable: map.perms.contains(MMPermissions::WRITE),
        page_bytes: page_size(),
    })
}

#[cfg(test)]
mod tests {
    use super::super::map::{self, Backing};
    use super::*;

    fn both_ways(range: PageRange) -> Vec<Vma> {
        let parsed = parse_maps(range).unwrap();
        match query_each(range) {
            Ok(queried) => assert_eq!(queried, parsed),
            Err(errno) => assert_eq!(errno, Errno::NOTTY),
        }
        parsed
    }

    #[test]
    fn names_the_kinds_of_memory() {
        let page = page_size();
        let fd = map::memfd(2 * page, false).unwrap();
        let file = Backing::File {
            fd: fd.as_fd(),
            offset: 0,
        };
        for (backing, shared, kind) in [
            (Backing::Anonymous, false, MemoryKind::PrivateAnonymous),
            (Backing::Anonymous, true, MemoryKind::Shared),
            (file, false, MemoryKind::PrivateFile),
            (file, true, MemoryKind::Shared),
        ] {
            let range = map::map(backing, 2 * page, shared, true).unwrap();
            let vmas = both_ways(range);
            assert_eq!(vmas.len(), 1, "{vmas:?}");
            assert_eq!((vmas[0].range, vmas[0].kind), (range, kind));
            assert!(vmas[0].readable && vmas[0].writable);
            let in_memory = kind != MemoryKind::PrivateAnonymous;
            assert_eq!(is_memory_file(range.start()), in_memory);
            // SAFETY: mapped above and used by nobody else.
            unsafe { map::unmap(range) }.unwrap();
        }
    }

    #[test]
    fn knows_stack_and_vdso() {
        let local = 0_u8;
        let here = (&raw const local).expose_provenance();
        let page = PageRange::covering(here & !(page_size() - 1), 1).unwrap();
        assert_eq!(both_ways(page)[0].kind, MemoryKind::PrivateAnonymous);

        let maps = Process::myself().unwrap().maps().unwrap();
        let vdso = maps.iter().find(|map| map.pathname == MMapPath::Vdso);
        if let Some(vdso) = vdso {
            let range = PageRange::between(vdso.address.0 as usize, vdso.address.1 as usize);
            assert_eq!(both_ways(range)[0].kind, MemoryKind::Special);
        }
    }

    #[test]
    fn reports_the_first_hole() {
        let page = page_size();
        let range = map::map(Backing::Anonymous, 8 * page, false, true).unwrap();
        let hole = PageRange::between(range.start() + 3 * page, range.start() + 5 * page);
        // SAFETY: mapped above and used by nobody else.
        unsafe { map::unmap(hole) }.unwrap();
        assert_eq!(cover(range), Err(Error::Hole { range, hole }));
        assert_eq!(within(range).unwrap().len(), 2);
        // SAFETY: as above.
        unsafe { map::unmap(range) }.unwrap();
        // The lowest page is never mapped. (The range above may be again.)
        let range = PageRange::between(page, 2 * page);
        assert_eq!(cover(range), Err(Error::Hole { range, hole: range }));
    }
}
