//! The system calls that tenure makes, and the errors of each, according to the manual
//! pages and the kernel's sources, on any kernel since 5.4.
//!
//! A call that is missing here fails the test, so that its errors are considered first.

use std::os::unix::fs::FileExt;

use libc::{
    EACCES, EAGAIN, EBUSY, ECHILD, EFAULT, EHWPOISON, EINTR, EINVAL, EIO, EMFILE, ENFILE, ENODEV,
    ENOENT, ENOMEM, ENOSPC, ENOSYS, ENOTTY, EOPNOTSUPP, EPERM, ESRCH,
};

/// A system call, as far as its errors depend on it.
#[derive(Clone, Debug)]
pub struct Described {
    /// The call with what it does, such as `madvise(MADV_FREE)`.
    pub name: String,
    /// The file that the call works on.
    pub file: Option<String>,
    pub errnos: &'static [i32],
}

/// Describes the call that the thread is about to make; `None` if it is not listed.
pub fn describe(tid: libc::pid_t, data: &libc::seccomp_data) -> Option<Described> {
    let number = i64::from(data.nr);
    let args = &data.args;
    let plain = |name: &str, errnos: &'static [i32]| Some((name.to_owned(), None, errnos));
    let on_file = |name: &str, path: Option<String>, errnos: &'static [i32]| {
        let path = path.unwrap_or_else(|| "?".to_owned());
        Some((format!("{name}({path})"), Some(path), errnos))
    };
    let descriptor = |at: usize| link(tid, args[at] as i32);
    let (name, file, errnos): (String, Option<String>, &'static [i32]) = match number {
        libc::SYS_mmap => match args[3] as i32 & libc::MAP_ANONYMOUS {
            0 => on_file("mmap", descriptor(4), &[ENOMEM, EACCES, ENODEV]),
            _ => plain("mmap", &[ENOMEM]),
        },
        // The C library ends the process if it cannot unmap a thread's stack.
        libc::SYS_munmap if args[1] == stack_bytes() => plain("munmap(stack)", &[]),
        libc::SYS_munmap => plain("munmap", &[ENOMEM]),
        libc::SYS_mremap => match args[3] as i32 & libc::MREMAP_DONTUNMAP {
            0 => plain("mremap", &[ENOMEM, EFAULT, EPERM]),
            _ => plain("mremap(MREMAP_DONTUNMAP)", &[ENOMEM, EFAULT, EPERM, EINVAL]),
        },
        libc::SYS_mprotect => plain("mprotect", &[ENOMEM, EACCES]),
        libc::SYS_madvise => {
            let (name, errnos) = advice(args[2] as i32)?;
            plain(&format!("madvise({name})"), errnos)
        }
        libc::SYS_process_madvise => plain("process_madvise", &[ENOSYS, EPERM, EINVAL]),
        libc::SYS_mlock => plain("mlock", &[ENOMEM, EAGAIN, EPERM]),
        libc::SYS_mlock2 => plain("mlock2", &[ENOMEM, EAGAIN, EPERM, ENOSYS]),
        libc::SYS_munlock => plain("munlock", &[ENOMEM, EPERM]),
        libc::SYS_mlockall => plain("mlockall", &[ENOMEM, EPERM, EINVAL]),
        libc::SYS_munlockall => plain("munlockall", &[EPERM]),
        // Not ENOMEM, which reports a hole: there is none.
        libc::SYS_msync => plain("msync", &[EBUSY]),
        // Not ESRCH, which reports that there is no such process: there is one.
        libc::SYS_kill => plain("kill", &[EPERM]),
        CACHESTAT => plain("cachestat", &[ENOSYS, EPERM, EOPNOTSUPP]),
        libc::SYS_mincore => plain("mincore", &[ENOMEM, EAGAIN]),
        libc::SYS_userfaultfd => plain(
            "userfaultfd",
            &[EPERM, ENOSYS, EMFILE, ENFILE, ENOMEM, EINVAL],
        ),
        libc::SYS_ioctl => {
            let (name, errnos) = request(args[1] as u32)?;
            plain(&format!("ioctl({name})"), errnos)
        }
        #[cfg(target_arch = "x86_64")]
        libc::SYS_open => on_file("open", text(tid, args[0]), OPEN),
        libc::SYS_openat => on_file("openat", text(tid, args[1]), OPEN),
        libc::SYS_read => on_file("read", descriptor(0), &[ENOMEM, EINTR]),
        libc::SYS_pread64 => on_file("pread", descriptor(0), &[ENOMEM, EINTR]),
        libc::SYS_write => on_file("write", descriptor(0), &[ENOMEM, EINTR]),
        // Not EFAULT, which reports a purged page: there is none.
        libc::SYS_pwrite64 => on_file("pwrite", descriptor(0), &[ENOMEM, ENOSPC, EINTR]),
        libc::SYS_pwritev => on_file("pwritev", descriptor(0), &[EFAULT, ENOMEM, ENOSPC, EINTR]),
        libc::SYS_futex => plain(
            "futex(FUTEX_WAKE_OP)",
            &[EFAULT, EAGAIN, EINTR, ENOSYS, ENOMEM],
        ),
        libc::SYS_fstat => on_file("fstat", descriptor(0), status(descriptor(0))),
        libc::SYS_newfstatat => match text(tid, args[1]) {
            Some(path) if !path.is_empty() => on_file("stat", Some(path), &[ENOENT, EACCES]),
            _ => on_file("fstat", descriptor(0), status(descriptor(0))),
        },
        libc::SYS_statx => match text(tid, args[1]) {
            Some(path) if !path.is_empty() => on_file("statx", Some(path), &[ENOENT, EACCES]),
            _ => on_file("statx", descriptor(0), status(descriptor(0))),
        },
        #[cfg(target_arch = "x86_64")]
        libc::SYS_access => on_file("access", text(tid, args[0]), &[ENOENT, EACCES, ENOMEM]),
        libc::SYS_faccessat | libc::SYS_faccessat2 => {
            on_file("faccessat", text(tid, args[1]), &[ENOENT, EACCES, ENOMEM])
        }
        #[cfg(target_arch = "x86_64")]
        libc::SYS_readlink if text(tid, args[0]).as_deref() == Some("/proc/self") => {
            plain("readlink(/proc/self)", &[])
        }
        #[cfg(target_arch = "x86_64")]
        libc::SYS_readlink => on_file("readlink", text(tid, args[0]), &[ENOENT, EACCES, ENOMEM]),
        libc::SYS_readlinkat if text(tid, args[1]).as_deref() == Some("/proc/self") => {
            plain("readlink(/proc/self)", &[])
        }
        libc::SYS_readlinkat => on_file("readlink", text(tid, args[1]), &[ENOENT, EACCES, ENOMEM]),
        libc::SYS_statfs => on_file("statfs", text(tid, args[0]), &[ENOENT, EACCES, ENOMEM]),
        libc::SYS_fstatfs => on_file("fstatfs", descriptor(0), &[EIO, ENOMEM]),
        libc::SYS_getdents64 => on_file("getdents", descriptor(0), &[ENOENT, ENOMEM]),
        libc::SYS_lseek => on_file("lseek", descriptor(0), &[]),
        libc::SYS_fchmod => on_file("fchmod", descriptor(0), &[]),
        libc::SYS_ftruncate => on_file("ftruncate", descriptor(0), &[ENOMEM]),
        libc::SYS_fallocate => on_file(
            "fallocate",
            descriptor(0),
            &[ENOSPC, ENOMEM, EINTR, EOPNOTSUPP],
        ),
        libc::SYS_fadvise64 => on_file("fadvise", descriptor(0), &[]),
        // close reports errors after it has closed the descriptor.
        libc::SYS_close => plain("close", &[]),
        libc::SYS_fcntl => match args[1] as i32 {
            libc::F_DUPFD_CLOEXEC | libc::F_DUPFD => {
                on_file("fcntl(F_DUPFD)", descriptor(0), &[EMFILE])
            }
            _ => on_file("fcntl", descriptor(0), &[]),
        },
        libc::SYS_memfd_create => plain(
            "memfd_create",
            &[EMFILE, ENFILE, ENOMEM, ENOSYS, EINVAL, EACCES],
        ),
        libc::SYS_memfd_secret => plain("memfd_secret", &[EMFILE, ENFILE, ENOMEM, ENOSYS, EPERM]),
        libc::SYS_pipe2 => plain("pipe2", &[EMFILE, ENFILE, ENOMEM]),
        libc::SYS_eventfd2 => plain("eventfd2", &[EMFILE, ENFILE, ENOMEM]),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_poll => plain("poll", &[EINTR, ENOMEM]),
        libc::SYS_ppoll => plain("ppoll", &[EINTR, ENOMEM]),
        libc::SYS_clone => plain("clone", &[EAGAIN, ENOMEM, EPERM]),
        libc::SYS_clone3 => plain("clone3", &[EAGAIN, ENOMEM, ENOSYS]),
        libc::SYS_prctl => match args[0] as i32 {
            libc::PR_SET_VMA => plain("prctl(PR_SET_VMA)", &[EINVAL, ENOMEM]),
            // Names, and what the tear-down helper sets for itself.
            _ => plain("prctl", &[]),
        },
        libc::SYS_sched_setscheduler => plain("sched_setscheduler", &[EPERM]),
        libc::SYS_sched_setaffinity => plain("sched_setaffinity", &[EPERM, EINVAL]),
        libc::SYS_sched_getaffinity => plain("sched_getaffinity", &[]),
        libc::SYS_setpriority => plain("setpriority", &[EPERM, EACCES]),
        libc::SYS_prlimit64 => plain("getrlimit", &[]),
        libc::SYS_sysinfo => plain("sysinfo", &[]),
        libc::SYS_uname => plain("uname", &[]),
        // The standard library calls it for its hash maps.
        libc::SYS_getrandom => plain("getrandom", &[]),
        libc::SYS_capget => plain("capget", &[]),
        libc::SYS_process_vm_readv => plain("process_vm_readv", &[EPERM, ENOSYS, ENOMEM, EFAULT]),
        libc::SYS_pidfd_open => plain("pidfd_open", &[EMFILE, ENFILE, ENOMEM, ENOSYS]),
        libc::SYS_wait4 => plain("wait4", &[EINTR, ECHILD]),
        libc::SYS_waitid => plain("waitid", &[EINTR, ECHILD]),
        libc::SYS_get_mempolicy => plain("get_mempolicy", &[ENOSYS, EPERM, EFAULT]),
        libc::SYS_move_pages => plain("move_pages", &[ENOSYS, EPERM, ENOMEM]),
        libc::SYS_getpid => plain("getpid", &[]),
        libc::SYS_geteuid | libc::SYS_getuid => plain("getuid", &[]),
        libc::SYS_close_range => plain("close_range", &[ENOMEM, ENOSYS]),
        libc::SYS_chdir => plain("chdir", &[]),
        libc::SYS_unshare => plain("unshare", &[]),
        libc::SYS_setsid => plain("setsid", &[]),
        libc::SYS_set_tid_address => plain("set_tid_address", &[]),
        _ => return None,
    }?;
    Some(Described { name, file, errnos })
}

