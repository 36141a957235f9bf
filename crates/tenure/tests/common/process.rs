//! The limits, the rights and the descriptors of the process.

pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Waits in another thread until the first has ended, as far as other processes see.
pub fn wait_for_end_of_first_thread() {
    let stat = format!("/proc/{}/stat", std::process::id());
    while !std::fs::read_to_string(&stat).unwrap().contains(") Z ") {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

/// Whether only these tests run on the machine, as in tests/kernels: then they may change
/// system-wide settings.
pub fn machine_is_ours() -> bool {
    std::env::var_os("TENURE_TEST_MACHINE_IS_OURS").is_some_and(|value| value == "1")
}

/// Returns how many times as long a test takes: machines that are the tests' own are emulated.
pub fn slowness() -> u32 {
    if machine_is_ours() { 10 } else { 1 }
}

/// Closes every descriptor but the standard ones, as daemons do. It waits until tenure's threads
/// keep the files that they have open: a build with debug assertions aborts where a file that is
/// open for one reading is closed under it.
pub fn close_all_descriptors() {
    let list = || -> std::collections::BTreeSet<_> {
        let entries = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
        let named = entries.map(|entry| (entry.file_name(), std::fs::read_link(entry.path()).ok()));
        named.collect()
    };
    let (mut known, mut same) = (list(), 0);
    while same < 5 {
        std::thread::sleep(std::time::Duration::from_millis(10));
        let now = list();
        same = if now == known { same + 1 } else { 0 };
        known = now;
    }
    let closed = unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0) };
    assert_eq!(closed, 0);
}

/// Opens files until none can be opened: the process has no descriptor left until they are
/// dropped.
pub fn take_all_descriptors() -> Vec<std::fs::File> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let maximum = getrlimit(Resource::Nofile).maximum;
    let current = Some(256);
    setrlimit(Resource::Nofile, Rlimit { current, maximum }).unwrap();
    let open = || std::fs::File::open("/dev/null");
    let taken = std::iter::from_fn(|| open().ok()).collect();
    assert_eq!(open().unwrap_err().raw_os_error(), Some(libc::EMFILE));
    taken
}

/// Makes root a user without privileges, for whom limits hold.
pub fn drop_privileges() {
    if is_root() {
        assert_eq!(unsafe { libc::setuid(65534) }, 0);
        // Without it files under /proc/self belong to root from here on.
        assert_eq!(unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 1) }, 0);
    }
}

/// Whether `RLIMIT_MEMLOCK` does not limit this process.
pub fn may_lock_anything() -> bool {
    use rustix::{process::Resource, thread::CapabilitySet};
    let limit = rustix::process::getrlimit(Resource::Memlock).current;
    let sets = rustix::thread::capabilities(None).unwrap();
    limit.is_none() || sets.effective.contains(CapabilitySet::IPC_LOCK)
}

/// Limits `RLIMIT_MEMLOCK` and drops the privileges that override it.
pub fn limit_memlock(bytes: u64) {
    set_memlock(bytes);
    drop_privileges();
}

pub fn set_memlock(bytes: u64) {
    use rustix::process::{Resource, Rlimit, setrlimit};
    let limit = Rlimit {
        current: Some(bytes),
        maximum: Some(bytes),
    };
    setrlimit(Resource::Memlock, limit).unwrap();
}

/// Reads a line of `/proc/self/status` in KiB, such as `VmLck`.
pub fn status_kib(line: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let found = status
        .lines()
        .find_map(|text| text.strip_prefix(&format!("{line}:")));
    found
        .unwrap()
        .trim()
        .trim_end_matches(" kB")
        .parse()
        .unwrap()
}
