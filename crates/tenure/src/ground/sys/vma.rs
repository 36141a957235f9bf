//! The mappings in a range: PROCMAP_QUERY (Linux 6.11), `/proc/self/maps`
//! before.

use std::ffi::OsString;
use std::ops::ControlFlow;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use linux_raw_sys::general::{PATH_MAX, procmap_query, procmap_query_flags};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::ioctl::{Updater, ioctl, opcode};

use super::features::Features;
use super::proc_file::ProcFile;
use super::{maps, mountinfo, page_size};
use crate::PageRange;
use crate::ground::error::{Error, MemoryKind, Result};

/// The part of one kernel mapping (VMA) that lies in the requested range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Vma {
    pub(crate) range: PageRange,
    pub(crate) kind: MemoryKind,
    pub(crate) readable: bool,
    pub(crate) writable: bool,
    /// The size of its pages; for hugetlb memory larger than [`page_size`].
    pub(crate) page_bytes: usize,
}

/// Returns the mappings that cover the range, in order.
///
/// # Errors
///
/// [`Error::Hole`] when a part of the range is not mapped; [`Error::System`]
/// when the mappings cannot be read (no `/proc`).
pub(crate) fn cover(range: PageRange) -> Result<Vec<Vma>> {
    cover_at_most(range, usize::MAX)
}

