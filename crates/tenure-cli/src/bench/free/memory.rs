//! The memory that is given up, and what must be true of it afterwards.

use anyhow::{Result, bail};
use rustix::mm::{Advice, MapFlags};
use tenure::{HugePages, Mapping, page_size};

use super::super::{kernel, raw::RawMapping, touch};
use crate::text::bytes_text;

/// How much more of the process may be in memory after all is freed: page
/// tables do not count, but heap and stacks of other threads do.
const TOLERANCE_BYTES: u64 = 32 << 20;

/// The pages that the memory consists of.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Pages {
    /// The smallest.
    Base,
    /// Transparent huge pages.
    Huge,
}

/// Memory as one of the ways owns it.
pub trait Memory: Sized {
    /// Maps private anonymous memory for reading and writing.
    fn map(len: usize, pages: Pages) -> Result<Self>;
    /// Returns the bytes.
    fn bytes(&self) -> &[u8];
    /// Returns the bytes for writing.
    fn bytes_mut(&mut self) -> Result<&mut [u8]>;
}

impl Memory for RawMapping {
    fn map(len: usize, pages: Pages) -> Result<Self> {
        let mut mapping = Self::anonymous(len, MapFlags::PRIVATE)?;
        mapping.advise(match pages {
            Pages::Base => Advice::LinuxNoHugepage,
            Pages::Huge => Advice::LinuxHugepage,
        })?;
        Ok(mapping)
    }

    fn bytes(&self) -> &[u8] {
        self.bytes()
    }

    fn bytes_mut(&mut self) -> Result<&mut [u8]> {
        // SAFETY: `map` maps it writable.
        Ok(unsafe { self.bytes_mut() })
    }
}

impl Memory for Mapping {
    fn map(len: usize, pages: Pages) -> Result<Self> {
        let huge_pages = match pages {
            Pages::Base => HugePages::Never,
            Pages::Huge => HugePages::Always,
        };
        Ok(Self::anonymous(len).huge_pages(huge_pages).map()?)
    }

    fn bytes(&self) -> &[u8] {
        self.as_slice()
    }

    fn bytes_mut(&mut self) -> Result<&mut [u8]> {
        Ok(self.as_mut_slice()?)
    }
}

/// Blocks with all their pages, and what was in memory before they came.
pub struct Full<M> {
    pub blocks: Vec<M>,
    pub before: Before,
}

/// What is looked at when all has been given up.
pub struct Before {
    starts: Vec<usize>,
    block_len: usize,
    resident_bytes: u64,
}

impl<M: Memory> Full<M> {
    /// Maps blocks, brings all pages in, and writes the bytes that are looked at
    /// later.
    pub fn make(blocks: usize, block_len: usize, pages: Pages) -> Result<Self> {
        let resident_bytes = kernel::resident_bytes()?;
        let mut made = Vec::with_capacity(blocks);
        for _ in 0..blocks {
            let mut memory = M::map(block_len, pages)?;
            let bytes = memory.bytes_mut()?;
            touch::bring_in(bytes)?;
            let looked_at = bytes.iter_mut().step_by(sample_step());
            looked_at.for_each(|byte| *byte = 1);
            made.push(memory);
        }
        let starts = made.iter().map(|memory| memory.bytes().as_ptr() as usize);
        Ok(Self {
            before: Before {
                starts: starts.collect(),
                block_len,
                resident_bytes,
            },
            blocks: made,
        })
    }
}

impl Before {
    /// Checks that the process has the memory no more.
    pub fn check_given_back(&self) -> Result<()> {
        let resident_bytes = kernel::resident_bytes()?;
        if resident_bytes > self.resident_bytes + TOLERANCE_BYTES {
            bail!(
                "{} in memory before, {} after all was freed",
                bytes_text(self.resident_bytes as f64),
                bytes_text(resident_bytes as f64)
            );
        }
        Ok(())
    }

    /// Checks that nothing is mapped where the blocks were. Threads started since,
    /// such as the one that frees, may have their stacks there: a few hits are
    /// none of ours.
    pub fn check_unmapped(&self) -> Result<()> {
        let (mut looked_at, mut mapped) = (0, 0);
        for &start in &self.starts {
            for page in (start..start + self.block_len).step_by(1 << 20) {
                looked_at += 1;
                mapped += usize::from(kernel::is_mapped(page)?);
            }
        }
        if mapped > looked_at / 8 {
            bail!("{mapped} of {looked_at} pages looked at are still mapped");
        }
        Ok(())
    }
}

/// Checks that the bytes that were written read as zeros.
pub fn check_zero(memory: &impl Memory) -> Result<()> {
    let sampled = memory.bytes().iter().step_by(sample_step());
    match sampled.filter(|&&byte| byte != 0).count() {
        0 => Ok(()),
        left => bail!("{left} of the bytes looked at still have their contents"),
    }
}

/// A byte in about each 1 MiB, each at another offset in its page.
fn sample_step() -> usize {
    (1 << 20) + page_size() + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_still_there_fails_the_checks() {
        let Full { mut blocks, before } =
            Full::<RawMapping>::make(2, 32 << 20, Pages::Base).unwrap();
        before.check_unmapped().unwrap_err();
        check_zero(&blocks[1]).unwrap_err();
        blocks[1].advise(Advice::LinuxDontNeed).unwrap();
        check_zero(&blocks[1]).unwrap();
    }

    #[test]
    fn memory_that_is_not_given_back_fails_the_check() {
        let before = Before {
            starts: Vec::new(),
            block_len: 0,
            resident_bytes: 0,
        };
        let _kept = Full::<RawMapping>::make(1, 64 << 20, Pages::Base).unwrap();
        before.check_given_back().unwrap_err();
    }
}
