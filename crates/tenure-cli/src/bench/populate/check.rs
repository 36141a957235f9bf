//! Checks what populating has left.

use std::thread;

use anyhow::{Result, bail};
use tenure::{Access, page_size};

use super::{
    super::{files, kernel, touch},
    kind::Kind,
    work::{Populated, Work},
};

/// Checks that the pages are in and no others, that using them faults no more,
/// that nothing was taken that reading does not need, and that the contents are
/// what they were. The file, if there is one, had `blocks_before`.
pub fn check(populated: &mut Populated, work: &Work, blocks_before: Option<u64>) -> Result<()> {
    check_cost(populated.bytes(), work, blocks_before)?;
    check_pages(populated.bytes(), work)?;
    check_faults(populated, work)?;
    let sum = sum_of_halves(populated.bytes());
    let expected = work.kind.content().map_or(0, |content| content.sum);
    if sum != expected {
        bail!("the contents changed: their sum is {sum:#x}, not {expected:#x}");
    }
    Ok(())
}

/// Checks that reading took no memory where there is only the page of zeros, and
/// no blocks of a file.
fn check_cost(bytes: &[u8], work: &Work, blocks_before: Option<u64>) -> Result<()> {
    if work.access != Access::Read {
        return Ok(());
    }
    if work.kind.is_private_anonymous() {
        let own = kernel::own_pages(bytes.as_ptr() as usize, bytes.len())?;
        if own > 0 {
            bail!("populating for reading took memory for {own} pages");
        }
    }
    if let (Some(content), Some(blocks_before)) = (work.kind.content(), blocks_before) {
        let blocks = content.blocks()?;
        if blocks != blocks_before {
            bail!("the file had {blocks_before} blocks and has {blocks} after reading");
        }
    }
    Ok(())
}

fn check_pages(bytes: &[u8], work: &Work) -> Result<()> {
    kernel::check_all_present(&bytes[work.part.clone()])?;
    for outside in [&bytes[..work.part.start], &bytes[work.part.end..]] {
        let present = kernel::present_pages(outside.as_ptr() as usize, outside.len())?;
        if present > 0 {
            bail!("{present} pages outside of the part are in memory, too");
        }
    }
    Ok(())
}

fn check_faults(populated: &mut Populated, work: &Work) -> Result<()> {
    // When pages of a file are written back they can be written to only after
    // another fault, and when that is the kernel chooses.
    let is_written_back = matches!(work.kind, Kind::FileWithHoles(_));
    if is_written_back && work.access == Access::Write {
        return Ok(());
    }
    let before = kernel::minor_faults();
    match work.access {
        Access::Read => touch::read_each_page(&populated.bytes()[work.part.clone()]),
        // SAFETY: what is populated for writing is writable.
        Access::Write => work.write_each_page(unsafe { populated.bytes_mut() }?),
    }
    let faults = kernel::minor_faults() - before;
    // A few may come from elsewhere, such as the balancing of NUMA nodes.
    if faults > (work.part.len() / page_size()) as u64 / 50 {
        bail!("using the populated memory took {faults} page faults");
    }
    Ok(())
}

/// Adds up all bytes with two threads: of 4 GiB it takes a while.
fn sum_of_halves(bytes: &[u8]) -> u64 {
    let half = (bytes.len() / 2).next_multiple_of(page_size());
    let (first, second) = bytes.split_at(half);
    thread::scope(|scope| {
        let other = scope.spawn(|| files::sum(second));
        let own = files::sum(first);
        own.wrapping_add(other.join().expect("adding up does not panic"))
    })
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use fastrand::Rng;

    use super::{super::content::Content, *};
    use crate::bench::alone::alone;

    const LEN: usize = 4 << 20;

    fn check_error(populated: &mut Populated, work: &Work, blocks: Option<u64>) -> String {
        check(populated, work, blocks).unwrap_err().to_string()
    }

    #[test]
    fn all_ways_pass_on_all_small_kinds() {
        alone(
            "bench::populate::check::tests::all_ways_pass_on_all_small_kinds",
            || {
                let mut rng = Rng::with_seed(1);
                let file = Rc::new(Content::file(LEN, &mut rng).unwrap());
                let holes = Rc::new(Content::file_with_holes(LEN, &mut rng).unwrap());
                let memfd = |shared| Kind::Memfd { shared, pool: None };
                let (read, write) = (Access::Read, Access::Write);
                let works = [
                    Work::whole(Kind::PrivateBase, LEN, read),
                    Work::middle_half(LEN, write),
                    Work::whole(Kind::SharedAnonymous, LEN, write),
                    Work::whole(memfd(false), LEN, write),
                    Work::whole(memfd(true), LEN, read),
                    Work::whole(Kind::ColdFile(file.clone()), LEN, read),
                    Work::whole(Kind::WarmFile(file), LEN, read),
                    Work::whole(Kind::FileWithHoles(holes.clone()), LEN, read),
                    Work::whole(Kind::FileWithHoles(holes), LEN, write),
                ];
                for (index, work) in works.iter().enumerate() {
                    let ways = [work.older_ways(), work.strategies().unwrap()];
                    for (name, populate) in ways.into_iter().flatten() {
                        let blocks = work.kind.reset().unwrap();
                        let checked = check(&mut populate().unwrap(), work, blocks);
                        checked.unwrap_or_else(|error| panic!("{index}, {name}: {error}"));
                    }
                }
            },
        );
    }

    #[test]
    fn what_is_missing_or_too_much_is_found() {
        alone(
            "bench::populate::check::tests::what_is_missing_or_too_much_is_found",
            || {
                let all = Work::whole(Kind::PrivateBase, LEN, Access::Write);
                let half = Work::middle_half(LEN, Access::Write);
                let error = check_error(&mut half.auto()().unwrap(), &all, None);
                let pages = LEN / page_size();
                let expected = format!("{} of {pages} pages", pages / 2);
                assert!(error.contains(&expected), "{error}");
                let error = check_error(&mut all.auto()().unwrap(), &half, None);
                let expected = format!("{} pages outside", pages / 4);
                assert!(error.contains(&expected), "{error}");
            },
        );
    }

    #[test]
    fn what_reading_should_not_cost_is_found() {
        alone(
            "bench::populate::check::tests::what_reading_should_not_cost_is_found",
            || {
                let write = Work::whole(Kind::PrivateBase, LEN, Access::Write);
                let read = Work::whole(Kind::PrivateBase, LEN, Access::Read);
                let error = check_error(&mut write.auto()().unwrap(), &read, None);
                assert!(error.contains("took memory"), "{error}");

                let holes = Content::file_with_holes(LEN, &mut Rng::with_seed(1)).unwrap();
                let read = Work::whole(Kind::FileWithHoles(Rc::new(holes)), LEN, Access::Read);
                let error = check_error(&mut read.auto()().unwrap(), &read, Some(0));
                assert!(error.contains("after reading"), "{error}");
            },
        );
    }

    #[test]
    fn changed_contents_are_found() {
        alone(
            "bench::populate::check::tests::changed_contents_are_found",
            || {
                let work = Work::whole(Kind::PrivateBase, LEN, Access::Write);
                let mut populated = work.auto()().unwrap();
                // SAFETY: private anonymous memory is writable.
                unsafe { populated.bytes_mut() }.unwrap()[LEN - 1] = 1;
                let error = check_error(&mut populated, &work, None);
                assert!(error.contains("contents changed"), "{error}");
            },
        );
    }
}