/// Returns the mappings that cover the range, in order, as [`within_at_most`] does.
pub(crate) fn cover_at_most(range: PageRange, max_count: usize) -> Result<Vec<Vma>> {
    let vmas = within_at_most(range, max_count)?;
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

/// Returns the mapped parts of the range, in order.
pub(crate) fn within(range: PageRange) -> Result<Vec<Vma>> {
    within_at_most(range, usize::MAX)
}

/// Returns the mapped parts of the range, in order.
///
/// # Errors
///
/// [`Error::System`] with E2BIG when they are more than `max_count`, of which no more are
/// read.
pub(crate) fn within_at_most(range: PageRange, max_count: usize) -> Result<Vec<Vma>> {
    if range.is_empty() {
        return Ok(Vec::new());
    }
    // One more tells that there are too many.
    let stop_at = max_count.saturating_add(1);
    let (call, vmas) = match Features::get().procmap_query {
        Ok(()) => (
            "PROCMAP_QUERY on /proc/self/maps",
            query_each(range, stop_at),
        ),
        Err(_) => ("reading /proc/self/maps", parse_maps(range, stop_at)),
    };
    match vmas {
        Ok(vmas) if vmas.len() > max_count => Err(Errno::TOOBIG),
        answer => answer,
    }
    .map_err(|errno| Error::System { call, errno })
}

/// Returns the first part of the range, which has `max_count` mappings at most and ends where
/// the last of them does, and their count. Before Linux 6.11, and where the mappings cannot be
/// read, that is the whole range: each question would cost as much as the answer.
pub(crate) fn first_part(range: PageRange, max_count: usize) -> (PageRange, usize) {
    let can_have_more = range.pages() > max_count && Features::get().procmap_query.is_ok();
    let vmas = match can_have_more {
        true => query_each(range, max_count).unwrap_or_default(),
        false => Vec::new(),
    };
    match vmas.last() {
        Some(last) if vmas.len() == max_count => (
            PageRange::between(range.start(), last.range.end()),
            max_count,
        ),
        _ => (range, vmas.len().clamp(1, max_count)),
    }
}

/// Checks whether this kernel supports PROCMAP_QUERY.
pub(super) fn probe_query() -> Result<(), Errno> {
    let here = (&raw const PROBED).expose_provenance();
    query(&ProcFile::maps()?, here, None).map(drop)
}

static PROBED: u8 = 0;

fn query_each(range: PageRange, max_count: usize) -> Result<Vec<Vma>, Errno> {
    let maps = ProcFile::maps()?;
    let mut vmas = Vec::new();
    let mut at = range.start();
    while at < range.end() && vmas.len() < max_count {
        let mut name = [0_u8; 128];
        let found = match query(&maps, at, Some(&mut name)) {
            // Only a file has so long a name.
            Err(Errno::NAMETOOLONG) => query(&maps, at, None),
            answer => answer,
        };
        let found = match found {
            Ok(found) => found,
            Err(Errno::NOENT) => break,
            Err(errno) => return Err(errno),
        };
        let whole = PageRange::between(found.vma_start as usize, found.vma_end as usize);
        // Mappings that merge between two queries are not returned twice.
        let rest = PageRange::between(at, range.end());
        let Some(part) = whole.intersection(rest) else {
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
        } else if is_program_memory(name_in(&name, &found)) {
            MemoryKind::PrivateAnonymous
        } else {
            MemoryKind::Special
        };
        // Without memory, unmapping goes on without the mappings.
        vmas.try_reserve(1).map_err(|_| Errno::NOMEM)?;
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

/// Returns whether the mapping at the address is of a file that lives in memory
/// only: shared anonymous memory, a memfd, System V memory, or a file on tmpfs or ramfs,
/// also if it has no name any more.
///
/// In doubt a file counts as one, because past a cgroup's limit the kernel kills, while a
/// populate that was refused needlessly can be forced. That concerns files without a name,
/// not on a block device, whose mount this process does not see.
pub(crate) fn is_memory_file(at: usize) -> bool {
    let Some(file) = file_at(at) else {
        return true;
    };
    // File systems on block devices have the device's number, all others major number 0.
    if file.device.0 != 0 || (file.device, file.inode) == ((0, 0), 0) {
        return false;
    }
    // Of the kernel's own tmpfs, which is mounted nowhere.
    let memory_prefixes = [&b"/memfd:"[..], b"/dev/zero (deleted)", b"/SYSV"];
    let name = file.path.as_os_str().as_bytes();
    if memory_prefixes
        .iter()
        .any(|prefix| name.starts_with(prefix))
    {
        return true;
    }
    let is_in_memory = is_on_memory_by_path(&file).or_else(|| is_on_memory_by_mounts(&file));
    is_in_memory.unwrap_or(true)
}

/// Asks the file system at the file's path: some 8 µs. `None` if the path names another
/// file: the mapped one was deleted, or its mount is hidden. On file systems with several
/// device numbers, such as Btrfs, it is `None` as well.
fn is_on_memory_by_path(file: &MappedFile) -> Option<bool> {
    const TMPFS_MAGIC: u64 = 0x0102_1994;
    const RAMFS_MAGIC: u64 = 0x8584_58f6;
    // With O_PATH, opening has no effect on a device or a FIFO.
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let named = rustix::fs::open(&file.path, flags, Mode::empty()).ok()?;
    let stat = rustix::fs::fstat(&named).ok()?;
    let device = (
        rustix::fs::major(stat.st_dev),
        rustix::fs::minor(stat.st_dev),
    );
    if (device, stat.st_ino) != (file.device, file.inode) {
        return None;
    }
    let kind = u64::try_from(rustix::fs::fstatfs(&named).ok()?.f_type).ok()?;
    Some(kind == TMPFS_MAGIC || kind == RAMFS_MAGIC)
}

/// Looks the file's device up among the mounts: some 70 µs with 20 mounts. `None` if this
/// process does not see it mounted.
fn is_on_memory_by_mounts(file: &MappedFile) -> Option<bool> {
    let mounts = mountinfo::read_below(Path::new("/")).ok()?;
    let mount = mountinfo::parse(&mounts).find(|mount| mount.device == file.device)?;
    let memory_kinds = [&b"tmpfs"[..], b"ramfs", b"devtmpfs", b"rootfs"];
    Some(memory_kinds.contains(&&*mount.kind))
}

/// Returns whether the mapping at the address is shared anonymous memory, whose
/// pages no descriptor and no name refers to.
pub(crate) fn is_shared_anonymous(at: usize) -> bool {
    file_at(at).is_some_and(|file| file.path.as_os_str() == "/dev/zero (deleted)")
}

/// Describes the file of a mapping, as the kernel reports it.
struct MappedFile {
    /// The major and minor number of its file system.
    device: (u32, u32),
    inode: u64,
    /// Its path, with ` (deleted)` behind it if it has none any more, or empty if it is
    /// longer than PATH_MAX.
    path: PathBuf,
}

/// Returns the file that is mapped at the address.
fn file_at(at: usize) -> Option<MappedFile> {
    let path = |name: Vec<u8>| PathBuf::from(OsString::from_vec(name));
    if Features::get().procmap_query.is_err() {
        let mut file = None;
        let here = PageRange::between(at, at + page_size());
        let visit = |line: &maps::Line<'_>| {
            file = Some(MappedFile {
                device: line.device,
                inode: line.inode,
                path: path(line.name.to_vec()),
            });
            ControlFlow::Break(())
        };
        maps::each_within(here, visit).ok()?;
        return file;
    }
    let maps = ProcFile::maps().ok()?;
    let mut name = vec![0; PATH_MAX as usize];
    let found = match query(&maps, at, Some(&mut name)) {
        Err(Errno::NAMETOOLONG) => query(&maps, at, None).ok()?,
        answer => answer.ok()?,
    };
    name.truncate((found.vma_name_size as usize).saturating_sub(1));
    Some(MappedFile {
        device: (found.dev_major, found.dev_minor),
        inode: found.inode,
        path: path(name),
    })
}

/// Returns the name that a query has found.
fn name_in<'a>(buffer: &'a [u8], found: &procmap_query) -> &'a [u8] {
    // The size counts the NUL byte; zero means that there is no name.
    &buffer[..(found.vma_name_size as usize).saturating_sub(1)]
}

