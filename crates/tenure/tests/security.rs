//! The promises of SECURITY.md: another user has no access, a program that is executed
//! inherits nothing, and no dump contains a secret.

#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "tests use memory and processes that they have made themselves"
)]

mod common;

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Command, Stdio};

use common::*;
use libtest_mimic::Completion;
use tenure::{Mapping, SecretBuffer, Stats, VolatileBuffer, pressure, teardown};

tests!(
    other_user_cannot_access_process,
    executed_program_inherits_no_descriptor,
    core_dump_contains_no_secret;
    children:
    use_everything_and_wait,
    probe_as_other_user,
    use_everything_and_exec,
    keep_secret_and_abort,
);

const OTHER_USER: u32 = 65533;

/// Bytes that exist only where they were made: constants would be in the program.
const SECRET: u8 = 37;
const NO_SECRET: u8 = 91;
const LEN: usize = 64;

fn byte(of: u8, index: usize) -> u8 {
    std::hint::black_box(of)
        .wrapping_mul(index as u8 + 1)
        .rotate_left(3)
        ^ of
}

fn is(of: u8, bytes: &[u8]) -> bool {
    (0..LEN).all(|index| bytes[index] == byte(of, index))
}

/// Everything that has descriptors, threads, helpers or pages of its own.
struct Everything {
    plain: Mapping,
    secret: SecretBuffer,
    _volatile: VolatileBuffer,
    _subscription: Option<pressure::Subscription>,
}

impl Everything {
    fn new() -> Self {
        let mut plain = anonymous(64);
        fill(plain.range());
        plain.discard(pages_bytes(0, 8)).unwrap();
        tag(pages(plain.range(), 8, 8));
        let mut secret = SecretBuffer::with_max_len(1 << 12).unwrap();
        secret.resize(LEN, 0).unwrap();
        for index in 0..LEN {
            secret.as_mut_slice()[index] = byte(SECRET, index);
        }
        let mut volatile = VolatileBuffer::new(1 << 20).unwrap();
        volatile.as_mut_slice().unwrap().fill(7);
        volatile.mark_volatile();
        drop(large());
        // Subscribing fails where pressure cannot be watched; then there is no descriptor.
        let subscription = pressure::subscribe(|_| ()).ok();
        teardown::enable().unwrap();
        Self {
            plain,
            secret,
            _volatile: volatile,
            _subscription: subscription,
        }
    }

    fn is_intact(&self) -> bool {
        is_filled(pages(self.plain.range(), 16, 48)) && is(SECRET, self.secret.as_slice())
    }
}

fn pages_bytes(first: usize, end: usize) -> std::ops::Range<usize> {
    first * tenure::page_size()..end * tenure::page_size()
}

/// Prints its own pid and its helpers', and checks its memory when its input ends.
fn use_everything_and_wait() {
    drop_privileges();
    let everything = Everything::new();
    let own = std::process::id();
    let helpers = fs::read_to_string(format!("/proc/{own}/task/{own}/children")).unwrap();
    println!("{own} {helpers}");
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
    assert!(everything.is_intact());
    assert!(teardown::is_enabled());
}

/// Tries every way to access another process.
fn probe_as_other_user() {
    let pids = std::env::var("TENURE_TEST_PIDS").unwrap();
    assert_eq!(unsafe { libc::setuid(OTHER_USER) }, 0);
    for pid in pids.split_whitespace() {
        for file in [
            "mem",
            "maps",
            "smaps",
            "pagemap",
            "environ",
            "fd/0",
            "map_files",
        ] {
            let path = format!("/proc/{pid}/{file}");
            let error = fs::File::open(&path).and_then(|mut file| file.read(&mut [0; 8]));
            let error = error.expect_err(&path);
            assert_eq!(error.kind(), std::io::ErrorKind::PermissionDenied, "{path}");
        }
        assert!(fs::read_dir(format!("/proc/{pid}/fd")).is_err());
        let number: i32 = pid.parse().unwrap();
        assert!(Stats::of_process(number as u32).is_err());
        let pidfd = unsafe { libc::syscall(libc::SYS_pidfd_open, number, 0) };
        let mut byte = [0_u8; 1];
        let part = libc::iovec {
            iov_base: byte.as_mut_ptr().cast(),
            iov_len: 1,
        };
        let part = &raw const part;
        let refused = [
            ("kill", unsafe { libc::kill(number, libc::SIGKILL) } as i64),
            ("ptrace", unsafe {
                libc::ptrace(libc::PTRACE_SEIZE, number, 0, 0)
            }),
            ("process_vm_readv", unsafe {
                libc::process_vm_readv(number, part, 1, part, 1, 0) as i64
            }),
            ("pidfd_getfd", unsafe {
                libc::syscall(libc::SYS_pidfd_getfd, pidfd, 0, 0)
            }),
            ("process_madvise", unsafe {
                libc::syscall(
                    libc::SYS_process_madvise,
                    pidfd,
                    part,
                    1,
                    libc::MADV_COLD,
                    0,
                )
            }),
            ("prlimit", unsafe {
                libc::prlimit(number, libc::RLIMIT_NOFILE, std::ptr::null(), &mut {
                    libc::rlimit {
                        rlim_cur: 0,
                        rlim_max: 0,
                    }
                }) as i64
            }),
        ];
        for (call, answer) in refused {
            assert_eq!(answer, -1, "{call} of {pid}");
        }
    }
}

