//! The machine and the build that the figures come from.

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
    /// The size of a base page.
    pub page_size_bytes: usize,
    /// The mode of transparent huge pages.
    pub transparent_huge_pages: &'static str,
}

impl Environment {
    /// Looks at the machine.
    pub fn now() -> Result<Self> {
        let cpu = CpuInfo::current().context("reading /proc/cpuinfo")?;
        let flags = cpu.flags(0).unwrap_or_default();
        let meminfo = Meminfo::current().context("reading /proc/meminfo")?;
        let allowed = rustix::thread::sched_getaffinity(None).context("sched_getaffinity")?;
        let release = std::fs::read_to_string("/proc/sys/kernel/osrelease")
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
            page_size_bytes: tenure::page_size(),
            transparent_huge_pages: kernel::huge_page_mode().as_str(),
        })
    }
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
    }
}
