//! The errors that the header documents for each function.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::c_int;
use std::sync::LazyLock;

const HEADER: &str = include_str!("../../include/tenure.h");

/// Further errors of `mmap()`, to whose page the header refers.
const OF_MMAP: &[c_int] = &[
    libc::EAGAIN,
    libc::EEXIST,
    libc::ENFILE,
    libc::EOVERFLOW,
    libc::ETXTBSY,
    libc::EOPNOTSUPP,
];

const NAMES: &[(&str, c_int)] = &[
    ("E2BIG", libc::E2BIG),
    ("EACCES", libc::EACCES),
    ("EAGAIN", libc::EAGAIN),
    ("EBADF", libc::EBADF),
    ("EBUSY", libc::EBUSY),
    ("ECANCELED", libc::ECANCELED),
    ("EFAULT", libc::EFAULT),
    ("EFBIG", libc::EFBIG),
    ("EHWPOISON", libc::EHWPOISON),
    ("EINVAL", libc::EINVAL),
    ("ELOOP", libc::ELOOP),
    ("EMFILE", libc::EMFILE),
    ("ENODEV", libc::ENODEV),
    ("ENOMEM", libc::ENOMEM),
    ("ENOSPC", libc::ENOSPC),
    ("ENOSYS", libc::ENOSYS),
    ("EOPNOTSUPP", libc::EOPNOTSUPP),
    ("EPERM", libc::EPERM),
    ("EPROTO", libc::EPROTO),
    ("ESRCH", libc::ESRCH),
    ("ETIMEDOUT", libc::ETIMEDOUT),
    ("EUSERS", libc::EUSERS),
];

static DOCUMENTED: LazyLock<BTreeMap<&str, BTreeSet<c_int>>> = LazyLock::new(|| {
    let mut documented = BTreeMap::<&str, BTreeSet<c_int>>::new();
    // Each comment precedes its function.
    for text in HEADER.split("/**").skip(1) {
        let Some((comment, code)) = text.split_once("*/") else {
            continue;
        };
        let Some(name) = code
            .trim()
            .strip_prefix("int ")
            .and_then(|code| code.split('(').next())
        else {
            continue;
        };
        let mut errors: BTreeSet<c_int> = BTreeSet::new();
        for part in comment.split("* -E").skip(1) {
            let end = part.find(|c: char| !c.is_ascii_alphanumeric()).unwrap();
            let found = NAMES.iter().find(|(name, _)| name[1..] == part[..end]);
            errors.insert(found.unwrap_or_else(|| panic!("E{}", &part[..end])).1);
        }
        if let Some((_, of)) = comment.split_once("Those of ") {
            let of = of.split('(').next().unwrap();
            errors.extend(documented[of].clone());
        }
        if name == "tenure_mmap" {
            errors.extend(OF_MMAP);
        }
        documented.insert(name, errors);
    }
    documented
});

/// Asserts that the header documents this result; `max` is the largest that is no error.
pub fn check(name: &str, answer: c_int, max: c_int) {
    let is_documented = match answer {
        0.. => answer <= max,
        _ => DOCUMENTED[name].contains(&-answer),
    };
    let error = std::io::Error::from_raw_os_error(-answer);
    assert!(is_documented, "{name}() returns {answer} ({error})");
}
