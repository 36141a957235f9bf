//! The userfaultfd of tenure, and others.

use tenure::PageRange;

/// Registers a range with a userfaultfd that is not tenure's.
pub fn register_with_foreign_userfaultfd(range: PageRange) -> std::os::fd::OwnedFd {
    register_with_features(range, 0)
}

/// Registers a range with a userfaultfd of its own, which has these features.
pub fn register_with_features(range: PageRange, features: u64) -> std::os::fd::OwnedFd {
    // UFFD_USER_MODE_ONLY needs no privilege.
    register_with_flags(range, 1, features).unwrap()
}

/// Registers a range with a userfaultfd that is created with these flags.
pub(super) fn register_with_flags(
    range: PageRange,
    flags: u32,
    features: u64,
) -> rustix::io::Result<std::os::fd::OwnedFd> {
    use linux_raw_sys::general::{UFFD_API, uffdio_api, uffdio_range, uffdio_register};
    use linux_raw_sys::ioctl::{UFFDIO_API, UFFDIO_REGISTER};
    use std::os::fd::AsRawFd;
    let flags = rustix::mm::UserfaultfdFlags::from_bits_retain(flags | libc::O_CLOEXEC as u32);
    let fd = unsafe { rustix::mm::userfaultfd(flags) }?;
    let mut api = uffdio_api {
        api: UFFD_API.into(),
        features,
        ioctls: 0,
    };
    let mut register = uffdio_register {
        range: uffdio_range {
            start: range.start() as u64,
            len: range.len() as u64,
        },
        mode: 1,
        ioctls: 0,
    };
    unsafe {
        assert_eq!(libc::ioctl(fd.as_raw_fd(), UFFDIO_API.into(), &mut api), 0);
        assert_eq!(
            libc::ioctl(fd.as_raw_fd(), UFFDIO_REGISTER.into(), &mut register),
            0
        );
    }
    Ok(fd)
}

/// Closes tenure's userfaultfd without tenure. (Only that one: tenure's threads may be
/// using other descriptors.)
pub fn close_userfaultfd() {
    assert_eq!(unsafe { libc::close(userfaultfd_number()) }, 0);
}

/// Replaces tenure's userfaultfd by another file in one call: tenure's threads open files,
/// too, and could get the number in between.
pub fn replace_userfaultfd(file: std::fs::File) -> std::fs::File {
    use std::os::fd::{AsRawFd, FromRawFd};
    let number = userfaultfd_number();
    assert_eq!(unsafe { libc::dup2(file.as_raw_fd(), number) }, number);
    unsafe { std::fs::File::from_raw_fd(number) }
}

fn userfaultfd_number() -> std::os::fd::RawFd {
    let found = userfaultfds();
    let [path] = &found[..] else {
        panic!("there should be one: {found:?}")
    };
    path.file_name().unwrap().to_str().unwrap().parse().unwrap()
}

/// Returns the paths in `/proc/self/fd` of the process's userfaultfds.
pub fn userfaultfds() -> Vec<std::path::PathBuf> {
    let all = std::fs::read_dir("/proc/self/fd").unwrap();
    let is_it = |path: &std::path::PathBuf| {
        std::fs::read_link(path).is_ok_and(|to| to.as_os_str() == "anon_inode:[userfaultfd]")
    };
    all.map(|entry| entry.unwrap().path())
        .filter(is_it)
        .collect()
}
