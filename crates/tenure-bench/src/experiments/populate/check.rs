//! Checks what populating left.

use std::thread;

use tenure::Access;

use super::{kind::Kind, work::Work};
use crate::measure::prelude::*;

/// Checks that the pages are in and no others, that using them takes no more faults, that
/// reading took nothing it does not need, and that the contents are what they were. The
/// file, if there is one, had `blocks_before`.
pub fn check(populated: &mut Memory, work: &Work, blocks_before: Option<u64>) -> Result<()> {
    if work.access == Access::Read {
        check_cost(populated.bytes(), work, blocks_before)?;
    }
    check_pages(populated.bytes(), work)?;
    check_faults(populated, work)?;
    let sum = sum_of_halves(populated.bytes());
    let expected = work.kind.content().map_or(0, |content| content.sum);
    ensure!(sum == expected, "contents changed: their sum is {sum:#x}");
    Ok(())
}

/// Checks that reading took no memory where there is only the zero page, and no blocks of
/// a file.
fn check_cost(bytes: &[u8], work: &Work, blocks_before: Option<u64>) -> Result<()> {
    if work.kind.is_private_anonymous() {
        let own = kernel::own_pages(bytes.as_ptr() as usize, bytes.len())?;
        ensure!(own == 0, "reading took memory for {own} pages");
    }
    if let (Some(content), Some(before)) = (work.kind.content(), blocks_before) {
        let after = content.blocks()?;
        ensure!(after == before, "{before} blocks, {after} after reading");
    }
    Ok(())
}

fn check_pages(bytes: &[u8], work: &Work) -> Result<()> {
    kernel::check_all_present(&bytes[work.part.clone()])?;
    for outside in [&bytes[..work.part.start], &bytes[work.part.end..]] {
        let present = kernel::present_pages(outside.as_ptr() as usize, outside.len())?;
        ensure!(present == 0, "{present} pages outside of the part, too");
    }
    Ok(())
}

fn check_faults(populated: &mut Memory, work: &Work) -> Result<()> {
    // Pages of a file can be written to only after another fault when they have been
    // written back, and the kernel chooses when that is.
    let is_written_back = matches!(work.kind, Kind::FileWithHoles(_));
    if is_written_back && work.access == Access::Write {
        return Ok(());
    }
    let before = kernel::minor_faults();
    match work.access {
        Access::Read => touch::read_each_page(&populated.bytes()[work.part.clone()]),
        Access::Write => work.write_each_page(populated.bytes_mut()?),
    }
    let faults = kernel::minor_faults() - before;
    // A few may come from elsewhere, such as the balancing of NUMA nodes.
    let is_few = faults <= (work.part.len() / page_size()) as u64 / 50;
    ensure!(is_few, "using the memory took {faults} page faults");
    Ok(())
}

/// Adds up all bytes with two threads: for 4 GiB it takes a while.
fn sum_of_halves(bytes: &[u8]) -> u64 {
    let half = (bytes.len() / 2).next_multiple_of(page_size());
    let (first, second) = bytes.split_at(half);
    thread::scope(|scope| {
        let other = scope.spawn(|| files::sum(second));
        let own = files::sum(first);
        own.wrapping_add(other.join().expect("adding up does not panic"))
    })
}
