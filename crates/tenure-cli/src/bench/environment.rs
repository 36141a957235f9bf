//! The machine and the build that the figures come from.

use std::{collections::BTreeMap, fs, path::Path};

use anyhow::{Context as _, Result};
use procfs::{CpuInfo, Current, Meminfo};
use serde::Serialize;

use super::kernel;

/// What has to be known about the machine to read the figures.
#[derive(Debug, Serialize)]
pub struct Environment {
    /// The version of tenure.
    pub tenure_version: &'static str,
    /// The profile that it was built with: "release", or "debug", whose figures
    /// for work outside the kernel mean little.
    pub build_profile: &'static str,
    /// The release of the kernel.
    pub kernel: String,
    /// The architecture.
    pub architecture: &'static str,
    /// The model of the first CPU.
    pub cpu_model: String,
    /// How many CPUs the process may run on.
    pub cpus_allowed: usize,
    /// Whether the CPU says that it is a virtual machine's.
    pub hypervisor: bool,
    /// MemTotal.
    pub memory_total_bytes: u64,
    /// MemAvailable when the command started.
    pub memory_available_bytes: u64,
    /// SwapTotal.
    pub swap_total_bytes: u64,
    /// How much memory the experiments could take.
    pub memory_room_bytes: usize,
    /// What allows no more: MemAvailable, or a memory cgroup with its limit.
    pub memory_room_bound: String,
    /// The size of a base page.
    pub page_size_bytes: usize,
    /// The mode of transparent huge pages.
    pub transparent_huge_pages: &'static str,
    /// What the kernel does about each weakness of the CPU: some of it makes system
    /// calls and page faults dear.
    pub mitigations: BTreeMap<String, String>,
    /// The version of the C library, where it tells.
    pub libc_version: Option<String>,
}

impl Environment {
    /// Looks at the machine.
    pub fn now() -> Result<Self> {
        let cpu = CpuInfo::current().context("reading /proc/cpuinfo")?;
        let flags = cpu.flags(0).unwrap_or_default();
        let meminfo = Meminfo::current().context("reading /proc/meminfo")?;
        let allowed = rustix::thread::sched_getaffinity(None).context("sched_getaffinity")?;
        let room = tenure::Room::now()?;
        let release = fs::read_to_string("/proc/sys/kernel/osrelease")
            .context("reading /proc/sys/kernel/osrelease")?;
        Ok(Self {
            tenure_version: env!("CARGO_PKG_VERSION"),
            build_profile: if cfg!(debug_assertions) {
                "debug"
            } else {
                "release"
            },
            kernel: release.trim().to_owned(),
            architecture: std::env::consts::ARCH,
            cpu_model: cpu.model_name(0).unwrap_or("unknown").to_owned(),
            cpus_allowed: allowed.count() as usize,
            hypervisor: flags.contains(&"hypervisor"),
            memory_total_bytes: meminfo.mem_total,
            memory_available_bytes: meminfo
                .mem_available
                .context("no MemAvailable in /proc/meminfo")?,
            swap_total_bytes: meminfo.swap_total,
            memory_room_bytes: room.bytes,
            memory_room_bound: room.bound.to_string(),
            page_size_bytes: tenure::page_size(),
            transparent_huge_pages: kernel::huge_page_mode().as_str(),
            mitigations: mitigations(Path::new("/sys/devices/system/cpu/vulnerabilities")),
            libc_version: libc_version(),
        })
    }
}

/// Reads what `folder` tells about each weakness; nothing where there is no such
/// folder.
fn mitigations(folder: &Path) -> BTreeMap<String, String> {
    let files = fs::read_dir(folder).into_iter().flatten().flatten();
    let of_file = |file: fs::DirEntry| {
        let text = fs::read_to_string(file.path()).ok()?;
        let name = file.file_name().to_string_lossy().into_owned();
        Some((name, text.trim().to_owned()))
    };
    files.filter_map(of_file).collect()
}

#[cfg(target_env = "gnu")]
fn libc_version() -> Option<String> {
    // SAFETY: the answer is a string that lives as long as the program.
    let version = unsafe { std::ffi::CStr::from_ptr(libc::gnu_get_libc_version()) };
    Some(format!("glibc {}", version.to_string_lossy()))
}

#[cfg(not(target_env = "gnu"))]
fn libc_version() -> Option<String> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_can_be_described() {
        let environment = Environment::now().unwrap();
        assert!(environment.cpus_allowed >= 1);
        assert!(environment.memory_available_bytes <= environment.memory_total_bytes);
        assert!(environment.kernel.starts_with(|c: char| c.is_ascii_digit()));
        assert!(environment.memory_room_bytes > 0);
        assert!(!environment.memory_room_bound.is_empty());
    }

    #[test]
    fn mitigations_are_those_of_the_folder() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("meltdown"), "Mitigation: PTI\n").unwrap();
        let found = mitigations(folder.path());
        assert_eq!(found.len(), 1);
        assert_eq!(found["meltdown"], "Mitigation: PTI");
        assert!(mitigations(&folder.path().join("none")).is_empty());
    }
}
