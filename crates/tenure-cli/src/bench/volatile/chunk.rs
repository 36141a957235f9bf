//! Chunks of memory that are offered to the kernel, each in its own way.

use anyhow::{Result, bail};
use rustix::mm::Advice;
use tenure::{HugePages, Mapping, Outcome, PageRange, VolatileBuffer, page_size};

use super::super::raw::RawMapping;

/// What is known of a chunk's contents when it is taken back.
pub enum Contents {
    /// Every byte is as it was.
    Intact,
    /// These pages read as zeros now; the rest is as it was.
    Purged(Vec<PageRange>),
    /// Each page is as it was or reads as zeros, and nobody says which.
    Unknown,
    /// All of it reads as zeros.
    Gone,
}

/// A chunk of memory that is offered to the kernel between two uses.
pub trait Chunk: Send {
    /// Takes the chunk back from the kernel.
    fn take_back(&mut self) -> Result<Contents>;
    /// Returns the bytes of a chunk that has been taken back.
    fn bytes(&mut self) -> Result<&mut [u8]>;
    /// Offers the chunk.
    fn offer(&mut self) -> Result<()>;
    /// Sees to it that contents stay what they are from now on.
    fn settle(&mut self) -> Result<()> {
        Ok(())
    }
}

/// Plain memory, with the advice that is given when it is offered.
pub struct Plain {
    mapping: RawMapping,
    advice: Option<Advice>,
}

impl Plain {
    fn new(len: usize, advice: Option<Advice>) -> Result<Self> {
        let mapping = RawMapping::base_pages(len)?;
        Ok(Self { mapping, advice })
    }

    /// Makes a chunk that is never really offered.
    pub fn kept(len: usize) -> Result<Self> {
        Self::new(len, None)
    }

    /// Makes a chunk whose pages are given up when it is offered.
    pub fn dont_need(len: usize) -> Result<Self> {
        Self::new(len, Some(Advice::LinuxDontNeed))
    }

    /// Makes a chunk whose pages may be taken while it is offered.
    pub fn free(len: usize) -> Result<Self> {
        Self::new(len, Some(Advice::LinuxFree))
    }
}

impl Chunk for Plain {
    fn take_back(&mut self) -> Result<Contents> {
        Ok(match self.advice {
            None => Contents::Intact,
            Some(Advice::LinuxDontNeed) => Contents::Gone,
            Some(_) => Contents::Unknown,
        })
    }

    fn bytes(&mut self) -> Result<&mut [u8]> {
        // SAFETY: `base_pages` maps writable memory.
        Ok(unsafe { self.mapping.bytes_mut() })
    }

    fn offer(&mut self) -> Result<()> {
        self.advice
            .map_or(Ok(()), |advice| self.mapping.advise(advice))
    }

    fn settle(&mut self) -> Result<()> {
        match self.advice {
            // Pages freed lazily may go at any time until they are written.
            Some(Advice::LinuxFree) => self.mapping.advise(Advice::LinuxPopulateWrite),
            _ => Ok(()),
        }
    }
}

/// A buffer of tenure's.
pub struct Tenure(VolatileBuffer);

impl Tenure {
    /// Makes a chunk that is not offered.
    pub fn new(len: usize) -> Result<Self> {
        let mapping = Mapping::anonymous(len).huge_pages(HugePages::Never);
        Ok(Self(VolatileBuffer::from_mapping(mapping.map()?)?))
    }

    /// Takes the contents of some of its pages, as the kernel would. The chunk has
    /// been offered, and the kernel knows.
    pub fn lose(&mut self, pages: impl Iterator<Item = usize>) -> Result<()> {
        let range = self.0.range();
        for page in pages {
            let start = range.start() + page * page_size();
            let lost = PageRange::new(start, page_size())?;
            if !range.contains(lost) {
                bail!("page {page} of {} to be lost", range.pages());
            }
            // SAFETY: the page is the buffer's, which is offered: nothing borrows
            // from it, and its contents may go.
            unsafe {
                rustix::mm::madvise(lost.as_ptr().cast(), lost.len(), Advice::LinuxDontNeed)
            }?;
        }
        Ok(())
    }
}

impl Chunk for Tenure {
    fn take_back(&mut self) -> Result<Contents> {
        Ok(match self.0.mark_nonvolatile()? {
            Outcome::Intact => Contents::Intact,
            Outcome::Purged(runs) => Contents::Purged(runs),
        })
    }

    fn bytes(&mut self) -> Result<&mut [u8]> {
        Ok(self.0.as_mut_slice()?)
    }

    fn offer(&mut self) -> Result<()> {
        self.0.mark_volatile();
        Ok(())
    }
}

/// Fails unless every page of a chunk that was filled with `old` holds what was
/// said of it.
pub fn check(bytes: &[u8], contents: &Contents, old: u8) -> Result<()> {
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
            Contents::Gone => is_zero,
        };
        if !is_right {
            let what = match (is_old, is_zero) {
                (true, _) => "its old contents",
                (_, true) => "zeros",
                _ => "neither its old contents nor zeros",
            };
            bail!("page {index} holds {what}, which is not what was said of it");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contents_must_match_what_was_said_of_them() {
        let page = page_size();
        let mut chunk = Plain::kept(3 * page).unwrap();
        let bytes = chunk.bytes().unwrap();
        let second = PageRange::new(bytes.as_ptr() as usize + page, page).unwrap();
        let purged = Contents::Purged(vec![second]);
        bytes.fill(7);
        check(bytes, &Contents::Intact, 7).unwrap();
        check(bytes, &Contents::Unknown, 7).unwrap();
        check(bytes, &Contents::Gone, 7).unwrap_err();
        check(bytes, &purged, 7).unwrap_err();
        bytes[page..2 * page].fill(0);
        check(bytes, &purged, 7).unwrap();
        check(bytes, &Contents::Unknown, 7).unwrap();
        check(bytes, &Contents::Intact, 7).unwrap_err();
        bytes[..page].fill(0);
        check(bytes, &purged, 7).unwrap_err();
        bytes[0] = 3;
        check(bytes, &Contents::Unknown, 7).unwrap_err();
    }
}