/// The size of the stack of one of tenure's threads, with its guard page.
fn stack_bytes() -> u64 {
    (2 << 20) + tenure::page_size() as u64
}

const OPEN: &[i32] = &[EMFILE, ENFILE, ENOMEM, EACCES, ENOENT];

/// Only a file on a disk or in a network can fail to return its status.
fn status(path: Option<String>) -> &'static [i32] {
    let is_file = |path: String| path.starts_with('/') && !path.starts_with("/memfd:");
    match path.is_some_and(is_file) {
        true => &[EIO],
        false => &[],
    }
}

/// Where a mapping cannot be split for a flag, the kernel turns ENOMEM into EAGAIN.
const FLAG: &[i32] = &[EAGAIN, ENOMEM, EINVAL];

fn advice(advice: i32) -> Option<(&'static str, &'static [i32])> {
    Some(match advice {
        libc::MADV_POPULATE_READ => (
            "MADV_POPULATE_READ",
            &[EINVAL, ENOMEM, EFAULT, EHWPOISON, EAGAIN],
        ),
        libc::MADV_POPULATE_WRITE => (
            "MADV_POPULATE_WRITE",
            &[EINVAL, ENOMEM, EFAULT, EHWPOISON, EAGAIN],
        ),
        // The tests' own tag.
        libc::MADV_RANDOM => ("MADV_RANDOM", &[]),
        libc::MADV_FREE => ("MADV_FREE", &[EINVAL, ENOMEM]),
        libc::MADV_DONTNEED => ("MADV_DONTNEED", &[EINVAL, ENOMEM, EPERM]),
        libc::MADV_DONTNEED_LOCKED => ("MADV_DONTNEED_LOCKED", &[EINVAL, ENOMEM]),
        libc::MADV_REMOVE => ("MADV_REMOVE", &[EOPNOTSUPP, EINVAL, ENOSPC, EINTR, EIO]),
        libc::MADV_WILLNEED => ("MADV_WILLNEED", &[EAGAIN, EIO, ENOMEM]),
        libc::MADV_COLD => ("MADV_COLD", &[EINVAL, EINTR]),
        libc::MADV_PAGEOUT => ("MADV_PAGEOUT", &[EINVAL, EINTR]),
        libc::MADV_DONTFORK => ("MADV_DONTFORK", FLAG),
        libc::MADV_DOFORK => ("MADV_DOFORK", FLAG),
        libc::MADV_DONTDUMP => ("MADV_DONTDUMP", FLAG),
        libc::MADV_DODUMP => ("MADV_DODUMP", FLAG),
        libc::MADV_WIPEONFORK => ("MADV_WIPEONFORK", FLAG),
        libc::MADV_KEEPONFORK => ("MADV_KEEPONFORK", FLAG),
        libc::MADV_HUGEPAGE => ("MADV_HUGEPAGE", FLAG),
        libc::MADV_NOHUGEPAGE => ("MADV_NOHUGEPAGE", FLAG),
        libc::MADV_UNMERGEABLE => ("MADV_UNMERGEABLE", FLAG),
        GUARD_INSTALL => ("MADV_GUARD_INSTALL", &[EINVAL, ENOMEM, EAGAIN]),
        GUARD_REMOVE => ("MADV_GUARD_REMOVE", &[EINVAL, ENOMEM, EAGAIN]),
        _ => return None,
    })
}

