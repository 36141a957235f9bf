//! Memory that goes to the page pool, and comes back from it.

use tenure::populate::PopulateOptions;
use tenure::{Access, Error, HugePages, Mapping, page_size};

use super::Tools;
use crate::model::{Checked, Page, Seen, fill};

/// The blocks of the pool.
const BLOCK_BYTES: usize = 2 << 20;

impl Tools<'_> {
    /// Recycles a table of so many blocks, and populates another, a few times. No table may
    /// begin with a byte of another.
    pub fn replace_tables(&mut self, blocks: usize, huge_pages: HugePages) -> Checked {
        const TABLES: usize = 3;
        for _ in 0..TABLES {
            let len = blocks * BLOCK_BYTES;
            let table = Mapping::anonymous(len).huge_pages(huge_pages);
            let table = match self.patterns.bool() {
                true => table.map_populated(),
                false => table.map().and_then(|table| {
                    table.populate_with(.., &PopulateOptions::new(Access::Write))?;
                    Ok(table)
                }),
            };
            let Some(mut table) = self.expect(table, &["no_memory"])? else {
                return Ok(());
            };
            let pattern = self.patterns.u64(1..);
            if let Some(bytes) = self.expect(table.as_mut_slice(), &[])? {
                for page in bytes.chunks_mut(page_size()) {
                    Page::new(0).observe(Seen::Bytes(page))?;
                    fill(page, pattern);
                }
            }
            let recycled = table.recycle().map_err(Error::from);
            self.expect_release(recycled, &[])?;
        }
        Ok(())
    }
}
