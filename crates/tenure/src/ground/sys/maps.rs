//! `/proc/self/maps`, parsed line by line: what is mapped where, before Linux
//! 6.11.
//!
//! Only one line is kept in memory: a process at `vm.max_map_count` has 65,530
//! of them, and cannot map the memory to hold them.

use std::io::{BufRead, BufReader, Read};
use std::ops::ControlFlow;
use std::os::fd::BorrowedFd;

use rustix::fs::SeekFrom;
use rustix::io::Errno;

use super::proc_file::ProcFile;
use crate::PageRange;

/// One mapping.
#[derive(Debug)]
pub(super) struct Line<'a> {
    pub(super) range: PageRange,
    pub(super) readable: bool,
    pub(super) writable: bool,
    pub(super) executable: bool,
    pub(super) shared: bool,
    /// The major and minor number of the file system.
    pub(super) device: (u32, u32),
    pub(super) inode: u64,
    /// A path, a name in brackets, or empty.
    pub(super) name: &'a [u8],
}

/// Calls `visit` for each mapping that intersects the range, in order, until it breaks.
pub(super) fn each_within(
    range: PageRange,
    visit: impl FnMut(&Line<'_>) -> ControlFlow<()> + Send,
) -> Result<(), Errno> {
    ProcFile::maps()?.run(|maps| {
        // Where the file stays open, another use has left its position somewhere.
        rustix::fs::seek(maps, SeekFrom::Start(0))?;
        let answer = read(BufReader::new(Reader(maps)), range, visit);
        answer.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
    })
}

/// Reads from a descriptor that another value owns.
struct Reader<'a>(BorrowedFd<'a>);

impl Read for Reader<'_> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        Ok(rustix::io::read(self.0, into)?)
    }
}

/// Calls `visit` for each mapping in `maps`, an open `/proc/PID/maps`, that
/// intersects the range, until it breaks.
pub(super) fn read(
    mut maps: impl BufRead,
    range: PageRange,
    mut visit: impl FnMut(&Line<'_>) -> ControlFlow<()>,
) -> std::io::Result<()> {
    let mut text = Vec::new();
    while maps.read_until(b'\n', &mut text)? > 0 {
        if let Some(line) = parse(text.strip_suffix(b"\n").unwrap_or(&text)) {
            if line.range.start() >= range.end() {
                break;
            }
            if line.range.intersection(range).is_some() && visit(&line).is_break() {
                break;
            }
        }
        text.clear();
    }
    Ok(())
}

/// Parses `start-end perms offset dev inode   name`.
fn parse(text: &[u8]) -> Option<Line<'_>> {
    let mut fields = text.splitn(6, |&byte| byte == b' ');
    let mut field = || fields.next();
    let (bounds, access) = (std::str::from_utf8(field()?).ok()?, field()?);
    let (_offset, device, inode) = (field()?, field()?, field()?);
    let name = field().unwrap_or_default().trim_ascii_start();
    let (start, end) = bounds.split_once('-')?;
    let (major, minor) = std::str::from_utf8(device).ok()?.split_once(':')?;
    let number = |hex| u32::from_str_radix(hex, 16).ok();
    let start = usize::from_str_radix(start, 16).ok()?;
    let end = usize::from_str_radix(end, 16).ok()?;
    Some(Line {
        range: PageRange::new(start, end.checked_sub(start)?).ok()?,
        readable: access.first() == Some(&b'r'),
        writable: access.get(1) == Some(&b'w'),
        executable: access.get(2) == Some(&b'x'),
        shared: access.get(3) == Some(&b's'),
        device: (number(major)?, number(minor)?),
        inode: std::str::from_utf8(inode).ok()?.parse().ok()?,
        name,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As on a machine with pages of 64 KiB, for tests with any size of pages.
    const RECORDED: &[u8] = b"\
55d0c3f40000-55d0c3f60000 r--p 00000000 fe:00 5315746                    /usr/bin/a name with  spaces
7f1000000000-7f1000040000 rw-p 00000000 00:00 0 
7f1000040000-7f1000080000 rw-s 00001000 00:01 2052                       /memfd:\xff (deleted)
7ffd1b5e0000-7ffd1b7f0000 rw-p 00000000 00:00 0                          [stack]
ffffffffff600000-ffffffffff610000 --xp 00000000 00:00 0                  [vsyscall]
";

    #[test]
    fn maps_line_is_parsed_into_fields() {
        let mut seen = Vec::new();
        let range = PageRange::between(0x55d0_c3f5_0000, 0x7ffd_1b5f_0000);
        read(RECORDED, range, |line| {
            seen.push((line.range.len() >> 16, line.inode, line.name.to_vec()));
            assert!(line.readable && !line.executable);
            assert_eq!(line.writable, line.inode != 5_315_746);
            assert_eq!(line.shared, line.inode == 2052);
            let device = match line.inode {
                5_315_746 => (0xfe, 0),
                inode => (0, u32::from(inode == 2052)),
            };
            assert_eq!(line.device, device);
            ControlFlow::Continue(())
        })
        .unwrap();
        let expected: [(usize, u64, &[u8]); 4] = [
            (2, 5_315_746, b"/usr/bin/a name with  spaces"),
            (4, 0, b""),
            (4, 2052, b"/memfd:\xff (deleted)"),
            (33, 0, b"[stack]"),
        ];
        assert_eq!(seen, expected.map(|(a, b, name)| (a, b, name.to_vec())));
    }

    #[test]
    fn read_visits_only_lines_in_range() {
        let mut count = 0;
        let range = PageRange::between(0x7f10_0003_0000, 0x7f10_0004_0000);
        read(RECORDED, range, |line| {
            count += 1;
            assert_eq!(line.range.start(), 0x7f10_0000_0000);
            ControlFlow::Continue(())
        })
        .unwrap();
        assert_eq!(count, 1);
    }

    #[test]
    fn read_ends_where_the_visitor_breaks() {
        let mut count = 0;
        let all = PageRange::between(0x1_0000, 0x7fff_ffff_0000);
        read(RECORDED, all, |_| {
            count += 1;
            match count {
                2 => ControlFlow::Break(()),
                _ => ControlFlow::Continue(()),
            }
        })
        .unwrap();
        assert_eq!(count, 2);
    }
}
