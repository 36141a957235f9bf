//! The facts about the machine, and about this process's limits and rights.

use std::{env, fs, path::Path, str::FromStr, thread, time::Duration};

use procfs::{CpuInfo, Current as _, Meminfo};
use rustix::{
    fs::{Access, access},
    io::Errno,
    process::{Resource, getrlimit},
    thread::{CapabilitySet, capabilities},
};
use tenure::{
    Error, Features, Headroom, Stats,
    pressure::{Snapshot, StallSource},
    teardown,
};

/// Everything that the checks depend on. A fact that could not be read is `None`.
#[derive(Clone, Debug)]
pub struct Facts {
    /// The release of the kernel.
    pub kernel: String,
    pub virtual_machine: bool,
    pub container: bool,
    /// The kernel's features, found by trying them.
    pub features: Features,
    /// Features that TENURE_WITHOUT names.
    pub without: Vec<String>,
    /// /proc is mounted and shows this process.
    pub proc: bool,
    /// A seccomp filter is in force.
    pub seccomp: bool,
    /// RLIMIT_MEMLOCK does not apply.
    pub may_lock_anything: bool,
    /// Within which time a PSI trigger reports stalls.
    pub stall_trigger: Result<Duration, Errno>,
    /// Whose stalls it reports.
    pub stall_source: StallSource,
    /// CAP_SYS_PTRACE.
    pub may_trace_anything: bool,
    /// RLIMIT_MEMLOCK, soft and hard.
    pub memlock_bytes: Limit,
    /// RLIMIT_AS.
    pub address_space_bytes: Limit,
    /// vm.max_map_count.
    pub max_map_count: Option<u64>,
    /// vm.overcommit_memory.
    pub overcommit_memory: Option<u8>,
    /// CPUs by affinity.
    pub cpus_allowed: usize,
    /// CPUs by affinity and by the cgroup's quota.
    pub cpus: usize,
    pub numa_nodes: usize,
    /// The modes of transparent huge pages.
    pub huge_pages: Option<String>,
    pub huge_page_defrag: Option<String>,
    /// Free huge pages of 2 MiB in the hugetlb pool.
    pub free_hugetlb_pages: Option<u64>,
    pub headroom: Result<Headroom, Error>,
    pub swap_bytes: Option<u64>,
    /// Whether /proc/self/pagemap can be opened.
    pub pagemap: Result<(), Errno>,
    /// Whether /dev/userfaultfd can be opened.
    pub userfaultfd_device: Result<(), Errno>,
    /// kernel.yama.ptrace_scope.
    pub ptrace_scope: Option<u8>,
    /// Whether other processes could read this process's counters.
    pub counters_have_a_page: bool,
    pub teardown: Result<(), Error>,
    /// Whether unshare(CLONE_VM) is allowed, which tells whether memory is shared.
    pub unshare: Result<(), Errno>,
}

/// A soft and a hard limit; `None` is no limit.
#[derive(Clone, Copy, Debug)]
pub struct Limit {
    pub soft: Option<u64>,
    pub hard: Option<u64>,
}

impl Facts {
    /// Reads and tries this machine.
    pub fn gather() -> Self {
        let status = fs::read_to_string("/proc/self/status");
        let without = env::var("TENURE_WITHOUT").unwrap_or_default();
        let first_namespace = is_in_first_user_namespace();
        // Creates the page of counters, where that is possible.
        tenure::stats();
        let allowed = rustix::thread::sched_getaffinity(None);
        let (stall_trigger, stall_source) = match Snapshot::now() {
            Ok(snapshot) => (snapshot.trigger, snapshot.stall_source),
            Err(_) => (Err(Errno::NOENT), StallSource::Nothing),
        };
        Self {
            kernel: rustix::system::uname()
                .release()
                .to_string_lossy()
                .into_owned(),
            virtual_machine: is_virtual_machine(),
            container: is_container(),
            features: Features::get().clone(),
            without: without
                .split(',')
                .map(|name| name.trim().to_owned())
                .collect(),
            proc: status.is_ok(),
            seccomp: status.is_ok_and(|status| has_seccomp_filter(&status)),
            may_lock_anything: first_namespace && has_capability(CapabilitySet::IPC_LOCK),
            stall_trigger,
            stall_source,
            may_trace_anything: has_capability(CapabilitySet::SYS_PTRACE),
            memlock_bytes: limit(Resource::Memlock),
            address_space_bytes: limit(Resource::As),
            max_map_count: number("/proc/sys/vm/max_map_count"),
            overcommit_memory: number("/proc/sys/vm/overcommit_memory"),
            cpus_allowed: allowed.map_or(1, |cpus| cpus.count() as usize),
            cpus: thread::available_parallelism().map_or(1, usize::from),
            numa_nodes: numa_nodes(Path::new("/sys/devices/system/node")),
            huge_pages: chosen("/sys/kernel/mm/transparent_hugepage/enabled"),
            huge_page_defrag: chosen("/sys/kernel/mm/transparent_hugepage/defrag"),
            free_hugetlb_pages: number("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages"),
            headroom: Headroom::now(),
            swap_bytes: Meminfo::current().ok().map(|info| info.swap_total),
            pagemap: access("/proc/self/pagemap", Access::READ_OK),
            userfaultfd_device: access("/dev/userfaultfd", Access::READ_OK | Access::WRITE_OK),
            ptrace_scope: number("/proc/sys/kernel/yama/ptrace_scope"),
            counters_have_a_page: matches!(Stats::of_process(std::process::id()), Ok(Some(_))),
            teardown: try_teardown(),
            unshare: try_unshare(),
        }
    }

