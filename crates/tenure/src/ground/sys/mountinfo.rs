//! `/proc/thread-self/mountinfo`: what is mounted where. All names are bytes: those of
//! folders need not be UTF-8.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::{fs, io};

/// One mounted file system.
pub(super) struct Mount {
    /// The major and minor number that its files have in `/proc/self/maps`.
    pub(super) device: (u32, u32),
    /// The mounted part of the file system. For a cgroup file system, a path as
    /// in `/proc/self/cgroup`, relative to the root of this process's cgroup
    /// namespace.
    pub(super) root: PathBuf,
    pub(super) point: PathBuf,
    pub(super) kind: Vec<u8>,
    pub(super) options: Vec<u8>,
}

/// Reads the file, in a recorded tree with `proc` in `root`, or in `/`. The kernel refuses
/// that of the first thread once it has called pthread_exit(3), so it reads that of the
/// calling thread (Linux 3.17).
pub(super) fn read_below(root: &Path) -> io::Result<Vec<u8>> {
    let own = fs::read(root.join("proc/thread-self/mountinfo"));
    own.or_else(|_| fs::read(root.join("proc/self/mountinfo")))
}

/// Parses the contents of the file.
pub(super) fn parse(text: &[u8]) -> impl Iterator<Item = Mount> {
    text.split(|&byte| byte == b'\n').filter_map(parse_line)
}

/// Parses `id parent major:minor root point options [fields] - kind source options`.
fn parse_line(line: &[u8]) -> Option<Mount> {
    // The kernel escapes the blanks in names.
    let mut fields = line.split(|&byte| byte == b' ');
    let device = std::str::from_utf8(fields.nth(2)?).ok()?;
    let (major, minor) = device.split_once(':')?;
    let (root, point) = (fields.next()?, fields.next()?);
    fields.find(|&field| field == b"-")?;
    Some(Mount {
        device: (major.parse().ok()?, minor.parse().ok()?),
        root: unescape(root),
        point: unescape(point),
        kind: fields.next()?.to_owned(),
        options: fields.nth(1)?.to_owned(),
    })
}

/// Decodes octal escapes, such as `\040` for a blank.
fn unescape(field: &[u8]) -> PathBuf {
    let mut name = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, after)) = rest.split_first() {
        let octal = match rest {
            [b'\\', digits @ ..] => digits.get(..3).and_then(parse_octal),
            _ => None,
        };
        name.push(octal.unwrap_or(first));
        rest = if octal.is_some() { &rest[4..] } else { after };
    }
    PathBuf::from(OsString::from_vec(name))
}

fn parse_octal(digits: &[u8]) -> Option<u8> {
    digits.iter().try_fold(0_u8, |number, digit| {
        let digit = (b'0'..=b'7').contains(digit).then(|| digit - b'0')?;
        number.checked_mul(8)?.checked_add(digit)
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt;

    use super::*;

    #[test]
    fn mountinfo_line_is_parsed_into_fields() {
        let line = b"36 35 98:0 /a\xff\\134040 /b\\040c\\011\\012 rw,noatime shared:1 master:2 - ext3 /dev/root rw,errors=continue";
        let mount = parse(line).next().unwrap();
        assert_eq!(mount.device, (98, 0));
        assert_eq!(mount.root.as_os_str().as_bytes(), b"/a\xff\\040");
        assert_eq!(mount.point, Path::new("/b c\t\n"));
        assert_eq!(mount.kind, b"ext3");
        assert_eq!(mount.options, b"rw,errors=continue");
    }

    #[test]
    fn mountinfo_incomplete_lines_are_skipped() {
        let text = b"nonsense\n - \n1 2 0:3 / /a - cgroup2\n1 2 3 / /a rw - a b c\n\n";
        assert_eq!(parse(text).count(), 0);
        for (escaped, plain) in [
            ("\\", "\\"),
            ("\\4", "\\4"),
            ("\\777", "\\777"),
            ("\\08x", "\\08x"),
        ] {
            assert_eq!(unescape(escaped.as_bytes()), Path::new(plain));
        }
    }
}
