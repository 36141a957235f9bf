//! Ranges larger than memory: one page of each GiB is there. The pages cost little to
//! free; what is left is what a range of that size costs its caller.

use anyhow::{Context as _, Result, ensure};
use rustix::mm::{Advice, MapFlags};
use tenure::PageRange;

use super::{
    super::{
        experiment::{Case, Recorder, Unit, Way},
        kernel,
        raw::RawMapping,
    },
    ways::{CALLER, FREED, MUNMAP, TENURE, warm_up},
};
use crate::text::bytes_text;

pub const TABLE: &str = "Unmap what has one page in each GiB";
const GIB: usize = 1 << 30;
const LENS: [usize; 3] = [64 * GIB, 256 * GIB, 1024 * GIB];

/// The cases. An error where the kernel does not hand out as many addresses.
pub fn cases() -> Result<Vec<Case>> {
    for len in LENS {
        map(len)?;
    }
    Ok(LENS.into_iter().map(case).collect())
}

fn case(len: usize) -> Case {
    let plain = way(MUNMAP, len, RawMapping::unmap).baseline();
    let background = way(TENURE, len, |mapping| {
        let range = PageRange::new(mapping.start(), mapping.len())?;
        std::mem::forget(mapping);
        // SAFETY: the mapping was owned, nothing refers to it, and it is not unmapped
        // by anybody else.
        Ok(unsafe { range.munmap() }?)
    })
    .tenure();
    let name = format!("unmap {} with a page in each GiB", bytes_text(len as f64));
    Case::new(name, vec![plain, background])
        .in_table(TABLE)
        .short()
}

fn way(
    name: &'static str,
    len: usize,
    give_up: impl Fn(RawMapping) -> Result<()> + 'static,
) -> Way {
    Way::new(
        name,
        move || {
            warm_up()?;
            map(len)
        },
        move |mapping: RawMapping, recorder: &mut Recorder<'_>| {
            let start = mapping.start();
            let (given_up, caller_seconds) = recorder.measure(|| give_up(mapping));
            let (drained, drain_seconds) = recorder.measure(|| tenure::drain(None));
            given_up?;
            drained?;
            recorder.record(CALLER, Unit::Seconds, caller_seconds);
            recorder.record(FREED, Unit::Seconds, caller_seconds + drain_seconds);
            Ok(start)
        },
        move |start, _| {
            // Threads started since may have their stacks there.
            let pages = (start..start + len).step_by(GIB);
            let mut mapped = 0;
            for page in pages {
                mapped += usize::from(kernel::is_mapped(page)?);
            }
            ensure!(mapped <= 2, "{mapped} of the pages are still mapped");
            Ok(())
        },
    )
}

/// Addresses that are not charged as memory, and a page of each GiB.
fn map(len: usize) -> Result<RawMapping> {
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    let mut mapping = RawMapping::anonymous(len, flags)
        .with_context(|| format!("{} of addresses", bytes_text(len as f64)))?;
    mapping.advise(Advice::LinuxNoHugepage)?;
    // SAFETY: `anonymous` maps writable memory.
    let bytes = unsafe { mapping.bytes_mut() };
    bytes.iter_mut().step_by(GIB).for_each(|byte| *byte = 1);
    Ok(mapping)
}
