//! Memory that is volatile between two uses, in each of the ways that are compared.

use std::time::Duration;

use anyhow::{Result, bail, ensure};
use rustix::mm::Advice;
use tenure::volatile::VolatileOptions;
use tenure::{HugePages, Mapping, Outcome, PageRange, VolatileBuffer, page_size};

use crate::machine::memory::RawMapping;

/// The contents of a region once it is unmarked, as far as they are known.
pub enum Contents {
    /// Every byte is as it was.
    Intact,
    /// These pages read as zeros; the others are as they were.
    Purged(Vec<PageRange>),
    /// Each page is as it was or reads as zeros, and nothing tells which.
    Unknown,
    /// Every page reads as zeros.
    Discarded,
}

impl From<Outcome> for Contents {
    fn from(outcome: Outcome) -> Self {
        match outcome {
            Outcome::Intact => Self::Intact,
            Outcome::Purged(runs) => Self::Purged(runs),
        }
    }
}

/// Memory that is volatile between two uses.
pub trait Region: Send {
    /// Makes it volatile.
    fn mark(&mut self) -> Result<()>;
    /// Ends that, and tells what is known of the contents.
    fn unmark(&mut self) -> Result<Contents>;
    /// Returns the bytes of a region that is not volatile.
    fn bytes(&mut self) -> Result<&mut [u8]>;
    /// Keeps the contents as they are from now on.
    fn settle(&mut self) -> Result<()> {
        Ok(())
    }
}

/// Plain memory, with the advice that it is given when it is marked.
pub struct Advised(RawMapping, Option<Advice>);

pub const KEPT: Option<Advice> = None;
pub const DONT_NEED: Option<Advice> = Some(Advice::LinuxDontNeed);
pub const FREE: Option<Advice> = Some(Advice::LinuxFree);

/// Returns what makes plain memory of a length, with `advice`.
pub fn advised(advice: Option<Advice>) -> impl Fn(usize) -> Result<Advised> + Copy {
    move |len| Ok(Advised::new(RawMapping::base_pages(len)?, advice))
}

impl Advised {
    pub fn new(memory: RawMapping, advice: Option<Advice>) -> Self {
        Self(memory, advice)
    }

    /// Gives `advice` for the first `len` bytes of each `step`, with a call for each.
    pub fn advise_each(&mut self, len: usize, step: usize, advice: Advice) -> Result<()> {
        let mut parts = (0..self.0.len()).step_by(step);
        parts.try_for_each(|start| self.0.advise_part(start..start + len, advice))
    }
}

impl Region for Advised {
    fn mark(&mut self) -> Result<()> {
        self.1.map_or(Ok(()), |advice| self.0.advise(advice))
    }

    fn unmark(&mut self) -> Result<Contents> {
        Ok(match self.1 {
            KEPT => Contents::Intact,
            DONT_NEED => Contents::Discarded,
            Some(_) => Contents::Unknown,
        })
    }

    fn bytes(&mut self) -> Result<&mut [u8]> {
        Ok(self.0.bytes_mut())
    }

    fn settle(&mut self) -> Result<()> {
        match self.1 {
            // The kernel may reclaim a lazily free page until it is written.
            FREE => self.0.advise(Advice::LinuxPopulateWrite),
            _ => Ok(()),
        }
    }
}

impl Region for VolatileBuffer {
    fn mark(&mut self) -> Result<()> {
        self.mark_volatile();
        Ok(())
    }

    fn unmark(&mut self) -> Result<Contents> {
        Ok(self.mark_nonvolatile()?.into())
    }

    fn bytes(&mut self) -> Result<&mut [u8]> {
        Ok(self.as_mut_slice()?)
    }
}

/// Makes a volatile buffer of `len` bytes in base pages.
pub fn buffer(len: usize) -> Result<VolatileBuffer> {
    let mapping = Mapping::anonymous(len).huge_pages(HugePages::Never);
    Ok(VolatileBuffer::from_mapping(mapping.map()?)?)
}

/// Discards `pages` of `buffer`, as the kernel does when it purges them. The buffer
/// is offered.
pub fn purge(buffer: &VolatileBuffer, pages: impl Iterator<Item = usize>) -> Result<()> {
    let range = buffer.range();
    for page in pages {
        ensure!(page < range.pages(), "page {page} of {}", range.pages());
        let start = range.start() + page * page_size();
        // SAFETY: the page belongs to an offered buffer: nothing borrows from it, and
        // the kernel may discard its contents at any time.
        unsafe { rustix::mm::madvise(start as *mut _, page_size(), Advice::LinuxDontNeed) }?;
    }
    Ok(())
}