fn other_user_cannot_access_process() -> Completion {
    if !is_root() {
        return skip("needs root, to be two other users");
    }
    let mut owner = Command::new(std::env::current_exe().unwrap())
        .args(["--child", "use_everything_and_wait"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut pids = String::new();
    let mut output = BufReader::new(owner.stdout.take().unwrap());
    output.read_line(&mut pids).unwrap();
    assert!(pids.split_whitespace().count() >= 2, "no helper: {pids}");
    let probe = in_child_with("TENURE_TEST_PIDS", &pids, "probe_as_other_user");
    // The owner's input ends.
    drop(owner.stdin.take());
    assert!(owner.wait().unwrap().success());
    assert_ended_well("probe_as_other_user", &probe);
    Completion::Completed
}

/// Counts the descriptors that an executed program has open, except the folder it reads.
fn open_in_program() -> usize {
    let script = "set -- /proc/self/fd/*; echo $#";
    let output = Command::new("sh").args(["-c", script]).output().unwrap();
    let count = String::from_utf8(output.stdout).unwrap();
    count.trim().parse().unwrap()
}

fn use_everything_and_exec() {
    let before = open_in_program();
    let everything = Everything::new();
    let mine = fs::read_dir("/proc/self/fd").unwrap().count();
    assert!(mine > before, "{mine} descriptors: none could be inherited");
    assert_eq!(open_in_program(), before);
    assert!(everything.is_intact());
}

fn executed_program_inherits_no_descriptor() {
    in_child_ok("use_everything_and_exec");
}

fn keep_secret_and_abort() {
    let everything = Everything::new();
    let ordinary: Vec<u8> = (0..LEN).map(|index| byte(NO_SECRET, index)).collect();
    std::hint::black_box(&ordinary);
    assert!(everything.is_intact());
    std::process::abort();
}

fn has(dump: &[u8], of: u8) -> bool {
    dump.windows(LEN).any(|window| is(of, window))
}

fn core_dump_contains_no_secret() -> Completion {
    let pattern = fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap();
    if pattern.trim() != "core" {
        return skip("kernel.core_pattern is not `core`: the dump goes elsewhere");
    }
    let folder = tempfile::tempdir().unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap());
    child
        .args(["--child", "keep_secret_and_abort"])
        .current_dir(folder.path())
        .stderr(Stdio::null());
    let unlimited = || {
        let limit = libc::rlimit {
            rlim_cur: libc::RLIM_INFINITY,
            rlim_max: libc::RLIM_INFINITY,
        };
        match unsafe { libc::setrlimit(libc::RLIMIT_CORE, &raw const limit) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    };
    let Ok(status) = unsafe { child.pre_exec(unlimited) }.status() else {
        return skip("RLIMIT_CORE cannot be raised");
    };
    assert_eq!(status.signal(), Some(libc::SIGABRT));
    let dump = fs::read_dir(folder.path()).unwrap().find_map(|entry| {
        let entry = entry.unwrap();
        let is_dump = entry.file_name().to_string_lossy().starts_with("core");
        is_dump.then(|| fs::read(entry.path()).unwrap())
    });
    let dump = dump.expect("a dump");
    assert!(
        has(&dump, NO_SECRET),
        "the dump does not contain ordinary memory"
    );
    assert!(!has(&dump, SECRET));
    Completion::Completed
}
