//! Experiment: fault a fresh mapping in, whole.

mod kind;

use std::{fs::File, rc::Rc};

use anyhow::{Context as _, Result, bail};
use fastrand::Rng;
use rustix::{
    fs::MemfdFlags,
    mm::{Advice, MapFlags},
};
use tenure::{Access, Mapping, page_size};

use self::kind::{Content, Kind};
use super::{
    Settings,
    experiment::{Case, CaseResult, Experiment, Recorder, Way},
    files,
    kernel::{self, HugePageMode},
    raw::RawMapping,
    statistics::Better,
    text::{bytes_text, ratio_text},
    touch,
};

const WANTED_LEN: usize = 64 << 20;
const STEP: usize = 2 << 20;
const TIME: &str = "time";

/// Prepares the experiment.
pub fn experiment(settings: &Settings) -> Result<Experiment> {
    // Two files with content stay in memory beside the mapping that is measured.
    let fitted = settings.room.fit(WANTED_LEN, 8, STEP)?;
    let len = fitted.len;
    let mut rng = Rng::with_seed(settings.seed);
    let memfd =
        rustix::fs::memfd_create("tenure-bench", MemfdFlags::CLOEXEC).context("memfd_create")?;
    let memfd = Rc::new(Content::write(File::from(memfd), len, &mut rng)?);
    let file = files::random_file(len, &mut rng)?;
    let file = Rc::new(Content::read(file, len)?);

    let (read, write) = (Access::Read, Access::Write);
    let mut cases = vec![
        case("private anonymous", Kind::PrivateBase, len, write),
        case("private, huge pages", Kind::PrivateHuge, len, write),
        case("shared anonymous", Kind::SharedAnonymous, len, read),
        case("shared anonymous", Kind::SharedAnonymous, len, write),
        case("shared memfd", Kind::SharedMemfd, len, write),
        case("private memfd", Kind::PrivateMemfd(memfd), len, write),
        case("file", Kind::File(file), len, read),
    ];
    let mut notes: Vec<String> = fitted.note.into_iter().collect();
    notes.push(
        "Base pages, but for the row of huge pages. The shared memfd is empty; the private one \
         and the file have random contents, and the file is a real one, in the page cache \
         (warm). MAP_POPULATE cannot be told about writing to shared memory, nor about huge \
         pages: no figure where it would do something else."
            .to_owned(),
    );
    if kernel::huge_page_mode() == HugePageMode::Never {
        cases.remove(1);
        notes.push("No row for huge pages: this kernel's mode is never.".to_owned());
    }
    Ok(Experiment {
        title: format!(
            "fault a fresh mapping of {} in, whole",
            bytes_text(len as f64)
        ),
        notes,
        compared: TIME,
        better: Better::Less,
        cases,
        conclude,
    })
}

/// A populated mapping, however it was made.
enum Populated {
    Raw(RawMapping),
    Tenure(Mapping),
}

impl Populated {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Raw(mapping) => mapping.bytes(),
            Self::Tenure(mapping) => mapping.as_slice(),
        }
    }

    /// # Safety
    /// - The mapping is writable.
    unsafe fn bytes_mut(&mut self) -> Result<&mut [u8]> {
        match self {
            // SAFETY: writable says the caller.
            Self::Raw(mapping) => Ok(unsafe { mapping.bytes_mut() }),
            Self::Tenure(mapping) => Ok(mapping.as_mut_slice()?),
        }
    }
}

fn case(name: &str, kind: Kind, len: usize, access: Access) -> Case {
    let (advice, access_name) = match access {
        Access::Read => (Advice::LinuxPopulateRead, "read"),
        Access::Write => (Advice::LinuxPopulateWrite, "write"),
    };
    let touched = {
        let kind = kind.clone();
        move || {
            let mut mapping = kind.map_raw(len, MapFlags::empty())?;
            match access {
                Access::Read => touch::read_each_page(mapping.bytes()),
                // SAFETY: no case writes to a file; all other kinds are writable.
                Access::Write => write_each_page(unsafe { mapping.bytes_mut() }, kind.content()),
            }
            Ok(Populated::Raw(mapping))
        }
    };
    let by_mmap = {
        let kind = kind.clone();
        move || Ok(Populated::Raw(kind.map_raw(len, MapFlags::POPULATE)?))
    };
    let by_madvise = {
        let kind = kind.clone();
        move || {
            let mut mapping = kind.map_raw(len, MapFlags::empty())?;
            mapping.advise(advice)?;
            Ok(Populated::Raw(mapping))
        }
    };
    let by_tenure = {
        let kind = kind.clone();
        move || {
            let mapping = kind.map_with_tenure(len)?;
            mapping.populate(.., access)?;
            Ok(Populated::Tenure(mapping))
        }
    };
    let mut ways = vec![way("touch", &kind, access, touched).baseline()];
    if kind.has_map_populate(access) {
        ways.push(way("MAP_POPULATE", &kind, access, by_mmap));
    }
    ways.push(way("MADV_POPULATE", &kind, access, by_madvise));
    ways.push(way("tenure", &kind, access, by_tenure).tenure());
    Case {
        name: format!("{name}, {access_name}"),
        ways,
    }
}

/// Makes a way of which everything is timed, also the making of the mapping:
/// MAP_POPULATE does both at once.
fn way(
    name: &'static str,
    kind: &Kind,
    access: Access,
    populate: impl Fn() -> Result<Populated> + 'static,
) -> Way {
    let kind = kind.clone();
    Way::new(
        name,
        || Ok(()),
        move |(), recorder: &mut Recorder<'_>| recorder.time(TIME, &populate),
        move |mut populated, _| {
            check(&mut populated, &kind, access)?;
            drop(populated);
            // Nothing may be left to free while the next way is timed.
            Ok(tenure::drain(None)?)
        },
    )
}

/// Checks that all pages are in, that using them faults no more, and that the
/// contents are what they were.
fn check(populated: &mut Populated, kind: &Kind, access: Access) -> Result<()> {
    kernel::check_all_present(populated.bytes())?;
    let pages = populated.bytes().len() / page_size();
    let before = kernel::minor_faults();
    match access {
        Access::Read => touch::read_each_page(populated.bytes()),
        // SAFETY: no case writes to a file; all other kinds are writable.
        Access::Write => write_each_page(unsafe { populated.bytes_mut() }?, kind.content()),
    }
    let faults = kernel::minor_faults() - before;
    // A few may come from elsewhere, such as the balancing of NUMA nodes.
    if faults > pages as u64 / 50 {
        bail!("using the populated memory took {faults} page faults");
    }
    let (sum, expected) = (
        files::sum(populated.bytes()),
        kind.content().map_or(0, |content| content.sum),
    );
    if sum != expected {
        bail!("the contents changed: their sum is {sum:#x}, not {expected:#x}");
    }
    Ok(())
}

fn write_each_page(bytes: &mut [u8], content: Option<&Content>) {
    match content {
        None => touch::write_each_page(bytes, |_| 0),
        Some(content) => touch::write_each_page(bytes, |page| content.first_bytes[page]),
    }
}

fn conclude(cases: &[CaseResult]) -> String {
    let mut rows: Vec<(f64, &str)> = cases
        .iter()
        .filter_map(|case| Some((case.tenure()?.median, case.name.as_str())))
        .collect();
    rows.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (Some(least), Some(most)) = (rows.first(), rows.last()) else {
        return "Nothing was compared.".to_owned();
    };
    format!(
        "tenure populates between {} times ({}) and {} times ({}) as fast as touching every page.",
        ratio_text(least.0),
        least.1,
        ratio_text(most.0),
        most.1
    )
}
