//! How much memory the experiments may use.

use anyhow::{Result, bail};
use rustix::mm::{self, MapFlags, MlockFlags};
use rustix::process::{Resource, getrlimit};

use crate::machine::kernel;
use crate::machine::memory::RawMapping;
use crate::text::bytes_text;

/// How much there is to measure.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Sizes {
    /// All experiments end within a minute.
    Quick,
    /// An experiment takes a few minutes at most.
    Medium,
    /// The sizes of the published reference.
    Full,
}

impl Sizes {
    /// Returns what belongs to these sizes: of the quick, the medium and the full ones.
    pub fn pick<T: Clone>(self, of: &[T; 3]) -> T {
        of[self as usize].clone()
    }

    /// Returns the name in a record.
    pub fn as_str(self) -> &'static str {
        self.pick(&["quick", "medium", "full"])
    }
}

/// A size that fits.
#[derive(Debug, PartialEq)]
pub struct Fitted {
    pub len: usize,
    /// Why it is smaller than the size that was wanted.
    pub note: Option<String>,
}

/// The memory there is for the experiments.
#[derive(Clone, Debug)]
pub struct Headroom(tenure::Headroom);

impl Headroom {
    /// Reads MemAvailable and what the cgroups leave.
    pub fn now() -> Result<Self> {
        Ok(Self(tenure::Headroom::now()?))
    }

    #[cfg(test)]
    pub fn of_bytes(bytes: usize) -> Self {
        let limit = tenure::HeadroomLimit::MemAvailable;
        Self(tenure::Headroom { bytes, limit })
    }

    /// Makes `wanted` bytes fit into one `share`th of the headroom, in whole steps.
    pub fn fit(&self, wanted: usize, share: usize, step: usize) -> Result<Fitted> {
        self.fit_into(wanted, self.0.bytes / share, step)
    }

    /// Makes `wanted` bytes fit into three quarters of the headroom, in whole steps,
    /// for what has nothing beside it: the rest is for page tables and for others.
    pub fn fit_nearly_all(&self, wanted: usize, step: usize) -> Result<Fitted> {
        self.fit_into(wanted, self.0.bytes / 4 * 3, step)
    }

    fn fit_into(&self, wanted: usize, max: usize, step: usize) -> Result<Fitted> {
        let tenure::Headroom { bytes, limit } = &self.0;
        let why = format!("{limit} leaves {}", bytes_text(*bytes as f64));
        Fitted::into(wanted, max, step, &why)
    }
}

impl Fitted {
    fn into(wanted: usize, max: usize, step: usize, why: &str) -> Result<Self> {
        let len = if wanted <= max {
            wanted
        } else {
            max / step * step
        };
        let [short, full, step] = [len, wanted, step].map(|bytes| bytes_text(bytes as f64));
        if len == 0 {
            bail!("too little memory: at least {step} needed, and {why}");
        }
        let note = format!("Size: {short} instead of {full}, because {why}.");
        let note = (len < wanted).then_some(note);
        Ok(Self { len, note })
    }
}

/// Makes `wanted` bytes fit into what this process may lock.
pub fn fit_to_lock(wanted: usize, step: usize) -> Result<Fitted> {
    // The limit does not bind a process that is privileged in the right
    // namespace; asking the kernel is the only sure way to know.
    if may_lock(wanted) {
        return Fitted::into(wanted, wanted, step, "");
    }
    let limit = getrlimit(Resource::Memlock).current.unwrap_or(u64::MAX);
    let max = limit.saturating_sub(kernel::status_bytes("VmLck:")?);
    let left = bytes_text(max as f64);
    let why = format!("RLIMIT_MEMLOCK leaves {left} (raise it with ulimit -l or LimitMEMLOCK=)");
    Fitted::into(
        wanted,
        usize::try_from(max).unwrap_or(usize::MAX),
        step,
        &why,
    )
}

/// Tries to lock `len` bytes on fault, which charges the limit but takes no memory.
fn may_lock(len: usize) -> bool {
    let Ok(mapping) = RawMapping::anonymous(len, MapFlags::PRIVATE | MapFlags::NORESERVE) else {
        return false;
    };
    // SAFETY: locking changes neither contents nor protection.
    unsafe { mm::mlock_with(mapping.start() as *mut _, len, MlockFlags::ONFAULT) }.is_ok()
}

#[cfg(test)]
#[path = "../../tests/unit/measure/headroom.rs"]
mod tests;
