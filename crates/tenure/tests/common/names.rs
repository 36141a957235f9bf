//! Names in `/dev/shm`.

use libtest_mimic::Completion;

use super::skip;

/// Why names cannot be tested here.
pub fn without_names() -> Option<Completion> {
    let stat = rustix::fs::statvfs("/dev/shm");
    let free = stat.map_or(0, |stat| stat.f_bavail * stat.f_frsize);
    let is_writable = rustix::fs::access("/dev/shm", rustix::fs::Access::WRITE_OK).is_ok();
    let is_usable = is_writable && free >= 16 << 20;
    (!is_usable).then(|| skip("needs 16 MiB in /dev/shm"))
}