/// Tells the program's private memory by its name from the kernel's mappings,
/// such as `[vdso]`.
fn is_program_memory(name: &[u8]) -> bool {
    name.is_empty()
        || name == b"[heap]"
        || name.starts_with(b"[stack")
        || name.starts_with(b"[anon:")
}

/// Queries the mapping that covers `at`, or else the next one above.
fn query(maps: &ProcFile, at: usize, name: Option<&mut [u8]>) -> Result<procmap_query, Errno> {
    // linux-raw-sys has no PROCFS_IOCTL_MAGIC ('f') nor the codes made from it.
    const PROCMAP_QUERY: rustix::ioctl::Opcode = opcode::read_write::<procmap_query>(b'f', 17);
    // SAFETY: all fields are integers, for which zero is a valid value.
    let mut question: procmap_query = unsafe { std::mem::zeroed() };
    question.size = size_of::<procmap_query>() as u64;
    question.query_flags = procmap_query_flags::PROCMAP_QUERY_COVERING_OR_NEXT_VMA as u64;
    question.query_addr = at as u64;
    if let Some(name) = name {
        question.vma_name_size = name.len() as u32;
        question.vma_name_addr = name.as_mut_ptr().expose_provenance() as u64;
    }
    // SAFETY: the opcode belongs to this structure; the kernel writes to it and
    // to at most `vma_name_size` bytes of the name, and both outlive the call.
    maps.run(|fd| unsafe {
        ioctl(
            fd,
            Updater::<PROCMAP_QUERY, procmap_query>::new(&mut question),
        )
    })?;
    Ok(question)
}

/// Returns the mapped parts from `/proc/self/maps`, for kernels before 6.11.
/// The file does not tell the page size: hugetlb memory is recognized by the
/// name that the kernel gives to its anonymous form, and a hugetlb file counts
/// as shared or as a private file.
fn parse_maps(range: PageRange, max_count: usize) -> Result<Vec<Vma>, Errno> {
    let mut vmas = Vec::new();
    // 16 KiB, more than the buffers for reading, which the process does not survive without.
    vmas.try_reserve(512).map_err(|_| Errno::NOMEM)?;
    let mut has_memory = true;
    maps::each_within(range, |line| {
        has_memory = vmas.try_reserve(1).is_ok();
        if has_memory {
            vmas.extend(clip(line, range));
        }
        match has_memory && vmas.len() < max_count {
            true => ControlFlow::Continue(()),
            false => ControlFlow::Break(()),
        }
    })?;
    has_memory.then_some(vmas).ok_or(Errno::NOMEM)
}

