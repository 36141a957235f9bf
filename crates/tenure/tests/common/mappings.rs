//! A process that has taken all mappings that `vm.max_map_count` allows it.

use rustix::mm::{MapFlags, MprotectFlags, ProtFlags};
use tenure::{PageRange, page_size};

use super::{pages, raw_protect, raw_unmap};

/// The most mappings that a test takes: some seconds.
const MAX_TAKEN: usize = 1 << 20;

/// Returns how many mappings a process may have.
pub fn mapping_limit() -> usize {
    let text = std::fs::read_to_string("/proc/sys/vm/max_map_count").unwrap();
    text.trim().parse().unwrap()
}

/// Returns the reason why a test cannot take all mappings here.
pub fn too_many_mappings() -> Option<&'static str> {
    (mapping_limit() > MAX_TAKEN).then_some("vm.max_map_count is too high to be reached")
}

/// Maps address space without memory behind it: inaccessible, and reserved for nobody.
pub fn inaccessible(page_count: usize) -> PageRange {
    let len = page_count * page_size();
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    let at =
        unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), len, ProtFlags::empty(), flags) };
    PageRange::new(at.unwrap().addr(), len).unwrap()
}

/// All mappings that the process could have, until they are dropped.
pub struct AllMappings(PageRange);

impl AllMappings {
    /// Takes mappings until the kernel refuses to split one, and then gives `left` of them
    /// back. Other threads must be idle.
    pub fn but_for(left: usize) -> Self {
        let every_second = |of: PageRange| {
            (1..of.pages())
                .step_by(2)
                .map(move |page| pages(of, page, 1))
        };
        let spare = inaccessible(2 * left + 1);
        every_second(spare).for_each(|page| raw_protect(page, MprotectFlags::READ));
        let filler = inaccessible(mapping_limit() + 2);
        let refused = every_second(filler).any(|page| {
            let read = MprotectFlags::READ;
            let changed = unsafe { rustix::mm::mprotect(page.as_ptr().cast(), page.len(), read) };
            changed == Err(rustix::io::Errno::NOMEM)
        });
        assert!(refused, "more mappings than vm.max_map_count");
        every_second(spare).for_each(raw_unmap);
        Self(filler)
    }
}

impl Drop for AllMappings {
    fn drop(&mut self) {
        raw_unmap(self.0);
    }
}