const GUARD_INSTALL: i32 = linux_raw_sys::general::MADV_GUARD_INSTALL as i32;
const GUARD_REMOVE: i32 = linux_raw_sys::general::MADV_GUARD_REMOVE as i32;

fn request(request: u32) -> Option<(&'static str, &'static [i32])> {
    use linux_raw_sys::ioctl as known;
    Some(match request {
        known::UFFDIO_API => ("UFFDIO_API", &[EINVAL, EPERM]),
        known::UFFDIO_REGISTER => ("UFFDIO_REGISTER", &[ENOMEM, EBUSY, EINVAL]),
        known::UFFDIO_UNREGISTER => ("UFFDIO_UNREGISTER", &[ENOMEM, EINVAL]),
        // Not EEXIST, which reports a page that is present: it would be present.
        known::UFFDIO_ZEROPAGE => ("UFFDIO_ZEROPAGE", &[EAGAIN, ENOENT, ENOMEM, ESRCH]),
        // Not EEXIST, which reports a page at the destination: there is none.
        UFFDIO_MOVE => (
            "UFFDIO_MOVE",
            &[EAGAIN, EBUSY, ENOENT, ENOMEM, EINVAL, ESRCH],
        ),
        // This only queries: both answers are valid.
        known::UFFDIO_CONTINUE => ("UFFDIO_CONTINUE", &[]),
        USERFAULTFD_IOC_NEW => ("USERFAULTFD_IOC_NEW", &[EMFILE, ENFILE, ENOMEM]),
        PAGEMAP_SCAN => ("PAGEMAP_SCAN", &[ENOTTY, ENOMEM, EFAULT]),
        PROCMAP_QUERY => ("PROCMAP_QUERY", &[ENOTTY, ESRCH, ENOMEM]),
        _ => return None,
    })
}

