//! How blocks are taken and freed.

use anyhow::Result;
use rustix::mm::{Advice, MapFlags};
use tenure::{FreePolicy, HugePages, Mapping, PageRange};

use super::{super::raw::RawMapping, work::CHUNK_BYTES};

/// A thread's blocks, of which one is in use at a time.
pub trait Blocks: Sized + Send {
    /// Makes as many.
    fn new(count: usize) -> Result<Self>;
    /// Lends a block, whose contents do not matter.
    fn take(&mut self, block: usize) -> Result<&mut [u8]>;
    /// Frees the block that was taken.
    fn free(&mut self, block: usize) -> Result<()>;
}

/// A new mapping for each block that is taken.
pub struct MapEachTime(Option<RawMapping>);

impl Blocks for MapEachTime {
    fn new(_: usize) -> Result<Self> {
        Ok(Self(None))
    }

    fn take(&mut self, _: usize) -> Result<&mut [u8]> {
        let mut mapping = RawMapping::anonymous(CHUNK_BYTES, MapFlags::PRIVATE)?;
        mapping.advise(Advice::LinuxNoHugepage)?;
        // SAFETY: `anonymous` maps writable memory.
        Ok(unsafe { self.0.insert(mapping).bytes_mut() })
    }

    fn free(&mut self, _: usize) -> Result<()> {
        self.0.take().map_or(Ok(()), RawMapping::unmap)
    }
}

/// One mapping with all blocks, and advice when one is freed.
struct Advised(RawMapping);

impl Advised {
    fn new(count: usize) -> Result<Self> {
        RawMapping::base_pages(count * CHUNK_BYTES).map(Self)
    }

    fn take(&mut self, block: usize) -> &mut [u8] {
        // SAFETY: `base_pages` maps writable memory.
        let all = unsafe { self.0.bytes_mut() };
        &mut all[block * CHUNK_BYTES..][..CHUNK_BYTES]
    }

    fn free(&mut self, block: usize, advice: Advice) -> Result<()> {
        let start = block * CHUNK_BYTES;
        self.0.advise_part(start..start + CHUNK_BYTES, advice)
    }
}

/// Blocks freed with MADV_DONTNEED.
pub struct DontNeed(Advised);

impl Blocks for DontNeed {
    fn new(count: usize) -> Result<Self> {
        Advised::new(count).map(Self)
    }

    fn take(&mut self, block: usize) -> Result<&mut [u8]> {
        Ok(self.0.take(block))
    }

    fn free(&mut self, block: usize) -> Result<()> {
        self.0.free(block, Advice::LinuxDontNeed)
    }
}

/// Blocks freed with MADV_FREE.
pub struct Free(Advised);

impl Blocks for Free {
    fn new(count: usize) -> Result<Self> {
        Advised::new(count).map(Self)
    }

    fn take(&mut self, block: usize) -> Result<&mut [u8]> {
        Ok(self.0.take(block))
    }

    fn free(&mut self, block: usize) -> Result<()> {
        self.0.free(block, Advice::LinuxFree)
    }
}

/// Blocks freed by tenure.
pub struct Tenure(Mapping);

impl Blocks for Tenure {
    fn new(count: usize) -> Result<Self> {
        let mapping = Mapping::anonymous(count * CHUNK_BYTES).huge_pages(HugePages::Never);
        Ok(Self(mapping.map()?))
    }

    fn take(&mut self, block: usize) -> Result<&mut [u8]> {
        let all = self.0.as_mut_slice()?;
        Ok(&mut all[block * CHUNK_BYTES..][..CHUNK_BYTES])
    }

    fn free(&mut self, block: usize) -> Result<()> {
        let start = self.0.range().start() + block * CHUNK_BYTES;
        let block = PageRange::new(start, CHUNK_BYTES)?;
        // SAFETY: the mapping is borrowed mutably, so nobody holds a reference
        // to its bytes, and the next user of the block writes all of it before
        // reading any.
        Ok(unsafe { block.free(FreePolicy::Adaptive) }?)
    }
}
