//! Addresses with little memory: a page in each GiB is there.

use rustix::mm::{Advice, MapFlags};

use super::TIME;
use super::large::{Call, mark};
use super::region::{Advised, Contents, FREE, Region, WholeRange};
use crate::measure::prelude::*;

const GIB: usize = 1 << 30;
const LEN: usize = 64 * GIB;
/// Page tables that a GiB of base pages takes.
const TABLES: usize = 2 << 20;
/// The byte of the pages that are there.
const OLD: u8 = 7;

/// Makes a case for marking and one for unmarking.
pub fn cases(settings: &Settings, notes: &mut Vec<String>) -> Result<Vec<Case>> {
    let wanted = settings.sizes.pick(&[LEN / 16, LEN, LEN]);
    let fitted = settings.headroom.fit(wanted / GIB * TABLES, 4, TABLES)?;
    notes.extend(fitted.note.map(|note| format!("Page tables: {note}")));
    let len = fitted.len / TABLES * GIB;
    let size = bytes_text(len as f64);
    let table = format!("{size} of addresses with a page in each GiB");
    let case = |name, ways| Case::new(name, ways).in_table(&table).long();
    let older = |name, is_marked, call: Call<Advised>| {
        let make = move || Ok(Advised::new(map(len)?, FREE));
        way(name, is_marked, make, call).baseline()
    };
    let tenure = |is_marked, call: Call<WholeRange>| {
        let make = move || Ok(WholeRange::new(map(len)?));
        way("tenure", is_marked, make, call).tenure()
    };
    let populate = |memory: &mut Advised| {
        let advice = Advice::LinuxPopulateWrite;
        memory.advise_each(page_size(), GIB, advice).map(|()| None)
    };
    Ok(vec![
        case(
            "mark and offer",
            vec![older("MADV_FREE", false, mark), tenure(false, mark)],
        ),
        case(
            "unmark",
            vec![
                older("MADV_POPULATE_WRITE of each page", true, populate),
                tenure(true, |range| range.unmark().map(Some)),
            ],
        ),
    ])
}

/// Maps addresses that are not charged as memory, and fills a page of each GiB.
fn map(len: usize) -> Result<RawMapping> {
    let mut mapping = RawMapping::anonymous(len, MapFlags::PRIVATE | MapFlags::NORESERVE)
        .with_context(|| format!("{} of addresses", bytes_text(len as f64)))?;
    mapping.advise(Advice::LinuxNoHugepage)?;
    let parts = mapping.bytes_mut().chunks_mut(GIB);
    parts.for_each(|part| part[..page_size()].fill(OLD));
    Ok(mapping)
}

fn way<R: Region + 'static>(
    name: &'static str,
    is_marked: bool,
    make: impl Fn() -> Result<R> + 'static,
    call: Call<R>,
) -> Way {
    Way::new(
        name,
        move || {
            let mut region = make()?;
            if is_marked {
                region.mark()?;
            }
            Ok(region)
        },
        move |mut region, recorder| {
            let contents = recorder.time(TIME, || call(&mut region))?;
            Ok((region, contents))
        },
        |(mut region, contents), _| {
            let contents = contents.map_or_else(|| region.unmark(), Ok)?;
            check(region.bytes()?, &contents)
        },
    )
}

/// Checks the pages that are there; those of others take memory when they are read.
fn check(bytes: &[u8], contents: &Contents) -> Result<()> {
    let (old, zeros) = (vec![OLD; page_size()], vec![0; page_size()]);
    for part in bytes.chunks(GIB) {
        let page = &part[..page_size()];
        let may_be_purged = !matches!(contents, Contents::Intact);
        let is_right = page == old || may_be_purged && page == zeros;
        ensure!(is_right, "a page does not hold what unmarking said");
    }
    Ok(())
}

#[cfg(test)]
#[path = "../../../tests/unit/volatile/sparse.rs"]
mod tests;
