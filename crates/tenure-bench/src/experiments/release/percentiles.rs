//! How long single releases take: what a program meets in one of a hundred.

use std::ptr;
use std::time::Duration;

use rustix::mm::{self, MapFlags, MremapFlags, ProtFlags};
use tenure::PageRange;

use super::ways::{TENURE, warm_up};
use crate::measure::prelude::*;

pub const TABLE: &str = "Unmap at the addresses of mmap, again and again";
/// The figures, and the percentile that each of them is.
const PERCENTILES: [(&str, f64); 3] = [
    (MEDIAN, 50.0),
    ("caller waits, p90", 90.0),
    ("caller waits, p99", 99.0),
];
const MEDIAN: &str = "caller waits, p50";
const RAW: &str = "mmap and mremap";
/// The sizes, and how many releases make a sample.
const SIZES: [(usize, usize); 3] = [(64 << 20, 400), (512 << 20, 200), (2 << 30, 100)];
/// Beside less headroom than so many times the size, tenure would hurry.
const HEADROOM_FACTOR: usize = 8;
const GIB: usize = 1 << 30;
const PMD_LEN: usize = 2 << 20;

/// Makes the cases that fit into the headroom.
pub fn cases(settings: &Settings) -> Vec<Case> {
    let fits = |len| {
        let fitted = settings.headroom.fit(len, HEADROOM_FACTOR, PMD_LEN);
        fitted.is_ok_and(|fitted| fitted.len == len)
    };
    let sizes = SIZES.into_iter().filter(|&(len, _)| fits(len));
    sizes.map(|(len, rounds)| case(len, rounds)).collect()
}

fn case(len: usize, rounds: usize) -> Case {
    let name = format!("unmap {}, {rounds} times", bytes_text(len as f64));
    let ways = vec![
        way(RAW, len, rounds, move_away).baseline(),
        way(TENURE, len, rounds, release).tenure(),
    ];
    Case::new(name, ways)
        .in_table(TABLE)
        .comparing(MEDIAN)
        .long()
}

/// Where memory has gone that is to be unmapped after the time is taken.
type Rest = Option<RawMapping>;

/// Makes a way that fills memory and gives it up, `rounds` times. Nothing waits for the
/// memory of the last round: a worker may still free it, as it does in a program.
fn way(
    name: &'static str,
    len: usize,
    rounds: usize,
    give_up: fn(RawMapping) -> Result<Rest>,
) -> Way {
    Way::new(
        name,
        move || {
            warm_up()?;
            kernel::rollup_bytes("Rss:")
        },
        move |resident_bytes, recorder| {
            let mut times = Vec::with_capacity(rounds);
            for _ in 0..rounds {
                let mut memory = RawMapping::base_pages(len)?;
                touch::bring_in(memory.bytes_mut())?;
                let start = memory.start();
                let (rest, seconds) = recorder.measure(|| give_up(memory));
                check_unmapped(start, len)?;
                rest?.map_or(Ok(()), RawMapping::unmap)?;
                times.push(seconds);
            }
            times.sort_unstable_by(f64::total_cmp);
            for (name, percent) in PERCENTILES {
                recorder.record(name, Unit::Seconds, percentile(&times, percent));
            }
            Ok(resident_bytes)
        },
        move |resident_bytes, _| {
            tenure::drain(Some(Duration::from_secs(60)))?;
            let left_bytes = kernel::rollup_bytes("Rss:")?.saturating_sub(resident_bytes);
            ensure!(
                left_bytes < len as u64 / 2,
                "{} are still in memory",
                bytes_text(left_bytes as f64)
            );
            Ok(())
        },
    )
}

/// Fails when the memory is still where it was. A thread started since may have its stack
/// at one of the places.
fn check_unmapped(start: usize, len: usize) -> Result<()> {
    let places = [start, start + len / 2, start + len - page_size()];
    let mut mapped = 0;
    for place in places {
        mapped += usize::from(kernel::is_mapped(place)?);
    }
    ensure!(mapped <= 1, "{mapped} of 3 pages are still mapped");
    Ok(())
}

fn release(memory: RawMapping) -> Result<Rest> {
    let range = PageRange::new(memory.start(), memory.len())?;
    std::mem::forget(memory);
    // SAFETY: the mapping was owned, nothing refers to it, and it is not unmapped by
    // anybody else.
    unsafe { range.munmap() }?;
    Ok(None)
}

/// Moves the memory to reserved addresses with the same offset in a page-table page: what
/// a program calls that does by hand what tenure does.
fn move_away(memory: RawMapping) -> Result<Rest> {
    let len = memory.len();
    let granule = if len >= GIB { GIB } else { PMD_LEN };
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    let reserve = || {
        // SAFETY: without MAP_FIXED the kernel picks an address that is free.
        unsafe { mm::mmap_anonymous(ptr::null_mut(), len + granule, ProtFlags::empty(), flags) }
    };
    let reserved = reserve().context("mmap of reserved addresses")?;
    let shift = memory.start().wrapping_sub(reserved as usize) % granule;
    let target = reserved.wrapping_byte_add(shift);
    // SAFETY: the memory was owned, and nothing refers to it; the target was reserved
    // above, and nobody uses it.
    let moved = unsafe {
        mm::mremap_fixed(
            memory.start() as *mut _,
            len,
            len,
            MremapFlags::MAYMOVE,
            target,
        )
    };
    moved.context("mremap to reserved addresses")?;
    std::mem::forget(memory);
    // SAFETY: reserved above, and nobody else unmaps it.
    Ok(Some(unsafe {
        RawMapping::of_reserved(reserved, len + granule)
    }?))
}

/// Returns the value that `percent` of the sorted values do not exceed.
fn percentile(sorted: &[f64], percent: f64) -> f64 {
    let rank = (percent / 100.0 * sorted.len() as f64).ceil() as usize;
    sorted[rank.clamp(1, sorted.len()) - 1]
}

#[cfg(test)]
#[path = "../../../tests/unit/release/percentiles.rs"]
mod tests;