fn clip(line: &maps::Line<'_>, range: PageRange) -> Option<Vma> {
    let kind = if line.name.starts_with(b"/anon_hugepage") {
        MemoryKind::HugeTlb
    } else if line.shared {
        MemoryKind::Shared
    } else if line.inode != 0 {
        MemoryKind::PrivateFile
    } else if is_program_memory(line.name) {
        MemoryKind::PrivateAnonymous
    } else {
        MemoryKind::Special
    };
    Some(Vma {
        range: line.range.intersection(range)?,
        kind,
        readable: line.readable,
        writable: line.writable,
        page_bytes: page_size(),
    })
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::super::advise::{Advice, advise};
    use super::super::map::{self, Backing};
    use super::*;

    fn query_and_parse(range: PageRange) -> Vec<Vma> {
        let parsed = parse_maps(range, usize::MAX).unwrap();
        match query_each(range, usize::MAX) {
            Ok(queried) => assert_eq!(queried, parsed),
            Err(errno) => assert_eq!(errno, Errno::NOTTY),
        }
        parsed
    }

    #[test]
    fn vma_kind_matches_mapping() {
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
            let vmas = query_and_parse(range);
            assert_eq!(vmas.len(), 1, "{vmas:?}");
            assert_eq!((vmas[0].range, vmas[0].kind), (range, kind));
            assert!(vmas[0].readable && vmas[0].writable);
            let in_memory = kind != MemoryKind::PrivateAnonymous;
            assert_eq!(is_memory_file(range.start()), in_memory);
            let is_anonymous = in_memory && matches!(backing, Backing::Anonymous);
            assert_eq!(is_shared_anonymous(range.start()), is_anonymous);
            // SAFETY: mapped above and used by nobody else.
            unsafe { map::unmap(range) }.unwrap();
        }
    }

    #[test]
    fn unlinked_file_is_memory_unless_it_is_on_a_disk() {
        let page = page_size();
        for folder in [Path::new("/dev/shm"), &std::env::temp_dir()] {
            let Ok(file) = tempfile::tempfile_in(folder) else {
                continue;
            };
            file.set_len(page as u64).unwrap();
            let backing = Backing::File {
                fd: file.as_fd(),
                offset: 0,
            };
            let range = map::map(backing, page, true, true).unwrap();
            let kind = rustix::fs::fstatfs(&file).unwrap().f_type;
            let is_memory = kind as i64 == 0x0102_1994;
            assert_eq!(is_memory_file(range.start()), is_memory, "{folder:?}");
            let mapped = file_at(range.start()).unwrap();
            assert_eq!(is_on_memory_by_path(&mapped), None);
            assert_eq!(is_on_memory_by_mounts(&mapped), Some(is_memory));
            assert!(!is_shared_anonymous(range.start()));
            // SAFETY: mapped above and used by nobody else.
            unsafe { map::unmap(range) }.unwrap();
        }
    }

    #[test]
    fn vma_kind_of_stack_and_vdso_is_told() {
        let local = 0_u8;
        let here = (&raw const local).expose_provenance();
        let page = PageRange::covering(here & !(page_size() - 1), 1).unwrap();
        assert_eq!(query_and_parse(page)[0].kind, MemoryKind::PrivateAnonymous);

        let mut vdso = None;
        let all = PageRange::between(page_size(), isize::MAX as usize / page_size() * page_size());
        maps::each_within(all, |line| {
            if line.name == b"[vdso]" {
                vdso = Some(line.range);
            }
            ControlFlow::Continue(())
        })
        .unwrap();
        if let Some(range) = vdso {
            assert_eq!(query_and_parse(range)[0].kind, MemoryKind::Special);
        }
    }

    #[test]
    fn cover_with_hole_reports_first_hole() {
        // Another test's thread may map memory in the hole, so it is retried.
        assert!((0..20).any(|_| hole_is_reported()));
        // The lowest page is never mapped.
        let page = page_size();
        let range = PageRange::between(page, 2 * page);
        assert_eq!(cover(range), Err(Error::Hole { range, hole: range }));
    }

    #[test]
    fn range_of_more_mappings_than_allowed_is_too_big() {
        let page = page_size();
        let range = map::map(Backing::Anonymous, 6 * page, false, true).unwrap();
        let middle = PageRange::between(range.start() + 2 * page, range.start() + 4 * page);
        advise(middle, Advice::DontDump).unwrap();
        assert_eq!(query_and_parse(range).len(), 3);
        let too_big = |answer| matches!(answer, Err(Errno::TOOBIG));
        for (max_count, is_allowed) in [(2, false), (3, true)] {
            let vmas = within_at_most(range, max_count);
            assert_eq!(vmas.is_ok(), is_allowed, "{vmas:?}");
            let errno = vmas.map_err(|error| match error {
                Error::System { errno, .. } => errno,
                error => panic!("{error}"),
            });
            assert_eq!(too_big(errno), !is_allowed);
            assert_eq!(parse_maps(range, max_count).unwrap().len(), max_count);
        }
        // SAFETY: mapped above and used by nobody else.
        unsafe { map::unmap(range) }.unwrap();
    }

    fn hole_is_reported() -> bool {
        let page = page_size();
        let range = map::map(Backing::Anonymous, 8 * page, false, true).unwrap();
        let part =
            |from, to| PageRange::between(range.start() + from * page, range.start() + to * page);
        let (hole, sides) = (part(3, 5), [part(0, 3), part(5, 8)]);
        // SAFETY: mapped above and used by nobody else.
        unsafe { map::unmap(hole) }.unwrap();
        let is_reported = cover(range) == Err(Error::Hole { range, hole })
            && within(range).is_ok_and(|vmas| vmas.len() == 2);
        for side in sides {
            // SAFETY: as above. The hole is left out, because another thread
            // may have mapped it by now.
            unsafe { map::unmap(side) }.unwrap();
        }
        is_reported
    }
}
