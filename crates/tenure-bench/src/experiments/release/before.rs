//! Memory before it is given up, and what must be true afterwards.

use crate::measure::prelude::*;

/// How much more of the process may be in memory after all is freed: page
/// tables do not count, but heap and stacks of other threads do.
const TOLERANCE_BYTES: u64 = 32 << 20;

/// Blocks of memory as they were when all their pages were there.
pub struct Before {
    starts: Vec<usize>,
    block_len: usize,
    /// The process's memory before the blocks came.
    resident_bytes: u64,
}

impl Before {
    /// Maps blocks, brings all pages in, and writes the bytes that [`check_zero`]
    /// reads.
    pub fn fill(
        owner: Owner,
        blocks: usize,
        block_len: usize,
        pages: Pages,
    ) -> Result<(Vec<Memory>, Self)> {
        let resident_bytes = kernel::rollup_bytes("Rss:")?;
        let fill = |_| {
            let mut memory = Memory::anonymous(owner, block_len, pages)?;
            let bytes = memory.bytes_mut()?;
            touch::bring_in(bytes)?;
            let sampled = bytes.iter_mut().step_by(sample_step());
            sampled.for_each(|byte| *byte = 1);
            Ok(memory)
        };
        let blocks: Vec<Memory> = (0..blocks).map(fill).collect::<Result<_>>()?;
        let starts = blocks.iter().map(|memory| memory.bytes().as_ptr() as usize);
        let before = Self {
            starts: starts.collect(),
            block_len,
            resident_bytes,
        };
        Ok((blocks, before))
    }

    /// Fails when the process still has the memory.
    pub fn check_freed(&self) -> Result<()> {
        let resident_bytes = kernel::rollup_bytes("Rss:")?;
        ensure!(
            resident_bytes <= self.resident_bytes + TOLERANCE_BYTES,
            "{} in memory before, {} after all was freed",
            bytes_text(self.resident_bytes as f64),
            bytes_text(resident_bytes as f64)
        );
        Ok(())
    }

    /// Fails when something is mapped where the blocks were. Threads started since,
    /// such as the one that frees, may have their stacks there: a few hits are none
    /// of ours.
    pub fn check_unmapped(&self) -> Result<()> {
        let (mut sampled, mut mapped) = (0, 0);
        for &start in &self.starts {
            for page in (start..start + self.block_len).step_by(1 << 20) {
                sampled += 1;
                mapped += usize::from(kernel::is_mapped(page)?);
            }
        }
        ensure!(
            mapped <= sampled / 8,
            "{mapped} of {sampled} pages looked at are still mapped"
        );
        Ok(())
    }
}

/// Fails unless the bytes that were written read as zeros.
pub fn check_zero(memory: &Memory) -> Result<()> {
    let sampled = memory.bytes().iter().step_by(sample_step());
    let left = sampled.filter(|&&byte| byte != 0).count();
    ensure!(
        left == 0,
        "{left} of the bytes looked at still have their contents"
    );
    Ok(())
}

/// A byte in about each 1 MiB, each at another offset in its page.
fn sample_step() -> usize {
    (1 << 20) + page_size() + 1
}

#[cfg(test)]
#[path = "../../../tests/unit/release/before.rs"]
mod tests;
