//! New mappings that are populated before anybody sees them.

use super::{Access, PopulateOptions};
use crate::background::pool;
use crate::ground::error::Result;
use crate::ground::mapping::{HugePages, Mapping, MappingBuilder};

impl MappingBuilder<'_> {
    /// Creates the mapping and faults all of it in: [`map`](MappingBuilder::map), then
    /// [`populate`](Mapping::populate) for writing, or for reading where it is read-only.
    ///
    /// Where the page [pool] has enough blocks that lie side by side, private
    /// anonymous memory takes them as a whole with one `mremap(2)`, in microseconds.
    ///
    /// # Errors
    ///
    /// As for [`map`](MappingBuilder::map) and [`populate`](Mapping::populate). On an error,
    /// nothing stays mapped.
    ///
    /// ```
    /// use tenure::Mapping;
    ///
    /// let memory = Mapping::anonymous(1 << 20).map_populated()?;
    /// assert_eq!(memory.as_slice()[0], 0);
    /// # Ok::<(), tenure::Error>(())
    /// ```
    pub fn map_populated(self) -> Result<Mapping> {
        if let Some((len, huge_pages)) = self.as_private_anonymous() {
            let is_huge = huge_pages.map(|choice| choice == HugePages::Always);
            if let Some(range) = pool::map_mapping(len, is_huge) {
                // SAFETY: the memory is new, as long as the builder says, and no other code
                // knows it.
                return unsafe { self.adopt(range) };
            }
        }
        let mapping = self.map()?;
        let access = match mapping.is_writable() {
            true => Access::Write,
            false => Access::Read,
        };
        mapping.populate_with(.., &PopulateOptions::new(access))?;
        Ok(mapping)
    }
}
