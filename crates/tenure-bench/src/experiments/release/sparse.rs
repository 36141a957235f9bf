//! Ranges larger than memory: one page of each GiB is there. The pages cost little to
//! free; what is left is what a range of that size costs its caller.

use rustix::mm::{Advice, MapFlags};
use tenure::PageRange;

use super::ways::{CALLER, MUNMAP, TENURE, warm_up};
use crate::measure::prelude::*;

pub const TABLE: &str = "Unmap what has one page in each GiB";
const GIB: usize = 1 << 30;
const LENS: [usize; 3] = [64 * GIB, 256 * GIB, 1024 * GIB];

///
/// # Errors
///
/// Fails where the kernel does not hand out as many addresses.
pub fn cases() -> Result<Vec<Case>> {
    LENS.into_iter()
        .map(|len| map(len).map(|_| case(len)))
        .collect()
}

fn case(len: usize) -> Case {
    let plain = way(MUNMAP, len, RawMapping::unmap).baseline();
    let background = way(TENURE, len, |mapping| {
        let range = PageRange::new(mapping.start(), mapping.len())?;
        std::mem::forget(mapping);
        // SAFETY: the mapping was owned, nothing refers to it, and it is not unmapped
        // by anybody else.
        Ok(unsafe { range.munmap() }?)
    });
    let name = format!("unmap {} with a page in each GiB", bytes_text(len as f64));
    let ways = vec![plain, background.tenure()];
    Case::new(name, ways).in_table(TABLE).short()
}

fn way(name: &'static str, len: usize, unmap: fn(RawMapping) -> Result<()>) -> Way {
    Way::new(
        name,
        move || warm_up().and_then(|()| map(len)),
        move |mapping, recorder| {
            let start = mapping.start();
            recorder.freed(CALLER, || unmap(mapping), || Ok(tenure::drain(None)?))?;
            Ok(start)
        },
        move |start, _| {
            // Threads started since may have their stacks there.
            let mut mapped = 0;
            for page in (start..start + len).step_by(GIB) {
                mapped += usize::from(kernel::is_mapped(page)?);
            }
            ensure!(mapped <= 2, "{mapped} of the pages are still mapped");
            Ok(())
        },
    )
}

/// Maps addresses that are not charged as memory, and a page of each GiB.
fn map(len: usize) -> Result<RawMapping> {
    let mut mapping = RawMapping::anonymous(len, MapFlags::PRIVATE | MapFlags::NORESERVE)
        .with_context(|| format!("{} of addresses", bytes_text(len as f64)))?;
    mapping.advise(Advice::LinuxNoHugepage)?;
    let pages = mapping.bytes_mut().iter_mut().step_by(GIB);
    pages.for_each(|byte| *byte = 1);
    Ok(mapping)
}