const USERFAULTFD_IOC_NEW: u32 = rustix::ioctl::opcode::none(0xAA, 0);
const UFFDIO_MOVE: u32 =
    rustix::ioctl::opcode::read_write::<linux_raw_sys::general::uffdio_move>(0xAA, 5);
const PAGEMAP_SCAN: u32 =
    rustix::ioctl::opcode::read_write::<linux_raw_sys::general::pm_scan_arg>(b'f', 16);
/// `cachestat(2)`, the same number on all architectures.
const CACHESTAT: i64 = 451;
const PROCMAP_QUERY: u32 =
    rustix::ioctl::opcode::read_write::<linux_raw_sys::general::procmap_query>(b'f', 17);

/// Reads a path of the thread's memory, without process ids.
fn text(tid: libc::pid_t, at: u64) -> Option<String> {
    let memory = std::fs::File::open(format!("/proc/{tid}/mem")).ok()?;
    let mut bytes = [0; 256];
    let got = memory.read_at(&mut bytes, at).ok()?;
    let end = bytes[..got].iter().position(|&byte| byte == 0)?;
    Some(without_numbers(std::str::from_utf8(&bytes[..end]).ok()?))
}

/// Returns the file of a thread's descriptor.
fn link(tid: libc::pid_t, fd: i32) -> Option<String> {
    let path = std::fs::read_link(format!("/proc/{tid}/fd/{fd}")).ok()?;
    Some(without_numbers(path.to_str()?))
}

/// Replaces each row of digits by one `N`, so that runs can be compared.
pub fn without_numbers(path: &str) -> String {
    let mut short = String::new();
    for char in path.chars() {
        match char.is_ascii_digit() {
            true if short.ends_with('N') => {}
            true => short.push('N'),
            false => short.push(char),
        }
    }
    short
}