    /// Whether the kernel's version is at least this one.
    pub fn is_since(&self, version: (u32, u32)) -> bool {
        version_of(&self.kernel) >= version
    }
}

/// Returns the major and minor number of a kernel's release.
fn version_of(release: &str) -> (u32, u32) {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    let mut number = || numbers.next().and_then(|digits| digits.parse().ok());
    (number().unwrap_or(0), number().unwrap_or(0))
}

fn limit(resource: Resource) -> Limit {
    let limit = getrlimit(resource);
    Limit {
        soft: limit.current,
        hard: limit.maximum,
    }
}

fn has_capability(wanted: CapabilitySet) -> bool {
    capabilities(None).is_ok_and(|sets| sets.effective.contains(wanted))
}

/// Only in the first user namespace do capabilities lift limits.
fn is_in_first_user_namespace() -> bool {
    let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    map.split_whitespace().eq(["0", "0", "4294967295"])
}

fn has_seccomp_filter(status: &str) -> bool {
    let mode = status
        .lines()
        .find_map(|line| line.strip_prefix("Seccomp:"));
    mode.is_some_and(|mode| mode.trim() == "2")
}

fn number<T: FromStr>(file: &str) -> Option<T> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

/// Returns the word in brackets: `always [madvise] never`.
fn chosen(file: &str) -> Option<String> {
    let text = fs::read_to_string(file).ok()?;
    let (_, rest) = text.split_once('[')?;
    Some(rest.split_once(']')?.0.to_owned())
}

fn numa_nodes(folder: &Path) -> usize {
    let is_node = |name: &str| {
        let number = name.strip_prefix("node");
        number.is_some_and(|number| number.parse::<u32>().is_ok())
    };
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let nodes = entries.filter(|entry| entry.file_name().to_str().is_some_and(is_node));
    nodes.count().max(1)
}

fn is_virtual_machine() -> bool {
    CpuInfo::current().is_ok_and(|cpu| {
        cpu.flags(0)
            .is_some_and(|flags| flags.contains(&"hypervisor"))
    })
}

fn is_container() -> bool {
    // Docker and Podman make these files; systemd and others set the variable.
    let marks = ["/.dockerenv", "/run/.containerenv"];
    marks.iter().any(|mark| Path::new(mark).exists()) || env::var_os("container").is_some()
}

/// Enables tear-down for this process, and disables it.
fn try_teardown() -> Result<(), Error> {
    teardown::enable()?;
    teardown::disable();
    Ok(())
}

/// Makes the call with which the helper finds out whether it may free memory.
fn try_unshare() -> Result<(), Errno> {
    // SAFETY: the kernel refuses the call (EINVAL) to a task that shares its memory with
    // another, and changes nothing for any other task.
    match unsafe { libc::unshare(libc::CLONE_VM) } {
        0 => Ok(()),
        _ => match Errno::from_io_error(&std::io::Error::last_os_error()) {
            None | Some(Errno::INVAL) => Ok(()),
            Some(errno) => Err(errno),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The only test that gathers facts, because tear-down is enabled meanwhile.
    #[test]
    fn facts_of_this_machine_are_plausible() {
        let facts = Facts::gather();
        assert!(facts.proc && facts.is_since((4, 0)), "{facts:?}");
        assert!(facts.cpus >= 1 && facts.cpus <= facts.cpus_allowed);
        assert!(facts.max_map_count > Some(0));
        assert!(facts.headroom.unwrap().bytes > 0);
        assert!(facts.counters_have_a_page);
        assert!(!teardown::is_enabled());
    }

    #[test]
    fn kernel_versions_are_compared_by_number() {
        for (release, version) in [
            ("5.4.0-150-generic", (5, 4)),
            ("5.14.0", (5, 14)),
            ("6.11+deb13", (6, 11)),
            ("weird", (0, 0)),
        ] {
            assert_eq!(version_of(release), version, "{release}");
        }
        assert!(version_of("5.4.0") < (5, 14) && version_of("5.14.0") > (5, 4));
    }

    #[test]
    fn seccomp_mode_is_read_from_its_own_line() {
        assert!(has_seccomp_filter(
            "Name:\tx\nSeccomp:\t2\nSeccomp_filters:\t1\n"
        ));
        assert!(!has_seccomp_filter("Seccomp:\t0\nSeccomp_filters:\t2\n"));
    }

    #[test]
    fn numa_nodes_are_counted_by_name() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(numa_nodes(folder.path()), 1);
        for name in ["node0", "node1", "node12", "nodes", "online"] {
            fs::create_dir(folder.path().join(name)).unwrap();
        }
        assert_eq!(numa_nodes(folder.path()), 3);
    }
}
