//! Chunks of memory that are offered to the kernel, each in its own way.

use anyhow::Result;
use rustix::mm::Advice;
use tenure::{HugePages, Mapping, Outcome, VolatileBuffer};

use super::super::raw::RawMapping;

/// The size of a chunk, as in the reference.
pub const CHUNK_BYTES: usize = 8 << 20;

/// What is known of a chunk's contents when it is taken back.
pub enum Contents {
    /// Every byte is as it was.
    Intact,
    /// So many runs of pages read as zeros now; the rest is as it was.
    Purged(usize),
    /// Each page is as it was or reads as zeros, and nobody says which.
    Unknown,
    /// All of it reads as zeros.
    Gone,
}

/// A chunk of memory that is offered to the kernel between two uses.
pub trait Chunk {
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
    fn new(advice: Option<Advice>) -> Result<Self> {
        let mapping = RawMapping::base_pages(CHUNK_BYTES)?;
        Ok(Self { mapping, advice })
    }

    /// Makes a chunk that is never really offered.
    pub fn kept() -> Result<Self> {
        Self::new(None)
    }

    /// Makes a chunk whose pages are given up when it is offered.
    pub fn dont_need() -> Result<Self> {
        Self::new(Some(Advice::LinuxDontNeed))
    }

    /// Makes a chunk whose pages may be taken while it is offered.
    pub fn free() -> Result<Self> {
        Self::new(Some(Advice::LinuxFree))
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
        // Pages freed lazily may go at any time until they are written.
        self.mapping.advise(Advice::LinuxPopulateWrite)
    }
}

/// A buffer of tenure's.
pub struct Tenure(VolatileBuffer);

impl Tenure {
    /// Makes a chunk that is not offered.
    pub fn new() -> Result<Self> {
        let mapping = Mapping::anonymous(CHUNK_BYTES).huge_pages(HugePages::Never);
        Ok(Self(VolatileBuffer::from_mapping(mapping.map()?)?))
    }
}

impl Chunk for Tenure {
    fn take_back(&mut self) -> Result<Contents> {
        Ok(match self.0.mark_nonvolatile()? {
            Outcome::Intact => Contents::Intact,
            Outcome::Purged(runs) => Contents::Purged(runs.len()),
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
