//! The machine and the build that the figures come from.

use std::{collections::BTreeMap, fs, path::Path};

use anyhow::{Context as _, Result};
use procfs::{CpuInfo, Current, Meminfo};
use serde_json::{Map, Value, json};

use super::kernel;

/// Returns what has to be known about the machine to read the figures.
pub fn read() -> Result<Map<String, Value>> {
    let cpu = CpuInfo::current().context("reading /proc/cpuinfo")?;
    let flags = cpu.flags(0).unwrap_or_default();
    let meminfo = Meminfo::current().context("reading /proc/meminfo")?;
    let available = meminfo.mem_available;
    let allowed = rustix::thread::sched_getaffinity(None).context("sched_getaffinity")?;
    let headroom = tenure::Headroom::now()?;
    let release = fs::read_to_string("/proc/sys/kernel/osrelease")
        .context("reading /proc/sys/kernel/osrelease")?;
    // The figures of a debug build for work outside the kernel mean little.
    let profile = match cfg!(debug_assertions) {
        true => "debug",
        false => "release",
    };
    let environment = json!({
        "tenure_version": env!("CARGO_PKG_VERSION"),
        "build_profile": profile,
        "kernel": release.trim(),
        "architecture": std::env::consts::ARCH,
        "cpu_model": cpu.model_name(0).unwrap_or("unknown"),
        "cpus_allowed": allowed.count(),
        // Whether the CPU says that it is a virtual machine's.
        "hypervisor": flags.contains(&"hypervisor"),
        "memory_total_bytes": meminfo.mem_total,
        "memory_available_bytes": available.context("no MemAvailable in /proc/meminfo")?,
        "swap_total_bytes": meminfo.swap_total,
        // How much memory the experiments could take, and what allows no more.
        "memory_room_bytes": headroom.bytes,
        "memory_room_bound": headroom.limit.to_string(),
        "page_size_bytes": tenure::page_size(),
        "transparent_huge_pages": kernel::huge_page_mode(),
        "mitigations": mitigations(Path::new("/sys/devices/system/cpu/vulnerabilities")),
        "libc_version": libc_version(),
    });
    match environment {
        Value::Object(environment) => Ok(environment),
        _ => unreachable!("the environment is an object"),
    }
}

/// Reads what the kernel does about each weakness of the CPU: some of it makes
/// system calls and page faults dear. Empty where there is no such folder.
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
#[path = "../../tests/unit/machine/environment.rs"]
mod tests;