/// One page of a mapping, marked by its address.
pub struct RawRange(PageRange);

impl RawRange {
    /// Makes a range of each page of a new mapping, in order of address.
    pub fn pages(count: usize) -> Result<(Vec<Self>, Mapping)> {
        let page = page_size();
        let mapping = Mapping::anonymous(count * page).huge_pages(HugePages::Never);
        let mapping = mapping.map()?;
        let start = mapping.range().start();
        let pages = (0..count).map(|index| Ok(Self(PageRange::new(start + index * page, page)?)));
        Ok((pages.collect::<Result<_>>()?, mapping))
    }
}

impl Region for RawRange {
    fn mark(&mut self) -> Result<()> {
        // SAFETY: no other range has this page, and what `bytes` borrowed from it has
        // ended, because that borrowed `self`.
        Ok(unsafe { self.0.mark_volatile() }?)
    }

    fn unmark(&mut self) -> Result<Contents> {
        // SAFETY: no other range has this page.
        Ok(unsafe { self.0.mark_nonvolatile() }?.into())
    }

    fn bytes(&mut self) -> Result<&mut [u8]> {
        // SAFETY: a page of a writable mapping that outlives the range, borrowed for as
        // long as `self`.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.0.as_ptr(), self.0.len()) })
    }
}

/// A mapping that is marked by its addresses, and offered inside the call.
pub struct WholeRange(RawMapping);

impl WholeRange {
    pub fn new(memory: RawMapping) -> Self {
        Self(memory)
    }

    fn range(&self) -> Result<PageRange> {
        Ok(PageRange::new(self.0.start(), self.0.len())?)
    }

    pub fn purge(&mut self) -> Result<()> {
        // SAFETY: the mapping is owned, and nothing borrows from it.
        Ok(unsafe { self.range()?.purge() }?)
    }
}

impl Region for WholeRange {
    fn mark(&mut self) -> Result<()> {
        let options = VolatileOptions::new().offer_now();
        // SAFETY: what `bytes` borrowed has ended, because that borrowed `self`; dropping
        // unmarks the range before it is unmapped.
        Ok(unsafe { self.range()?.mark_volatile_with(options) }?)
    }

    fn unmark(&mut self) -> Result<Contents> {
        // SAFETY: the mapping is owned.
        Ok(unsafe { self.range()?.mark_nonvolatile() }?.into())
    }

    fn bytes(&mut self) -> Result<&mut [u8]> {
        Ok(self.0.bytes_mut())
    }
}

impl Drop for WholeRange {
    fn drop(&mut self) {
        // munmap, which follows, does not tell tenure. Without memory to repopulate a page
        // unmarking fails, and the next mapping there ends the volatility.
        let _ = self.unmark();
    }
}

/// Settles `region`, which held `old` in every byte, and fails unless every page
/// holds what `contents` says.
pub fn check(region: &mut impl Region, contents: &Contents, old: u8) -> Result<()> {
    region.settle()?;
    let bytes = region.bytes()?;
    let (old_page, zero_page) = (vec![old; page_size()], vec![0; page_size()]);
    let start = bytes.as_ptr() as usize;
    let is_purged = |runs: &[PageRange], page: usize| {
        let address = start + page * page_size();
        let after = runs.partition_point(|run| run.end() <= address);
        runs.get(after).is_some_and(|run| run.start() <= address)
    };
    for (index, page) in bytes.chunks(page_size()).enumerate() {
        let (is_old, is_zero) = (page == old_page, page == zero_page);
        let is_right = match contents {
            Contents::Intact => is_old,
            Contents::Purged(runs) if is_purged(runs, index) => is_zero,
            Contents::Purged(_) => is_old,
            Contents::Unknown => is_old || is_zero,
            Contents::Discarded => is_zero,
        };
        let what = match (is_old, is_zero) {
            _ if is_right => continue,
            (true, _) => "its old contents",
            (_, true) => "zeros",
            _ => "neither its old contents nor zeros",
        };
        bail!("page {index} holds {what}, against what unmarking said");
    }
    Ok(())
}

/// Sets the offer delay of the process to zero for as long as it lives, so that
/// marking offers inside the call.
pub struct AtOnce(());

impl AtOnce {
    /// Sets the delay to zero.
    pub fn begin() -> Self {
        tenure::volatile::set_offer_delay(Duration::ZERO);
        Self(())
    }
}

impl Drop for AtOnce {
    fn drop(&mut self) {
        // The default, which nothing else here changes.
        tenure::volatile::set_offer_delay(Duration::from_millis(100));
    }
}

#[cfg(test)]
#[path = "../../../tests/unit/volatile/region.rs"]
mod tests;
