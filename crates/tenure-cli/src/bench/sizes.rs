//! How much memory the experiments may use.

use anyhow::Result;
use rustix::{
    mm::{self, MapFlags, MlockFlags, ProtFlags},
    process::{Resource, getrlimit},
};

use serde::Serialize;

use super::kernel;
use crate::cli::{BenchArguments, ExperimentName};
use crate::text::bytes_text;

/// How much there is to measure.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Sizes {
    /// What lets all experiments end within a minute.
    Quick,
    /// What tells more than the quick sizes, in a few minutes at most.
    Middle,
    /// What the reference measured.
    Full,
}

impl Sizes {
    /// Returns the sizes of an experiment: asked for, or else what lets all six end
    /// within ten minutes, and more for those named.
    pub fn of(name: ExperimentName, arguments: &BenchArguments) -> Self {
        let is_named = arguments.experiments.contains(&name);
        match name {
            _ if arguments.full => Self::Full,
            _ if arguments.quick => Self::Quick,
            ExperimentName::Populate if is_named => Self::Full,
            ExperimentName::Lazy | ExperimentName::Volatile | ExperimentName::Free if !is_named => {
                Self::Quick
            }
            _ => Self::Middle,
        }
    }
}

/// A size that fits, and what to tell the reader when it is not the size that
/// was wanted.
#[derive(Debug, PartialEq)]
pub struct Fitted {
    /// The size.
    pub len: usize,
    /// What made it smaller.
    pub note: Option<String>,
}

/// The memory there is for the experiments.
#[derive(Clone, Debug)]
pub struct Room(tenure::Room);

impl Room {
    /// Reads MemAvailable and the room that the cgroups leave.
    pub fn now() -> Result<Self> {
        Ok(Self(tenure::Room::now()?))
    }

    /// Makes a room of that many bytes, for tests.
    #[cfg(test)]
    pub fn of_bytes(bytes: usize) -> Self {
        let bound = tenure::RoomBound::MemAvailable;
        Self(tenure::Room { bytes, bound })
    }

    /// Makes `wanted` bytes fit into one `share`th of the room, in whole steps.
    pub fn fit(&self, wanted: usize, share: usize, step: usize) -> Result<Fitted> {
        self.fit_into(wanted, self.0.bytes / share, step)
    }

    /// Makes `wanted` bytes fit into three quarters of the room, in whole steps,
    /// for what has nothing beside it: the rest is for page tables and for others.
    pub fn fit_nearly_all(&self, wanted: usize, step: usize) -> Result<Fitted> {
        self.fit_into(wanted, self.0.bytes / 4 * 3, step)
    }

    fn fit_into(&self, wanted: usize, most: usize, step: usize) -> Result<Fitted> {
        let tenure::Room { bytes, bound } = &self.0;
        let why = || format!("{bound} leaves {}", bytes_text(*bytes as f64));
        fit(wanted, most, step, why)
    }
}

fn fit(wanted: usize, most: usize, step: usize, why: impl Fn() -> String) -> Result<Fitted> {
    if wanted <= most {
        let (len, note) = (wanted, None);
        return Ok(Fitted { len, note });
    }
    let len = most / step * step;
    if len == 0 {
        let step = bytes_text(step as f64);
        anyhow::bail!("too little memory: at least {step} needed, and {}", why());
    }
    let note = format!(
        "Size: {} instead of {}, because {}.",
        bytes_text(len as f64),
        bytes_text(wanted as f64),
        why()
    );
    Ok(Fitted {
        len,
        note: Some(note),
    })
}

/// Makes `wanted` bytes fit into what this process may lock.
pub fn fit_to_lock(wanted: usize, step: usize) -> Result<Fitted> {
    // The limit does not bind a process that is privileged in the right
    // namespace; asking the kernel is the only sure way to know.
    if may_lock(wanted) {
        let (len, note) = (wanted, None);
        return Ok(Fitted { len, note });
    }
    let limit = getrlimit(Resource::Memlock).current.unwrap_or(u64::MAX);
    let room = limit.saturating_sub(kernel::memlock_charged_bytes()?);
    let most = usize::try_from(room).unwrap_or(usize::MAX);
    let why = || {
        let room = bytes_text(room as f64);
        format!("RLIMIT_MEMLOCK leaves {room} (raise it with ulimit -l or LimitMEMLOCK=)")
    };
    fit(wanted, most, step, why)
}

/// Tries to lock `len` bytes on fault, which charges the limit but takes no memory.
fn may_lock(len: usize) -> bool {
    // SAFETY: without MAP_FIXED the kernel picks an address that is free.
    let mapped = unsafe {
        mm::mmap_anonymous(
            std::ptr::null_mut(),
            len,
            ProtFlags::READ,
            MapFlags::PRIVATE,
        )
    };
    let Ok(start) = mapped else { return false };
    // SAFETY: the range was just mapped, is ours alone, and is gone afterwards.
    unsafe {
        let locked = mm::mlock_with(start, len, MlockFlags::ONFAULT).is_ok();
        let unmapped = mm::munmap(start, len).is_ok();
        locked && unmapped
    }
}

#[cfg(test)]
mod tests {
    use tenure::RoomBound;

    use super::*;

    const MIB: usize = 1 << 20;

    #[test]
    fn what_fits_is_left_alone() {
        let fitted = Room::of_bytes(100 * MIB).fit(25 * MIB, 4, MIB).unwrap();
        assert_eq!(fitted.len, 25 * MIB);
        assert_eq!(fitted.note, None);
    }

    #[test]
    fn what_does_not_is_cut_to_whole_steps_and_the_reader_is_told() {
        let fitted = Room::of_bytes(103 * MIB)
            .fit(80 * MIB, 4, 10 * MIB)
            .unwrap();
        assert_eq!(fitted.len, 20 * MIB);
        assert_eq!(
            fitted.note.unwrap(),
            "Size: 20 MiB instead of 80 MiB, because MemAvailable leaves 103 MiB."
        );
    }

    #[test]
    fn the_reader_is_told_which_cgroup_leaves_too_little() {
        let bound = RoomBound::Cgroup {
            path: "/sys/fs/cgroup/jobs".into(),
            limit_bytes: 256 * MIB,
            used_bytes: 100 * MIB,
        };
        let bytes = 156 * MIB;
        let room = Room(tenure::Room { bytes, bound });
        let fitted = room.fit(80 * MIB, 4, MIB).unwrap();
        assert_eq!(
            fitted.note.unwrap(),
            "Size: 39 MiB instead of 80 MiB, because the memory cgroup /sys/fs/cgroup/jobs \
             (limit 256 MiB, 100 MiB in use) leaves 156 MiB."
        );
    }

    #[test]
    fn less_than_a_step_is_an_error() {
        let error = Room::of_bytes(10 * MIB)
            .fit(80 * MIB, 4, 10 * MIB)
            .unwrap_err();
        assert!(error.to_string().contains("at least 10 MiB needed"));
    }

    #[test]
    fn a_page_may_be_locked_and_the_whole_address_space_may_not() {
        assert!(!may_lock(usize::MAX / 2));
        let fitted = fit_to_lock(tenure::page_size(), tenure::page_size()).unwrap();
        assert_eq!(fitted.len, tenure::page_size());
    }
}
